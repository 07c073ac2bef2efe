"""The slowdowns of benchmarks/planted do what their names say. Each one has rows in which it should be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models import Model, find_model
from bench_tests.steps import train as training
from bench_tests.strategies import STRATEGIES
from benchmarks.planted import faults, page, runs
from pytest_trainbench import Step

ROOT = Path(__file__).parents[1]


class Loss(torch.Tensor):
    """A loss that remembers how often it was read."""

    read = 0

    def item(self) -> float:
        Loss.read += 1
        return 0.0


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> DeviceMesh:
    """A stand-in for a mesh. The step builder needs no mesh."""

    def build(mesh: DeviceMesh, **params: Any) -> Step:
        return Step(run=lambda: torch.zeros(()).as_subclass(Loss), samples=1, parameters=list)

    monkeypatch.setattr(training, "train_step", build)
    return cast(DeviceMesh, None)


def test_every_fault_names_rows_that_it_should_make_red() -> None:
    assert set(page.HIT) == set(faults.FAULTS) and all(page.HIT.values())


def test_a_synchronised_step_reads_its_loss(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loss, "read", 0)
    faults.synchronised()
    training.train_step(mesh, model="", strategy="", precision="", micro_batch=1).run()
    assert Loss.read == 1


def test_full_precision_overrides_the_precision_of_the_builder(mesh: DeviceMesh) -> None:
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


def test_eager_attention_leaves_only_the_plain_kernel() -> None:
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

    monkeypatch.setattr(Model, "build", Model.build)  # so that monkeypatch restores it
    once, right = train()
    faults.recomputed()
    twice, same = train()
    assert (once, twice) == (1, 2)
    torch.testing.assert_close(same, right)


def test_outcomes_are_read_from_pytests_junit_file(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase name="test_layer[a]"><properties>'
        '<property name="trainbench_outcome" value="regression"/></properties>'
        '<failure message="regression: layer[a]: step time: +9 %&#10;  baseline">...</failure></testcase>'
        '<testcase name="test_layer[b]"><skipped/></testcase></testsuite></testsuites>'
    )
    assert runs.outcomes(junit) == {"layer[a]": ("regression", "regression: layer[a]: step time: +9 %")}


def test_measured_runs_are_stored_and_printed(tmp_path: Path) -> None:
    def ran(kind: str, outcome: str, step_ms: float | None, said: str = "") -> runs.PlantedRun:
        row = runs.PlantedRow(outcome=outcome, step_ms=step_ms, launches=3, said=said)
        rows = {"mixed_precision[tf32-dp1]": row}
        return runs.PlantedRun(kind=kind, hardware="h200", machine="a", torch="2.11", commit="c", rows=rows)

    path = tmp_path / "runs.jsonl"
    for run in (
        ran("baseline", "saved", 100.0),
        ran("unchanged", "ok", 100.0),
        ran("unchanged", "noisy", 101.0),
        ran("full_precision", "regression", 250.0, "slower"),
        ran("recomputed", "crash", None, "crashed"),
        ran("eager_attention", "ok", 102.0),
    ):
        runs.write(run, path)
    printed = "\n\n".join(page.page([runs.read(path)]))
    assert "## 2 runs without a change: 0 of 2 rows are red" in printed and "1 ok, 1 noisy" in printed
    assert "+150.0%" in printed and "- full_precision: slower\n- recomputed: crashed" in printed
    assert "1 of 3 are as they should be. Not planted yet: synchronised, small_buckets. Red" in printed, (
        "neither a crash nor an ok is a slowdown found"
    )

    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(ValueError, match=r"does not begin with a run of baselines: python -m "):
        runs.read(path)


def test_the_page_matches_the_stored_runs() -> None:
    stored = [runs.read(path) for path in sorted((ROOT / "benchmarks" / "planted" / "runs").glob("*.jsonl"))]
    assert stored, "benchmarks/planted/runs/*.jsonl are not in this checkout"
    assert (ROOT / "docs" / "planted.md").read_text(encoding="utf-8") == "\n\n".join(page.page(stored)) + "\n", (
        "it is stale: python -m benchmarks.planted page benchmarks/planted/runs/*.jsonl > docs/planted.md"
    )
