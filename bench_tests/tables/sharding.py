"""Sharding strategies beside the published rows of the same configuration."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from bench_tests.strategies import STRATEGIES
from pytest_trainbench.record import Record
from pytest_trainbench.report.rows import mib

if TYPE_CHECKING:
    import pandas as pd

MODEL = "gpt-1.3b"

PUBLISHED = {
    "ddp-fp32": ("OOM", "OOM"),
    "ddp": ("9.57 ± 0.26", "25,061"),
    "oss": ("6.02 ± 0.06", "22,077"),
    "oss-sdp": ("7.01 ± 0.07", "17,113"),
    "zero1": ("12.88 ± 0.10", "15,709"),
    "zero2": ("10.27 ± 0.08", "15,693"),
}
"""Samples/s ± standard deviation and peak MiB, by strategy, of a public comparison of the same model and libraries on
four GPUs of the V100-32GB class."""


def sharding(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line a strategy of the published model; medians over launches."""
    import pandas as pd

    found = {
        record.case.params["strategy"]: record
        for record in records
        if record.case.builder.endswith(":train_step")
        and record.case.params.get("model") == MODEL
        and record.case.memory_cap_gb is None
    }
    lines = []
    for name, row in STRATEGIES.items():
        if name not in found:
            continue
        record = found[name]
        well = record.outcome == "ok"
        samples_per_s, peak_mib = PUBLISHED.get(name, ("N/A", "N/A"))
        peaks = record.values("peak_allocated_bytes")
        lines.append(
            {
                "strategy": name,
                "what it is": row.title,
                "devices": str(record.case.mesh.world_size),
                "samples/s": f"{median(record.values('samples_per_s')):,.1f}" if well else record.outcome.upper(),
                "peak MiB": mib(median(peaks)) if peaks else "",
                "MFU": f"{median(record.values('mfu')):.1%}" if record.values("mfu") else "",
                "published samples/s": samples_per_s,
                "published MiB": peak_mib,
            }
        )
    return pd.DataFrame(lines) if lines else None
