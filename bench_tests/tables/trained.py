"""What tables of training steps have in common: which records they take, and how a figure is spelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_trainbench.record import Record

if TYPE_CHECKING:
    import pandas as pd


def trained(records: Iterable[Record], *, strategies: Sequence[str]) -> list[Record]:
    """Records of the suite's training step under one of the strategies that ended well."""
    return [
        record
        for record in records
        if record.case.builder.rpartition(":")[2] == "train_step"
        and record.case.params["strategy"] in strategies
        and record.case.memory_cap_gb is None
        and record.outcome == "ok"
    ]


def middle(record: Record, metric: str) -> float | None:
    """Median over the launches; ``None`` where no launch has the metric."""
    values = record.values(metric)
    return median(values) if values else None


def samples_per_s(record: Record) -> float:
    return median(record.values("samples_per_s"))


def efficiency(record: Record, base: Record) -> str:
    """Samples/s of one device beside those of one device of ``base``, the record with the fewest devices; names it."""
    if record is base:
        return "base"
    each, each_of_base = (samples_per_s(one) / one.case.mesh.world_size for one in (record, base))
    return f"{each / each_of_base:.1%} of {base.case.mesh.world_size}"


def shown(lines: Iterable[Mapping[str, str]]) -> pd.DataFrame | None:
    """The lines as a table, without the columns that no line has anything in; ``None`` where there is no line."""
    import pandas as pd

    table = pd.DataFrame([dict(line) for line in lines])
    return None if table.empty else table.loc[:, (table != "").any()]
