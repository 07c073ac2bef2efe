"""Trainer's tables: rates, scaling, and the published runs of the same setup."""

from __future__ import annotations

import csv
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest
from samples import MIB, capped, case, failed, launch, record

from bench_tests import test_trainer
from bench_tests.tables.trainer import PUBLISHED, PUBLISHED_USE, beside_published, whole_runs
from pytest_trainbench.schema.record import Record

SETUP = {"model": "deberta-v3-base", "sequence": 512, "precision": "fp16", "batch": 8}


def of(builder: str, samples_per_s: float, *, mesh: str = "dp1", **params: Any) -> Record:
    size = {"samples": 1024 if builder == "trainer_eval" else 2048} if builder != "trainer_run" else {}
    here = case(builder=f"bench_tests.steps.hf_trainer:{builder}", mesh=mesh, **{**SETUP, **size, **params})
    figures = {"train_samples_per_s": samples_per_s / 2}
    one = replace(launch(samples_per_s=samples_per_s, peak_allocated_bytes=700 * MIB), figures=figures)
    return record(one, one, one, of=here)


def rows(*records: Record) -> list[dict[Hashable, Any]]:
    table = beside_published(records)
    assert table is not None
    return table.to_dict("records")


def published(*rates: str) -> dict[str, str]:
    """The cells of the published runs. They have columns of their own, because on several GPUs they are not DDP."""
    columns = (f"{figure}, {PUBLISHED_USE}" for figure in ("V100 run", "V100 eval", "A100 run", "A100 eval"))
    return dict(zip(columns, rates, strict=True))


def test_a_setup_shows_the_published_runs_with_its_batch_format_and_gpus() -> None:
    assert rows(
        of("trainer_train", 400.0, mesh="dp4"),
        of("trainer_train", 125.0),
        of("trainer_eval", 500.0),
        of("trainer_run", 200.0),
        of("trainer_train", 50.0, devices=4),
    ) == [
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "1", "by": "alone",
            "train": "125.0", "eval": "500.0", "train MiB": "700", "run, from rates": "111.1", "run, logged": "100.0",
            **published("23.4", "90.5", "35.6", "146.5"),
        },
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "4", "by": "DDP",
            "train": "400.0 (80%)", "eval": "", "train MiB": "700", "run, from rates": "", "run, logged": "",
            **published("19.9 (21%)", "52.7 (15%)", "16.0 (11%)", "35.8 (6%)"),
        },
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "4", "by": "DataParallel",
            "train": "50.0 (10%)", "eval": "", "train MiB": "700", "run, from rates": "", "run, logged": "",
            **published("19.9 (21%)", "52.7 (15%)", "16.0 (11%)", "35.8 (6%)"),
        },
    ]  # fmt: skip


def test_unpublished_models_and_formats_show_no_published_runs() -> None:
    tiny: dict[str, Any] = {"model": "deberta-tiny", "precision": "tf32", "batch": 2}
    assert rows(of("trainer_eval", 10.0, precision="bf16"), of("trainer_train", 10.0, **tiny)) == [
        {
            "model": "deberta-tiny", "precision": "tf32", "batch a GPU": "2", "GPUs": "1", "by": "alone",
            "train": "10.0", "eval": "", "train MiB": "700",
        },
        {
            "model": "deberta-v3-base", "precision": "bf16", "batch a GPU": "8", "GPUs": "1", "by": "alone",
            "train": "", "eval": "10.0", "train MiB": "",
        },
    ]  # fmt: skip


def test_a_training_that_reports_has_a_row_of_its_own() -> None:
    both = rows(of("trainer_train", 100.0), of("trainer_train", 90.0, report_to="wandb", mesh="dp2"))
    assert [(row["by"], row["train"]) for row in both] == [("alone", "100.0"), ("DDP, reports to wandb", "90.0")]


def test_a_lever_has_a_row_of_its_own_without_published_runs() -> None:
    levers: list[dict[str, Any]] = [
        {"accumulation": 4},
        {"accumulation": 1},
        {"accumulation": 4, "checkpointing": True},
    ]
    found = rows(*(of("trainer_train", 100.0 - number, **one) for number, one in enumerate(levers)))
    assert [(row["by"], row["train"], row[f"V100 run, {PUBLISHED_USE}"]) for row in found] == [
        ("alone", "100.0", "23.4"),
        ("alone, checkpointing", "98.0", ""),
        ("alone, no accumulation", "99.0", ""),
    ]


def test_rows_that_ran_out_of_memory_show_oom_and_are_never_a_base() -> None:
    too_large = [
        of("trainer_train", 1.0, batch=16),
        of("trainer_run", 1.0, mesh="dp2", batch=16),
        of("trainer_eval", 1.0, mesh="dp4", batch=16),
    ]
    fits = [
        of("trainer_eval", 500.0, batch=16),
        of("trainer_train", 240.0, mesh="dp2", batch=16),
        of("trainer_eval", 900.0, mesh="dp2", batch=16),
        of("trainer_train", 400.0, mesh="dp4", batch=16),
    ]
    found = rows(*(record(failed("oom"), of=one.case) for one in too_large), *fits)
    assert [[text for name, text in row.items() if "published" not in str(name)] for row in found] == [
        ["deberta-v3-base", "fp16", "16", "1", "alone", "OOM", "500.0", "", "", ""],
        ["deberta-v3-base", "fp16", "16", "2", "DDP", "240.0", "900.0 (90%)", "700", "211.8", "OOM"],
        ["deberta-v3-base", "fp16", "16", "4", "DDP", "400.0", "OOM", "700", "", ""],
    ]


def test_a_run_rate_from_two_machines_is_marked() -> None:
    training, evaluation = of("trainer_train", 50.0), of("trainer_eval", 100.0)
    there = replace(evaluation, environment={"machine": "4567abcd"})
    for second, mark in ((evaluation, ""), (there, " †")):
        (row,) = rows(training, second)
        assert row["run, from rates"] == f"40.0{mark}"


def test_scaling_across_two_machines_is_marked() -> None:
    there = replace(of("trainer_train", 90.0, mesh="dp2"), environment={"machine": "4567abcd"})
    assert [row["train"] for row in rows(of("trainer_train", 50.0), there)] == ["50.0", "90.0 (90% †)"]


def test_other_suites_failed_rows_and_capped_devices_fill_no_table() -> None:
    broken = record(failed("crash"), of=of("trainer_train", 1.0).case)
    assert beside_published([record(), broken, capped(of("trainer_train", 1.0))]) is None


def logged(mesh: str, *factors: float, **params: Any) -> Record:
    """A run with one launch that logged these figures, and other launches that are ``factors`` times as fast."""
    launches = [
        replace(
            launch(samples_per_s=1.0),
            figures={
                "train_runtime_s": 100.0 / factor,
                "train_samples_per_s": 40.96 * factor,
                "train_steps_per_s": 1.28 * factor,
                "eval_runtime_s": 10.24 / factor,
                "eval_samples_per_s": 100.0 * factor,
                "eval_steps_per_s": 12.5 * factor,
            },
        )
        for factor in (1.0, *factors)
    ]
    return record(
        *launches, of=case(builder="bench_tests.steps.hf_trainer:trainer_run", mesh=mesh, **{**SETUP, **params})
    )


def test_whole_runs_show_all_logged_figures_above_the_published_runs_of_their_setup() -> None:
    """Each published run appears once, however our runs used the GPUs, and in its own format. Published runs have no
    TF32."""
    ours = [logged("dp2", 0.5, 2.0), logged("dp1", batch=16, precision="tf32"), logged("dp1", devices=2)]
    table = whole_runs(ours)
    assert table is not None
    names = ("precision", "batch a GPU", "GPUs", "by", "where")
    figures = ("train s", "train samples/s", "train steps/s", "eval s", "eval samples/s", "eval steps/s")
    assert list(table[[*names, *figures]].itertuples(index=False, name=None)) == [
        ("tf32", "16", "1", "alone", "here", "100.00", "41.0", "1.280", "10.24", "100.0", "12.500"),
        ("fp32", "16", "1", "alone", "A100, published", "277.66", "14.8", "0.230", "18.66", "54.9", "3.430"),
        ("fp16", "8", "2", "DDP", "here", "100.00", "41.0", "1.280", "10.24", "100.0", "12.500"),
        ("fp16", "8", "2", "DataParallel", "here", "100.00", "41.0", "1.280", "10.24", "100.0", "12.500"),
        ("fp16", "8", "2", "DataParallel", "V100, published", "226.84", "18.1", "0.282", "16.82", "60.9", "3.806"),
        ("fp16", "8", "2", "DataParallel", "A100, published", "262.77", "15.6", "0.244", "24.28", "42.2", "2.636"),
    ]


def test_a_whole_run_that_ran_out_of_memory_shows_oom_in_place_of_its_rate() -> None:
    too_large = record(failed("oom"), of=logged("dp1", batch=16, precision="tf32").case)
    table = whole_runs([too_large, logged("dp2")])
    assert table is not None
    assert table[table["where"] == "here"].to_numpy().tolist() == [
        ["deberta-v3-base", "tf32", "16", "1", "alone", "here", "", "OOM", "", "", "", ""],
        ["deberta-v3-base", "fp16", "8", "2", "DDP", "here", "100.00", "41.0", "1.280", "10.24", "100.0", "12.500"],
    ]


def test_unpublished_models_have_no_published_runs_and_other_steps_fill_no_table() -> None:
    table = whole_runs([logged("dp1", model="deberta-tiny", batch=8), of("trainer_train", 1.0)])
    assert table is not None and list(table["where"]) == ["here"]
    assert whole_runs([of("trainer_train", 1.0), record(failed("crash"), of=logged("dp1").case)]) is None


@pytest.mark.parametrize("test", ["test_trainer_train", "test_trainer_eval", "test_trainer_run"])
def test_every_published_batch_is_run_as_published(test: str) -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        published = {int(row["per_device_batch"]) for row in csv.DictReader(file)}
    (profiles,) = (mark for mark in getattr(test_trainer, test).pytestmark if mark.name == "profiles")
    assert set(profiles.kwargs["batch"]["seed"]["published"]) == published


@pytest.mark.parametrize("lever", test_trainer.LEVERS)
def test_a_lever_changes_one_parameter(lever: str) -> None:
    """Otherwise the table of single changes would not show the pair."""
    without, with_it = test_trainer.train("seed", 1), test_trainer.train("seed", 1, **test_trainer.LEVERS[lever])
    differs = {name for name in {*without, *with_it} - {"reference"} if without.get(name) != with_it.get(name)}
    assert differs == set(test_trainer.LEVERS[lever])
