"""Hooks of mkdocs: README.md and other files beside docs/ are pages too, and no page loads from another host."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent.parent

BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}
"""Pages beside docs/, and their names in the site."""

LOADED = {"src", "srcset", "poster", "data"}
"""Attributes whose address a browser loads with the page."""


def on_files(files: Files, *, config: Any) -> Files:
    from mkdocs.structure.files import File

    for name, target in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=linked(text)))
    files.append(File.generated(config, "example.html", content=_example()))
    return files


def _example() -> str:
    """The web page of a run, of the stored baselines."""
    # mkdocs does not add the root to the import path.
    sys.path[:0] = [str(ROOT), str(ROOT / "plugin")]
    from bench_tests.pages.example import example, records

    return example(records())


def on_page_markdown(markdown: str, **_: Any) -> str:
    return linked(markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Raises ``ValueError``, which ends the build, where a page loads anything from another host."""
    if found := foreign(output):
        raise ValueError(f"{page.file.src_uri} loads {', '.join(found)} from another host: keep a copy in docs/")
    return output


def linked(markdown: str) -> str:
    """Links as the site has them, where docs/ and the files beside it are one folder."""
    for name, target in BESIDE.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(name)}(?=[)#])", f"]({target}", markdown)
    return re.sub(r"\]\(docs/", "](", markdown)


class Loads(HTMLParser):
    """Collects the addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [value for name, value in attrs if name in LOADED and value]
        if tag == "link" and given.get("rel") != "canonical":
            self.found.append(given.get("href") or "")


def foreign(html: str) -> list[str]:
    """Addresses on other hosts that a browser would load with this page; a link that is followed is none of them."""
    parser = Loads()
    parser.feed(html)
    styles = re.findall(r"url\([\"']?([^\"')]+)", html)
    return [one for one in (*parser.found, *styles) if re.match(r"(https?:)?//", one.strip())]
