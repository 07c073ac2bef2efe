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
        ({"samples": 0}, "samples must be at least 1, and tokens at least 1 or None, not 0 and None"),
        ({"tokens": 0}, "samples must be at least 1, and tokens at least 1 or None, not 1 and 0"),
        ({"flops": 0.0}, "flops must be above 0, or None if no formula is known, not 0.0"),
        ({"flops": math.nan}, "flops must be above 0, or None if no formula is known, not nan"),
        ({"period": 0}, "period must be at least 1 step, not 0"),
        ({"eager_steps": 1}, "eager_steps must be 0 (nothing is recorded) or at least 2, not 1"),
    ],
)
def test_unusable_values_are_refused(replaced: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        step(**replaced)
    assert str(error.value) == message
