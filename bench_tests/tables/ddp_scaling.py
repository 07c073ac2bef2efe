"""How plain DDP scales, and how much faster its accelerated variants are, from the records of the ``ddp_scaling``
suite."""

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
class ModelScaling:
    """One model at one batch a device. ``records[strategy][devices]`` are records that ended well or ran out of
    memory."""

    model: str
    micro_batch: int
    records: Mapping[str, Mapping[int, Record]]

    def samples_per_s(self, strategy: str) -> dict[int, float]:
        """Number of devices -> samples/s of ``strategy``, the median over launches. Records that ran out of memory are
        left out."""
        found = self.records.get(strategy, {})
        return {devices: samples_per_s(record) for devices, record in found.items() if record.outcome == "ok"}

    @property
    def base(self) -> int | None:
        """The base of the scaling of plain DDP: the fewest devices that it was measured on and fits on; ``None``
        without such a record."""
        return min(self.samples_per_s(PLAIN_DDP), default=None)

    def ddp_acc(self, devices: int, base: int | None = None) -> float | None:
        """Linearity of plain DDP: its rate on ``devices`` ÷ its rate on ``base`` ÷ (``devices`` ÷ ``base``).

        ``None`` if either rate is missing, or if ``devices`` is not above ``base``. With one whole node as ``base`` it
        is the published figure, linearity over nodes.
        """
        plain = self.samples_per_s(PLAIN_DDP)
        base = base or self.base
        if base is None or devices <= base or base not in plain or devices not in plain:
            return None
        return plain[devices] / plain[base] / (devices / base)

    def acc_ratio(self, strategy: str, devices: int) -> float | None:
        """Rate of ``strategy`` ÷ rate of plain DDP on as many devices; ``None`` if either rate is missing."""
        plain = self.samples_per_s(PLAIN_DDP).get(devices)
        fast = self.samples_per_s(strategy).get(devices)
        return None if plain is None or fast is None else fast / plain


def series(records: Sequence[Record]) -> list[ModelScaling]:
    """One series for each model and batch, and for each value of every other parameter of a case, in the order of first
    appearance."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in trained(records, strategies=DATA_PARALLEL):
        case = record.case
        # The meshes have one axis, so the number of devices describes them. All parameters except the strategy must be
        # equal.
        alike = {name: value for name, value in case.params.items() if name != "strategy"}
        key = json.dumps([record.hardware, case.builder, case.version, alike], sort_keys=True)
        found.setdefault(key, {}).setdefault(case.params["strategy"], {})[case.mesh.world_size] = record
    return [_series(key, group) for key, group in found.items()]


def _series(key: str, group: Mapping[str, Mapping[int, Record]]) -> ModelScaling:
    params = json.loads(key)[-1]
    return ModelScaling(model=params["model"], micro_batch=params["micro_batch"], records=group)


def scaling(records: Sequence[Record]) -> pd.DataFrame | None:
    """Plain DDP: one line for each model, batch and number of devices.

    ``ddp_acc`` compares with the fewest measured devices, which the column *against* names. Over nodes it compares with
    one whole node of the same size. A row with *bound by* = host may differ only because of its machine.
    """
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
    """``acc_ratio`` of every accelerated variant, or ``OOM`` if it ran out of memory.

    One line for each model, batch and number of devices that any variant was measured on.
    """
    lines = []
    for one in series(records):
        counts = {devices for name in ACCELERATORS for devices in one.records.get(name, {})}
        for devices in sorted(counts):
            ratios = {name: _ratio(one, name, devices) for name in ACCELERATORS}
            if any(ratios.values()):
                head = {"model": one.model, "batch a device": f"{one.micro_batch:,}", "devices": str(devices)}
                lines.append({**head, **ratios})
    return shown(lines)


def _ratio(one: ModelScaling, strategy: str, devices: int) -> str:
    record = one.records.get(strategy, {}).get(devices)
    if record is not None and record.outcome != "ok":
        return rate(record)
    ratio = one.acc_ratio(strategy, devices)
    return "" if record is None or ratio is None else beside(f"{ratio:.2f}×", record, one.records[PLAIN_DDP][devices])


def points(records: Sequence[Record]) -> pd.DataFrame:
    """The dots of the published plot: one for each model, accelerated variant and number of devices.

    Columns: model, micro_batch, strategy, devices, base (devices that ``ddp_acc`` compares with), ddp_acc, acc_ratio;
    figures are numbers. ``ddp_acc`` is the horizontal axis, ``acc_ratio`` the vertical axis, and ``devices`` the
    colour. With several nodes the base is one whole node.
    """
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
