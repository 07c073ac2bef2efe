"""Tables that combine several cases, by title. A table is a function ``records -> DataFrame | None`` and its row
here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.schema.record import Record

TABLES: dict[str, str] = {
    "Sharding of a GPT with 1.3 billion parameters": "bench_tests.tables.sharding:sharding",
    "3D parallelism of the same GPT": "bench_tests.tables.parallel_3d:parallel_3d",
    "TFLOPS of layers, the best shapes measured (published: fp16, eager, of larger grids; fwd_bwd counted too high)": (
        "bench_tests.tables.layers:layers"
    ),
    "TFLOPS of products, the best sizes measured": "bench_tests.tables.layers:products",
    "Mixed precision": "bench_tests.tables.mixed_precision:mixed_precision",
    "Scaling efficiency": "bench_tests.tables.scaling:scaling",
    "Samples and time to a loss": "bench_tests.tables.scaling:time_to_loss",
    "Graph optimisation of BERT (published: V100 class, at a sequence that cannot be the 512 it names)": (
        "bench_tests.tables.graph_optimisation:graph_optimisation"
    ),
    "Trainer: samples/s, and scaling against one GPU, beside the published runs": (
        "bench_tests.tables.trainer:beside_published"
    ),
    "Whole runs of Trainer, as it logs them, beside the published ones": "bench_tests.tables.trainer:whole_runs",
    "Scaling of plain DDP": "bench_tests.tables.ddp_scaling:scaling",
    "Acceleration: samples/s ÷ those of plain DDP on the same mesh": "bench_tests.tables.ddp_scaling:acceleration",
}
"""Title -> import path ``package.module:function``. A function uses the records that it knows and ignores the others.
Cells are text, ready to be shown."""


def tables(records: Sequence[Record]) -> dict[str, pd.DataFrame]:
    """Every table that has at least one line for these records."""
    made = {}
    for title, path in TABLES.items():
        table: Callable[[Sequence[Record]], pd.DataFrame | None] = resolve_name(path)
        cells = table(records)
        if cells is not None and len(cells):
            made[title] = cells
    return made
