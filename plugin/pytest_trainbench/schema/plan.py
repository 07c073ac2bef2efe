"""How long a launch measures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

PACE_STEPS = 3
"""How many of the last warm-up steps are averaged to choose the number of timed steps. A single step may be slow by
chance."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a launch measures.

    warmup:
        Steps before the timed ones. There are more if :attr:`Step.eager_steps` asks for more.
    window_s:
        About how long the timed steps take together, in seconds.
    min_steps, max_steps:
        Limits of the number of timed steps.
    """

    warmup: int = 8
    window_s: float = 2.0
    min_steps: int = 20
    max_steps: int = 200

    def __post_init__(self) -> None:
        if self.warmup <= PACE_STEPS or not 2 <= self.min_steps <= self.max_steps or self.window_s <= 0:
            needs = f"at least {PACE_STEPS + 1} warm-up steps, 2 <= min_steps <= max_steps, and a window above 0 s"
            raise ValueError(f"a plan needs {needs}, not {asdict(self)}")

    def steps(self, step_s: float) -> int:
        """Number of steps to time if a step takes about ``step_s`` seconds."""
        return min(self.max_steps, max(self.min_steps, math.ceil(self.window_s / max(step_s, 1e-6))))
