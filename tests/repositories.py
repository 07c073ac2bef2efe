"""A git repository for tests: two commits of one file."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def two_commits(folder: Path) -> Path:
    """Make ``folder`` a repository without a remote: commits ``main~1`` and ``main``, and a folder ``part``."""
    (folder / "part").mkdir(parents=True)
    git(folder, "init")
    for text in ("old", "new"):
        (folder / "part" / "mine.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-m", text)
    return folder
