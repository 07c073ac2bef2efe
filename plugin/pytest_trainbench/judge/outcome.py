"""The outcome of each metric, and the outcome of the row."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainbench.hardware import environment
from pytest_trainbench.judge.attribution import Cause
from pytest_trainbench.schema.metrics import LEADING, METRICS, Counted, Relative

OUTCOMES: dict[str, str] = {
    "ok": "passes",
    "saved": "passes",
    "calibrated": "passes",
    "improvement": "passes",
    "new": "passes",
    "no-baseline": "warns",
    "noisy": "warns",
    "oom": "passes",
    "skipped": "skips",
    "regression": "fails",
    "environment": "fails",
    "incomparable": "fails",
    "invalid": "fails",
    "timeout": "fails",
    "crash": "fails",
}
"""How each outcome ends its test. Where ``CI`` is set, a row without a comparison fails as well."""


SILENT = ("skipped", "saved", "calibrated", "oom")
"""Outcomes of rows that had nothing to judge, or no time: they compare with nothing, or do not fit in memory."""

CONCLUSIVE = ("ok", "regression", "environment", "improvement")
"""Outcomes of a metric that was judged."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The comparison of one metric with its baseline.

    before, now: the figure of each side, in the metric's unit.
    change: a fraction of ``before``. Positive is better.
    sees: the smallest change, as a fraction of ``before``, that would have been found at least eight times in ten;
    infinite if no change would have been found.
    outcome: ok, regression, environment, improvement, noisy, incomparable or not judged.
    interval: the 95 % confidence interval of ``change``; ``None`` if the metric is not judged by its noise.
    doubtful: whether more launches may make it a regression.
    tolerance: the change that the row must be able to see.
    why: why it is not judged, why nothing can be seen, or whether the environment alone is to blame.
    cold: how far the first pair of launches lay from the others, as a fraction, if it was left out; else 0.
    odd: figures of the launches that differ from most, if the metric is the same in every launch.
    launches: the number of launches that ``odd`` is a part of.
    """

    metric: str
    before: float
    now: float
    change: float
    sees: float
    outcome: str
    interval: tuple[float, float] | None = None
    doubtful: bool = False
    tolerance: float | None = None
    why: str = ""
    cold: float = 0.0
    odd: tuple[float, ...] = ()
    launches: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a row.

    reason: one sentence; ``None`` only for an ok row that left no launches out.
    changes: the judged metrics.
    suspects: what differs in the environment.
    causes: the conditions of the launches that were worse than the baseline's.
    compared: false if a baseline was wanted and is missing.
    """

    outcome: str
    reason: str | None = None
    changes: tuple[Change, ...] = ()
    suspects: tuple[environment.Difference, ...] = ()
    causes: tuple[Cause, ...] = ()
    compared: bool = True

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is unknown; known: {', '.join(OUTCOMES)}")

    def change(self, metric: str) -> Change | None:
        return next((change for change in self.changes if change.metric == metric), None)

    @property
    def judged(self) -> str:
        """The most that was judged: ``time``, ``device`` (only its time), ``counts`` (and memory) or ``nothing``."""
        told = [one for one in self.changes if one.outcome in CONCLUSIVE and not one.doubtful]
        if self.outcome == "incomparable":
            return "nothing"
        # Throughput follows from the step time, and its own limits are wide. It tells of the time if it is red.
        red = [METRICS[one.metric].paced_by for one in told if one.outcome in ("regression", "environment")]
        if "host" in red or any(METRICS[one.metric].leads for one in told):
            return "time"
        if any(METRICS[one.metric].paced_by == "device" for one in told):
            return "device"
        return "counts" if any(isinstance(METRICS[one.metric].gate, (Counted, Relative)) for one in told) else "nothing"

    @property
    def doubtful(self) -> bool:
        """Whether another launch may change how the test ends, may tell the code from the machine, or may tell of a row
        that is red for something else if its step takes longer."""
        if OUTCOMES[self.outcome] != "fails" or self.outcome == "environment":
            return any(change.doubtful for change in self.changes)
        step = self.change(LEADING)
        return self.outcome == "regression" and step is not None and step.doubtful

    def fails(self, *, ci: bool, on_improvement: bool = False) -> bool:
        """Whether the test fails. ``ci``: whether a row without a comparison fails too."""
        beaten = on_improvement and self.outcome == "improvement"
        return OUTCOMES[self.outcome] == "fails" or beaten or (ci and not self.compared)
