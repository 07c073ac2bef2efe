"""The report as Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from pytest_trainbench.report.rows import Row, table
from pytest_trainbench.report.terminal import counts, failure
from pytest_trainbench.verdict import OUTCOMES


def report(rows: Sequence[Row], header: str) -> str:
    text = table(rows)
    align = ["left" if name in ("case", "outcome") else "right" for name in text]
    parts = [
        f"## Training benchmark: {counts(rows)}",
        header,
        tabulate(text.to_dict("list"), headers="keys", tablefmt="pipe", disable_numparse=True, colalign=align),
    ]
    for row in rows:
        if OUTCOMES[row.verdict.outcome] == "fails":
            parts.append(f"<details open><summary>{row.label}</summary>\n\n```text\n{failure(row)}\n```\n\n</details>")
        elif row.verdict.reason:
            parts.append(f"- {row.verdict.outcome}: `{row.label}`: {row.verdict.reason}")
    return "\n\n".join(parts) + "\n"
