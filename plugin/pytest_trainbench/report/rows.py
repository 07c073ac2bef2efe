"""What a report is made of: one row a test, and the table of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_trainbench.judge.red_since import Turned
from pytest_trainbench.judge.verdict import Verdict
from pytest_trainbench.report.calibration import Calibration
from pytest_trainbench.schema.record import Record


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test: what ran (``None`` for a skipped one), how it was judged, and what against.

    fails: whether its test does, which for some outcomes is the session's to say (``CI``, ``--fail-on-improvement``).
    against: the other side of a run that compares two, whose record ``baseline`` is then. again: the command that
    compares this row alone once more.
    accept: the command that makes what was measured the baseline. stale: why the baseline should be made anew.
    by_hand: the command that runs the case without pytest. same_as: the test of the same case whose measurement this
    is. calibration: what ``--calibrate`` found. turned: since when it is red.
    """

    label: str
    verdict: Verdict
    fails: bool = False
    record: Record | None = None
    baseline: Record | None = None
    baseline_path: Path | None = None
    against: str = ""
    again: str = ""
    accept: str = ""
    stale: str = ""
    by_hand: str = ""
    detail: str = ""
    same_as: str = ""
    calibration: Calibration | None = None
    turned: Turned | None = None


def table(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns by name, one line a row, those without any figure left out.

    Figures are what was judged, and medians over the launches where nothing was. Memory is what the most loaded rank's
    tensors held at their peak or, on a CPU, where tensors are not counted, the peak resident set of its process.
    """
    lines = [_line(row) for row in rows]
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    if "peak MiB" in shown:
        # On an accelerator the driver's figure would only repeat the tensors' with the allocator's slack on top.
        shown.pop("process MiB", None)
    return shown


def mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f}"


def tflops(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def devices(record: Record) -> int:
    """That a case keeps busy: as measured, since one rank may drive several (``nn.DataParallel``); where no launch got
    that far, those of its mesh."""
    measured = record.values("devices")
    return round(median(measured)) if measured else record.case.mesh.world_size


def signed(fraction: float) -> str:
    """``+1.2%``, ``−1.2%`` with a minus as wide as the plus, or ``0.0%`` without a sign."""
    text = f"{fraction:+.1%}".replace("-", "−")
    return "0.0%" if text[1:] == "0.0%" else text


def _line(row: Row) -> dict[str, str]:
    def figure(metric: str, spell: Callable[[float], str]) -> str:
        if change := row.verdict.change(metric):
            return spell(change.now)
        launches = row.record.values(metric) if row.record else []
        return spell(median(launches)) if launches else ""

    step = row.verdict.change("step_ms")
    return {
        "case": row.label,
        "samples/s": figure("samples_per_s", "{:,.2f}".format),
        "step ms": figure("step_ms", "{:,.2f}".format),
        "compute ms": figure("compute_ms", "{:,.2f}".format),
        "host ms": figure("host_ms", "{:,.2f}".format),
        "peak MiB": figure("peak_allocated_bytes", mib),
        "process MiB": figure("process_bytes", mib),
        "TFLOPS": figure("tflops_per_device", tflops),
        "MFU": figure("mfu", "{:.1%}".format),
        "launches": str(len(row.record.launches)) if row.record else "",
        "change": signed(step.change) if step else "",
        "sees": f"≥{step.sees:.1%}" if step else "",
        "outcome": row.verdict.outcome,
    }
