"""How far the losses of a row may be from those of the unsharded model, and what was seen: one table.

Ranks do not import this module, so that another tolerance makes no stored row stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trainbench.judge.aggregate import LOSS_STEPS


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """``allowed``: largest distance of a loss from the reference's, as a fraction of how far the reference's loss falls
    over the compared steps. ``seen``: the largest distance that a correct row showed, as the same fraction, and
    ``where``. ``steps``: the first and the last step whose losses are compared, from 1 on."""

    allowed: float
    seen: float
    where: str
    steps: tuple[int, int] = LOSS_STEPS

    def __post_init__(self) -> None:
        if not self.seen < self.allowed:
            raise ValueError(f"a tolerance of {self.allowed:g} is below what was seen, {self.seen:g}")

    @property
    def options(self) -> dict[str, Any]:
        """What the fixture ``bench`` is told of it."""
        return {"loss_tolerance": self.allowed, "loss_steps": self.steps}


SAME_FORMATS = Tolerance(allowed=0.005, seen=0.0012, where="H100, H200")
"""Of everything that computes in the formats of the reference, and only in another order."""

WEIGHTS_OF_16_BITS = Tolerance(allowed=0.01, seen=0.0047, where="H200")
"""Of what computes with 16-bit weights where autocast keeps some layers in fp32."""

ROUNDED = Tolerance(allowed=0.05, seen=0.02, where="small models on a CPU")
"""Of gradients that are rounded to 16 bits before they are added up, and of kernels that round elsewhere."""

TOLERANCES: dict[str, Tolerance] = {
    "fairscale-fsdp": WEIGHTS_OF_16_BITS,
    "fsdp1": WEIGHTS_OF_16_BITS,
    "fsdp2": WEIGHTS_OF_16_BITS,
    "fsdp2-recorded": WEIGHTS_OF_16_BITS,
    "zero1": WEIGHTS_OF_16_BITS,
    "zero2": WEIGHTS_OF_16_BITS,
    "zero3": WEIGHTS_OF_16_BITS,
    "megatron": WEIGHTS_OF_16_BITS,
    "deepspeed": WEIGHTS_OF_16_BITS,
    # Bilinear upsampling adds gradients up in any order (torch's backward pass of it uses atomic additions).
    "pytorch_unet": Tolerance(allowed=0.02, seen=0.0057, where="H200"),
    # DDP times its first ten steps with events, which cannot be part of a graph: it is recorded later, and compared
    # for some steps more.
    "recorded-ddp": Tolerance(allowed=0.005, seen=0.0012, where="H200", steps=(1, 16)),
    "compiled-ddp": ROUNDED,
    "compiled-autograd": ROUNDED,
    "bf16-gradients": ROUNDED,
    "fp16-gradients": ROUNDED,
    # What follows loses information.
    "powersgd": Tolerance(allowed=0.3, seen=0.1, where="small models on a CPU"),
    # Another computation: all that is asked is that it has come a good part of the way.
    "local-sgd": Tolerance(allowed=0.7, seen=0.3, where="small models on a CPU"),
    # One float8 gradient that is rounded the other way is 25 % off.
    "fp8": Tolerance(allowed=0.015, seen=0.0045, where="H100, H200"),
    "compiled-fp8": Tolerance(allowed=0.05, seen=0.0221, where="H100"),
}
"""By the name of a strategy, an engine, a model or a number format; :data:`SAME_FORMATS` for all others."""


def tolerance(*names: str) -> Tolerance:
    """The widest tolerance that one of ``names`` has in :data:`TOLERANCES`, over the most steps that one asks for."""
    known = [TOLERANCES[name] for name in names if name in TOLERANCES] or [SAME_FORMATS]
    widest = max(known, key=lambda each: each.allowed)
    return replace(widest, steps=max(each.steps for each in known))


LEAP = 0.3
"""Largest rise of a loss that still counts as a steady fall. Two batches of a small model differ by up to 0.25; the
losses of a training that was thrown off rose by 1 to 6 times their fall."""


def leap(losses: Sequence[float]) -> float:
    """The largest rise of a loss above the lowest before it, as a fraction of how far all of them fell.

    Raises ``ValueError`` where they did not fall.
    """
    lowest, rise = losses[0], 0.0
    for loss in losses:
        rise, lowest = max(rise, loss - lowest), min(lowest, loss)
    if not lowest < losses[0]:
        raise ValueError(f"these losses did not fall: {', '.join(f'{loss:.4f}' for loss in losses)}")
    return rise / (losses[0] - lowest)
