"""The tables of mixed precision and of scaling: which records they compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from samples import MIB, failed, launch, record

from bench_tests.tables.mixed_precision import mixed_precision
from bench_tests.tables.scaling import curves, loss_of_frequencies, scaling, time_to_loss
from bench_tests.training.data import token_pool
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Launch, Record

BERT = {"model": "bert-base", "sequence": 512, "micro_batch": 16}
LARGE = {"model": "bert-large", "strategy": "zero1", "precision": "bf16", "sequence": 128, "micro_batch": 64}
BUILDER = "bench_tests.steps.train:train_step"


def trained(precision: str, devices: int, *samples_per_s: float, **params: Any) -> Record:
    """A record with one launch for each of ``samples_per_s``, with 500 MiB and half of the device's peak."""
    launches = [launch(samples_per_s=one, peak_allocated_bytes=500 * MIB, mfu=0.5) for one in samples_per_s]
    params = {**BERT, "strategy": "ddp", "precision": precision, **params}
    return record(*launches, of=Case(builder=BUILDER, mesh=MeshShape(dp=devices), params=params))


def test_a_format_is_compared_with_fp32_tf32_eager_and_one_device() -> None:
    table = mixed_precision(
        [
            trained("fp16", 4, 400, 410, 900),  # the median counts, so one lucky launch is no speed-up
            trained("fp32", 4, 100, strategy="ddp-fp32"),
            trained("tf32", 4, 205, strategy="ddp-fp32"),
            trained("fp16", 1, 125),
            trained("fp16", 4, 615, graph="inductor"),
            trained("fp32", 4, 123, strategy="ddp-fp32", graph="inductor"),
        ]
    )
    assert table is not None
    assert table.iloc[4].to_dict() == {
        "model": "bert-base, sequence 512",
        "devices": "4",
        "format": "fp16",
        "mode": "eager",
        "samples/s": "410.0",
        "peak MiB": "500",
        "MFU": "50.0%",
        "× fp32": "4.10",
        "× tf32": "2.00",
        "× eager": "",
        "efficiency": "82.0% of 1",
        "published samples/s": "178.15 ± 2.10",
        "published MiB": "12,698",
    }
    columns = ["devices", "format", "mode", "× fp32", "× tf32", "× eager", "efficiency", "published samples/s"]
    assert table[columns].to_numpy().tolist() == [
        ["1", "fp16", "eager", "", "", "", "base", ""],
        ["4", "fp32", "eager", "", "0.49", "", "base", "103.07 ± 1.03"],
        ["4", "fp32", "compiled", "", "", "1.23", "base", ""],
        ["4", "tf32", "eager", "2.05", "", "", "base", ""],
        ["4", "fp16", "eager", "4.10", "2.00", "", "82.0% of 1", "178.15 ± 2.10"],
        ["4", "fp16", "compiled", "5.00", "", "1.50", "base", ""],
    ]


def test_the_table_of_formats_names_host_bound_rows() -> None:
    eager = trained("bf16", 1, 552)
    compiled = trained("bf16", 1, 471, graph="inductor")
    waiting = [
        replace(one, metrics={**one.metrics, "host_ms": 1.1 * one.metrics["step_ms"]}) for one in compiled.launches
    ]
    table = mixed_precision([eager, replace(compiled, launches=tuple(waiting))])
    assert table is not None
    assert table[["mode", "bound by", "× eager"]].to_numpy().tolist() == [
        ["eager", "", ""],
        ["compiled", "host", "0.85"],
    ]


def test_ratios_of_rows_of_two_machines_are_marked() -> None:
    """Their hosts may differ. Across two hosts, a compiled fp16 step was 16 % slower than the eager step, although its
    kernels were faster."""
    there = replace(trained("fp16", 4, 410), environment={"machine": "4567abcd"})
    table = mixed_precision([trained("fp32", 4, 100, strategy="ddp-fp32"), trained("fp16", 1, 125), there])
    assert table is not None
    assert table[["× fp32", "efficiency"]].to_numpy().tolist() == [
        ["", "base"],
        ["", "base"],
        ["4.10 †", "82.0% of 1 †"],
    ]


def test_formats_of_different_work_are_not_compared() -> None:
    table = mixed_precision(
        [
            trained("fp32", 4, 100, strategy="ddp-fp32"),
            trained("bf16", 4, 300, sequence=128),
            trained("bf16", 4, 300, graph="ort-all"),
            trained("bf16", 4, 300, strategy="zero1"),
            trained("bf16", 4, 300, model="gpt-1.3b"),
            record(failed("crash"), of=trained("fp16", 4, strategy="ddp").case),
        ]
    )
    assert table is not None
    assert table[["model", "format"]].to_numpy().tolist() == [
        ["bert-base, sequence 128", "bf16"],
        ["bert-base, sequence 512", "fp32"],
    ]
    assert "× fp32" not in table and "× eager" not in table


def test_formats_that_ran_out_of_memory_show_oom_and_are_never_a_base() -> None:
    too_large = record(failed("oom"), of=trained("fp32", 1, strategy="ddp-fp32").case)
    table = mixed_precision([too_large, trained("fp32", 4, 100, strategy="ddp-fp32"), trained("fp16", 1, 300)])
    assert table is not None and "× fp32" not in table
    assert table[["devices", "format", "samples/s", "efficiency"]].to_numpy().tolist() == [
        ["1", "fp32", "OOM", ""],
        ["1", "fp16", "300.0", "base"],
        ["4", "fp32", "100.0", "base"],
    ]


def scaled(
    devices: int, micro_batches: int, samples_per_s: float, losses: Sequence[float] = (10.0, 9.0), **params: Any
) -> Record:
    """A record with one launch whose step time follows from ``samples_per_s``.

    If the global batch is that of several devices, the learning rate has a warm-up.
    """
    batch = micro_batches * devices
    rising = {"warmup_steps": batch // 24} if batch > 24 else {}
    params = {**LARGE, "micro_batches": micro_batches, "learning_rate": batch * 1e-6, **rising, **params}
    step_ms = 64 * micro_batches * devices / samples_per_s * 1000
    one = Launch(step_ms=[step_ms], losses=list(losses), metrics={"step_ms": step_ms, "samples_per_s": samples_per_s})
    return record(one, of=Case(builder=BUILDER, mesh=MeshShape(dp=devices), params=params))


def test_weak_series_keep_the_work_per_device_and_strong_series_the_global_batch() -> None:
    table = scaling(
        [
            scaled(4, 24, 3600),
            scaled(1, 24, 1000),
            scaled(2, 24, 1900),
            scaled(2, 12, 1800),
            scaled(4, 6, 2800),
            scaled(1, 8, 1000, model="bert-1.5b"),  # a single row is no series
        ]
    )
    assert table is not None
    here = table[table["where"] == "here"].drop(columns="where")
    assert here.to_numpy().tolist() == [
        ["bert-large", "weak", "1", "1,536", "1,000.0", "1,000.0", "base"],
        ["bert-large", "weak", "2", "3,072", "1,900.0", "950.0", "95.0% of 1"],
        ["bert-large", "weak", "4", "6,144", "3,600.0", "900.0", "90.0% of 1"],
        ["bert-large", "strong", "1", "1,536", "1,000.0", "1,000.0", "base"],
        ["bert-large", "strong", "2", "1,536", "1,800.0", "900.0", "90.0% of 1"],
        ["bert-large", "strong", "4", "1,536", "2,800.0", "700.0", "70.0% of 1"],
    ]


def ran_out(one: Record) -> Record:
    return record(failed("oom"), of=one.case)


def test_scaling_rows_that_ran_out_of_memory_show_oom_and_are_never_a_base() -> None:
    fits = [scaled(2, 24, 1900, [10.0, 9.0, 8.5]), scaled(4, 24, 3420, [10.0, 8.4, 8.0])]
    records = [ran_out(scaled(1, 24, 1.0)), *fits, ran_out(scaled(8, 24, 1.0)), ran_out(scaled(2, 12, 1.0))]
    table, times = scaling(records), time_to_loss(records)
    assert table is not None and times is not None
    here = table[table["where"] == "here"].drop(columns="where")
    assert here.to_numpy().tolist() == [
        ["bert-large", "weak", "1", "1,536", "OOM", "", ""],
        ["bert-large", "weak", "2", "3,072", "1,900.0", "950.0", "base"],
        ["bert-large", "weak", "4", "6,144", "3,420.0", "855.0", "90.0% of 2"],
        ["bert-large", "weak", "8", "12,288", "OOM", "", ""],
        ["bert-large", "strong", "1", "1,536", "OOM", "", ""],
        ["bert-large", "strong", "2", "1,536", "OOM", "", ""],
    ]
    reached = f"8.500 ({1.5 / (10 - loss_of_frequencies(30_522)):.0%})"
    assert times.to_numpy().tolist() == [
        ["bert-large", "weak", "1", "2.4e-05", "OOM", "", "", ""],
        ["bert-large", "weak", "2", "4.8e-05", reached, "2", "6,144", "3.23"],
        ["bert-large", "weak", "4", "9.6e-05", reached, "1", "6,144", "1.80"],
        ["bert-large", "weak", "8", "0.000192", "OOM", "", "", ""],
    ]
    assert curves(records).equals(curves(fits))


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (
            "bert-large",
            [
                ["8", "1,379.8", "172.5", "base"],
                ["16", "2,705.6", "169.1", "98.0% of 8"],
                ["32", "5,291.6", "165.4", "95.9% of 8"],
                ["64", "9,977.5", "155.9", "90.4% of 8"],
            ],
        ),
        (
            "bert-1.5b",
            [
                ["8", "276.7", "34.6", "base"],
                ["64", "1,883.6", "29.4", "85.1% of 8"],
                ["128", "3,659.2", "28.6", "82.7% of 8"],
            ],
        ),
    ],
)
def test_published_weak_scaling_is_below_ours_with_its_published_efficiencies(
    model: str, rows: list[list[str]]
) -> None:
    table = scaling([scaled(devices, 24, 1000 * devices, model=model) for devices in (1, 2)])
    assert table is not None
    published = table[table["where"] == "published, 8 Gaudi a node"]
    assert published[["devices", "sequences/s", "a device", "efficiency"]].to_numpy().tolist() == rows


def test_samples_and_time_to_the_loss_that_all_records_reach() -> None:
    """8.5 is the higher of the two lowest losses. One device trains on 1,536 samples a step, two devices on 3,072."""
    table = time_to_loss([scaled(1, 24, 768, [10.0, 9.5, 9.0, 8.5]), scaled(2, 24, 1536, [10.0, 8.6, 8.4, 8.6, 7.9])])
    assert table is not None
    way = 1.5 / (10 - loss_of_frequencies(30_522))
    assert table.to_numpy().tolist() == [
        ["bert-large", "weak", "1", "2.4e-05", f"8.500 ({way:.0%})", "3", "4,608", "6.00"],
        ["bert-large", "weak", "2", "4.8e-05", f"8.500 ({way:.0%})", "2", "6,144", "4.00"],
    ]


def test_trainings_on_different_samples_are_not_compared() -> None:
    """With one global batch they would start at one loss. With different global batches they need not."""
    one = scaled(1, 24, 768, [10.0, 9.5, 9.0])
    strong = [one, scaled(2, 12, 768, [10.1, 9.5, 9.1])]
    table = time_to_loss(strong)
    assert table is not None
    assert table[["devices", "loss"]].to_numpy().tolist() == [["1", "of other samples"], ["2", "of other samples"]]
    assert curves(strong).empty
    weak = time_to_loss([one, scaled(2, 24, 1536, [10.1, 9.5, 9.1])])
    assert weak is not None and weak["samples"].all()
    rounded = time_to_loss([one, scaled(2, 12, 768, [10.001, 9.5, 9.1])])
    assert rounded is not None and rounded["samples"].all()


def test_scaling_over_nodes_compares_with_one_node() -> None:
    one, node, two = scaled(1, 24, 1000), scaled(8, 24, 6000), scaled(16, 24, 9000)
    two = replace(two, environment={**two.environment, "must_match": {"devices_a_node": 8}})
    table = scaling([one, node, two])
    assert table is not None
    assert list(table[table["where"] == "here"]["efficiency"]) == ["base", "75.0% of 1", "75.0% of 8"]
    without = scaling([one, two])
    assert without is not None
    assert list(without[without["where"] == "here"]["efficiency"]) == ["base", "56.2% of 1"]


def test_the_table_of_scaling_names_host_bound_rows() -> None:
    paced = scaled(2, 24, 2200)
    metrics = {**paced.launches[0].metrics, "host_ms": paced.launches[0].metrics["step_ms"], "compute_ms": 1.0}
    paced = replace(paced, launches=(replace(paced.launches[0], metrics=metrics),))
    table = scaling([scaled(1, 24, 1000), paced])
    assert table is not None
    assert list(table[table["where"] == "here"]["bound by"]) == ["", "host"]


def test_the_published_time_to_converge_is_below_weak_scaling_of_its_model() -> None:
    falling = [10.0, 9.0, 8.0]
    large = {"model": "bert-1.5b", "micro_batch": 16}
    weak = [scaled(1, 24, 100, falling, **large), scaled(2, 24, 190, falling, **large)]
    strong = [scaled(2, 12, 190, falling, **large)]
    table = time_to_loss([*weak, *strong])
    assert table is not None
    converged = table[table["loss"] == "converged (published, 8 Gaudi a node)"]
    assert converged[["scaling", "devices", "learning rate", "samples", "seconds"]].to_numpy().tolist() == [
        ["weak", "64", "0.0015", "", "90,000 (25 h)"],
        ["weak", "128", "0.003", "", "54,000 (15 h)"],
    ]


def test_a_series_needs_two_numbers_of_devices() -> None:
    records = [scaled(1, 24, 1000), scaled(1, 12, 1000), trained("bf16", 2, 100)]
    assert scaling(records) is None and time_to_loss(records) is None


def test_the_loss_of_frequencies_is_the_entropy_of_the_tokens_plus_ln_2() -> None:
    vocabulary = 64
    tokens = token_pool(samples=64, sequence=128, vocabulary=vocabulary)
    frequency = torch.bincount(tokens.flatten(), minlength=vocabulary) / tokens.numel()
    entropy = torch.distributions.Categorical(probs=frequency).entropy().item()
    assert loss_of_frequencies(vocabulary) == pytest.approx(entropy + math.log(2), abs=0.01)
