"""The project's name: the same in all clones on every machine, and different from all other projects."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pytest_trainbench.project.git import git

READABLE, DIGITS = 40, 8
"""How many characters of the name are readable, and how many hexadecimal digits of SHA-256 make it unique."""


def project_name(root: Path, given: str = "") -> str:
    """A folder name for the project at ``root``: ``<last word>-<eight hex digits>``, from the first of these:

    1. ``given``, the name that the user chose.
    2. The URL of the git remote (``origin``, else the first by name), and the place of ``root`` in the repository. All
       clones share the URL. The first commit would not do, because shallow clones lack it.
    3. The folder of the git repository, which all worktrees share, and the place of ``root`` in it.
    4. Outside of git, the path of ``root``.
    """
    identity = given or _repository(root) or str(root.resolve())
    word = re.sub(r"[^\w.-]+", "-", Path(identity).name, flags=re.ASCII)[:READABLE]
    digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]
    return f"{word.lstrip('.-') or 'project'}-{digest}"


def repository_of(url: str, folder: Path) -> str:
    """The same text for all spellings of a remote's URL: ``host/path`` without protocol, user, password, port and
    ``.git``. A repository on this machine gives its absolute path; ``url`` may then be relative to ``folder``."""
    found = re.fullmatch(r"(?!file:)[a-z][a-z0-9+.-]*://(?P<host>[^/]*)/(?P<path>.*)", url, flags=re.IGNORECASE)
    found = found or re.fullmatch(r"(?!file:)(?P<host>[^/:]+):(?P<path>.*)", url)  # ssh's short form: git@host:path
    if found is None:
        return str((folder / re.sub("^file://", "", url)).resolve()).removesuffix(".git")
    host = re.sub(r":\d*$", "", found["host"].rpartition("@")[2])
    return f"{host.lower()}/{found['path'].strip('/').removesuffix('.git')}"


def _repository(root: Path) -> str:
    """The repository and the place of ``root`` in it; empty if ``root`` is in no repository."""
    try:
        tree = Path(git(root, "rev-parse", "--show-toplevel"))
        inside = root.resolve().relative_to(tree.resolve())
        if remotes := git(root, "remote").splitlines():
            url = git(root, "remote", "get-url", "origin" if "origin" in remotes else min(remotes))
            return str(Path(repository_of(url, tree)) / inside)
        kept = (root / git(root, "rev-parse", "--git-common-dir")).resolve()
    except ValueError:
        return ""
    return str((kept.parent if kept.name == ".git" else kept) / inside)
