"""Every block of the tutorial runs, and prints what the page shows, apart from figures."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of a page."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def file_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each block that begins with the name of a file."""
    for _, text in blocks(page):
        if found := re.match(r"# ([\w.]+\.\w+)\n", text):
            yield found[1], text


def pattern(line: str) -> str:
    """A shown line as a regular expression. Figures, spaces and the text that ``…`` leaves out may differ."""
    parts = re.split(r"(…|[\d,.:+-]*\d[\w%,.:+-]*|\s+|-{3,}| ?\(?[−+≥]+)", line.strip())
    return "".join(r".*" if index % 2 and part.strip() else r"\s+" if index % 2 else re.escape(part)
                   for index, part in enumerate(parts))  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("linear  17.5  ≥8.7%  saved", "linear  3.1   saved", True),
        ("launches  3 against 5", "  launches  1 against 1", True),
        ("parts  all_reduce: 2 → 4 a step", "parts  all_gather: 2 → 4 a step", False),
        ("saved x → baselines/cpu-…/train.json", "saved x → baselines/cpu-intel-2c/train.json", True),
    ],
)
def test_a_shown_line_is_compared_without_its_figures(shown: str, printed: str, alike: bool) -> None:
    assert bool(re.search(pattern(shown), printed)) is alike


def test_every_block_of_the_tutorial_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three commands start one launch each, enough for counts. Under this floor no busy machine makes a row red."""
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.gate("step_ms", floor=50.0, tolerance=100.0))
        """
    )
    for name, value in {"LAUNCHES": "1", "CONFIRM": "0", "HISTORY": "none", "HW": "cpu"}.items():
        monkeypatch.setenv(f"TRAINBENCH_{name}", value)
    monkeypatch.delenv("CI", raising=False)
    files = dict(file_blocks(DOCS / "tutorial.md"))
    assert set(files) == {"steps.py", "test_speed.py", "pytest.ini"}
    ran = 0
    for language, text in blocks(DOCS / "tutorial.md"):
        if found := re.match(r"# ([\w.]+\.\w+)\n", text):
            (pytester.path / found[1]).write_text(text, encoding="utf-8")
            continue
        assert language == "console", "a block is a file or a command with its output"
        command, *lines = text.splitlines()
        program, *arguments = shlex.split(command.removeprefix("$ "))
        result = pytester.run(Path(sys.executable).with_name(program), *arguments)
        printed = "\n".join(result.outlines)
        for line in lines:
            assert line == "…" or re.search(pattern(line), printed), f"{line!r} is not in:\n{printed}"
        assert (result.ret == 1) == any(line.startswith("FAILED") for line in lines), printed
        ran += 1
    assert ran == 3


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "quickstart.md"], ids=lambda page: page.stem)
def test_other_pages_show_the_tutorials_files(page: Path) -> None:
    """These files run too, because the tutorial's files do."""
    tutorial = list(file_blocks(DOCS / "tutorial.md"))
    shown = list(file_blocks(page))
    assert shown and all(one in tutorial for one in shown)
