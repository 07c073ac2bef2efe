"""Did the value of an option lead pytest to another root?

pytest looks for its root, and so for the ini file, before it knows the options of plugins. It takes the second word of
``--report-md /abs/x.md`` for a path of tests, where such a file exists, and may find another project's root.
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
"""What a file of this name must contain to be an ini file; in one folder the first of them counts."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """What pytest found: the project's root and, where there is one, the ini file."""

    path: Path
    ini: Path | None


def find(paths: Iterable[str], *, folder: Path, given: Path | None = None) -> Root:
    """The root that pytest finds for the ``paths`` of a command line in ``folder``; ``given`` is that of ``--rootdir``.

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
    """The sentence for a command line whose root is another because a value is a word of its own; empty where it is the
    same.

    ``words`` of the command line, typed in ``folder``; of these the ``paths`` of tests, and the ``flags`` of ours that
    take a value; what pytest ``found``; the root that ``--rootdir`` gave. Where the rules here do not lead to what
    pytest found, something else played a part, and nothing is said.
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
        what = f"take {found.path} for the project's root instead of {right.path}"
    else:
        what = f"read {found.ini or 'no ini file'} instead of {right.ini or 'no ini file'}"
    return f"{typed} made pytest {what}: write {better}"


def _ini(folders: Iterable[Path]) -> Path | None:
    """The ini file of the first folder that has one, in itself or above it; else the first ``pyproject.toml``."""
    files = [base / name for folder in folders for base in (folder, *folder.parents) for name in INI_FILES]
    found = [file for file in files if file.is_file()]
    plain = (file for file in found if file.name == "pyproject.toml")
    return next(filter(_configures, found), None) or next(plain, None)


def _configures(file: Path) -> bool:
    return re.search(INI_FILES[file.name], file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) is not None
