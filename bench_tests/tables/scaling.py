"""How training scales with the number of devices: samples a second, and the samples and the time to reach a loss."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_tests.models import MODELS
from bench_tests.tables.format import bound_by, efficiency, rate, samples_per_s, shown, trained, went_well
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

GAUDI = "published, 8 Gaudi a node"

PUBLISHED = {
    "bert-large": ((8, 1379.76), (16, 2705.57), (32, 5291.58), (64, 9977.54)),
    "bert-1.5b": ((8, 276.66), (64, 1883.63), (128, 3659.15)),
}
"""Model -> (accelerators, sequences/s) of the published weak scaling with ZeRO-1 in bf16. Shown for comparison; no
verdict uses them."""

CONVERGED = {"bert-1.5b": ((64, 0.0015, 25), (128, 0.003, 15))}
"""Model -> (accelerators, learning rate, hours) of the whole published training."""

SAME_LOSS = 0.003
"""Largest relative difference of two first losses with the same model and samples. They differ in the order of
summation."""


class ScalingSeries(NamedTuple):
    """The same training on at least two numbers of devices, in ascending order."""

    scaling: str
    records: list[Record]

    @property
    def model(self) -> str:
        name: str = self.records[0].case.params["model"]
        return name

    @property
    def of_same_samples(self) -> bool:
        """Whether the losses of the series are comparable.

        With one global batch (strong scaling) all records start at the same loss, unless their data differs, for
        example after a change of random numbers in a library. In weak scaling the global batches differ, so the first
        loss shows nothing.
        """
        first = [record.launches[0].losses[0] for record in went_well(self.records)]
        return self.scaling == "weak" or not first or max(first) - min(first) <= SAME_LOSS * max(first)


def scaling(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each number of devices. Published figures of the same model are below the lines of weak scaling.

    A row with *bound by* = host may differ only because of its machine. *efficiency* compares sequences/s per device
    with the fewest devices that the series fits on, or with one whole node for a row on several nodes.
    """
    lines = []
    for series in all_series(records):
        for record in series.records:
            devices = record.case.mesh.world_size
            lines.append(
                {
                    "model": series.model,
                    "scaling": series.scaling,
                    "devices": str(devices),
                    "where": "here",
                    "global batch": f"{_global_batch(record):,}",
                    "sequences/s": rate(record),
                    "a device": f"{samples_per_s(record) / devices:,.1f}" if record.outcome == "ok" else "",
                    "bound by": bound_by(record),
                    "efficiency": efficiency(record, series.records),
                }
            )
        if series.scaling == "weak":
            lines += _published(series.model)
    return shown(lines)


def time_to_loss(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each number of devices: the steps, samples and seconds until a loss that all records of the series
    reach.

    *loss* is the highest of the records' lowest losses. The percentage is its position between the mean first loss and
    :func:`loss_of_frequencies`. *samples* are trained before the first step whose loss is at most *loss*. *seconds* are
    the steps up to there at the judged step time, without the start. Losses come from the first launch; other launches
    see the same data.

    A series whose records saw different samples says so instead. Below weak scaling are the published times until the
    same model converged. A series that fits on no number of devices has no line.
    """
    lines = []
    for series in all_series(records):
        losses = [record.launches[0].losses for record in went_well(series.records)]
        if not losses:
            continue
        goal = max(map(min, losses))
        first = sum(seen[0] for seen in losses) / len(losses)
        floor = loss_of_frequencies(MODELS[series.model].dimensions["vocabulary"])
        reached = f"{goal:.3f} ({(first - goal) / (first - floor):.0%})"
        comparable = series.of_same_samples
        for record in series.records:
            fits = record.outcome == "ok"
            lines.append(
                {
                    "model": series.model,
                    "scaling": series.scaling,
                    "devices": str(record.case.mesh.world_size),
                    "learning rate": f"{record.case.params['learning_rate']:.3g}",
                    "loss": record.outcome.upper() if not fits else reached if comparable else "of other samples",
                    **(_until(record, goal) if fits and comparable else {}),
                }
            )
        lines += [
            {
                "model": series.model,
                "scaling": series.scaling,
                "devices": str(devices),
                "learning rate": f"{rate:.3g}",
                "loss": f"converged ({GAUDI})",
                "seconds": f"{hours * 3600:,} ({hours} h)",
            }
            for devices, rate, hours in (CONVERGED.get(series.model, ()) if series.scaling == "weak" else ())
        ]
    return shown(lines)


def _until(record: Record, goal: float) -> dict[str, str]:
    steps = next(step for step, loss in enumerate(record.launches[0].losses) if loss <= goal)
    return {
        "steps": str(steps),
        "samples": f"{steps * _global_batch(record):,}",
        "seconds": f"{steps * (record.figure('step_ms') or 0.0) / 1000:.2f}",
    }


def curves(records: Sequence[Record]) -> pd.DataFrame:
    """Loss over samples: the first launch of every record that fits, in series whose records saw the same samples.

    Columns: model, scaling, devices, samples, loss; figures are numbers.
    """
    import pandas as pd

    columns = ("model", "scaling", "devices", "samples", "loss")
    seen = [
        (series.model, series.scaling, record.case.mesh.world_size, step * _global_batch(record), loss)
        for series in all_series(went_well(records))
        if series.of_same_samples
        for record in series.records
        for step, loss in enumerate(record.launches[0].losses)
    ]
    return pd.DataFrame(seen, columns=columns)


def loss_of_frequencies(vocabulary: int) -> float:
    """Loss of a BERT that knows only the frequency of each token: the entropy of Zipf's law, plus ln 2 for the next
    sentence.

    See :func:`bench_tests.training.data.token_pool` for Zipf's law.
    """
    total = sum(1 / rank for rank in range(1, vocabulary + 1))
    entropy = sum(math.log(rank * total) / rank for rank in range(1, vocabulary + 1)) / total
    return entropy + math.log(2)


def all_series(records: Sequence[Record]) -> list[ScalingSeries]:
    """Weak: the work of a device is constant, and the learning rate follows the global batch. Strong: the global batch
    is constant."""
    steps = [record for record in trained(records, strategies=("zero1",)) if "learning_rate" in record.case.params]
    weak = _grouped(steps, lambda record: {**record.case.params, "learning_rate": None, "warmup_steps": None})
    strong = _grouped(steps, lambda record: {**record.case.params, "micro_batches": _global_batch(record)})
    found = [ScalingSeries("weak", group) for group in weak] + [ScalingSeries("strong", group) for group in strong]
    return sorted(found, key=lambda series: list(MODELS).index(series.model))


def _grouped(records: Sequence[Record], work: Callable[[Record], dict[str, Any]]) -> list[list[Record]]:
    groups: dict[str, dict[int, Record]] = defaultdict(dict)
    for record in records:
        groups[json.dumps([record.hardware, work(record)], sort_keys=True)][record.case.mesh.world_size] = record
    return [[group[devices] for devices in sorted(group)] for group in groups.values() if len(group) > 1]


def _global_batch(record: Record) -> int:
    params = record.case.params
    samples: int = params["micro_batch"] * params.get("micro_batches", 1) * record.case.mesh.world_size
    return samples


def _published(model: str) -> list[dict[str, str]]:
    rows = PUBLISHED.get(model, ())
    return [
        {
            "model": model,
            "scaling": "weak",
            "devices": str(devices),
            "where": GAUDI,
            "global batch": "",
            "sequences/s": f"{sequences_per_s:,.1f}",
            "a device": f"{sequences_per_s / devices:,.1f}",
            "bound by": "",
            "efficiency": "base"
            if devices == rows[0][0]
            else f"{sequences_per_s / devices / (rows[0][1] / rows[0][0]):.1%} of {rows[0][0]}",
        }
        for devices, sequences_per_s in rows
    ]
