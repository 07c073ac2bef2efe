"""Slowdowns that benchmarks/planted plants do what they say, and are looked for in rows that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from bench_tests import training
from bench_tests.models import Model, find_model
from bench_tests.strategies import STRATEGIES
from benchmarks.planted import __main__ as planted
from benchmarks.planted import faults
from pytest_trainbench import Step


class Loss(torch.Tensor):
    """A loss that remembers how often it was read."""

    read = 0

    def item(self) -> float:
        Loss.read += 1
        return 0.0


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> DeviceMesh:
    """Stands for a mesh; the step builder is one that needs none."""

    def build(mesh: DeviceMesh, **params: Any) -> Step:
        return Step(run=lambda: torch.zeros(()).as_subclass(Loss), samples=1, parameters=list)

    monkeypatch.setattr(training, "train_step", build)
    mesh: Any = None
    return mesh


def test_every_fault_has_a_row_to_make_red() -> None:
    assert set(planted.HIT) == set(faults.FAULTS) and all(planted.HIT.values())


def test_a_synchronised_step_reads_its_loss(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loss, "read", 0)
    faults.synchronised()
    training.train_step(mesh, model="", strategy="", precision="", micro_batch=1).run()
    assert Loss.read == 1


def test_full_precision_takes_back_what_the_builder_set(mesh: DeviceMesh) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        faults.full_precision()
        training.train_step(mesh, model="", strategy="", precision="tf32", micro_batch=1)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_small_buckets_reach_the_row_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(faults.DDP_OPTIONS, "bucket_cap_mb", 100)
    faults.small_buckets()
    assert STRATEGIES["ddp"].options["bucket_cap_mb"] == 1


def test_eager_attention_leaves_the_plain_kernel_alone() -> None:
    switches = ("flash", "mem_efficient", "cudnn")
    try:
        faults.eager_attention()
        assert not any(getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in switches)
        assert torch.backends.cuda.math_sdp_enabled()
    finally:
        for name in switches:
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)


def test_recomputed_blocks_run_twice_and_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> tuple[int, torch.Tensor]:
        module = find_model("bert-tiny").build(torch.device("cpu"), sequence=16)
        calls = 0

        def count(layer: nn.Module, inputs: object, output: object) -> None:
            nonlocal calls
            calls += 1

        dense = next(layer for layer in module.blocks[0].modules() if isinstance(layer, nn.Linear))
        dense.register_forward_hook(count)
        torch.manual_seed(0)
        module(*(pool[0] for pool in module.draw(2))).backward()
        assert dense.weight.grad is not None
        return calls, dense.weight.grad

    monkeypatch.setattr(Model, "build", Model.build)  # so that it is put back
    once, right = train()
    faults.recomputed()
    twice, same = train()
    assert (once, twice) == (1, 2)
    torch.testing.assert_close(same, right)


def test_outcomes_are_read_from_pytests_own_report(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase name="test_layer[a]"><properties>'
        '<property name="trainbench_outcome" value="regression"/></properties></testcase>'
        '<testcase name="test_layer[b]"><skipped/></testcase></testsuite></testsuites>'
    )
    assert planted.outcomes(junit) == {"layer[a]": "regression"}
