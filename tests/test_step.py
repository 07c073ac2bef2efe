"""A step refuses values that would make its figures meaningless."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_trainbench.schema.step import DTYPES, Step


def step(**replaced: Any) -> Step:
    return Step(**{"run": lambda: None, "samples": 1, "parameters": tuple, **replaced})


def test_only_run_samples_and_parameters_are_required() -> None:
    sample = step()
    assert (sample.samples, sample.tokens, sample.flops, sample.counts_flops) == (1, None, None, True)
    assert (sample.dtype, sample.replicated) == ("fp32", False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_listed_dtype_is_accepted(dtype: str) -> None:
    assert step(dtype=dtype).dtype == dtype


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"dtype": "float32"}, "dtype 'float32' is unknown; known: fp32, tf32, bf16, fp16, fp8"),
        ({"samples": 0}, "a step needs at least one sample and one token: 0, None"),
        ({"tokens": 0}, "a step needs at least one sample and one token: 1, 0"),
        ({"flops": 0.0}, "FLOPs of a step must be above 0, or None where unknown: 0.0"),
        ({"flops": math.nan}, "FLOPs of a step must be above 0, or None where unknown: nan"),
        ({"period": 0}, "the work repeats after one step or more, not 0"),
        ({"eager_steps": 1}, "a step is recorded after two steps or more, or never (0), not after 1"),
    ],
)
def test_unusable_values_are_refused(replaced: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        step(**replaced)
    assert str(error.value) == message
