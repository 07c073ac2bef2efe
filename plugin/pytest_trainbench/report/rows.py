"""The rows of a report, one per test, and the table of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_trainbench.judge.explain import least
from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.judge.red_since import Turned
from pytest_trainbench.report.calibration import Calibration
from pytest_trainbench.schema.record import Record


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test: its record (``None`` if it was skipped), its verdict, and the baseline of the verdict.

    fails: whether the test fails. For some outcomes this depends on ``CI`` and ``--fail-on-improvement``.
    against: name of the other side, if the run has ``--against``. ``baseline`` is then the other side's record.
    again: the command that compares this row alone once more.
    accept: the command that stores this record as the baseline.
    stale: why a new baseline should be saved.
    by_hand: the command that runs the case without pytest.
    same_as: label of another test with the same case. Its measurement is used for this row.
    calibration: the result of ``--calibrate``.
    turned: since when the row is red.
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
    """Column name -> one cell per row. Columns without any figure are left out.

    A figure is the judged value, or the median over the launches if the metric was not judged. Memory is the peak
    memory of tensors on the rank that needs most. A CPU does not count tensors, so there it is the peak resident set of
    the process.
    """
    lines = [_line(row) for row in rows]
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    if "peak MiB" in shown:
        # On an accelerator, the memory of the process is the memory of tensors plus the allocator's unused blocks.
        shown.pop("process MiB", None)
    return shown


def mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f}"


def ms(value: float) -> str:
    """Milliseconds with two decimals, or with three digits below 1 ms: ``1,234.50``, ``0.0123``."""
    return f"{value:,.2f}" if value >= 1 else f"{value:#.3g}"


def tflops(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def devices(record: Record) -> int:
    """How many devices a case keeps busy: the measured number, because one rank may drive several
    (``nn.DataParallel``). The mesh gives the number if no launch measured it."""
    measured = record.values("devices")
    return round(median(measured)) if measured else record.case.mesh.world_size


def signed(fraction: float) -> str:
    """``+1.2%``, ``−1.2%`` with a minus sign as wide as the plus sign, or ``0.0%`` without a sign."""
    text = f"{fraction:+.1%}".replace("-", "−")
    return "0.0%" if text[1:] == "0.0%" else text


def _line(row: Row) -> dict[str, str]:
    def figure(metric: str, spell: Callable[[float], str]) -> str:
        value = row.record.figure(metric) if row.record else None
        return "" if value is None else spell(value)

    step = row.verdict.change("step_ms")
    return {
        "case": row.label,
        "samples/s": figure("samples_per_s", "{:,.2f}".format),
        "step ms": figure("step_ms", ms),
        "compute ms": figure("compute_ms", ms),
        "host ms": figure("host_ms", ms),
        "peak MiB": figure("peak_allocated_bytes", mib),
        "process MiB": figure("process_bytes", mib),
        "TFLOPS": figure("tflops_per_device", tflops),
        "MFU": figure("mfu", "{:.1%}".format),
        "launches": str(len(row.record.launches)) if row.record else "",
        "change": signed(step.change) if step else "",
        "sees": least(step.sees) if step else "",
        "outcome": row.verdict.outcome,
    }
