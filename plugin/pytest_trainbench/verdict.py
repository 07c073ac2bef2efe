"""Is a record still what its baseline was? Pure: nothing here reads a file or a clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trainbench.environment import Difference
from pytest_trainbench.metrics import METRICS, Exact, Relative, Statistical
from pytest_trainbench.record import Record

OUTCOMES: dict[str, str] = {
    "ok": "passes",
    "saved": "passes",
    "improvement": "passes",
    "no-baseline": "warns",
    "noisy": "warns",
    "oom": "passes",
    "skipped": "skips",
    "regression": "fails",
    "incomparable": "fails",
    "invalid": "fails",
    "timeout": "fails",
    "crash": "fails",
}
"""How each outcome ends its test. Where ``CI`` is set, what was compared with nothing fails as well."""

CONFIDENCE = 0.99
"""Two-sided, of the interval around a change between two sets of launches."""

PRIOR_NOISE, PRIOR_LAUNCHES = 0.005, 2
"""Three launches that happen to agree do not mean that there is no noise: to the launches seen are added this
many with this relative standard deviation (launches of one BERT step on an H200 differ by 0.3 to 0.5 %)."""

MACHINE_NOISE = 0.005
"""Relative standard deviation of one machine among others of its kind, which no number of launches on it shows: added
to a comparison between two machines (a BERT step on three H200 machines: 28.7, 28.7 and 28.9 ms)."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One metric against its baseline.

    ``change`` is a fraction of the baseline, positive meaning better. ``sees`` is the smallest change, as a
    fraction, that these launches could have told from noise. ``outcome``: ok, regression, improvement, noisy,
    incomparable.
    """

    metric: str
    before: float
    now: float
    change: float
    sees: float
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``reason`` is one sentence for every outcome but ok; ``changes`` holds the judged metrics;
    ``suspects`` what differs in the environment; ``compared`` is false where a baseline was wanted and missing."""

    outcome: str
    reason: str | None = None
    changes: tuple[Change, ...] = ()
    suspects: tuple[Difference, ...] = ()
    compared: bool = True

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is unknown; known: {', '.join(OUTCOMES)}")

    def change(self, metric: str) -> Change | None:
        return next((change for change in self.changes if change.metric == metric), None)

    def fails(self, *, strict: bool) -> bool:
        return OUTCOMES[self.outcome] == "fails" or (strict and not self.compared)


def judge(
    record: Record,
    baseline: Record | None,
    *,
    must_match: Sequence[Difference] = (),
    suspects: Sequence[Difference] = (),
) -> Verdict:
    """Verdict of ``record`` against ``baseline``.

    ``must_match`` lists the differences between the two environments that forbid a comparison, ``suspects``
    those that may explain a change.
    """
    listed = tuple(suspects)
    if record.outcome in ("invalid", "timeout", "crash"):
        return Verdict(outcome=record.outcome, reason=record.reason, suspects=listed)
    if baseline is None:
        if record.outcome == "oom":
            return Verdict(outcome="oom", reason=record.reason, compared=False)
        reason = "there is no baseline for this case on this hardware; --save-baseline stores one"
        return Verdict(outcome="no-baseline", reason=reason, compared=False)
    if must_match:
        what = "; ".join(f"{name} was {fact(before)}, is {fact(now)}" for name, before, now in must_match)
        reason = f"the baseline is of other conditions: {what}"
        return Verdict(outcome="incomparable", reason=reason, suspects=listed)
    if record.outcome == "oom" or baseline.outcome == "oom":
        if record.outcome == baseline.outcome:
            return Verdict(outcome="oom", reason="out of memory, as in the baseline", suspects=listed)
        if record.outcome == "oom":
            reason = f"out of memory where the baseline fitted: {record.reason}"
            return Verdict(outcome="regression", reason=reason, suspects=listed)
        reason = "fits in memory where the baseline did not"
        return Verdict(outcome="improvement", reason=reason, suspects=listed)
    judged = [name for name, metric in METRICS.items() if metric.gate is not None and baseline.values(name)]
    if "step_ms" not in judged:
        return Verdict(outcome="incomparable", reason="the baseline has no step_ms", suspects=listed)
    if lost := [name for name in judged if not record.values(name)]:
        reason = f"the baseline has {', '.join(lost)} and this run has not"
        return Verdict(outcome="incomparable", reason=reason, suspects=listed)

    moved = any(name == "machine" for name, _, _ in suspects)
    changes = tuple(_compare(name, baseline.values(name), record.values(name), moved=moved) for name in judged)
    for outcome in ("incomparable", "regression", "noisy", "improvement"):
        if found := [change for change in changes if change.outcome == outcome]:
            reason = "; ".join(map(describe, found))
            return Verdict(outcome=outcome, reason=reason, changes=changes, suspects=listed)
    return Verdict(outcome="ok", changes=changes, suspects=listed)


def describe(change: Change) -> str:
    """One change in words: what, by how much, and how little could have been seen."""
    title = METRICS[change.metric].title
    if change.outcome == "incomparable":
        # In full: a difference that counts must also be seen.
        return f"{title}: {change.before:,.17g}, now {change.now:,.17g}: the step does other work than the baseline's"
    if change.outcome == "noisy":
        return f"{title}: only a change of {percent(change.sees)} or more could have been seen"
    return f"{title} {movement(change)}"


def movement(change: Change) -> str:
    """For example ``8.3% worse (sees ≥ 1.0%)``; what is judged exactly sees everything."""
    if change.outcome == "incomparable":
        way = "more" if change.now > change.before else "less"
    else:
        way = "better" if change.change > 0 else "worse"
    moved = f"{percent(abs(change.change))} {way}"
    sees = f" (sees ≥ {percent(change.sees)})" if change.sees else ""
    return (moved if change.change else "unchanged") + sees


def percent(fraction: float) -> str:
    """One decimal, or as many as it takes to show that a fraction is not 0."""
    return f"{fraction:.1%}" if round(fraction, 3) or not fraction else f"{fraction * 100:.1g}%"


def fact(value: object) -> str:
    """A fact of an environment in words."""
    return "not known" if value is None else str(value)


def _compare(name: str, before: Sequence[float], now: Sequence[float], *, moved: bool = False) -> Change:
    metric = METRICS[name]
    middle: Callable[[Sequence[float]], float] = statistics.median
    match metric.gate:
        case Statistical(floor=floor, tolerance=tolerance):
            middle = statistics.geometric_mean
            sees = max(floor, math.expm1(_half_width(before, now, moved=moved)))
            outcome = "noisy" if sees > tolerance else "ok"
        case Relative(limit=limit, tolerance=tolerance):
            # Launches of FairScale's ShardedDataParallel on 4 H200s needed 16.4 to 21.3 GB, as the timing of its
            # reductions has it: a gate of 0.5 % would be red on most nights.
            steady = max(before) <= (1 + limit) * min(before)
            sees = limit if steady else max(limit, math.expm1(_half_width(before, now)))
            outcome = "noisy" if sees > tolerance else "ok"
        case Exact():
            sees, outcome = 0.0, "ok"
        case None:
            raise ValueError(f"{name} is not judged")
    old, new = middle(before), middle(now)
    grown = 0.0 if new == old else math.inf if old == 0 else new / old - 1
    better = grown if metric.higher_is_better else -grown
    if not abs(better) <= sees:  # so written, NaN is a regression
        outcome = "improvement" if better > 0 else "regression"
        # A step that does less work is not a faster one.
        outcome = "incomparable" if isinstance(metric.gate, Exact) else outcome
    return Change(metric=name, before=old, now=new, change=better, sees=sees, outcome=outcome)


def _half_width(before: Sequence[float], now: Sequence[float], *, moved: bool = False) -> float:
    """Half the interval of the difference of two means of logs: Student's t on the pooled variance of the
    launches, with the prior's launches added to both and, where the case ``moved``, the variance of two machines."""
    from scipy.stats import t

    before, now = [math.log(value) for value in before], [math.log(value) for value in now]
    freedom = PRIOR_LAUNCHES + len(before) + len(now) - 2
    squares = PRIOR_LAUNCHES * PRIOR_NOISE**2 + sum(statistics.pvariance(side) * len(side) for side in (before, now))
    variance = squares / freedom * (1 / len(before) + 1 / len(now)) + moved * 2 * MACHINE_NOISE**2
    return float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
