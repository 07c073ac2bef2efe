"""Tables made of several cases, by title. A table is a function ``records -> DataFrame | None`` and its row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.record import Record

TABLES: dict[str, str] = {
    "data parallelism: scaling of plain DDP": "bench_tests.tables.ddp_scaling:scaling",
    "data parallelism: acc_ratio, against plain DDP on as many devices": "bench_tests.tables.ddp_scaling:acceleration",
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
