"""List the stored rows that a change makes stale.

    python -m pytest_trainbench.stale --since REV bench_tests

prints these rows, and the command that measures them again. It needs git, but no GPU.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_trainbench.project.git import environ, git
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.store import baseline
from pytest_trainbench.store.other_code import changed, cut, unsaid

MAIN = ("origin/main", "main")
"""Branches that a change is compared with. The first one that git knows is used."""


def since(revision: str, root: Path, baselines: Path, tests: Sequence[str]) -> list[str]:
    """Lines on the baselines that were made by the code of ``revision`` and are stale under ``root``.

    There is one line for each kind of hardware with such rows. A last line counts the baselines that do not say which
    code made them.
    """
    then, now = Tree(lambda path: _file(root, revision, path)), Tree.of(root)
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
                f" ({which}): {', '.join(cut(rows))}; measure them again: {command}"
            )
    told = told or ["this change makes no stored row stale"]
    if silent:
        told.append(f"{unsaid(silent, 'stored baseline')}, so this change may make more rows stale")
    return told


def left_main(root: Path) -> str:
    """The commit where the branch left main; on main the previous one. Raises ``ValueError`` if git knows neither."""
    head = _commit(root, "rev-parse", "HEAD")
    bases = (_commit(root, "merge-base", "HEAD", name) for name in MAIN)
    base = next((base for base in bases if base and base != head), None)
    base = base or _commit(root, "rev-parse", "--verify", "HEAD^")
    if base is None:
        raise ValueError("git knows neither where this branch left main nor a previous commit: name one (--since REV)")
    return base


def _commit(root: Path, *arguments: str) -> str | None:
    """The commit that git prints; ``None`` if git fails or is missing."""
    try:
        return git(root, *arguments)
    except (OSError, ValueError):
        return None


def _file(root: Path, revision: str, path: str) -> bytes | None:
    """The file in ``revision``; ``None`` if git fails or is missing.

    This is not ``project.git.git``, which decodes and strips the output. Digests need the exact bytes.
    """
    try:
        command = ["git", "-C", str(root), "show", f"{revision}:./{path}"]
        return subprocess.run(command, env=environ(), capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines of :func:`since`. A problem is only printed, so that this command never fails a build."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainbench.stale", description="List the stored rows that a change makes stale."
    )
    parser.add_argument("tests", nargs="*", help="tests for the printed command, which measures the stale rows again")
    parser.add_argument("--since", metavar="REV", help="compare with this commit (default: where the branch left main)")
    parser.add_argument("--baseline-dir", type=Path, default=Path("baselines"), metavar="DIR")
    given = parser.parse_args(arguments)
    root = Path.cwd()
    try:
        revision = given.since or left_main(root)
        if _commit(root, "rev-parse", "--verify", f"{revision}^{{commit}}") is None:
            raise ValueError(f"{revision} is not a commit of a repository here: git fetch gets more of a shallow clone")
        told = since(revision, root, given.baseline_dir, given.tests)
    except ValueError as error:
        told = [f"cannot tell which stored rows this change makes stale: {error}"]
    print("\n".join(told))


if __name__ == "__main__":
    main()
