"""Graph optimisation: BERT fine-tuning in eager torch, through ONNX Runtime, and through ``torch.compile``.

Run a part of it: ``pytest bench_tests -k "ort and amp" --hw cpu``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench_tests.graphs import GRAPHS, find_graph
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware

WORK = {
    "smoke": {"model": "bert-tiny", "micro_batch": 4},
    "seed": {"model": "bert-base", "micro_batch": 16},
}

AMP = "fp16"
"""This suite uses fp16 for mixed precision on every device. ONNX Runtime has no bf16 arithmetic on CPUs and lacks some
bf16 kernels on GPUs."""

FULL_PRECISION_ONLY = {"ortmodule"}
"""On a CPU, autocast gives a layer norm 16-bit inputs and fp32 weights. ORTModule rejects that as an invalid graph."""

ROWS: dict[str, tuple[str | None, bool]] = {
    "eager": (None, False),
    "eager-amp": (None, True),
    **{name: (name, False) for name in GRAPHS},
    **{f"{name}-amp": (name, True) for name in GRAPHS if name not in FULL_PRECISION_ONLY},
}
"""Name of a row -> (its key in :data:`GRAPHS`, whether it trains in mixed precision)."""

HEADLINE = [row for row, (graph, _) in ROWS.items() if graph is None or GRAPHS[graph].headline]

SMOKE = [row for row in HEADLINE if row != "inductor-amp"]
"""Without the second compiled row: compilation is the slowest part on a small machine. ``--grid full`` includes it."""


@pytest.mark.profiles(
    row={
        "smoke": {"headline": SMOKE, "full": list(ROWS), "published": SMOKE},
        "seed": {"headline": HEADLINE, "full": list(ROWS), "published": list(ROWS)},
    },
    # The published page says 512, but its figures are only possible with a far shorter sequence.
    sequence={"smoke": [32], "seed": [512, 128]},
    mesh={"smoke": ["dp2"], "seed": {"headline": ["dp4"], "full": ["dp4", "dp1"], "published": ["dp4"]}},
)
def test_graph_optimisation(
    bench: Callable[..., object],
    mesh: MeshShape,
    hardware: Hardware,
    profile: str,
    plan: Plan | None,
    full: str,
    row: str,
    sequence: int,
) -> None:
    """A graph computes what eager torch computes in the same number format."""
    graph, amp = ROWS[row]
    compiled = {}
    if graph is not None:
        if missing := find_graph(graph).missing(hardware.kind):
            pytest.skip(missing)
        compiled["graph"] = graph
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        plan=plan,
        reference={"strategy": "reference", "micro_batches": mesh.dp, "graph": None},
        strategy="ddp" if amp else "ddp-fp32",
        precision=AMP if amp else full,
        sequence=sequence,
        **tolerance().options,
        **compiled,
        **WORK[profile],
    )
