"""How data parallelism scales, and what faster kinds of it give, from the records of the ``ddp_scaling`` suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench_tests.strategies import ACCELERATORS, DATA_PARALLEL, PLAIN_DDP
from bench_tests.tables.cells import percent, samples_per_s, shown, text, trained

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.record import Record

NODE = 8
"""Devices of a server in the published comparison."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One model at one batch a device: ``samples_per_s[strategy][devices]``, the median over the launches."""

    model: str
    micro_batch: int
    samples_per_s: Mapping[str, Mapping[int, float]]

    @property
    def base(self) -> int | None:
        """Fewest devices that plain DDP was measured on: what its scaling is told against."""
        return min(self.samples_per_s.get(PLAIN_DDP, {}), default=None)

    def ddp_acc(self, devices: int, base: int | None = None) -> float | None:
        """Performance of plain DDP on ``devices`` ÷ its performance on ``base`` ÷ how many times as many they are;
        ``None`` where either was not measured, and where they are the same. With ``base`` a whole node, and whole
        nodes of ``devices``, it is the published figure: linearity over nodes."""
        plain = self.samples_per_s.get(PLAIN_DDP, {})
        base = base or self.base
        if base is None or devices <= base or base not in plain or devices not in plain:
            return None
        return plain[devices] / plain[base] / (devices / base)

    def acc_ratio(self, strategy: str, devices: int) -> float | None:
        """Performance of ``strategy`` ÷ that of plain DDP on as many devices; ``None`` where either was not
        measured."""
        plain = self.samples_per_s.get(PLAIN_DDP, {}).get(devices)
        fast = self.samples_per_s.get(strategy, {}).get(devices)
        return None if plain is None or fast is None else fast / plain


def series(records: Sequence[Record]) -> list[Series]:
    """One for each model, batch, precision and whatever else a case says, in the order of first appearance."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in trained(records, strategies=DATA_PARALLEL):
        case = record.case
        # A device count says all of a mesh here, and every other parameter but the strategy must be alike.
        alike = {name: value for name, value in case.params.items() if name != "strategy"}
        key = json.dumps([record.hardware, case.builder, case.version, alike], sort_keys=True)
        rates = found.setdefault(key, {}).setdefault(case.params["strategy"], {})
        rates[case.mesh.world_size] = samples_per_s(record)
    return [_series(key, rates) for key, rates in found.items()]


def _series(key: str, rates: Mapping[str, Mapping[int, float]]) -> Series:
    params = json.loads(key)[-1]
    return Series(model=params["model"], micro_batch=params["micro_batch"], samples_per_s=rates)


def scaling(records: Sequence[Record]) -> pd.DataFrame | None:
    """Plain DDP: one line a model, batch and number of devices. ``ddp_acc`` is against the fewest devices measured,
    which are named; over nodes, against one of :data:`NODE` devices."""
    lines = []
    for one in series(records):
        for devices, rate in sorted(one.samples_per_s.get(PLAIN_DDP, {}).items()):
            linearity = one.ddp_acc(devices)
            lines.append(
                {
                    "model": one.model,
                    "batch a device": f"{one.micro_batch:,}",
                    "devices": str(devices),
                    "samples/s": f"{rate:,.1f}",
                    "ddp_acc": percent(linearity, digits=1),
                    "against": "" if linearity is None else f"{one.base} device{'s' * (one.base != 1)}",
                    f"ddp_acc over nodes of {NODE}": percent(
                        None if devices % NODE else one.ddp_acc(devices, base=NODE), digits=1
                    ),
                }
            )
    return shown(lines)


def acceleration(records: Sequence[Record]) -> pd.DataFrame | None:
    """``acc_ratio`` of every accelerator: one line a model, batch and number of devices that any was measured on."""
    lines = []
    for one in series(records):
        counts = {devices for name in ACCELERATORS for devices in one.samples_per_s.get(name, {})}
        for devices in sorted(counts):
            ratios = {name: one.acc_ratio(name, devices) for name in ACCELERATORS}
            if any(ratio is not None for ratio in ratios.values()):
                head = {"model": one.model, "batch a device": f"{one.micro_batch:,}", "devices": str(devices)}
                lines.append({**head, **{name: text(ratio, "{:.2f}×".format) for name, ratio in ratios.items()}})
    return shown(lines)


def points(records: Sequence[Record]) -> pd.DataFrame:
    """The picture of the published comparison: one dot a model, accelerator and number of devices, with ``ddp_acc`` to
    the right, ``acc_ratio`` up and ``devices`` as the colour. Columns: model, micro_batch, strategy, devices, base
    (devices that ``ddp_acc`` is against), ddp_acc, acc_ratio (numbers)."""
    import pandas as pd

    columns = ("model", "micro_batch", "strategy", "devices", "base", "ddp_acc", "acc_ratio")
    dots = []
    for one in series(records):
        for strategy in ACCELERATORS:
            for devices in sorted(one.samples_per_s.get(strategy, {})):
                right, up = one.ddp_acc(devices), one.acc_ratio(strategy, devices)
                if right is not None and up is not None:
                    dots.append((one.model, one.micro_batch, strategy, devices, one.base, right, up))
    return pd.DataFrame(dots, columns=columns)
