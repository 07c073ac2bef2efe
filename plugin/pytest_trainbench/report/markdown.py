"""The report as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainbench.report.rows import Row
from pytest_trainbench.report.terminal import counts, derived, failure, grid, notes
from pytest_trainbench.verdict import OUTCOMES

if TYPE_CHECKING:
    import pandas as pd


DETAILS_MOST = 500_000
"""Characters that the reports of failing rows may have together. GitHub refuses the whole summary of a step above 1
MiB, and a night in which all rows crash, each with its traceback and log, has more."""


def report(rows: Sequence[Row], header: str, tables: Mapping[str, pd.DataFrame], trend: Sequence[str] = ()) -> str:
    parts = [f"## Training benchmark: {counts(rows)}", header, grid(rows, "pipe")]
    left, short = DETAILS_MOST, []
    for row in rows:
        if OUTCOMES[row.verdict.outcome] == "fails":
            text = failure(row)
            left -= len(text)
            if left < 0:
                short.append(f"- {text.splitlines()[0]}")
                continue
            block = f"```text\n{text}\n```"
            parts.append(f"<details open><summary>{row.label}</summary>\n\n{block}\n\n</details>")
    if short:
        parts.append("\n".join(["In full in the log and in JUnit's file:", "", *short]))
    if said := [*notes(rows), *trend]:
        parts.append("\n".join(f"- {note}" for note in said))
    parts += [derived(f"### {title}", table, "pipe") for title, table in tables.items()]
    return "\n\n".join(parts) + "\n"
