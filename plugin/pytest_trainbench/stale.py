"""Which stored rows does a change make stale?

    python -m pytest_trainbench.stale --since REV bench_tests

names these rows, and the command that measures them anew. It needs git and no GPU.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_trainbench.project.git import environ
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.store import baseline
from pytest_trainbench.store.other_code import changed, cut, unsaid

MAIN = ("origin/main", "main")
"""Branches that a change is held against, the first that git knows."""


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
        told.append(f"{unsaid(silent, 'stored baseline')}, so this change may make more rows stale")
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
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, env=environ(), capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


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
