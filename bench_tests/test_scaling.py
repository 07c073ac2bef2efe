"""Scaling efficiency: BERT pre-training with ZeRO-1 in bf16 on a growing number of devices.

In *weak* scaling each device does the same work, so the global batch grows with the number of devices. In *strong*
scaling the global batch is fixed, so each device gets a smaller part of it.

Run a part of it: ``pytest bench_tests -k "scaling and weak" --hw h200``. ``--grid published`` runs whole nodes of eight
devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bench_tests.models import find_model
from bench_tests.strategies import find_strategy
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.plan import Plan

STRATEGY = "zero1"


def learning_rate(global_batch: int, *, rate: float = 0.0015, at: int = 64 * 384) -> float:
    """The learning rate for a global batch, in samples a step: proportional to the batch, and ``rate`` at a batch of
    ``at``.

    The defaults are the published values for BERT-1.5B: 0.0015 on 64 accelerators with 16 × 24 samples each, and 0.003
    on 128 accelerators. The linear rule, and the gradual warm-up from the rate of one device that belongs to it, come
    from P. Goyal et al., "Accurate, large minibatch SGD", arXiv 1706.02677.
    """
    return float(f"{rate * global_batch / at:.6g}")


@dataclass(frozen=True, kw_only=True)
class ScalingWork:
    """What one row trains on.

    In weak scaling each device takes ``micro_batches`` micro-batches of ``micro_batch`` samples. In strong scaling all
    devices together take them. ``rate`` and ``at`` are parameters of :func:`learning_rate`.
    """

    sequence: int
    micro_batch: int
    micro_batches: int = 24
    rate: float = 0.0015
    at: int = 64 * 384


WORK = {
    "bert-tiny": ScalingWork(sequence=32, micro_batch=2, micro_batches=4, rate=2e-3, at=16),
    # The micro-batch of BERT-large is not published. 64 × 128 tokens keep a modern GPU busy; with 16 samples the step
    # would be host-bound. The learning rate is that of BERT-1.5B on as many devices. BERT-large has four times the
    # batch, and four times the rate would need the warm-up of a whole training.
    "bert-large": ScalingWork(sequence=128, micro_batch=64, at=64 * 64 * 24),
    "bert-1.5b": ScalingWork(sequence=128, micro_batch=16),
}

ONE_NODE = ["dp1", "dp2", "dp4", "dp8"]
MESHES = {
    "headline": ONE_NODE,
    "full": ONE_NODE,
    # 1 to 16 nodes. As in the published figures, one node of eight devices is the base of every efficiency.
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
    """A step of many micro-batches trains like one unsharded process on the same global batch."""
    if not hardware.has("bf16"):
        pytest.skip(f"{hardware.device_name} has no hardware for bf16 products")
    work = WORK[model]
    if scaling == "strong" and work.micro_batches % mesh.dp:
        pytest.skip(f"{work.micro_batches} micro-batches cannot be split equally over {mesh.dp} devices")
    on_each = work.micro_batches if scaling == "weak" else work.micro_batches // mesh.dp
    batch = work.micro_batch * on_each * mesh.dp
    # During warm-up the rate rises in each step as much as it does on one device, until it reaches the full rate of all
    # devices.
    rising = find_model(model).warmup_steps * mesh.dp
    warmup = {"warmup_steps": rising} if scaling == "weak" and mesh.dp > 1 else {}
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        # A step takes seconds. The reference has twelve steps, so twelve are enough here.
        plan=plan or Plan(warmup=4, min_steps=8, window_s=5.0),
        reference={"strategy": find_strategy(STRATEGY).reference, "micro_batches": on_each * mesh.dp},
        **tolerance(STRATEGY, model).options,
        model=model,
        strategy=STRATEGY,
        precision="bf16",
        sequence=work.sequence,
        micro_batch=work.micro_batch,
        micro_batches=on_each,
        learning_rate=learning_rate(batch, rate=work.rate, at=work.at),
        **warmup,
    )
