"""How data parallelism scales, and what faster kinds of it give, from the records of the ``ddp_scaling`` suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench_tests.strategies import ACCELERATORS, DATA_PARALLEL, PLAIN_DDP
from bench_tests.tables.format import beside, bound_by, devices_a_node, percent, rate, samples_per_s, shown, trained

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.schema.record import Record


@dataclass(frozen=True, kw_only=True)
class Series:
    """One model at one batch a device: ``records[strategy][devices]``, which ended well or ran out of memory."""

    model: str
    micro_batch: int
    records: Mapping[str, Mapping[int, Record]]

    def samples_per_s(self, strategy: str) -> dict[int, float]:
        """By number of devices, the median over the launches; without those that ran out of memory."""
        found = self.records.get(strategy, {})
        return {devices: samples_per_s(record) for devices, record in found.items() if record.outcome == "ok"}

    @property
    def base(self) -> int | None:
        """Fewest devices that plain DDP was measured on and fits: what its scaling is told against."""
        return min(self.samples_per_s(PLAIN_DDP), default=None)

    def ddp_acc(self, devices: int, base: int | None = None) -> float | None:
        """Performance of plain DDP on ``devices`` ÷ its performance on ``base`` ÷ how many times as many they are;
        ``None`` where either has no figure, and where they are the same. With ``base`` one whole node, it is the
        published figure: linearity over nodes."""
        plain = self.samples_per_s(PLAIN_DDP)
        base = base or self.base
        if base is None or devices <= base or base not in plain or devices not in plain:
            return None
        return plain[devices] / plain[base] / (devices / base)

    def acc_ratio(self, strategy: str, devices: int) -> float | None:
        """Performance of ``strategy`` ÷ that of plain DDP on as many devices; ``None`` where either has no figure."""
        plain = self.samples_per_s(PLAIN_DDP).get(devices)
        fast = self.samples_per_s(strategy).get(devices)
        return None if plain is None or fast is None else fast / plain


def series(records: Sequence[Record]) -> list[Series]:
    """One for each model, batch, precision and whatever else a case says, in the order of first appearance."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in trained(records, strategies=DATA_PARALLEL):
        case = record.case
        # A device count says all of a mesh here, and every other parameter but the strategy must be alike.
        alike = {name: value for name, value in case.params.items() if name != "strategy"}
        key = json.dumps([record.hardware, case.builder, case.version, alike], sort_keys=True)
        found.setdefault(key, {}).setdefault(case.params["strategy"], {})[case.mesh.world_size] = record
    return [_series(key, group) for key, group in found.items()]


def _series(key: str, group: Mapping[str, Mapping[int, Record]]) -> Series:
    params = json.loads(key)[-1]
    return Series(model=params["model"], micro_batch=params["micro_batch"], records=group)


def scaling(records: Sequence[Record]) -> pd.DataFrame | None:
    """Plain DDP: one line a model, batch and number of devices. ``ddp_acc`` is against the fewest devices measured,
    which are named; over nodes, against one whole node of as many devices. What is *bound by* its host may be ahead or
    behind for its machine alone."""
    lines = []
    for one in series(records):
        plain = one.records.get(PLAIN_DDP, {})
        for devices, record in sorted(plain.items()):
            linearity = one.ddp_acc(devices)
            node = devices_a_node(record)
            over_nodes = one.ddp_acc(devices, base=node)
            lines.append(
                {
                    "model": one.model,
                    "batch a device": f"{one.micro_batch:,}",
                    "devices": str(devices),
                    "samples/s": rate(record),
                    "bound by": bound_by(record),
                    "ddp_acc": _linearity(linearity, record, plain.get(one.base or 0)),
                    "against": "" if linearity is None else f"{one.base} device{'s' * (one.base != 1)}",
                    "nodes": f"{devices // node} × {node}" if devices > node else "",
                    "ddp_acc over nodes": _linearity(over_nodes, record, plain.get(node)),
                }
            )
    return shown(lines)


def _linearity(ddp_acc: float | None, record: Record, base: Record | None) -> str:
    return "" if ddp_acc is None or base is None else beside(percent(ddp_acc, digits=1), record, base)


def acceleration(records: Sequence[Record]) -> pd.DataFrame | None:
    """``acc_ratio`` of every accelerator, or that it ran out of memory: one line a model, batch and number of devices
    that any was measured on."""
    lines = []
    for one in series(records):
        counts = {devices for name in ACCELERATORS for devices in one.records.get(name, {})}
        for devices in sorted(counts):
            ratios = {name: _ratio(one, name, devices) for name in ACCELERATORS}
            if any(ratios.values()):
                head = {"model": one.model, "batch a device": f"{one.micro_batch:,}", "devices": str(devices)}
                lines.append({**head, **ratios})
    return shown(lines)


def _ratio(one: Series, strategy: str, devices: int) -> str:
    record = one.records.get(strategy, {}).get(devices)
    if record is not None and record.outcome != "ok":
        return rate(record)
    ratio = one.acc_ratio(strategy, devices)
    return "" if record is None or ratio is None else beside(f"{ratio:.2f}×", record, one.records[PLAIN_DDP][devices])


def points(records: Sequence[Record]) -> pd.DataFrame:
    """The picture of the published comparison: one dot a model, accelerator and number of devices, with ``ddp_acc`` to
    the right, against one whole node where there are several, ``acc_ratio`` up and ``devices`` as the colour. Columns:
    model, micro_batch, strategy, devices, base (devices that ``ddp_acc`` is against), ddp_acc, acc_ratio (numbers)."""
    import pandas as pd

    columns = ("model", "micro_batch", "strategy", "devices", "base", "ddp_acc", "acc_ratio")
    dots = []
    for one in series(records):
        for strategy in ACCELERATORS:
            for devices in sorted(one.samples_per_s(strategy)):
                node = devices_a_node(one.records[strategy][devices])
                base = node if one.ddp_acc(devices, base=node) is not None else one.base
                right, up = one.ddp_acc(devices, base), one.acc_ratio(strategy, devices)
                if right is not None and up is not None:
                    dots.append((one.model, one.micro_batch, strategy, devices, base, right, up))
    return pd.DataFrame(dots, columns=columns)
