"""How sure a verdict must be, and how often it may look."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_trainbench.judge.noise import Prior
from pytest_trainbench.schema.metrics import METRICS, Gate, Gates, Statistical

ERROR_MOST = 0.005
"""Chance of a false regression that one metric of one row has at most, however few rows share the night's."""

FRESH_LEAST = 2
"""Launches beyond the first ones without which there is no regression, where there may be any. What slows the first few
may be over a minute later; and of 3 launches all are outliers once in 5,000 times where one in 17 is."""

EARLY = 0.1
"""Share of a metric's error that all looks before the last have together."""

Priors = Mapping[tuple[str, bool], Prior]
"""Noise by metric and by whether the row is host-bound."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How sure a verdict must be, and how often it may look.

    error: chance of a false regression that all metrics of a row have together, over all looks. first, last: launches
    at the first look and at the last; in between a row in doubt is looked at after every launch. floor: replaces that
    of every :class:`Statistical` gate, whose tolerance is twice as much at least. gates: limits of single metrics,
    which replace both. fail_on_improvement: what fails is confirmed, so improvements are too. left_out: launches that
    were started and are not judged; each was a look all the same.
    """

    error: float = ERROR_MOST
    first: int = 1
    last: int = 1
    floor: float | None = None
    gates: Gates = field(default_factory=dict)
    fail_on_improvement: bool = False
    left_out: int = 0

    def gate(self, name: str) -> Gate:
        """Of a metric."""
        gate, derived_from = METRICS[name].gate, METRICS[name].derived_from
        if gate is None:
            raise ValueError(f"{name} is not judged")
        if isinstance(gate, Statistical) and self.floor is not None:
            # Nothing under the floor is ever found: with a tolerance there, every row would be noisy.
            gate = dataclasses.replace(gate, floor=self.floor, tolerance=max(gate.tolerance, 2 * self.floor))
        limits: Mapping[str, Any] = self.gates.get(name, {})
        if derived_from and not limits:
            limits = {each: max(limit, getattr(gate, each)) for each, limit in self.gates.get(derived_from, {}).items()}
        if "tolerance" in limits and "floor" not in limits and isinstance(gate, Statistical) and self.floor is not None:
            limits = {**limits, "tolerance": max(limits["tolerance"], 2 * self.floor)}  # a marker knows no --floor
        return dataclasses.replace(gate, **limits)

    def error_of(self, metrics: int) -> float:
        """What each of a row's ``metrics`` has of it. Where better fails too, half of that is for each side."""
        each = min(ERROR_MOST, self.error / max(1, metrics))
        return each / 2 if self.fail_on_improvement else each

    def share(self, launches: int) -> float:
        """Of a metric's error, what the look at so many launches may use.

        The looks' shares add up to 1 at most, so that together they keep the error whatever their correlation
        (Bonferroni). Nearly all of it is kept for the last, as in Haybittle's and Peto's rule for trials: R. Peto
        et al., British Journal of Cancer 34, 1976.
        """
        early = max(0, self.last - self.first - FRESH_LEAST)
        started = launches + self.left_out
        if started >= self.last:
            return 1 - EARLY if early else 1.0
        return EARLY / early if started >= self.first + FRESH_LEAST else 0.0


DEFAULT_POLICY = Policy()
"""One look at one launch."""
