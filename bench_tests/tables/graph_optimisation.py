"""How much faster BERT is as a graph than eagerly, beside published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench_tests.graphs import GRAPHS
from bench_tests.tables.format import (
    beside,
    bound_by,
    peak_mib,
    rate,
    samples_per_s,
    shown,
    text,
    trained,
    went_well,
)
from pytest_trainbench.report.rows import mib
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

STRATEGIES = {"ddp", "ddp-fp32"}

PRECISIONS = {"fp32": "single", "tf32": "single", "fp16": "AMP"}
"""Number format -> its name in the published comparison. The table of mixed precision shows the other formats."""

PUBLISHED = {
    (None, "single"): ("479.15 ± 1.67", "2,112", ""),
    (None, "AMP"): ("589.66 ± 4.79", "2,127", ""),
    ("ort-all", "single"): ("554.24 ± 1.98", "2,430", "+15.7%"),
    ("ort-all", "AMP"): ("614.70 ± 8.69", "2,289", "+4.2%"),
}
"""Graph and precision -> samples/s, MiB and gain of BERT-base on 4 V100-class GPUs with 16 samples each.

The page states sequence 512. At that sequence these rates would need more than the device's peak, so the real sequence
must have been far shorter.
"""


def graph_optimisation(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each record of BERT under DDP, eager or as a graph, if a graph was measured on the same work.

    *gain* is the rate ÷ the rate of the eager record with the same number format, work and mesh, minus 1. It is empty
    if either ran out of memory. A row with *bound by* = host may be slower only because of its machine. Memory is
    torch's peak of allocated memory. It is the memory of the process if torch does not see all memory (ONNX Runtime has
    an arena of its own) or does not measure it (on a CPU).
    """
    known = [record for record in trained(records, strategies=STRATEGIES) if _belongs(record)]
    eager = {_work(record): record for record in went_well(known) if "graph" not in record.case.params}
    compared = {_work(record) for record in known if "graph" in record.case.params}
    return shown(_cells(record, eager.get(_work(record))) for record in known if _work(record) in compared)


def _belongs(record: Record) -> bool:
    params = record.case.params
    return str(params.get("model")).startswith("bert-") and params.get("precision") in PRECISIONS


def _work(record: Record) -> tuple[object, ...]:
    """Parameters that two records must share to be compared."""
    params = record.case.params
    names = ("model", "precision", "sequence", "micro_batch")
    return (record.hardware, str(record.case.mesh), *(params.get(name) for name in names))


def _cells(record: Record, eager: Record | None) -> dict[str, str]:
    params: Mapping[str, Any] = record.case.params
    graph, mesh = params.get("graph"), str(record.case.mesh)
    precision = PRECISIONS[params["precision"]]
    as_published = params["model"] == "bert-base" and mesh == "dp4" and params["micro_batch"] == 16
    published = PUBLISHED.get((graph, precision)) if as_published else None
    published_samples_per_s, published_mib, published_gain = published or ("", "", "")
    return {
        "model": params["model"],
        "graph": "eager" if graph is None else GRAPHS[graph].title,
        "precision": f"{precision} ({params['precision']})",
        "sequence": str(params["sequence"]),
        "mesh": mesh,
        "samples/s": rate(record, digits=2),
        "peak MiB": _memory(record),
        "bound by": bound_by(record),
        "gain": _gain(record, eager),
        "published samples/s": published_samples_per_s,
        "published MiB": published_mib,
        "published gain": published_gain,
    }


def _gain(record: Record, eager: Record | None) -> str:
    if eager is None or "graph" not in record.case.params or record.outcome != "ok":
        return ""
    return beside(f"{samples_per_s(record) / samples_per_s(eager) - 1:+.1%}", record, eager)


def _memory(record: Record) -> str:
    graph = record.case.params.get("graph")
    if record.values("peak_allocated_bytes") and (graph is None or GRAPHS[graph].in_torchs_memory):
        return peak_mib(record)
    return text(record.figure("process_bytes"), lambda size_bytes: f"{mib(size_bytes)} (process)")
