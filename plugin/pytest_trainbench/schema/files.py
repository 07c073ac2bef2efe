"""Read and write the plugin's own data files. What they hold is data from anybody: bounded, typed and never run."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 16 * 2**20
"""Maximum size of a file. The largest stored records have 24 kB."""

DEEPEST = 50
"""Maximum depth of nested objects and lists."""

TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


ANYTHING = "anything"
"""The shape of every value."""


def read_text(path: Path, *, inside: Path | None = None) -> str:
    """The text of a regular file of at most :data:`MOST_BYTES`.

    ``inside``: the folder that the file must be in, wherever links lead. Raises ``OSError`` if the file cannot be read,
    and ``ValueError`` if it may not be.
    """
    if path.is_symlink() and not path.exists():
        raise ValueError(f"it is a link to {path.readlink()}, which does not exist")
    if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
        raise ValueError(f"it is a link that leads out of {inside}")
    # Opening a pipe would wait for a writer without O_NONBLOCK.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return data.decode()


def parse(text: str) -> Any:
    """The value of JSON. Raises ``ValueError`` for other text, for NaN and infinities, and for values that are nested
    deeper than :data:`DEEPEST`."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level, left = 0, [value]
    while left:
        if level > DEEPEST:
            raise ValueError(TOO_DEEP)
        level += 1
        left = [
            inner
            for one in left
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def check_schema(found: Any, current: int) -> None:
    """Raise ``ValueError`` unless a file has the ``current`` format."""
    if found == current and type(found) is int:
        return
    says = f"its format is {found!r:.40}, and this pytest-trainbench reads {current}"
    if type(found) is int and found > current:
        raise ValueError(f"{says}: a newer version wrote it, so update pytest-trainbench")
    raise ValueError(says)


def check(value: Any, shape: Any, name: str) -> None:
    """Raise ``ValueError``, with the ``name`` of the value, unless a value of JSON has a shape.

    A shape is one of these: ``float`` (any finite number), ``int``, ``str``, ``object`` (text, number or truth value),
    :data:`ANYTHING`, ``(list, shape)``, ``(dict, shape)``, or ``(None, shape)`` for a value that may be missing.
    """
    if shape is ANYTHING:
        return
    if isinstance(shape, tuple):
        outer, inner = shape
        if outer is None:
            if value is not None:
                check(value, inner, name)
            return
        if not isinstance(value, outer):
            raise ValueError(f"{name} must be {'an object' if outer is dict else 'a list'}, not {value!r:.80}")
        for one in value.values() if isinstance(value, dict) else value:
            check(one, inner, name)
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A whole number may be too large for a float.
    if shape is float and not (number and abs(value) < 1e300 and math.isfinite(value)):
        raise ValueError(f"{name} must hold finite numbers, not {str(value)[:80]!r}")
    if shape is int and not (number and isinstance(value, int)):
        raise ValueError(f"{name} must be a whole number, not {value!r:.80}")
    if shape is str and not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {value!r:.80}")
    if shape is object and not isinstance(value, (str, int, float, bool)):
        raise ValueError(f"{name} must hold texts and numbers, not {value!r:.80}")


def check_fields(data: Any, shapes: Mapping[str, Any], name: str) -> None:
    """Raise ``ValueError`` unless ``data`` is an object whose values have these shapes, without unknown names."""
    if not isinstance(data, dict):
        raise ValueError(f"{name} must be an object, not {data!r:.80}")
    for field, value in data.items():
        if field not in shapes:
            raise ValueError(f"{name} has the unknown field {field!r:.80}")
        check(value, shapes[field], f"{field} of {name}")


def told(error: BaseException) -> str:
    """The message of an error in one line of at most 300 characters. It may quote what a file holds."""
    line = " ".join(str(error).split())
    return line if len(line) <= 300 else f"{line[:297]}..."


def write(path: Path, text: str) -> None:
    """Write the whole file or nothing: a full disk or a kill leaves the old file. A link is replaced, not followed.

    Raises ``OSError`` if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
