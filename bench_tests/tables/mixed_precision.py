"""Number formats side by side: speed-up, memory and scaling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench_tests.tables.format import (
    beside,
    bound_by,
    efficiency,
    peak_mib,
    percent,
    rate,
    samples_per_s,
    shown,
    trained,
)
from pytest_trainbench.schema.record import Record
from pytest_trainbench.schema.step import DTYPES

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("bert-tiny", "bert-base")

MODES: dict[str | None, str] = {None: "eager", "inductor": "compiled"}
"""Value of the parameter ``graph`` -> the column *mode*. Other graphs have a table of their own."""

PUBLISHED = {
    ("bert-base", 512, 16, "fp32", 4): ("103.07 ± 1.03", "17,025"),
    ("bert-base", 512, 16, "fp16", 4): ("178.15 ± 2.10", "12,698"),
}
"""Model, sequence, micro-batch, number format, devices -> published samples/s and peak MiB, eager, on V100-32GB-class
GPUs. Shown for comparison; no verdict uses them."""


def mixed_precision(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each number format, mode and number of devices.

    *× fp32* and *× tf32* are the speed-up over those formats in the same mode on as many devices. *× eager* is the
    speed-up over the same format without compilation. A row with *bound by* = host may be slower only because of its
    machine. *efficiency* is per device, against the fewest devices of the same format and mode. A row that ran out of
    memory shows ``OOM``.
    """
    groups: dict[tuple[Any, ...], dict[tuple[str, str | None, int], Record]] = defaultdict(dict)
    for record in trained(records, strategies=("ddp", "ddp-fp32")):
        params = record.case.params
        if params.get("model") in MODELS and params.get("graph") in MODES:
            work = record.hardware, MODELS.index(params["model"]), params["sequence"], params["micro_batch"]
            groups[work][params["precision"], params.get("graph"), record.case.mesh.world_size] = record
    return shown(line for _, group in sorted(groups.items()) for line in _lines(group))


def _lines(group: dict[tuple[str, str | None, int], Record]) -> list[dict[str, str]]:
    def order(key: tuple[str, str | None, int]) -> tuple[int, int, int]:
        precision, graph, devices = key
        return devices, DTYPES.index(precision), list(MODES).index(graph)

    def times(record: Record, precision: str, graph: str | None, devices: int) -> str:
        other = group.get((precision, graph, devices))
        if other is None or other is record or {record.outcome, other.outcome} != {"ok"}:
            return ""
        return beside(f"{samples_per_s(record) / samples_per_s(other):.2f}", record, other)

    lines = []
    for precision, graph, devices in sorted(group, key=order):
        record = group[precision, graph, devices]
        series = [one for (*same, _), one in group.items() if same == [precision, graph]]
        params = record.case.params
        work = params["model"], params["sequence"], params["micro_batch"], precision, devices
        published = PUBLISHED.get(work, ("", "")) if graph is None else ("", "")
        lines.append(
            {
                "model": f"{params['model']}, sequence {params['sequence']}",
                "devices": str(devices),
                "format": precision,
                "mode": MODES[graph],
                "samples/s": rate(record),
                "peak MiB": peak_mib(record),
                "MFU": percent(record.figure("mfu"), digits=1),
                "bound by": bound_by(record),
                "× fp32": times(record, "fp32", graph, devices),
                "× tf32": times(record, "tf32", graph, devices),
                "× eager": times(record, precision, None, devices),
                "efficiency": efficiency(record, series),
                "published samples/s": published[0],
                "published MiB": published[1],
            }
        )
    return lines
