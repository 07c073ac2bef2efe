"""How sure a verdict must be, and how often it may look."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trainbench.judge.noise import Prior
from pytest_trainbench.judge.visits import Visit
from pytest_trainbench.schema.metrics import METRICS, Gate, Gates, Statistical

ERROR_MOST = 0.005
"""Largest chance of a false regression of one metric of one row, even if few rows share the error budget of the run."""

FRESH_LEAST = 2
"""Minimum number of confirming launches before a row can be red, if the run allows any. Whatever slows the first few
launches may end a minute later. If one launch in 17 is an outlier, all of 3 launches are outliers once in 5,000
rows."""

EARLY = 0.1
"""Share of a metric's error budget for all looks before the last one together."""


@dataclass(frozen=True, kw_only=True)
class Priors:
    """What the project teaches before a row's launches are seen.

    noise: noise of a launch by metric and by whether the row is host-bound. visits: what visits of one row differ by,
    by metric, by whether the row is host-bound, and by the kind of comparison
    (:func:`pytest_trainbench.judge.visits.between`). nights: green nights of the same code, by case id.
    """

    noise: Mapping[tuple[str, bool], Prior] = field(default_factory=dict)
    visits: Mapping[tuple[str, bool, str], Prior] = field(default_factory=dict)
    nights: Mapping[str, Sequence[Visit]] = field(default_factory=dict)


NO_PRIORS = Priors()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How sure a verdict must be, and how often it may look.

    error: chance of a false regression, over all metrics of a row and all looks at it.
    first, last: number of launches at the first look and at the last look. In between, a row in doubt is judged again
    after every launch.
    floor: replaces the floor of every :class:`Statistical` gate. The tolerance is then at least twice the floor.
    gates: limits of single metrics. They replace both.
    fail_on_improvement: whether improvements fail. Then they are confirmed too.
    left_out: number of launches that ran and are not judged. Each of them still counts as a look.
    """

    error: float = ERROR_MOST
    first: int = 1
    last: int = 1
    floor: float | None = None
    gates: Gates = field(default_factory=dict)
    fail_on_improvement: bool = False
    left_out: int = 0

    def gate(self, name: str) -> Gate:
        """The gate of a metric, with the limits of this policy. Raises ``ValueError`` if the metric is not judged."""
        gate, derived_from = METRICS[name].gate, METRICS[name].derived_from
        if gate is None:
            raise ValueError(f"{name} is not judged")
        if isinstance(gate, Statistical) and self.floor is not None:
            # No change below the floor is ever found. With a tolerance there, every row would be noisy.
            gate = dataclasses.replace(gate, floor=self.floor, tolerance=max(gate.tolerance, 2 * self.floor))
        limits: Mapping[str, Any] = self.gates.get(name, {})
        if derived_from and not limits:
            limits = {each: max(limit, getattr(gate, each)) for each, limit in self.gates.get(derived_from, {}).items()}
        if "tolerance" in limits and "floor" not in limits and isinstance(gate, Statistical) and self.floor is not None:
            limits = {**limits, "tolerance": max(limits["tolerance"], 2 * self.floor)}  # a marker does not know --floor
        return dataclasses.replace(gate, **limits)

    def error_of(self, metrics: int) -> float:
        """The error budget of each of a row's ``metrics``. If improvements fail too, each direction has half of it."""
        each = min(ERROR_MOST, self.error / max(1, metrics))
        return each / 2 if self.fail_on_improvement else each

    def share(self, launches: int) -> float:
        """The share of a metric's error budget that the look at this number of launches may use.

        The shares of all looks add up to at most 1. So all looks together keep the budget, however they are correlated
        (Bonferroni). The last look has nearly all of it, as in the rule of Haybittle and Peto for clinical trials:
        R. Peto et al., British Journal of Cancer 34, 1976.
        """
        early = max(0, self.last - self.first - FRESH_LEAST)
        started = launches + self.left_out
        if started >= self.last:
            return 1 - EARLY if early else 1.0
        return EARLY / early if started >= self.first + FRESH_LEAST else 0.0


DEFAULT_POLICY = Policy()
"""One look at one launch."""
