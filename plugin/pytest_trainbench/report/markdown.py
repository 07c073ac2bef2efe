"""The report as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainbench.report.plain import cell, fenced, plain
from pytest_trainbench.report.rows import Row
from pytest_trainbench.report.terminal import census, counts, derived, failure, grid, notes

if TYPE_CHECKING:
    import pandas as pd


DETAILS_MOST = 500_000
"""Limit on the characters of all reports of failing rows together. GitHub refuses the summary of a CI step
above 1 MiB. If all rows crash, each with its traceback and log, the reports are longer than that."""

OPENED = 3
"""How many reports of failing rows are unfolded. With more of them, only their first lines fit on a screen."""


def report(
    rows: Sequence[Row],
    header: str,
    tables: Mapping[str, pd.DataFrame],
    trend: Sequence[str] = (),
    cut_off: str = "",
    *,
    unjudged_most: float | None = None,
) -> str:
    """The Markdown report. Red rows and drifts come first, because the table may be longer than a screen.

    ``unjudged_most``: see :func:`~pytest_trainbench.report.terminal.census`.
    """
    judged = census(rows, most=unjudged_most)
    parts = [f"## Training benchmark: {cell(counts(rows, cut_off))}", *([judged] if judged else []), cell(header)]
    red = [failure(row) for row in rows if row.fails]
    left, short = DETAILS_MOST, []
    for number, text in enumerate(red):
        first = text.splitlines()[0]
        left -= len(text)
        if left < 0:
            short.append(f"- {cell(first)}")
            continue
        how = "details open" if number < OPENED else "details"
        summary = f"<summary>{html.escape(plain(first), quote=False)}</summary>"
        parts.append(f"<{how}>{summary}\n\n{fenced(text)}\n\n</details>")
    if short:
        parts.append("\n".join(["The full reports of these rows are in the log and in JUnit's file:", "", *short]))
    drifts = [line for line in trend if line.startswith("drift")]
    if drifts:
        parts.append("\n".join(f"- {cell(line)}" for line in drifts))
    if rows:
        parts.append(grid(rows, "pipe"))
    if said := [*notes(rows), *(line for line in trend if line not in drifts)]:
        parts.append("\n".join(f"- {cell(note)}" for note in said))
    parts += [derived(f"### {title}", table, "pipe") for title, table in tables.items()]
    return "\n\n".join(parts) + "\n"
