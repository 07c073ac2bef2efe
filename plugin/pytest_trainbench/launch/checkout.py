"""The other side of ``--against``: another interpreter, or another commit of the repository in its own worktree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trainbench.project.git import environ, git

OLDEST_PYTHON = (3, 10)

PROBE_S = 60.0
"""Maximum time of :data:`PROBE`. Starting an interpreter from a cold disk is slow."""

PROBE = """
import importlib.util, json, sys
has_torch = importlib.util.find_spec("torch") is not None
print(json.dumps({"version": sys.version_info[:2], "torch": has_torch, "path": [each for each in sys.path if each]}))
"""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A commit (40 hex digits) of ``repository``, checked out into the folder ``at``."""

    repository: Path
    commit: str
    at: Path

    def to_json(self) -> dict[str, str]:
        return {"repository": str(self.repository), "commit": self.commit, "at": str(self.at)}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> Checkout:
        return cls(repository=Path(data["repository"]), commit=data["commit"], at=Path(data["at"]))

    def add(self) -> None:
        """Check the commit out. Raises ``ValueError`` if git fails."""
        git(self.repository, "worktree", "add", "--detach", str(self.at), self.commit)

    def remove(self) -> None:
        """Remove the checkout, even if only a part of it or nothing exists."""
        shutil.rmtree(self.at, ignore_errors=True)
        subprocess.run(
            ["git", "-C", str(self.repository), "worktree", "remove", "--force", str(self.at)],
            env=environ(), capture_output=True, check=False,
        )  # fmt: skip

    def stands_for(self, path: Path) -> Path | None:
        """The path in the checkout for a path in the working tree.

        ``None`` for a path outside the repository, or inside a virtual environment in one of its folders.
        """
        real = path.resolve()
        inside = real.is_relative_to(self.repository.resolve()) and not real.is_relative_to(Path(sys.prefix).resolve())
        return self.at / real.relative_to(self.repository.resolve()) if inside else None


@dataclass(frozen=True, kw_only=True)
class Other:
    """The side that this side is compared with.

    ``name``: as reports show it. ``python``: its interpreter. ``commit`` and ``repository`` are only set for another
    commit.
    """

    name: str
    python: str
    commit: str = ""
    repository: Path | None = None

    def checkout(self, at: Path) -> Checkout | None:
        """A checkout of the commit at ``at``; ``None`` if the other side is an interpreter."""
        if self.repository is None:
            return None
        return Checkout(repository=self.repository, commit=self.commit, at=at)


def find(value: str, root: Path) -> Other:
    """The side that ``value`` names.

    A path of an executable file, or ``python…`` on PATH, is an interpreter. All else is a commit of the repository of
    ``root``. Raises ``ValueError`` if ``value`` is neither, or is an interpreter that cannot train.
    """
    if python := _executable(value):
        _check(python)
        return Other(name=value, python=python)
    try:
        repository = Path(git(root, "rev-parse", "--show-toplevel"))
    except ValueError as error:
        where = f"{root} is in no git repository that can be read, so it is not a commit either ({error})"
        raise ValueError(f"it is not a Python interpreter (no executable file has this path), and {where}") from None
    try:
        commit = git(repository, "rev-parse", "--verify", "--quiet", f"{value}^{{commit}}")
    except ValueError:
        raise ValueError(
            "it is not a Python interpreter (no executable file has this path), and not a commit, branch or tag of"
            f" {repository} (in a shallow clone, git fetch gets more commits)"
        ) from None
    return Other(name=f"{value} ({commit[:12]})", python=sys.executable, commit=commit, repository=repository)


def import_path(path: Sequence[str], checkout: Checkout | None) -> tuple[str, ...]:
    """The entries of this process's import ``path`` that the other side gets.

    These are the entries that the session and ``PYTHONPATH`` added. The other interpreter finds its own entries itself.
    With a ``checkout``, folders of the working tree become those of the checkout. This includes entries of this
    interpreter's own path (an editable install of the project), because the checkout must replace them.
    """
    own = set(_own_path(sys.executable))
    found = []
    for entry in path:
        moved = checkout.stands_for(Path(entry)) if checkout else None
        if moved is not None or entry not in own:
            found.append(str(moved or entry))
    return tuple(found)


def _executable(value: str) -> str | None:
    """The interpreter that ``value`` names, if any. Links stay: the interpreter of a virtual environment is a link."""
    if os.sep in value:
        path = Path(value).expanduser().absolute()
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(value) if re.fullmatch(r"python[\d.]*", value) else None


def _check(python: str) -> None:
    try:
        facts = _probe(python)
        version, has_torch = tuple(facts["version"]), facts["torch"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        raise ValueError("it is an executable file, but it did not run as a Python interpreter") from None
    if version < OLDEST_PYTHON:
        raise ValueError(f"it is Python {'.'.join(map(str, version))}, but pytest-trainbench needs 3.10 or newer")
    if not has_torch:
        raise ValueError(f"it has no torch: type {python} -m pip install torch nvidia-ml-py")


def _own_path(python: str) -> list[str]:
    """The import path of an interpreter without the entries of ``PYTHONPATH``."""
    added = {str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return [entry for entry in _probe(python)["path"] if entry not in added]


def _probe(python: str) -> dict[str, Any]:
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # a sitecustomize may print before
    return facts
