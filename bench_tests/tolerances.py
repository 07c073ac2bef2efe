"""How far the losses of a row may be from the unsharded model's losses, and how far correct rows were observed to be.

Ranks do not import this module, so a changed tolerance makes no stored row stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trainbench.judge.validity import LOSS_STEPS


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A limit for the loss deviation of a row, with the evidence for it.

    Deviations are fractions of the fall of the reference's loss over the compared steps. ``allowed`` is the largest
    deviation that passes. ``seen`` is the largest deviation of a correct row, and ``where`` names the hardware of that
    row. ``steps`` are the first and the last compared step; step 1 is the first step of a training. Raises
    ``ValueError`` if ``seen`` is not below ``allowed``.
    """

    allowed: float
    seen: float
    where: str
    steps: tuple[int, int] = LOSS_STEPS

    def __post_init__(self) -> None:
        if not self.seen < self.allowed:
            raise ValueError(f"tolerance {self.allowed:g} must be above the deviation of correct rows, {self.seen:g}")

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for the fixture ``bench``."""
        return {"loss_tolerance": self.allowed, "loss_steps": self.steps}


SAME_FORMATS = Tolerance(allowed=0.005, seen=0.0022, where="H200")
"""For rows that compute in the number formats of the reference, in another order."""

BATCH_NORM = Tolerance(allowed=0.015, seen=0.0046, where="H200")
"""For models whose batch norm amplifies the rounding of their convolutions."""

ROUNDED = Tolerance(allowed=0.05, seen=0.02, where="small models on a CPU")
"""For rows that round gradients to 16 bits before they add them up, and for kernels that round at other points."""

TOLERANCES: dict[str, Tolerance] = {
    "megatron": Tolerance(allowed=0.01, seen=0.0019, where="H200"),
    "resnet50": BATCH_NORM,
    "timm_vovnet": BATCH_NORM,
    # 48 layers, whose differences add up.
    "bert-1.5b": Tolerance(allowed=0.015, seen=0.0052, where="H200"),
    "trainer": Tolerance(allowed=0.01, seen=0.0013, where="H200"),
    # Bilinear upsampling adds gradients up in a random order: torch's backward pass uses atomic additions.
    "pytorch_unet": Tolerance(allowed=0.02, seen=0.0057, where="H200"),
    # DDP times its first ten steps with events, which a CUDA graph cannot contain. The row is therefore recorded later,
    # and its losses are compared over more steps.
    "recorded-ddp": Tolerance(allowed=0.01, seen=0.0022, where="H200", steps=(1, 16)),
    "compiled-ddp": ROUNDED,
    "compiled-autograd": ROUNDED,
    "bf16-gradients": ROUNDED,
    "fp16-gradients": ROUNDED,
    # PowerSGD compresses gradients with loss.
    "powersgd": Tolerance(allowed=0.3, seen=0.1, where="small models on a CPU"),
    # Local SGD computes something else. The row only has to show a good part of the reference's fall.
    "local-sgd": Tolerance(allowed=0.7, seen=0.3, where="small models on a CPU"),
    # A float8 gradient that is rounded the other way is 25 % off.
    "fp8": Tolerance(allowed=0.015, seen=0.0045, where="H100, H200"),
    "compiled-fp8": Tolerance(allowed=0.05, seen=0.0221, where="H100"),
}
"""Name of a strategy, engine, model or number format -> its tolerance. :data:`SAME_FORMATS` applies to all other names.
"""


def tolerance(*names: str) -> Tolerance:
    """The widest tolerance that :data:`TOLERANCES` has for any of ``names``, over the largest number of steps of any of
    them."""
    known = [TOLERANCES[name] for name in names if name in TOLERANCES] or [SAME_FORMATS]
    widest = max(known, key=lambda each: each.allowed)
    return replace(widest, steps=max(each.steps for each in known))


LEAP = 0.3
"""Largest rise of a loss, as a fraction of its fall, that still counts as a steady fall. Two batches of a small model
differ by up to 0.25. In trainings that diverged for a while, losses rose by 1 to 6 times their fall."""


def leap(losses: Sequence[float]) -> float:
    """The largest rise of a loss above the lowest loss before it, as a fraction of the total fall of ``losses``.

    Raises ``ValueError`` if the losses did not fall.
    """
    lowest, rise = losses[0], 0.0
    for loss in losses:
        rise, lowest = max(rise, loss - lowest), min(lowest, loss)
    if not lowest < losses[0]:
        raise ValueError(f"these losses did not fall: {', '.join(f'{loss:.4f}' for loss in losses)}")
    return rise / (losses[0] - lowest)
