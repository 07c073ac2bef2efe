"""Sharding: the same training while each rank stores less and less of the model.

Run a part of it: ``pytest bench_tests -k zero --hw h200``. The published comparison uses four devices; ``--grid full``
adds two and eight.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench_tests.strategies import STRATEGIES
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware

WORK = {
    "smoke": {"model": "gpt-tiny", "sequence": 64, "micro_batch": 2},
    "seed": {"model": "gpt-1.3b", "sequence": 1024, "micro_batch": 1},
}


GRIDS = {"headline": ["dp4"], "full": ["dp2", "dp4", "dp8"], "published": ["dp4"]}


@pytest.mark.profiles(mesh={"smoke": ["dp2"], "seed": GRIDS})
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=[pytest.mark.gate(metric, **limits) for metric, limits in row.gates.items()])
        for name, row in STRATEGIES.items()
    ],
)
def test_sharding(
    bench: Callable[..., object],
    mesh: MeshShape,
    hardware: Hardware,
    profile: str,
    plan: Plan | None,
    amp: str,
    full: str,
    strategy: str,
) -> None:
    """Every strategy trains like one unsharded process on the same samples."""
    row = STRATEGIES[strategy]
    precision = amp if row.amp else full
    if missing := row.missing(hardware.kind, precision):
        pytest.skip(missing)
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        plan=plan,
        reference={"strategy": row.reference, "micro_batches": mesh.dp},
        strategy=strategy,
        precision=precision,
        **tolerance(strategy).options,
        **WORK[profile],
    )
