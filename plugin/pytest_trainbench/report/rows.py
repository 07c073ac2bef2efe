"""What a report is made of: one row a test, and the table of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainbench.frame import frame
from pytest_trainbench.record import Record
from pytest_trainbench.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test: what ran (``None`` for a skipped one), how it was judged, and what against.

    accept: the command that makes what was measured the baseline. by_hand: the command that runs the case
    without pytest.
    """

    label: str
    verdict: Verdict
    record: Record | None = None
    baseline: Record | None = None
    baseline_path: Path | None = None
    accept: str = ""
    by_hand: str = ""
    detail: str = ""


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """One line a row, everything as text, columns without any figure left out.

    Figures are medians over the launches. Memory is what the most loaded rank's tensors held at their peak
    or, on a CPU, where tensors are not counted, the peak resident set of its process.
    """
    import pandas as pd

    launches = frame(row.record for row in rows if row.record is not None)
    middle = launches.groupby("id").median(numeric_only=True) if len(launches) else launches

    def figure(row: Row, metric: str, spell: str, scale: float = 1.0) -> str:
        if row.record is None or metric not in middle or pd.isna(middle.loc[row.record.case.id, metric]):
            return ""
        return format(middle.loc[row.record.case.id, metric] / scale, spell)

    lines = []
    for row in rows:
        step = row.verdict.change("step_ms")
        lines.append(
            {
                "case": row.label,
                "samples/s": figure(row, "samples_per_s", ",.2f"),
                "step ms": figure(row, "step_ms", ",.2f"),
                "peak MiB": figure(row, "peak_allocated_bytes", ",.0f", MIB),
                "process MiB": figure(row, "process_bytes", ",.0f", MIB),
                "TFLOPS": figure(row, "tflops_per_device", ",.3g" if "cpu" in _hardware(row) else ",.0f"),
                "MFU": figure(row, "mfu", ".1%"),
                "launches": str(len(row.record.launches)) if row.record else "",
                "change": f"{step.change:+.1%}".replace("-", "−") if step else "",
                "sees": f"≥{step.sees:.1%}" if step else "",
                "outcome": row.verdict.outcome,
            }
        )
    text = pd.DataFrame(lines).astype(str)
    text = text[[name for name in text if (text[name] != "").any()]]
    # On an accelerator the driver's figure would only repeat the tensors' with the allocator's slack on top.
    return text.drop(columns="process MiB") if "peak MiB" in text and "process MiB" in text else text


def _hardware(row: Row) -> str:
    return row.record.hardware if row.record else ""
