"""Accelerated data parallelism trains like one unsharded process within its tolerance, and its tables are correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ranks
import samples
import torch
from ranks import launched

from bench_tests.models import find_model
from bench_tests.strategies import ACCELERATORS, DATA_PARALLEL, PLAIN_DDP, STRATEGIES
from bench_tests.tables import ddp_scaling, tables
from bench_tests.tolerances import tolerance
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.schema.record import Launch, Record

BUILDER = "bench_tests.steps.train:train_step"
WORK: dict[str, Any] = {"model": "hf_Bert-tiny", "sequence": 32, "micro_batch": 2}
WITH_BATCH_NORM: dict[str, Any] = {"model": "timm_vovnet-tiny", "image": 64, "micro_batch": 4}


def train(folder: Path, *, dp: int = 2, **params: Any) -> Launch:
    # Compiling changes its process permanently: counters, and how autograd runs.
    way = ranks.start if compiles(str(params["strategy"])) else ranks.train
    one = launched(way(folder, BUILDER, mesh=f"dp{dp}", **{"precision": "fp32", **params}))
    assert (one.outcome, one.reason) == ("ok", None)
    return one


def compiles(strategy: str) -> bool:
    return strategy.startswith("compiled-")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return train(tmp_path_factory.mktemp("reference"), dp=1, strategy="reference", micro_batches=2, **WORK)


REDUCED = {
    PLAIN_DDP: (1, 1),
    "ddp-tuned": (1, 1),
    "bf16-gradients": (1, 1 / 2),
    "fp16-gradients": (1, 1 / 2),
    "powersgd": (3, 0.107),  # vectors uncompressed, then two matrices of rank 4 for each matrix
    "local-sgd": (1 / 4, 1 / 4),  # all parameters, every fourth step
    "compiled-ddp": (1, 1),
    "compiled-autograd": (42, 1),  # one per parameter: the compiler does not fuse them, although DDP asks it to
}
"""Strategy -> all_reduces of a rank in a step, and their bytes as a share of the gradients' bytes."""


def parameter_bytes() -> int:
    module = find_model("hf_Bert-tiny").build(torch.device("cpu"), sequence=32)
    return sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=[pytest.mark.slow] if compiles(name) else [])
        for name, row in DATA_PARALLEL.items()
        if not row.recorded
    ],
)
def test_losses_match_one_process_within_the_rows_tolerance(strategy: str, reference: Launch, tmp_path: Path) -> None:
    one = train(tmp_path, strategy=strategy, **WORK)
    assert loss_fault(one.losses, reference.losses, tolerance(strategy).allowed) is None
    assert one.metrics["flops_per_step"] == reference.metrics["flops_per_step"]
    calls, share = REDUCED[strategy]
    assert one.collectives["all_reduce"]["calls"] == 2 * calls
    assert one.collectives["all_reduce"]["bytes"] == pytest.approx(2 * share * parameter_bytes(), rel=0.01)


@pytest.mark.parametrize("strategy", [PLAIN_DDP, "ddp-tuned"])
def test_the_reference_gives_batch_norm_the_batch_of_one_rank(strategy: str, tmp_path: Path) -> None:
    """Broadcasting buffers makes no difference: batch norm normalises with the statistics of the batch."""
    for name in ("reference", "ours"):
        (tmp_path / name).mkdir()
    truth = train(tmp_path / "reference", dp=1, strategy="reference", micro_batches=2, **WITH_BATCH_NORM)
    one = train(tmp_path / "ours", strategy=strategy, **WITH_BATCH_NORM)
    assert loss_fault(one.losses, truth.losses, tolerance=0.001) is None


def test_another_batch_size_for_batch_norm_changes_the_losses(tmp_path: Path) -> None:
    """Without this difference, the test above could never fail."""
    for name in ("reference", "ours"):
        (tmp_path / name).mkdir()
    whole = {**WITH_BATCH_NORM, "micro_batch": 2 * WITH_BATCH_NORM["micro_batch"]}
    truth = train(tmp_path / "reference", dp=1, strategy="reference", micro_batches=1, **whole)
    one = train(tmp_path / "ours", strategy=PLAIN_DDP, **WITH_BATCH_NORM)
    assert loss_fault(one.losses, truth.losses, tolerance=0.001) is not None


def test_local_sgd_starts_as_plain_ddp_and_averages_after_every_period(reference: Launch, tmp_path: Path) -> None:
    options = ACCELERATORS["local-sgd"].options
    begins, period = options["start"], options["period"]
    equal = {}
    for steps in (begins + 2 * period, begins + 2 * period + 1):
        how: dict[str, Any] = {"strategy": "local-sgd", "precision": "fp32", **WORK}
        ended = ranks.train(tmp_path / str(steps), BUILDER, mesh="dp2", warmup=6, steps=steps - 6, **how)
        losses = launched(ended).losses
        equal[steps] = ended.traces[0].digest_after == ended.traces[1].digest_after
        # The first step on their own is the first whose parameters no average has seen.
        assert loss_fault(losses[: begins + 1], reference.losses, tolerance=0.001) is None
    assert list(equal.values()) == [True, False]


def test_no_two_strategies_share_a_name() -> None:
    assert set(STRATEGIES) & set(DATA_PARALLEL) == set()


RATES = {
    (PLAIN_DDP, 1): 100.0,
    (PLAIN_DDP, 2): 180.0,
    (PLAIN_DDP, 8): 400.0,
    (PLAIN_DDP, 16): 600.0,
    ("powersgd", 8): 500.0,
    ("powersgd", 4): 300.0,
    ("local-sgd", 8): 600.0,
}


def rate(samples_per_s: float, *, devices: int, **params: object) -> Record:
    """A record of three launches with median ``samples_per_s``."""
    case = samples.case(builder=BUILDER, mesh=f"dp{devices}", **params)
    return samples.record(
        *(samples.launch(samples_per_s=samples_per_s * factor) for factor in (0.5, 1.0, 1.1)), of=case
    )


def records(model: str = "resnet50", **params: object) -> list[Record]:
    return [
        rate(value, devices=devices, model=model, strategy=strategy, micro_batch=32, **params)
        for (strategy, devices), value in RATES.items()
    ]


def cells(table: pd.DataFrame | None) -> list[tuple[object, ...]]:
    assert table is not None
    return [tuple(table), *table.itertuples(index=False, name=None)]


def test_scaling_compares_with_one_device_and_several_nodes_with_one_node() -> None:
    """One machine with 16 devices is one node, so it has no columns for nodes."""
    wide = ("model", "batch a device", "devices", "samples/s", "ddp_acc", "against")
    one_machine = [
        ("resnet50", "32", "1", "100.0", "", ""),
        ("resnet50", "32", "2", "180.0", "90.0%", "1 device"),
        ("resnet50", "32", "8", "400.0", "50.0%", "1 device"),
        ("resnet50", "32", "16", "600.0", "37.5%", "1 device"),
    ]
    assert cells(ddp_scaling.scaling(records())) == [wide, *one_machine]
    environment = {"must_match": {"devices_a_node": 8}}
    on_nodes = [replace(record, environment=environment) for record in records()]
    over = [*(("", ""),) * 3, ("2 × 8", "75.0%")]
    assert cells(ddp_scaling.scaling(on_nodes)) == [
        (*wide, "nodes", "ddp_acc over nodes"),
        *(line + more for line, more in zip(one_machine, over, strict=True)),
    ]


def test_scaling_names_a_base_of_several_devices() -> None:
    without_one = [record for record in records() if record.case.mesh.world_size > 1][:2]
    assert cells(ddp_scaling.scaling(without_one))[1:] == [
        ("resnet50", "32", "2", "180.0", "", ""),
        ("resnet50", "32", "8", "400.0", "55.6%", "2 devices"),
    ]


def test_acceleration_needs_plain_ddp_on_as_many_devices() -> None:
    assert cells(ddp_scaling.acceleration(records())) == [
        ("model", "batch a device", "devices", "powersgd", "local-sgd"),
        ("resnet50", "32", "8", "1.25×", "1.50×"),
    ]


def test_out_of_memory_rows_show_oom_and_are_never_a_base() -> None:
    """The base is the fewest devices that plain DDP fits on. An accelerated variant has no ratio if plain DDP does not
    fit on as many devices."""
    work = {"model": "resnet50", "micro_batch": 32}
    fits = {
        (PLAIN_DDP, 2): 180.0,
        (PLAIN_DDP, 16): 720.0,
        ("local-sgd", 1): 90.0,
        ("local-sgd", 2): 270.0,
        ("powersgd", 8): 500.0,
    }
    too_large = [(PLAIN_DDP, 1), (PLAIN_DDP, 8), ("powersgd", 2), ("powersgd", 16), ("local-sgd", 8)]
    known = [rate(value, devices=devices, strategy=name, **work) for (name, devices), value in fits.items()]
    for name, devices in too_large:
        of = rate(1.0, devices=devices, strategy=name, **work).case
        known.append(samples.record(samples.failed("oom"), of=of))
    assert cells(ddp_scaling.scaling(known)) == [
        ("model", "batch a device", "devices", "samples/s", "ddp_acc", "against"),
        ("resnet50", "32", "1", "OOM", "", ""),
        ("resnet50", "32", "2", "180.0", "", ""),
        ("resnet50", "32", "8", "OOM", "", ""),
        ("resnet50", "32", "16", "720.0", "50.0%", "2 devices"),
    ]
    assert cells(ddp_scaling.acceleration(known)) == [
        ("model", "batch a device", "devices", "powersgd", "local-sgd"),
        ("resnet50", "32", "2", "OOM", "1.50×"),
        ("resnet50", "32", "8", "", "OOM"),
        ("resnet50", "32", "16", "OOM", ""),
    ]
    assert ddp_scaling.points(known).empty


def test_ratios_across_two_machines_are_marked() -> None:
    there = [
        replace(one, environment={"machine": "4567abcd"})
        if (one.case.params["strategy"], one.case.mesh.world_size) in (("local-sgd", 8), (PLAIN_DDP, 2))
        else one
        for one in records()
    ]
    assert [row[4] for row in cells(ddp_scaling.scaling(there))[1:4]] == ["", "90.0% †", "50.0%"]
    assert cells(ddp_scaling.acceleration(there))[1][3:] == ("1.25×", "1.50× †")


def test_points_of_the_plot() -> None:
    assert cells(ddp_scaling.points(records())) == [
        ("model", "micro_batch", "strategy", "devices", "base", "ddp_acc", "acc_ratio"),
        ("resnet50", 32, "powersgd", 8, 1, 0.5, 1.25),
        ("resnet50", 32, "local-sgd", 8, 1, 0.5, 1.5),
    ]


def test_points_of_several_nodes_compare_with_one_node() -> None:
    work = {"model": "resnet50", "micro_batch": 32, "strategy": "local-sgd"}
    environment = {"must_match": {"devices_a_node": 8}}
    on_nodes = [replace(one, environment=environment) for one in [*records(), rate(900.0, devices=16, **work)]]
    assert cells(ddp_scaling.points(on_nodes))[2:] == [
        ("resnet50", 32, "local-sgd", 8, 1, 0.5, 1.5),
        ("resnet50", 32, "local-sgd", 16, 8, 0.75, 1.5),
    ]


def test_records_of_different_work_are_not_compared() -> None:
    plain, fast = records(precision="bf16")[2], records(precision="fp16")[4]
    assert len(ddp_scaling.series([plain, fast])) == 2
    assert ddp_scaling.acceleration([plain, fast]) is None


def test_failed_records_and_other_suites_are_left_out() -> None:
    failed = samples.record(samples.failed("crash"), of=records()[0].case)
    assert ddp_scaling.series([failed, samples.record()]) == []
    assert ddp_scaling.scaling([failed]) is None
    assert ddp_scaling.acceleration([failed]) is None


def test_the_report_shows_both_tables() -> None:
    assert {"Scaling of plain DDP", "Acceleration: samples/s ÷ those of plain DDP on the same mesh"} <= set(
        tables(records())
    )
