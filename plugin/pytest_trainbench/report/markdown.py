"""The report as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainbench.report.rows import Row
from pytest_trainbench.report.terminal import counts, derived, failure, grid, notes
from pytest_trainbench.verdict import OUTCOMES

if TYPE_CHECKING:
    import pandas as pd


def report(rows: Sequence[Row], header: str, tables: Mapping[str, pd.DataFrame], trend: Sequence[str] = ()) -> str:
    parts = [f"## Training benchmark: {counts(rows)}", header, grid(rows, "pipe")]
    for row in rows:
        if OUTCOMES[row.verdict.outcome] == "fails":
            block = f"```text\n{failure(row)}\n```"
            parts.append(f"<details open><summary>{row.label}</summary>\n\n{block}\n\n</details>")
    if said := [*notes(rows), *trend]:
        parts.append("\n".join(f"- {note}" for note in said))
    parts += [derived(f"### {title}", table, "pipe") for title, table in tables.items()]
    return "\n\n".join(parts) + "\n"
