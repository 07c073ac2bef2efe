"""Which stored baselines are of other code than the working tree's?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_trainbench.project.sources import Tree, differing
from pytest_trainbench.schema.record import Record

SHOWN = 20
"""Rows that are named; of all others there is a number."""


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Baselines, by case id, that may not be of the code which is here. ``other``: those of other code, with the files
    that differ. ``silent``: those that do not say which code made them. ``labels``: of both, by case id."""

    other: dict[str, list[str]]
    silent: frozenset[str]
    labels: dict[str, str]

    def __contains__(self, case_id: str) -> bool:
        return case_id in self.labels

    def __str__(self) -> str:
        """One sentence; empty where every baseline is of the code that is here."""
        others, silent = len(self.other), len(self.silent)
        told = [f"{others} baseline{' is' if others == 1 else 's are'} of other code"] if others else []
        told += [unsaid(silent)] if silent else []
        return f"{', and '.join(told)} (--stale runs these rows)" if told else ""

    def lines(self) -> list[str]:
        """The rows by name, those of other code first, with their files."""
        rows = sorted((self.labels[case_id], ", ".join(files)) for case_id, files in self.other.items())
        rows += sorted((self.labels[case_id], "not known") for case_id in self.silent)
        return cut([f"{label}: {files}" for label, files in rows])


def look(records: Iterable[Record], tree: Tree) -> Stale:
    """Hold ``records`` against the files of ``tree``."""
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
    """The files of a record's step that are not in ``tree`` as they were."""
    return differing(record.code, tree.digests(record.code, record.case.params))


def cut(rows: Sequence[str]) -> list[str]:
    more = len(rows) - SHOWN
    return [*rows[:SHOWN], f"and {more} more"] if more > 0 else list(rows)


def unsaid(count: int, what: str = "baseline") -> str:
    """That so many baselines have no digests, in words."""
    if count == 1:
        return f"1 {what} does not say which code made it"
    return f"{count} {what}s do not say which code made them"
