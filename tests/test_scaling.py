"""Rows of the scaling suite: the learning rate follows the global batch as published."""

from __future__ import annotations

import pytest

from bench_tests.tables.scaling import PUBLISHED
from bench_tests.test_scaling import MESHES, WORK, learning_rate

BATCH_OF_AN_ACCELERATOR = 16 * 24


@pytest.mark.parametrize(("accelerators", "rate"), [(64, 0.0015), (128, 0.003), (4, 9.375e-5)])
def test_the_published_rates_are_those_of_the_rule(accelerators: int, rate: float) -> None:
    assert learning_rate(accelerators * BATCH_OF_AN_ACCELERATOR) == rate


@pytest.mark.parametrize("model", ["bert-large", "bert-1.5b"])
def test_the_rate_on_as_many_devices_is_the_same_for_both_models(model: str) -> None:
    work = WORK[model]
    on_four = 4 * work.micro_batch * work.micro_batches
    assert learning_rate(on_four, rate=work.rate, at=work.at) == 9.375e-5
    assert work.micro_batches % 8 == 0, "strong scaling splits them over 2, 4 and 8 devices"


def test_every_published_number_of_devices_has_a_row() -> None:
    assert {f"dp{devices}" for rows in PUBLISHED.values() for devices, _ in rows} == set(MESHES["published"])
