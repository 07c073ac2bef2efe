"""Mixed precision: BERT pre-training in every number format for matrix products, eager and compiled, on one to four
devices.

Run a part of it: ``pytest bench_tests -k "mixed_precision and bf16" --hw h200``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from bench_tests.graphs import find_graph
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.step import DTYPES

WORK = {
    "smoke": {"model": "bert-tiny", "sequence": 32, "micro_batch": 4},
    "seed": {"model": "bert-base", "sequence": 512, "micro_batch": 16},
}


@pytest.fixture
def precision(precision: str) -> str:
    """A number format that the device supports and that an installed library can train in."""
    if precision == "fp8" and find_spec("torchao") is None:
        pytest.skip("fp8 needs torchao: pip install torchao")
    return precision


@pytest.mark.profiles(mesh={"smoke": ["dp1", "dp2"], "seed": ["dp1", "dp2", "dp4"]})
@pytest.mark.parametrize("precision", DTYPES, indirect=True)
def test_mixed_precision(
    bench: Callable[..., object], mesh: MeshShape, profile: str, plan: Plan | None, precision: str
) -> None:
    """Training on several devices matches training on one device in the same number format."""
    train(bench, mesh, profile, plan, precision)


@pytest.mark.profiles(
    precision={"smoke": ["fp32"], "seed": DTYPES},
    mesh={"smoke": ["dp2"], "seed": ["dp1", "dp2", "dp4"]},
)
def test_mixed_precision_compiled(
    bench: Callable[..., object],
    mesh: MeshShape,
    hardware: Hardware,
    profile: str,
    plan: Plan | None,
    precision: str,
) -> None:
    """The compiled model computes what the eager model computes in the same number format."""
    if missing := find_graph("inductor").missing(hardware.kind):
        pytest.skip(missing)
    train(bench, mesh, profile, plan, precision, graph="inductor")


def train(
    bench: Callable[..., object], mesh: MeshShape, profile: str, plan: Plan | None, precision: str, **graph: Any
) -> None:
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        plan=plan,
        reference={"strategy": "reference", "micro_batches": mesh.dp, "graph": None},
        strategy="ddp-fp32" if precision in ("fp32", "tf32") else "ddp",
        precision=precision,
        **tolerance(f"compiled-{precision}" if graph else precision).options,
        **WORK[profile],
        **graph,
    )
