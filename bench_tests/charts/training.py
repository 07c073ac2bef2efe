"""How training scales with the number of devices, how much faster its accelerated variants are, and its losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench_tests.strategies import PLAIN_DDP
from bench_tests.tables import ddp_scaling
from bench_tests.tables import scaling as over_devices
from bench_tests.tables.format import samples_per_s, went_well
from pytest_trainbench.report.chart import AnyChart, Chart, Dot, Series
from pytest_trainbench.schema.record import Record

DEVICES, RATE = "devices", "samples/s"


def scaling(records: Sequence[Record]) -> list[AnyChart]:
    """Samples/s over devices, with the ideal: the rate of the fewest devices times the number of devices."""
    found: list[AnyChart] = []
    for one in over_devices.all_series(records):
        rates = {record.case.mesh.world_size: samples_per_s(record) for record in went_well(one.records)}
        if len(rates) > 1:
            found.append(_scaled(f"{one.model}, {one.scaling} scaling", {"measured": rates}))
    for ddp in ddp_scaling.series(records):
        plain = ddp.samples_per_s(PLAIN_DDP)
        if len(plain) > 1:
            others = {name: ddp.samples_per_s(name) for name in ddp.records if name != PLAIN_DDP}
            found.append(_scaled(f"{ddp.model}, {ddp.micro_batch} a device", {PLAIN_DDP: plain, **others}))
    return found


def acceleration(records: Sequence[Record]) -> list[AnyChart]:
    """The published plot, once for each accelerated variant: one dot for each model, batch and number of devices."""
    dots = ddp_scaling.points(records).to_dict("records")
    return [
        Chart(
            title=strategy,
            across="linearity of plain DDP (1 is ideal)",
            up="samples/s ÷ plain DDP",
            level=((1.0, "plain DDP"),),
            series=tuple(
                Series(
                    name=_devices(devices),
                    dots=tuple(
                        Dot(
                            x=dot["ddp_acc"],
                            y=dot["acc_ratio"],
                            name=f"{dot['model']}, {dot['micro_batch']} a device: {dot['acc_ratio']:.2f}×",
                            label=dot["model"],
                        )
                        for dot in group
                    ),
                )
                for (devices,), group in sorted(_grouped(of_strategy, "devices").items())
            ),
        )
        for (strategy,), of_strategy in _grouped(dots, "strategy").items()
    ]


def losses(records: Sequence[Record]) -> list[AnyChart]:
    """Loss over samples of the scaling suite: one line for each number of devices."""
    points = over_devices.curves(records).to_dict("records")
    return [
        Chart(
            title=f"{model}, {kind} scaling",
            across="samples",
            up="loss",
            from_zero=False,
            series=tuple(
                Series(
                    name=_devices(devices),
                    dots=tuple(
                        Dot(x=dot["samples"], y=dot["loss"], name=f"{dot['samples']:,} samples: {dot['loss']:.4g}")
                        for dot in group
                    ),
                    line=True,
                )
                for (devices,), group in sorted(_grouped(one, "devices").items())
            ),
        )
        for (model, kind), one in _grouped(points, "model", "scaling").items()
    ]


def _grouped(lines: Sequence[Mapping[Any, Any]], *names: str) -> dict[tuple[Any, ...], list[Mapping[Any, Any]]]:
    """The lines by their values of ``names``, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Mapping[Any, Any]]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[name] for name in names)].append(line)
    return groups


def _scaled(title: str, rates: Mapping[str, Mapping[int, float]]) -> Chart:
    """``rates``: the samples/s by the number of devices, of each variant. The ideal is that of the first variant."""
    first = next(iter(rates.values()))
    fewest, most = min(first), max(devices for one in rates.values() for devices in one)
    each = first[fewest] / fewest
    ideal = tuple(Dot(x=devices, y=each * devices) for devices in (fewest, most))
    return Chart(
        title=title,
        across=DEVICES,
        up=RATE,
        series=(
            *(
                Series(
                    name=name,
                    dots=tuple(
                        Dot(
                            x=devices,
                            y=rate,
                            name=f"{name}, {_devices(devices)}: {rate:,.1f} {RATE}, {rate / devices / each:.0%}",
                        )
                        for devices, rate in sorted(one.items())
                    ),
                    line=True,
                )
                for name, one in rates.items()
                if one
            ),
            Series(name="ideal", dots=ideal, ideal=True),
        ),
    )


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count > 1)}"
