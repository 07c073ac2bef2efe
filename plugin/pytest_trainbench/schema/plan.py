"""How long a launch measures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

PACE_STEPS = 3
"""Last warm-up steps, whose mean says how many steps fill the window: one alone may be a slow one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure. ``warmup`` steps are no part of the result (more where a step is recorded after more);
    then steps run for about ``window_s`` seconds, but at least ``min_steps`` and at most ``max_steps`` of them."""

    warmup: int = 8
    window_s: float = 2.0
    min_steps: int = 20
    max_steps: int = 200

    def __post_init__(self) -> None:
        if self.warmup <= PACE_STEPS or not 2 <= self.min_steps <= self.max_steps or self.window_s <= 0:
            needs = f"{PACE_STEPS + 1} warm-up steps, 2 timed steps and a window above 0 s"
            raise ValueError(f"a plan needs {needs}, not {asdict(self)}")

    def steps(self, step_s: float) -> int:
        """Number of steps to time when one takes about ``step_s`` seconds."""
        return min(self.max_steps, max(self.min_steps, math.ceil(self.window_s / max(step_s, 1e-6))))
