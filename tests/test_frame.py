"""Records as a table: one row per launch, every metric under its own name."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from samples import case, failed, launch, record

from pytest_trainbench import load
from pytest_trainbench.schema.metrics import METRICS
from pytest_trainbench.store.baseline import merge
from pytest_trainbench.store.dataframe import frame

FIRST = record(launch(100.0, peak_allocated_bytes=7), launch(101.0, peak_allocated_bytes=8), of=case(layers=24))
SECOND = record(failed("oom", "no room"), of=case(mesh="dp2-tp2", strategy="ddp"), hardware="cpu")


def test_a_launch_is_a_row_with_its_case_and_metrics() -> None:
    assert frame([FIRST]).to_dict("records") == [
        {
            "id": "train_step(layers=24) @ dp2",
            "label": "sharding[zero2-dp2]",
            "hardware": "h200-sxm",
            "builder": "train_step",
            "mesh": "dp2",
            "world_size": 2,
            "created": pd.Timestamp("2026-01-02T03:04:05Z"),
            "machine": "0123abcd",
            "launch": number,
            "outcome": "ok",
            "reason": None,
            "param.layers": 24,
            "step_ms": step_ms,
            "peak_allocated_bytes": peak,
            "steady_steps": 2,
        }
        for number, (step_ms, peak) in enumerate([(100.0, 7), (101.0, 8)])
    ]


def test_a_condition_column_shows_the_worst_device() -> None:
    one = launch(conditions={"sm_mhz": [1980.0, 1410.0], "hw_thermal": [0.0, 0.3], "to come": [1.0, 2.0]})
    (row,) = frame([record(one)]).to_dict("records")
    found = {name: value for name, value in row.items() if str(name).startswith("condition.")}
    assert found == {"condition.sm_mhz": 1410.0, "condition.hw_thermal": 0.3, "condition.to come": 2.0}


def test_a_failed_launch_is_a_row_without_metrics() -> None:
    table = frame([FIRST, SECOND])
    assert list(table["outcome"]) == ["ok", "ok", "oom"]
    assert list(table["reason"].isna()) == [True, True, False]
    assert list(table["step_ms"].isna()) == [False, False, True]
    assert list(table["param.strategy"].isna()) == [True, True, False]
    assert list(table["world_size"]) == [2, 2, 4]


def test_columns_have_types_of_numbers_and_times() -> None:
    table = frame([FIRST])
    assert table["step_ms"].mean() == 100.5
    assert str(table["created"].dt.tz) == "UTC"


def test_no_parameter_hides_a_column() -> None:
    table = frame([record(of=case(step_ms=1, outcome="x", launch=9))])
    assert (table["param.step_ms"] == 1).all()
    assert (table["step_ms"] == 100.0).all()
    assert list(table["outcome"]) == ["ok"] * 3


def test_the_name_of_every_metric_ends_with_its_unit() -> None:
    endings = {
        "ms": "_ms",
        "1/s": "_per_s",
        "B": "_bytes",
        "FLOP": "flops_per_step",
        "TFLOPS": "tflops_per_device",
        "J": "_j_per_sample",
    }
    counts = ("kernels", "collectives", "graph_breaks", "recompiles", "devices", "samples_per_step", "tokens_per_step")
    without = ("mfu", "loss_deviation", *counts)
    for name, metric in METRICS.items():
        assert name.endswith(endings.get(metric.unit, f"_{metric.unit}" if metric.unit else without))


def test_a_file_and_a_folder_at_any_depth_are_loaded(tmp_path: Path) -> None:
    first, second = merge(tmp_path / "baselines", {one.case.id: one for one in (FIRST, SECOND)})
    pd.testing.assert_frame_equal(load(first.path), frame([FIRST]))
    pd.testing.assert_frame_equal(load(str(second.path)), frame([SECOND]))
    assert sorted(load(tmp_path)["hardware"]) == ["cpu", "h200-sxm", "h200-sxm"]


def test_a_folder_without_records_is_an_empty_table(tmp_path: Path) -> None:
    assert load(tmp_path).empty


def test_a_missing_path_is_named_with_the_options_that_write_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load(tmp_path / "gone")
    assert str(error.value) == f"{tmp_path / 'gone'} does not exist; --results DIR or --save-baseline writes records"


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(ValueError, match=r"package\.json cannot be read as a record: it has no 'schema'"):
        load(tmp_path)
