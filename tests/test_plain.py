"""Texts from files and from user code act as nothing but text, wherever a report shows them."""

from __future__ import annotations

import re

import pytest
from samples import record

from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.report import markdown
from pytest_trainbench.report.plain import cell, fenced, plain
from pytest_trainbench.report.rows import Row


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "step time 5.2% worse (sees ≥ 1.3%; −5.8 … ×18)\n\tnext",
            "step time 5.2% worse (sees ≥ 1.3%; −5.8 … ×18)\n\tnext",
        ),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("over\rwritten\x08", "over\\rwritten\\x08"),
        ("a\u202eb\u2066c\u200bd", "a\\u202eb\\u2066c\\u200bd"),
        ("a\x85b\u2028c", "a\\x85b\\u2028c"),
        ("half \ud800", "half \\ud800"),
        ("::error file=x::boom", "\\::error file=x::boom"),
        ("text\n  ::set-output name=a::b", "text\n  \\::set-output name=a::b"),
        ("##[group]x", "\\##[group]x"),
        ("tests/test_x.py::test_y", "tests/test_x.py::test_y"),
    ],
)
def test_a_terminal_shows_no_control_character_and_no_workflow_command(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(shown) == shown or shown.startswith("\\#")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sharding[zero2-dp2]", "sharding[zero2-dp2]"),
        ("a | b", "a \\| b"),
        ("a \\| b", "a \\\\\\| b"),
        ("two\nlines", "two lines"),
        ("<img src=x onerror=alert(1)>&", "&lt;img src=x onerror=alert(1)&gt;&amp;"),
        ("[click](https://example.org)", "[click]\\(https://example.org)"),
        ("`code` stays", "`code` stays"),
        ("\x1b[1m", "\\x1b[1m"),
    ],
)
def test_a_cell_of_markdown_stays_one_cell_of_text(text: str, shown: str) -> None:
    assert cell(text) == shown


def test_a_block_cannot_be_left() -> None:
    text = "before\n```\n<script>\n````\nafter"
    assert fenced(text) == f"`````text\n{text}\n`````"


HOSTILE = "evil | <img src=x>\x1b[31m [a](b)\n```\n::error::x"


def test_hostile_texts_stay_texts_in_the_markdown_report() -> None:
    bad = Row(label=HOSTILE, verdict=Verdict(outcome="crash", reason=HOSTILE), fails=True, detail=HOSTILE)
    noisy = Row(label=HOSTILE, verdict=Verdict(outcome="noisy", reason=HOSTILE), record=record(), stale=HOSTILE)
    text = markdown.report([bad, noisy], HOSTILE, {}, [f"drift {HOSTILE}", HOSTILE], HOSTILE)
    assert "\x1b" not in text
    outside = re.sub(r"(`{4,})text\n.*?\n\1", "", text, flags=re.DOTALL)
    assert set(re.findall(r"<[^>]*>", outside)) == {"<details open>", "<summary>", "</summary>", "</details>"}
    inline = re.sub(r"<summary>.*</summary>", "", outside)  # Markdown reads no links in a line that begins with a tag
    assert "](" not in inline and not re.search(r"^\s*::", outside, flags=re.MULTILINE)
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1, "every line has the same cells"
