"""Generated blocks of a Markdown page: what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping

BLOCK = re.compile(r"<!-- generated: ([\w-]+) -->(.*?)<!-- end -->", flags=re.DOTALL)


def names(text: str) -> list[str]:
    """Names of the blocks of a page, in their order. Raises ``ValueError`` where a block has no end."""
    found = BLOCK.findall(text)
    if any("<!-- generated:" in content for _, content in found) or text.count("<!-- generated:") != len(found):
        raise ValueError("a block has no end: close it with <!-- end -->")
    return [name for name, _ in found]


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """The page with the content of ``blocks`` in its blocks. Raises ``ValueError`` for a name without content."""
    for name in names(text):
        if name not in blocks:
            raise ValueError(f"there is no generated block {name!r}: use one of {', '.join(sorted(blocks))}")
    return BLOCK.sub(lambda found: f"<!-- generated: {found[1]} -->\n\n{blocks[found[1]]}\n\n<!-- end -->", text)
