"""Scaling efficiency: BERT pre-training under ZeRO-1 in bf16 on more and more devices.

*weak*: each device does the same work whatever their number, so the global batch grows with them. *strong*: the global
batch stays, and each device gets a smaller part of it.

Run a part of it: ``pytest bench_tests -k "scaling and weak" --hw h200``. ``--grid published`` runs whole nodes of
eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bench_tests.models import find_model
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.plan import Plan

STRATEGY = "zero1"


def learning_rate(global_batch: int, *, rate: float = 0.0015, at: int = 64 * 384) -> float:
    """Proportional to the global batch (samples a step): ``rate`` for a batch of ``at``.

    The defaults are those of BERT-1.5B as published: 0.0015 on 64 accelerators of 16 × 24 samples each, and 0.003 on
    128. The rule itself, and the gradual warm-up from the rate of one device that belongs to it: P. Goyal et al.,
    "Accurate, large minibatch SGD", arXiv 1706.02677.
    """
    return float(f"{rate * global_batch / at:.6g}")


@dataclass(frozen=True, kw_only=True)
class Work:
    """``micro_batches`` of ``micro_batch`` samples each is the work of a device in weak scaling, and of all devices
    together in strong scaling. ``rate`` and ``at`` are those of :func:`learning_rate`."""

    sequence: int
    micro_batch: int
    micro_batches: int = 24
    rate: float = 0.0015
    at: int = 64 * 384


WORK = {
    "bert-tiny": Work(sequence=32, micro_batch=2, micro_batches=4, rate=2e-3, at=16),
    # The micro-batch is not published: 64 × 128 tokens keep a modern GPU busy, 16 would leave it waiting for its host.
    # The rate is that of the larger model on as many devices, since at four times its batch four times its rate needs
    # the warm-up of a whole training.
    "bert-large": Work(sequence=128, micro_batch=64, at=64 * 64 * 24),
    "bert-1.5b": Work(sequence=128, micro_batch=16),
}

ONE_NODE = ["dp1", "dp2", "dp4", "dp8"]
MESHES = {
    "headline": ONE_NODE,
    "full": ONE_NODE,
    # 1 to 16 nodes, so that the base of an efficiency is one node of eight, as published.
    "published": ["dp8", "dp16", "dp32", "dp64", "dp128"],
}


@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.profiles(
    model={"smoke": ["bert-tiny"], "seed": ["bert-large", "bert-1.5b"]},
    mesh={"smoke": ["dp1", "dp2"], "seed": MESHES},
)
def test_scaling(
    bench: Callable[..., object], mesh: MeshShape, plan: Plan | None, hardware: Hardware, scaling: str, model: str
) -> None:
    """A step of many micro-batches trains on several devices as on one with nothing to shard, on the same global batch,
    and on one as torch's own training does, from which weights of 16 bits lead away."""
    if not hardware.has("bf16"):
        pytest.skip(f"{hardware.device_name} has no bf16 products")
    work = WORK[model]
    if scaling == "strong" and work.micro_batches % mesh.dp:
        pytest.skip(f"{work.micro_batches} micro-batches cannot be dealt to {mesh.dp} devices")
    on_each = work.micro_batches if scaling == "weak" else work.micro_batches // mesh.dp
    batch = work.micro_batch * on_each * mesh.dp
    truth: dict[str, Any] = {"reference": {"micro_batches": on_each * mesh.dp}, **tolerance().options}
    if mesh.dp == 1:
        truth = {"reference": {"strategy": "reference"}, **tolerance(STRATEGY).options}
    # The rate rises with each step by what it does on one device, up to that of all devices together.
    rising = find_model(model).warmup_steps * mesh.dp
    warmup = {"warmup_steps": rising} if scaling == "weak" and mesh.dp > 1 else {}
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        # A step takes seconds; twelve of them are as many as the reference has.
        plan=plan or Plan(warmup=4, min_steps=8, window_s=5.0),
        **truth,
        model=model,
        strategy=STRATEGY,
        precision="bf16",
        sequence=work.sequence,
        micro_batch=work.micro_batch,
        micro_batches=on_each,
        learning_rate=learning_rate(batch, rate=work.rate, at=work.at),
        **warmup,
    )
