"""Which project is this? A name that its clones share on every machine, and that no other project has."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pytest_trainbench.project.git import git

READABLE, DIGITS = 40, 8
"""Characters of a name that are for people, and hexadecimal digits of SHA-256 that tell projects apart."""


def project_name(root: Path, given: str = "") -> str:
    """The project at ``root`` as the name of a folder: ``<its last word>-<eight hex digits>``.

    ``given``, where the user names the project, is all that counts. Otherwise a project is a repository and the place
    of ``root`` in it. The URL of its git remote (``origin``, else the first one) stands for the repository: all
    clones have it, a shallow one too, which has not the first commit. Without a remote the folder where git keeps the
    repository stands for it, which its worktrees share. Outside of git the path of ``root`` is the project.
    """
    identity = given or _repository(root) or str(root.resolve())
    word = re.sub(r"[^\w.-]+", "-", Path(identity).name, flags=re.ASCII)[:READABLE]
    digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]
    return f"{word.lstrip('.-') or 'project'}-{digest}"


def repository_of(url: str, folder: Path) -> str:
    """What a remote's URL names, however it is written: ``host/path`` without protocol, user, password, port and
    ``.git``, or the path of a repository on this machine, which may be relative to ``folder``."""
    found = re.fullmatch(r"(?!file:)[a-z][a-z0-9+.-]*://(?P<host>[^/]*)/(?P<path>.*)", url, flags=re.IGNORECASE)
    found = found or re.fullmatch(r"(?!file:)(?P<host>[^/:]+):(?P<path>.*)", url)  # as of ssh: git@host:path
    if found is None:
        return str((folder / re.sub("^file://", "", url)).resolve()).removesuffix(".git")
    host = re.sub(r":\d*$", "", found["host"].rpartition("@")[2])
    return f"{host.lower()}/{found['path'].strip('/').removesuffix('.git')}"


def _repository(root: Path) -> str:
    """The repository that ``root`` is in, and where; empty where git knows none."""
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
