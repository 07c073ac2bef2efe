"""The scaling suite: its learning rates follow the global batch as published, and it notices lost gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import launched, start, train

from bench_tests.tables.scaling import PUBLISHED
from bench_tests.test_scaling import MESHES, WORK, learning_rate
from bench_tests.tolerances import tolerance
from pytest_trainbench.judge.validity import loss_fault

TRAIN = "bench_tests.steps.train:train_step"

BATCH_OF_AN_ACCELERATOR = 16 * 24


@pytest.mark.parametrize(("accelerators", "rate"), [(64, 0.0015), (128, 0.003), (4, 9.375e-5)])
def test_the_rule_gives_the_published_learning_rates(accelerators: int, rate: float) -> None:
    assert learning_rate(accelerators * BATCH_OF_AN_ACCELERATOR) == rate


@pytest.mark.parametrize("model", ["bert-large", "bert-1.5b"])
def test_both_models_have_the_same_learning_rate_on_four_devices(model: str) -> None:
    work = WORK[model]
    on_four = 4 * work.micro_batch * work.micro_batches
    assert learning_rate(on_four, rate=work.rate, at=work.at) == 9.375e-5
    assert work.micro_batches % 8 == 0, "strong scaling splits them over 2, 4 and 8 devices"


def test_lost_gradients_of_one_rank_are_caught(tmp_path: Path) -> None:
    """The samples of all ranks are similar, so losing one rank's gradients changes the losses only a little."""
    row: dict[str, Any] = {"model": "bert-tiny", "strategy": "zero1", "precision": "bf16", "sequence": 64}
    row |= {"micro_batch": 32, "learning_rate": 0.001}
    whole = launched(train(tmp_path / "whole", TRAIN, **row, micro_batches=8))
    right = launched(train(tmp_path / "right", TRAIN, mesh="dp2", **row, micro_batches=4))
    builder = "wrong_steps:zero_that_loses_a_rank"
    wrong = launched(start(tmp_path / "wrong", builder, mesh="dp2", **row, micro_batches=4))

    assert loss_fault(right.losses, whole.losses, tolerance().allowed) is None
    assert "it trains wrong" in str(loss_fault(wrong.losses, whole.losses, tolerance().allowed))


def test_every_published_number_of_devices_has_a_row() -> None:
    assert {f"dp{devices}" for rows in PUBLISHED.values() for devices, _ in rows} == set(MESHES["published"])
