"""Training through transformers' ``Trainer``, beside the published runs of the same model."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench_tests.tables.cells import built_by, samples_per_s, shown, went_well
from pytest_trainbench.record import Record

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = Path(__file__).parents[1] / "published" / "trainer_runs.csv"
PUBLISHED_MODEL = "deberta-v3-base"
PUBLISHED_AMP = {"fp32": "false", "tf32": "false", "fp16": "true"}
"""Our number format -> the column ``fp16`` of the published runs, which know no bf16."""

PUBLISHED_USE = "published (DataParallel)"
"""How the published runs used several GPUs, by all marks: see docs/trainer.md."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
EPOCHS = 2


@dataclass(frozen=True, order=True, kw_only=True)
class Setup:
    """What makes two trainings comparable but for the number of GPUs and how they are used."""

    model: str
    sequence: int
    precision: str
    batch: int


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Samples/s of several cases that share a setup, by number of GPUs and way of using them, and how many samples the
    two data sets have."""

    train: dict[tuple[int, str], float]
    evaluate: dict[tuple[int, str], float]
    run: dict[tuple[int, str], float]
    samples: dict[str, int]


def beside_published(records: Sequence[Record]) -> pd.DataFrame | None:
    """A row for each setup and number of GPUs; ``None`` without a record of ``Trainer``.

    *train* and *eval* are steady rates. The published training rates are those of a whole run of two epochs, in whose
    time ``Trainer`` counts the evaluations: beside them stand *run, from rates*, the same made of our two rates, and
    *run, logged*, what ``Trainer`` logged of such a run. On several GPUs the published runs are ``nn.DataParallel``'s,
    beside whatever ours are. In brackets: the rate of a GPU as a fraction of that of one GPU alone, with the same batch
    and format.
    """
    found: dict[Setup, Rates] = {}
    for record in went_well(built_by(records, "trainer_train", "trainer_eval", "trainer_run")):
        _add(record, found)
    rows = []
    for setup in sorted(found, key=lambda one: (one.model, one.sequence, PRECISIONS.index(one.precision), one.batch)):
        rates = found[setup]
        for use in sorted({*rates.train, *rates.evaluate, *rates.run}):
            rows.append(_row(setup, rates, use))
    return shown(rows)


def _add(record: Record, found: dict[Setup, Rates]) -> None:
    builder, params = record.case.builder.rpartition(":")[2], record.case.params
    setup = Setup(**{name: params[name] for name in ("model", "sequence", "precision", "batch")})
    rates = found.setdefault(setup, Rates(train={}, evaluate={}, run={}, samples={}))
    devices = params.get("devices", 1)
    use = devices * record.case.mesh.world_size, "DataParallel" if devices > 1 else "DDP"
    if "report_to" in params:
        use = use[0], f"{use[1]}, reports to {params['report_to']}"
    if builder == "trainer_run":
        rates.run[use] = median(launch.figures["train_samples_per_s"] for launch in record.launches)
    else:
        rates.samples[builder] = params["samples"]
        kind = rates.train if builder == "trainer_train" else rates.evaluate
        kind[use] = samples_per_s(record)


def _row(setup: Setup, rates: Rates, use: tuple[int, str]) -> dict[str, str]:
    gpus, parallel = use
    combined = {one: _run_rate(rates, one) for one in rates.train if one in rates.evaluate}
    cells = {
        "model": setup.model,
        "precision": setup.precision,
        "batch a GPU": str(setup.batch),
        "GPUs": str(gpus),
        "by": parallel if gpus > 1 else parallel.replace("DDP", "alone"),
        "train": _cell(rates.train, use),
        "eval": _cell(rates.evaluate, use),
        "run, from rates": _cell(combined, use),
        "run, logged": _cell(rates.run, use),
    }
    if setup.model == PUBLISHED_MODEL:
        amp = PUBLISHED_AMP.get(setup.precision)
        for device in ("V100", "A100"):
            for title, column in (("run", "train_samples_per_s"), ("eval", "eval_samples_per_s")):
                known = {
                    (int(row["gpus"]), parallel): float(row[column])
                    for row in _published()
                    if (row["device"], row["fp16"], int(row["per_device_batch"])) == (device, amp, setup.batch)
                }
                cells[f"{device} {title}, {PUBLISHED_USE}"] = _cell(known, use)
    return cells


def _run_rate(rates: Rates, use: tuple[int, str]) -> float:
    """Training samples/s of a whole run, evaluation after each epoch included."""
    train, evaluate = rates.samples["trainer_train"], rates.samples["trainer_eval"]
    run_s = EPOCHS * (train / rates.train[use] + evaluate / rates.evaluate[use])
    return EPOCHS * train / run_s


def _cell(rates: dict[tuple[int, str], float], use: tuple[int, str]) -> str:
    if use not in rates:
        return ""
    gpus, parallel = use
    alone = rates.get((1, parallel.replace("DataParallel", "DDP")), rates.get((1, parallel)))
    scaling = f" ({rates[use] / gpus / alone:.0%})" if gpus > 1 and alone else ""
    return f"{rates[use]:,.1f}{scaling}"


@cache
def _published() -> list[dict[str, str]]:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
