"""What all tables share: the choice of records, and the text of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_trainbench.report.rows import mib
from pytest_trainbench.schema.metrics import host_bound
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd


TWO_MACHINES = "†"
"""Marks a ratio of two rows that were measured on different machines: their hosts may differ by more than the rows
do."""


def built_by(records: Iterable[Record], *builders: str) -> list[Record]:
    """Records of these step builders (by function name), whatever their outcome.

    Records of a device with a memory cap are left out, because they are not comparable with other figures.
    """
    return [record for record in records if record.case.function in builders and record.case.memory_cap_gb is None]


def went_well(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.outcome == "ok"]


def with_result(records: Iterable[Record]) -> list[Record]:
    """Records that ended well or ran out of memory. Running out of memory is a result; a crash is not."""
    return [record for record in records if record.outcome in ("ok", "oom")]


def trained(records: Iterable[Record], *, strategies: Iterable[str]) -> list[Record]:
    """Records of the suite's training step under one of ``strategies`` that have a result."""
    known, steps = set(strategies), built_by(records, "train_step")
    return [record for record in with_result(steps) if record.case.params.get("strategy") in known]


def samples_per_s(record: Record) -> float:
    """The judged rate. The record must have ended well."""
    rate = record.figure("samples_per_s")
    assert rate is not None
    return rate


def rate(record: Record, *, digits: int = 1) -> str:
    """Samples/s, or the outcome in capitals if the record did not end well: ``OOM``."""
    return f"{samples_per_s(record):,.{digits}f}" if record.outcome == "ok" else record.outcome.upper()


def bound_by(record: Record) -> str:
    """``host`` for a host-bound row. Such a row may be slower than another row only because of its machine."""
    return "host" if host_bound(record) else ""


def peak_mib(record: Record) -> str:
    return text(record.figure("peak_allocated_bytes"), mib)


def reserved_mib(record: Record) -> str:
    """Peak memory that torch's allocator took from the device. Tensors use a part of it. On a smaller device the
    allocator would give some of it back."""
    return text(record.figure("peak_reserved_bytes"), mib)


def percent(fraction: float | None, *, digits: int = 0) -> str:
    return text(fraction, f"{{:.{digits}%}}".format)


def text(value: float | None, spell: Callable[[float], str]) -> str:
    """The figure as text; empty for ``None``, which means not measured."""
    return "" if value is None else spell(value)


def beside(said: str, record: Record, other: Record) -> str:
    """``said``, a comparison of two records, with a mark if they were measured on two machines."""
    return marked(said, record.machine, other.machine)


def marked(said: str, *machines: str) -> str:
    return said if len(set(machines)) <= 1 else f"{said} {TWO_MACHINES}"


def devices_a_node(record: Record) -> int:
    """Devices of each node of the record. A record on one node has all its devices there."""
    devices: int = record.environment.get("must_match", {}).get("devices_a_node", record.case.mesh.world_size)
    return devices


def efficiency(record: Record, series: Iterable[Record]) -> str:
    """Samples/s per device as a share of the base's samples/s per device. The text names the base's devices.

    The base is the record of ``series`` that ended well on the fewest devices. For a record on several nodes it is the
    record on one whole node, if there is one. Empty for a record that did not end well.
    """
    if record.outcome != "ok":
        return ""
    by_devices = {one.case.mesh.world_size: one for one in went_well(series)}
    node = devices_a_node(record)
    base = by_devices[node if node in by_devices and node != record.case.mesh.world_size else min(by_devices)]
    if record is base:
        return "base"
    each, each_of_base = (samples_per_s(one) / one.case.mesh.world_size for one in (record, base))
    return beside(f"{each / each_of_base:.1%} of {base.case.mesh.world_size}", record, base)


def shown(lines: Iterable[Mapping[str, str]]) -> pd.DataFrame | None:
    """The lines as a table; ``None`` without lines. Missing cells are empty, and columns without any text are left
    out."""
    import pandas as pd

    table = pd.DataFrame([dict(line) for line in lines]).fillna("")
    return None if table.empty else table.loc[:, (table != "").any()]
