"""Which stored baselines are of other code than the working tree's?

    python -m pytest_trainbench.stale --since REV bench_tests

tells which rows a change makes stale, and what to type to measure them anew. It needs git and no GPU.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trainbench import baseline
from pytest_trainbench.project.sources import Tree, differing
from pytest_trainbench.schema.record import Record

SHOWN = 20
"""Rows that are named; of all others there is a number."""

MAIN = ("origin/main", "main")


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
        told = [f"{others} {_baselines(others)} {'is' if others == 1 else 'are'} of other code"] if others else []
        told += [f"{silent} {_baselines(silent)} {_silent(silent)}"] if silent else []
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


def since(revision: str, root: Path, baselines: Path, tests: Sequence[str]) -> list[str]:
    """What the files under ``root`` make of the baselines that were of the code of ``revision``: a line for each kind
    of hardware with such rows, then one on baselines that do not say which code made them."""
    then, now = Tree(lambda path: _git(root, "show", f"{revision}:./{path}")), Tree.of(root)
    told, silent = [], 0
    for folder in sorted(path for path in baselines.glob("*") if path.is_dir()):
        records = baseline.load_all(baselines, folder.name)
        silent += sum(not record.code for record in records)
        files = {record.label: changed(record, now) for record in records if record.code and not changed(record, then)}
        if rows := sorted(label for label, differ in files.items() if differ):
            which = ", ".join(cut(sorted({path for label in rows for path in files[label]})))
            command = shlex.join(["pytest", *tests, "--hw", folder.name, "--stale", "--save-baseline"])
            told.append(
                f"this change makes {len(rows)} stored row{'s' * (len(rows) > 1)} of {folder.name} stale"
                f" ({which}): {', '.join(cut(rows))}; measure them anew: {command}"
            )
    told = told or ["this change makes no stored row stale"]
    if silent:
        told.append(f"{silent} stored {_baselines(silent)} {_silent(silent)}, so this change may make more rows stale")
    return told


def left_main(root: Path) -> str:
    """The commit where the branch left main; on main the one before. Raises ``ValueError`` where git knows neither."""
    head = _git(root, "rev-parse", "HEAD")
    bases = (_git(root, "merge-base", "HEAD", name) for name in MAIN)
    base = next((base for base in bases if base and base != head), None) or _git(root, "rev-parse", "--verify", "HEAD^")
    if base is None:
        raise ValueError("git knows neither where this branch left main nor the commit before: --since REV names one")
    return base.decode().strip()


def _git(root: Path, *arguments: str) -> bytes | None:
    """What git prints; ``None`` where it fails or is not there."""
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _baselines(count: int) -> str:
    return "baseline" if count == 1 else "baselines"


def _silent(count: int) -> str:
    return "does not say which code made it" if count == 1 else "do not say which code made them"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what :func:`since` tells. A problem is printed too: this never fails a build."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainbench.stale", description="Which stored rows does a change make stale?"
    )
    parser.add_argument("tests", nargs="*", help="what pytest is to run, for the command that measures them anew")
    parser.add_argument("--since", metavar="REV", help="compare with this commit (default: where the branch left main)")
    parser.add_argument("--baseline-dir", type=Path, default=Path("baselines"), metavar="DIR")
    given = parser.parse_args(arguments)
    root = Path.cwd()
    try:
        revision = given.since or left_main(root)
        if _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}") is None:
            raise ValueError(f"{revision} is no commit of a repository here: git fetch gets more of a shallow clone")
        told = since(revision, root, given.baseline_dir, given.tests)
    except ValueError as error:
        told = [f"which stored rows this change makes stale is not known: {error}"]
    print("\n".join(told))


if __name__ == "__main__":
    main()
