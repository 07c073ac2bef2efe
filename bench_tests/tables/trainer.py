"""Training through transformers' ``Trainer``, beside the published runs of the same model."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from bench_tests.tables.format import built_by, marked, peak_mib, rate, samples_per_s, shown, with_result
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = Path(__file__).parents[1] / "published" / "trainer_runs.csv"
PUBLISHED_MODEL = "deberta-v3-base"
PUBLISHED_AMP = {"fp32": "false", "tf32": "false", "fp16": "true"}
"""Our number format -> the column ``fp16`` of the published runs. They have no bf16."""

PUBLISHED_USE = "published (fp32 or fp16, DataParallel)"
"""The number formats of the published runs, and the way they most likely used several GPUs; see docs/trainer.md."""

LOGGED = {
    "train s": ("train_runtime_s", ",.2f"),
    "train samples/s": ("train_samples_per_s", ",.1f"),
    "train steps/s": ("train_steps_per_s", ".3f"),
    "eval s": ("eval_runtime_s", ",.2f"),
    "eval samples/s": ("eval_samples_per_s", ",.1f"),
    "eval steps/s": ("eval_steps_per_s", ".3f"),
}
"""Column -> (name of the figure in a whole run and in the published runs, format of its text)."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
EPOCHS = 2


@dataclass(frozen=True, order=True, kw_only=True)
class Setup:
    """Parameters that comparable trainings share. The number of GPUs and their use may differ."""

    model: str
    sequence: int
    precision: str
    batch: int


class Rate(NamedTuple):
    """Samples/s, ``None`` if the case ran out of memory, and the machines. The machines of published runs are
    unknown."""

    per_s: float | None
    machines: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of the cases that share a setup, by number of GPUs and way of using them.

    ``samples`` is the size of both data sets, and ``memory`` is the peak MiB of training.
    """

    train: dict[tuple[int, str], Rate]
    evaluate: dict[tuple[int, str], Rate]
    run: dict[tuple[int, str], Rate]
    samples: dict[str, int]
    memory: dict[tuple[int, str], str]


def beside_published(records: Sequence[Record]) -> pd.DataFrame | None:
    """A row for each setup and number of GPUs; ``None`` without a record of ``Trainer``.

    *train* and *eval* are steady-state rates, and *train MiB* is the peak memory of training. A published training rate
    covers a whole run of two epochs, and ``Trainer`` counts the evaluations into its time. Two columns are comparable
    with it: *run, from rates* combines our two rates in the same way, and *run, logged* is what ``Trainer`` logged for
    such a run.

    Published runs without fp16 are fp32, also in our TF32 rows. Published runs on several GPUs are ``nn.DataParallel``,
    in all our rows. The percentage is the rate per GPU as a share of the rate of one GPU with the same batch and
    format.
    """
    found: dict[Setup, Rates] = {}
    for record in with_result(built_by(records, "trainer_train", "trainer_eval", "trainer_run")):
        _add(record, found)
    rows = []
    for setup in sorted(found, key=_order):
        rates = found[setup]
        for use in sorted({*rates.train, *rates.evaluate, *rates.run}):
            rows.append(_row(setup, rates, use))
    return shown(rows)


def whole_runs(records: Sequence[Record]) -> pd.DataFrame | None:
    """What ``Trainer`` logs for a whole run: a row for each run, then the published runs. ``None`` without a run.

    ``Trainer`` counts the evaluations into the time of the training. Figures are medians over launches, and the
    evaluation is the last one. Published runs are below our runs of the same model, batch, format and number of GPUs;
    below TF32 they are fp32. A run that ran out of memory shows ``OOM`` in place of its samples/s.
    """
    found = [(*_setup(record), record) for record in with_result(built_by(records, "trainer_run"))]
    found.sort(key=lambda run: (_order(run[0]), run[1]))
    rows = []
    for (setup, gpus), alike in groupby(found, key=lambda run: (run[0], run[1][0])):
        rows += [_run_row(setup, use, "here", _logged(record)) for _, use, record in alike]
        known = _published() if setup.model == PUBLISHED_MODEL else []
        for run in known:
            if (int(run["gpus"]), _as_here(run)) == (gpus, _alike(setup)):
                logged = {column: format(float(run[name]), spelled) for column, (name, spelled) in LOGGED.items()}
                theirs = replace(setup, precision="fp16" if run["fp16"] == "true" else "fp32")
                rows.append(_run_row(theirs, (gpus, "DataParallel"), f"{run['device']}, published", logged))
    return shown(rows)


def _run_row(setup: Setup, use: tuple[int, str], where: str, logged: Mapping[str, str]) -> dict[str, str]:
    return {**_head(setup, use), "where": where, **logged}


def _logged(record: Record) -> dict[str, str]:
    if record.outcome != "ok":
        return {**dict.fromkeys(LOGGED, ""), "train samples/s": rate(record)}
    return {
        column: format(median(one.figures[name] for one in record.launches), spelled)
        for column, (name, spelled) in LOGGED.items()
    }


def _setup(record: Record) -> tuple[Setup, tuple[int, str]]:
    """The setup, and the number of GPUs with the way of using them."""
    params = record.case.params
    setup = Setup(**{name: params[name] for name in ("model", "sequence", "precision", "batch")})
    devices = params.get("devices", 1)
    by = "DataParallel" if devices > 1 else "DDP"
    if "report_to" in params:
        by += f", reports to {params['report_to']}"
    if params.get("checkpointing"):
        by += ", checkpointing"
    if params.get("accumulation") == 1:
        by += ", no accumulation"
    return setup, (devices * record.case.mesh.world_size, by)


def _order(setup: Setup) -> tuple[object, ...]:
    return setup.model, setup.sequence, PRECISIONS.index(setup.precision), setup.batch


def _add(record: Record, found: dict[Setup, Rates]) -> None:
    builder = record.case.function
    setup, use = _setup(record)
    rates = found.setdefault(setup, Rates(train={}, evaluate={}, run={}, samples={}, memory={}))
    fits = record.outcome == "ok"
    if builder == "trainer_run":
        logged = (launch.figures["train_samples_per_s"] for launch in record.launches)
        rates.run[use] = Rate(median(logged) if fits else None, frozenset({record.machine}))
    else:
        rates.samples[builder] = record.case.params["samples"]
        kind = rates.train if builder == "trainer_train" else rates.evaluate
        kind[use] = Rate(samples_per_s(record) if fits else None, frozenset({record.machine}))
    if builder == "trainer_train":
        rates.memory[use] = peak_mib(record)


def _head(setup: Setup, use: tuple[int, str]) -> dict[str, str]:
    gpus, by = use
    return {
        "model": setup.model,
        "precision": setup.precision,
        "batch a GPU": str(setup.batch),
        "GPUs": str(gpus),
        "by": by if gpus > 1 else by.replace("DDP", "alone").replace("DataParallel", "alone"),
    }


def _row(setup: Setup, rates: Rates, use: tuple[int, str]) -> dict[str, str]:
    _, parallel = use
    cells = {
        **_head(setup, use),
        "train": _cell(rates.train, use),
        "eval": _cell(rates.evaluate, use),
        "train MiB": rates.memory.get(use, ""),
        "run, from rates": _cell(_run_rates(rates), use),
        "run, logged": _cell(rates.run, use),
    }
    if setup.model == PUBLISHED_MODEL and parallel in ("DDP", "DataParallel"):
        for device in ("V100", "A100"):
            runs = [run for run in _published() if (run["device"], _as_here(run)) == (device, _alike(setup))]
            for title, column in (("run", "train_samples_per_s"), ("eval", "eval_samples_per_s")):
                known = {(int(run["gpus"]), parallel): Rate(float(run[column])) for run in runs}
                cells[f"{device} {title}, {PUBLISHED_USE}"] = _cell(known, use)
    return cells


def _alike(setup: Setup) -> tuple[str | None, int]:
    """The format and batch of the published runs with this setup."""
    return PUBLISHED_AMP.get(setup.precision), setup.batch


def _as_here(run: Mapping[str, str]) -> tuple[str, int]:
    return run["fp16"], int(run["per_device_batch"])


def _run_rates(rates: Rates) -> dict[tuple[int, str], Rate]:
    """Training samples/s of whole runs with an evaluation after each epoch, if training and evaluation fit."""
    found = {}
    for use, training in rates.train.items():
        evaluation = rates.evaluate.get(use, Rate(None))
        if training.per_s is not None and evaluation.per_s is not None:
            train, evaluate = rates.samples["trainer_train"], rates.samples["trainer_eval"]
            run_s = EPOCHS * (train / training.per_s + evaluate / evaluation.per_s)
            found[use] = Rate(EPOCHS * train / run_s, training.machines | evaluation.machines)
    return found


def _cell(rates: Mapping[tuple[int, str], Rate], use: tuple[int, str]) -> str:
    if use not in rates:
        return ""
    per_s, machines = rates[use]
    if per_s is None:
        return "OOM"
    gpus, parallel = use
    alone = rates.get((1, parallel.replace("DataParallel", "DDP")), rates.get((1, parallel), Rate(None)))
    said = marked(f"{per_s:,.1f}", *machines)
    if gpus == 1 or not alone.per_s:
        return said
    return f"{said} ({marked(f'{per_s / gpus / alone.per_s:.0%}', *machines, *alone.machines)})"


@cache
def _published() -> list[dict[str, str]]:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
