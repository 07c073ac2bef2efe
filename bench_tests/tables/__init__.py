"""Tables made of several cases, by title. A table is a function ``records -> DataFrame | None`` and its row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.record import Record

TABLES: dict[str, str] = {
    "Sharding of a GPT with 1.3 billion parameters": "bench_tests.tables.sharding:sharding",
    "3D parallelism of the same GPT": "bench_tests.tables.parallel_3d:parallel_3d",
    "TFLOPS of layers, the best of each grid": "bench_tests.tables.layers:layers",
    "TFLOPS of products, the best of all sizes": "bench_tests.tables.layers:products",
}
"""Title -> import path ``package.module:function``. A function picks the records that it knows and leaves the others;
cells are text, ready to be shown."""


def tables(records: Sequence[Record]) -> dict[str, pd.DataFrame]:
    """Every table that these records fill."""
    made = {}
    for title, path in TABLES.items():
        table: Callable[[Sequence[Record]], pd.DataFrame | None] = resolve_name(path)
        cells = table(records)
        if cells is not None and len(cells):
            made[title] = cells
    return made
