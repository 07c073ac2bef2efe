"""Find out whether the value of an option led pytest to the wrong root.

pytest looks for its root and the ini file before it knows the options of plugins. If ``/abs/x.md`` exists, pytest reads
the second word of ``--report-md /abs/x.md`` as a path of tests. It may then find the root of another project.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

INI_FILES = {
    "pytest.toml": "",
    ".pytest.toml": "",
    "pytest.ini": "",
    ".pytest.ini": "",
    "pyproject.toml": r"^\[tool\.pytest\b",
    "tox.ini": r"^\[pytest\]",
    "setup.cfg": r"^\[tool:pytest\]",
}
"""Names of ini files, each with the regular expression that its text must contain. The first in a folder counts."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """The project's root and its ini file; ``None`` if there is no ini file."""

    path: Path
    ini: Path | None


def find(paths: Iterable[str], *, folder: Path, given: Path | None = None) -> Root:
    """The root that pytest finds for ``paths`` of a command line in ``folder``. ``given``: the value of ``--rootdir``.

    Source: https://docs.pytest.org/en/stable/reference/customize.html, and ``determine_setup`` of pytest 9.2.
    """
    named = [Path(os.path.normpath(folder / path.partition("::")[0])) for path in paths]
    dirs = [path if path.is_dir() else path.parent for path in named if path.exists()] or [folder]
    ancestor = Path(os.path.commonpath(dirs))
    ini = _ini([ancestor])
    if given:
        return Root(path=given, ini=ini)
    if ini is None:
        for base in (ancestor, *ancestor.parents):
            if (base / "setup.py").is_file():
                return Root(path=base, ini=None)
        ini = _ini(dirs)
    if ini is not None:
        return Root(path=ini.parent, ini=ini)
    shared = Path(os.path.commonpath([folder, ancestor]))
    return Root(path=ancestor if shared == Path(shared.anchor) else shared, ini=None)


def misled(
    words: Sequence[str],
    *,
    flags: Collection[str],
    paths: Collection[str],
    folder: Path,
    found: Root,
    given: Path | None = None,
) -> str:
    """One sentence for the user, if pytest found the wrong root because of ``--flag value``; empty if it did not.

    words:
        The command line, typed in ``folder``.
    flags:
        The plugin's options that take a value.
    paths:
        The words that are paths of tests.
    found:
        The root that pytest found.
    given:
        The value of ``--rootdir``.

    Also empty if :func:`find` does not explain the root that pytest found: then another cause is at work.
    """
    pairs = {
        at: (flag, value)
        for at, (flag, value) in enumerate(pairwise(words), start=1)
        if flag in flags and (folder / value).exists()
    }
    if not pairs:
        return ""
    taken = [word for at, word in enumerate(words) if at in pairs or word in paths]
    meant = [word for at, word in enumerate(words) if at not in pairs and word in paths]
    right = find(meant, folder=folder, given=given)
    if right == found or find(taken, folder=folder, given=given) != found:
        return ""
    typed = " ".join(shlex.join(pair) for pair in pairs.values())
    better = " ".join(shlex.quote(f"{flag}={value}") for flag, value in pairs.values())
    if right.path != found.path:
        what = f"use {found.path} as the project's root instead of {right.path}"
    else:
        what = f"read {found.ini or 'no ini file'} instead of {right.ini or 'no ini file'}"
    return f"{typed} made pytest {what}: write {better}"


def _ini(folders: Iterable[Path]) -> Path | None:
    """The first ini file in one of the folders or their parents; else the first ``pyproject.toml`` of any content."""
    files = [base / name for folder in folders for base in (folder, *folder.parents) for name in INI_FILES]
    found = [file for file in files if file.is_file()]
    plain = (file for file in found if file.name == "pyproject.toml")
    return next(filter(_configures, found), None) or next(plain, None)


def _configures(file: Path) -> bool:
    return re.search(INI_FILES[file.name], file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) is not None
