"""Recorded and replayed steps train as eager steps do, on any device."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from ranks import launched, pretended, train
from recorded_steps import Again
from torch import Tensor

from bench_tests.engines import ENGINES
from bench_tests.steps.train import train_step
from bench_tests.strategies import ACCELERATORS, DATA_PARALLEL, STRATEGIES, accelerated_ddp, recorded
from bench_tests.tolerances import tolerance
from bench_tests.training.cuda_graph import Recording
from bench_tests.training.recipe import Recipe, Trainee
from pytest_trainbench.judge.validity import loss_fault

ROWS = {name: row for name, row in {**STRATEGIES, **DATA_PARALLEL}.items() if row.recorded}

WORK: dict[str, Any] = {"model": "gpt-tiny", "sequence": 16, "micro_batch": 2, "precision": "bf16"}


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Recording", Again)


@pytest.mark.parametrize("strategy", ROWS)
def test_losses_match_the_unsharded_model_before_and_after_recording(strategy: str, tmp_path: Path) -> None:
    row = ROWS[strategy]
    allowed = tolerance(strategy)
    _, last = allowed.steps
    assert last > row.options["eager_steps"] + 2, "else what is compared was not replayed"
    how = {**WORK, "warmup": 8, "steps": last}
    (tmp_path / "reference").mkdir()
    truth = launched(
        train(
            tmp_path / "reference", "bench_tests.steps.train:train_step", strategy="reference", micro_batches=2, **how
        )
    )
    (tmp_path / "ours").mkdir()
    ended = train(tmp_path / "ours", "recorded_steps:train", mesh="dp2", strategy=strategy, **how)
    one = launched(ended)
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses[:last], truth.losses, allowed.allowed) is None
    assert one.metrics["flops_per_step"] == truth.metrics["flops_per_step"]


def test_no_step_is_timed_before_the_recording(tmp_path: Path) -> None:
    """This holds for any warm-up, however short."""
    ended = train(tmp_path, "recorded_steps:train", warmup=4, steps=3, strategy="recorded-ddp", mesh="dp1", **WORK)
    eager_steps = ACCELERATORS["recorded-ddp"].options["eager_steps"]
    recording, pace, timed = 1, 3, 3
    assert len(launched(ended).losses) == eager_steps + recording + pace + timed


def test_each_replay_uses_its_own_batch_and_returns_its_own_loss(replayed: None) -> None:
    seen: list[Tensor] = []

    def run(batch: Tensor) -> Tensor:
        seen.append(batch)
        return batch.sum()

    step = recorded.Replayed(run, eager_steps=2)
    assert step.peak_bytes() == 0
    losses = [step(torch.full((2,), float(number))) for number in range(5)]
    assert [float(loss) for loss in losses if loss is not None] == [0, 2, 4, 6, 8]
    assert len({tensor.data_ptr() for tensor in seen[2:]}) == 1, "a graph reads from where it was recorded"
    assert step.peak_bytes() == Again.peak_bytes


def test_a_replay_without_a_loss_returns_none(replayed: None) -> None:
    step = recorded.Replayed(lambda batch: None, eager_steps=1)
    assert [step(torch.zeros(1)) for _ in range(3)] == [None] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("aside", [False, True])
def test_a_replay_runs_on_the_current_values_of_its_tensors(aside: bool) -> None:
    with torch.cuda.stream(torch.cuda.Stream() if aside else torch.cuda.current_stream()):
        taken = torch.ones(1 << 20, device="cuda")
        recording = Recording(lambda: (taken * 2 + 1).sum())
        taken.fill_(3)
        recording.replay()
        assert float(recording.result) == 7 * (1 << 20)
        assert recording.peak_bytes >= 3 * taken.nbytes, "two more while it adds"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_recording_without_a_cuda_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^CUDA graphs need a CUDA device, and there is none$"):
        Recording(lambda: None)


def test_a_strategy_with_unequal_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording would average parameters in every step, or in none."""
    every_fourth = Trainee(run=lambda: None, parameters=tuple, replicated=False, period=4)
    monkeypatch.setattr(accelerated_ddp, "local_sgd", lambda *_, **__: every_fourth)
    recipe = Recipe(precision="bf16", learning_rate=1.0, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="local_sgd cannot be recorded, because its steps are not all alike"):
        recorded.recorded(Mock(), Mock(), recipe, of="bench_tests.strategies.accelerated_ddp:local_sgd", eager_steps=4)


def test_a_step_in_fp16_is_refused() -> None:
    sentence = "a CUDA graph cannot contain an fp16 step: the gradient scaler waits for the device"
    with pretended("dp1") as mesh, pytest.raises(ValueError, match=sentence):
        train_step(mesh, strategy="recorded-ddp", **{**WORK, "precision": "fp16"})


@pytest.mark.parametrize(
    ("kind", "precision", "missing"),
    [
        ("cuda", "bf16", None),
        ("cuda", "fp16", "a CUDA graph cannot contain an fp16 step: the gradient scaler waits for the device"),
        ("cpu", "bf16", "CUDA graphs need a CUDA device, and the devices here are of kind cpu"),
        ("xpu", "bf16", "CUDA graphs need a CUDA device, and the devices here are of kind xpu"),
    ],
)
def test_a_row_says_where_it_cannot_be_measured(kind: str, precision: str, missing: str | None) -> None:
    for row in ROWS.values():
        assert row.missing(kind, precision) == missing
    assert ENGINES["torch-recorded"].missing(kind, precision) == missing
    assert STRATEGIES["fsdp2"].missing(kind, precision) is None
    assert ENGINES["torch"].missing(kind, precision) is None
