"""The report as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainbench.report.rows import Row
from pytest_trainbench.report.terminal import counts, derived, failure, grid, notes

if TYPE_CHECKING:
    import pandas as pd


DETAILS_MOST = 500_000
"""Characters that the reports of failing rows may have together. GitHub refuses the whole summary of a step above 1
MiB, and a night in which all rows crash, each with its traceback and log, has more."""

OPENED = 3
"""Reports of failing rows that are unfolded: with more, each one's first line is what fits on a screen."""


def report(
    rows: Sequence[Row],
    header: str,
    tables: Mapping[str, pd.DataFrame],
    trend: Sequence[str] = (),
    cut_off: str = "",
) -> str:
    """What is red and what drifts comes first: of a hundred rows the table alone is longer than a screen."""
    parts = [f"## Training benchmark: {counts(rows, cut_off)}", header]
    red = [failure(row) for row in rows if row.fails]
    left, short = DETAILS_MOST, []
    for number, text in enumerate(red):
        first = text.splitlines()[0]
        left -= len(text)
        if left < 0:
            short.append(f"- {first}")
            continue
        how = "details open" if number < OPENED else "details"
        summary = f"<summary>{html.escape(first, quote=False)}</summary>"
        parts.append(f"<{how}>{summary}\n\n```text\n{text}\n```\n\n</details>")
    if short:
        parts.append("\n".join(["In full in the log and in JUnit's file:", "", *short]))
    drifts = [line for line in trend if line.startswith("drift")]
    if drifts:
        parts.append("\n".join(f"- {line}" for line in drifts))
    if rows:
        parts.append(grid(rows, "pipe"))
    if said := [*notes(rows), *(line for line in trend if line not in drifts)]:
        parts.append("\n".join(f"- {note}" for note in said))
    parts += [derived(f"### {title}", table, "pipe") for title, table in tables.items()]
    return "\n\n".join(parts) + "\n"
