"""Find stored baselines that were made by other code than the code of the working tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_trainbench.project.sources import Tree, differing
from pytest_trainbench.schema.record import Record

SHOWN = 20
"""Maximum number of rows that a list names. The other rows are only counted."""


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Stale baselines.

    ``other``: the files that differ, for each baseline that other code made, by case id.
    ``silent``: case ids of the baselines that do not say which code made them.
    ``labels``: the labels of both groups, by case id.
    """

    other: dict[str, list[str]]
    silent: frozenset[str]
    labels: dict[str, str]

    def __contains__(self, case_id: str) -> bool:
        return case_id in self.labels

    def __str__(self) -> str:
        """One sentence; empty if the current code made all baselines."""
        others, silent = len(self.other), len(self.silent)
        told = [f"{others} baseline{' was' if others == 1 else 's were'} made by other code"] if others else []
        told += [unsaid(silent)] if silent else []
        return f"{', and '.join(told)} (--stale runs these rows)" if told else ""

    def lines(self) -> list[str]:
        """The stale rows by label. Rows made by other code come first, with their changed files."""
        rows = sorted((self.labels[case_id], ", ".join(files)) for case_id, files in self.other.items())
        rows += sorted((self.labels[case_id], "not known") for case_id in self.silent)
        return cut([f"{label}: {files}" for label, files in rows])


def look(records: Iterable[Record], tree: Tree) -> Stale:
    """Compare the code of ``records`` with the files of ``tree``."""
    other, silent, labels = {}, set(), {}
    for record in records:
        if not record.code:
            silent.add(record.case.id)
        elif files := changed(record, tree):
            other[record.case.id] = files
        else:
            continue
        labels[record.case.id] = record.label
    return Stale(other=other, silent=frozenset(silent), labels=labels)


def changed(record: Record, tree: Tree) -> list[str]:
    """The files of a record's step that differ in ``tree``, or are missing there."""
    return differing(record.code, tree.digests(record.code, record.case.params))


def cut(rows: Sequence[str]) -> list[str]:
    """At most :data:`SHOWN` rows, and the number of the others."""
    more = len(rows) - SHOWN
    return [*rows[:SHOWN], f"and {more} more"] if more > 0 else list(rows)


def unsaid(count: int, what: str = "baseline") -> str:
    """The words for ``count`` baselines without digests of their code."""
    if count == 1:
        return f"1 {what} does not say which code made it"
    return f"{count} {what}s do not say which code made them"
