"""Run git in a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

OF_ONE_REPOSITORY = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
}
"""Environment variables that point git at a repository or a part of it. Git sets them for its hooks."""


def git(folder: Path, *arguments: str) -> str:
    """Return git's output. Raises ``ValueError`` with git's ``fatal:`` line if git fails, or if it is not installed."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise ValueError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [""]
        fatal = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        raise ValueError(f"git {arguments[0]} failed: {fatal}") from None
    return done.stdout.strip()


def environ() -> dict[str, str]:
    """The process's environment without :data:`OF_ONE_REPOSITORY`, so that git uses the folder's own repository."""
    return {name: value for name, value in os.environ.items() if name not in OF_ONE_REPOSITORY}
