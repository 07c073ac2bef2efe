"""Trainer's table: rates, scaling, and the published runs where they are of the same setup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samples import capped, case, failed, launch, record

from bench_tests.tables.trainer import beside_published
from pytest_trainbench.record import Record

SETUP = {"model": "deberta-v3-base", "sequence": 512, "precision": "fp16", "batch": 8}


def of(builder: str, samples_per_s: float, *, mesh: str = "dp1", **params: Any) -> Record:
    size = {"samples": 1024 if builder == "trainer_eval" else 2048} if builder != "trainer_run" else {}
    here = case(builder=f"bench_tests.trainer.steps:{builder}", mesh=mesh, **{**SETUP, **size, **params})
    one = replace(launch(samples_per_s=samples_per_s), figures={"train_samples_per_s": samples_per_s / 2})
    return record(one, one, one, of=here)


def rows(*records: Record) -> list[dict[str, Any]]:
    table = beside_published(records)
    assert table is not None
    return table.to_dict("records")


def published(*rates: str) -> dict[str, str]:
    """Told apart from ours in every column: on several GPUs they are no DDP."""
    columns = ("V100 run", "V100 eval", "A100 run", "A100 eval")
    return {f"{column}, published (DataParallel)": rate for column, rate in zip(columns, rates, strict=True)}


def test_each_setup_stands_beside_the_published_runs_of_the_same_batch_format_and_gpus() -> None:
    assert rows(
        of("trainer_train", 400.0, mesh="dp4"),
        of("trainer_train", 125.0),
        of("trainer_eval", 500.0),
        of("trainer_run", 200.0),
        of("trainer_train", 50.0, devices=4),
    ) == [
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "1", "by": "alone",
            "train": "125.0", "eval": "500.0", "run, from rates": "111.1", "run, logged": "100.0",
            **published("23.4", "90.5", "35.6", "146.5"),
        },
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "4", "by": "DDP",
            "train": "400.0 (80%)", "eval": "", "run, from rates": "", "run, logged": "",
            **published("19.9 (21%)", "52.7 (15%)", "16.0 (11%)", "35.8 (6%)"),
        },
        {
            "model": "deberta-v3-base", "precision": "fp16", "batch a GPU": "8", "GPUs": "4", "by": "DataParallel",
            "train": "50.0 (10%)", "eval": "", "run, from rates": "", "run, logged": "",
            **published("19.9 (21%)", "52.7 (15%)", "16.0 (11%)", "35.8 (6%)"),
        },
    ]  # fmt: skip


def test_another_model_or_format_than_the_published_one_stands_alone() -> None:
    tiny = {"model": "deberta-tiny", "precision": "tf32", "batch": 2}
    assert rows(of("trainer_eval", 10.0, precision="bf16"), of("trainer_train", 10.0, **tiny)) == [
        {
            "model": "deberta-tiny", "precision": "tf32", "batch a GPU": "2", "GPUs": "1", "by": "alone",
            "train": "10.0", "eval": "",
        },
        {
            "model": "deberta-v3-base", "precision": "bf16", "batch a GPU": "8", "GPUs": "1", "by": "alone",
            "train": "", "eval": "10.0",
        },
    ]  # fmt: skip


def test_a_training_that_reports_is_a_row_of_its_own() -> None:
    both = rows(of("trainer_train", 100.0), of("trainer_train", 90.0, report_to="wandb", mesh="dp2"))
    assert [(row["by"], row["train"]) for row in both] == [("alone", "100.0"), ("DDP, reports to wandb", "90.0")]


def test_other_suites_failed_rows_and_smaller_devices_fill_no_table() -> None:
    broken = record(failed("oom"), of=of("trainer_train", 1.0).case)
    assert beside_published([record(), broken, capped(of("trainer_train", 1.0))]) is None
