"""Sharding strategies beside the published rows of the same configuration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from bench_tests.strategies import STRATEGIES
from bench_tests.tables.format import built_by, peak_mib, percent, rate, reserved_mib, shown
from pytest_trainbench.schema.record import Record

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
"""Strategy -> samples/s ± standard deviation, and peak MiB, of a public comparison of the same model and libraries on
:data:`PUBLISHED_ON` V100-32GB-class GPUs."""

PUBLISHED_ON = 4

NOT_PUBLISHED = ("N/A", "N/A")


def sharding(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each strategy and number of devices with the published model.

    *format* is our number format. Without AMP the published format is fp32, and ours is tf32 if the device supports it.
    """
    found = {
        (record.case.mesh.world_size, record.case.params["strategy"]): record
        for record in built_by(records, "train_step")
        if record.case.params.get("model") == MODEL and record.case.params["strategy"] in STRATEGIES
    }
    lines = []
    for devices, name in product(sorted({devices for devices, _ in found}), STRATEGIES):
        if not (record := found.get((devices, name))):
            continue
        published = PUBLISHED.get(name, NOT_PUBLISHED) if devices == PUBLISHED_ON else ("", "")
        lines.append(
            {
                "strategy": name,
                "what it is": STRATEGIES[name].title,
                "format": record.case.params["precision"],
                "devices": str(devices),
                "samples/s": rate(record),
                "peak MiB": peak_mib(record),
                "reserved MiB": reserved_mib(record),
                "MFU": percent(record.figure("mfu"), digits=1),
                "published samples/s": published[0],
                "published MiB": published[1],
            }
        )
    return shown(lines)
