"""How training scales with the number of devices: in samples a second, and in what it takes to reach a loss."""

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
"""Model -> accelerators and sequences/s of the published weak scaling (ZeRO-1, bf16): shown, never used to judge."""

CONVERGED = {"bert-1.5b": ((64, 0.0015, 25), (128, 0.003, 15))}
"""Model -> accelerators, learning rate, and hours of the whole published training."""

SAME_LOSS = 0.003
"""Largest fraction by which two first losses of the same model and samples differ, added up in another order."""


class Series(NamedTuple):
    """The same training on more and more devices; at least two numbers of them, in order."""

    scaling: str
    records: list[Record]

    @property
    def model(self) -> str:
        name: str = self.records[0].case.params["model"]
        return name

    @property
    def of_same_samples(self) -> bool:
        """Whether their losses can be compared: with the same global batch they begin at the same one, unless the data
        was changed between two records, as a library's new random numbers do. Of larger batches the first loss does
        not tell."""
        first = [record.launches[0].losses[0] for record in went_well(self.records)]
        return self.scaling == "weak" or not first or max(first) - min(first) <= SAME_LOSS * max(first)


def scaling(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line a number of devices; the published figures of the same model below those of weak scaling.

    What is *bound by* its host may be ahead or behind for its machine alone. *efficiency* is sequences/s a device
    against the fewest devices of the series that it fits on; of more than one node, against one.
    """
    lines = []
    for series in _series(records):
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
    """One line a number of devices: what it takes until the loss is as low as all of the series have brought it.

    That *loss* is the highest of the lowest of those that fit; in brackets how far it is on the way from the mean first
    loss to that of :func:`loss_of_frequencies`. *samples* are those trained on before the first step whose loss is no
    higher, and *seconds* their steps at the median step time, without the start. Of the first launch: the others see
    the same data. A series whose records saw other samples says so instead. Below weak scaling stands how long the same
    model was published to take until it converged. A series that fits nowhere reaches no loss and has no line.
    """
    lines = []
    for series in _series(records):
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
        "seconds": f"{steps * (record.middle('step_ms') or 0.0) / 1000:.2f}",
    }


def curves(records: Sequence[Record]) -> pd.DataFrame:
    """Loss after so many samples, of the first launch of every record that fits, of series whose records saw the same
    samples. Columns: model, scaling, devices, samples, loss (numbers)."""
    import pandas as pd

    columns = ("model", "scaling", "devices", "samples", "loss")
    seen = [
        (series.model, series.scaling, record.case.mesh.world_size, step * _global_batch(record), loss)
        for series in _series(went_well(records))
        if series.of_same_samples
        for record in series.records
        for step, loss in enumerate(record.launches[0].losses)
    ]
    return pd.DataFrame(seen, columns=columns)


def loss_of_frequencies(vocabulary: int) -> float:
    """Loss of a BERT that knows how often each token occurs and nothing else: the entropy of Zipf's law (see
    :func:`bench_tests.training.data.token_pool`), and ln 2 for the next sentence."""
    total = sum(1 / rank for rank in range(1, vocabulary + 1))
    entropy = sum(math.log(rank * total) / rank for rank in range(1, vocabulary + 1)) / total
    return entropy + math.log(2)


def _series(records: Sequence[Record]) -> list[Series]:
    """Weak: what a device does is the same; the learning rate follows the global batch. Strong: the global batch is."""
    steps = [record for record in trained(records, strategies=("zero1",)) if "learning_rate" in record.case.params]
    weak = _grouped(steps, lambda record: {**record.case.params, "learning_rate": None, "warmup_steps": None})
    strong = _grouped(steps, lambda record: {**record.case.params, "micro_batches": _global_batch(record)})
    found = [Series("weak", group) for group in weak] + [Series("strong", group) for group in strong]
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
