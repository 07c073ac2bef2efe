"""Show texts from files, from other machines and from user code without letting them act as anything but text."""

from __future__ import annotations

import html
import re
import unicodedata

COMMAND = re.compile(r"^(\s*)(::|##\[)", re.MULTILINE)
"""A line that GitHub's runner would take for a workflow command, such as ``::error::`` or ``##[group]``."""

KEPT = "\n\t"

CUT = {"\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"}
"""Characters that some programs take for line breaks. A tab and a line feed stay."""


def plain(text: str) -> str:
    """``text`` for a terminal or a log. Control characters and characters that turn the direction of writing become
    their escapes, such as ``\\x1b``. A backslash goes before a workflow command. Plain text does not change."""
    if not text.isprintable():
        text = "".join(character if _harmless(character) else _escaped(character) for character in text)
    return COMMAND.sub(r"\1\\\2", text)


def cell(text: str) -> str:
    """``text`` as one cell of a Markdown table, or as a line of Markdown: no HTML, no link, no line break."""
    text = " ".join(text.split("\n"))
    # A backslash of the text itself could undo the escape of the character after it.
    text = re.sub(r"\\(?=[\\|(])|[|]|(?<=\])\(", lambda found: f"\\{found[0]}", text)
    return html.escape(plain(text), quote=False)


def fenced(text: str) -> str:
    """``text`` as a block of code of Markdown. The fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain(text)}\n{fence}"


def _harmless(character: str) -> bool:
    if character in KEPT:
        return True
    # Cc: control characters. Cf: formats, which can reverse the shown order. Cs: halves of pairs.
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs") and character not in CUT


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
