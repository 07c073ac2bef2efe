"""How far the losses of a row may be from those of the unsharded model, and what was seen: one table."""

from __future__ import annotations

from collections.abc import Sequence

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
