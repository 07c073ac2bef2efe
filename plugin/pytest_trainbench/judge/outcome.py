"""How a row ends: an outcome for each metric, and one for the row."""

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
"""How each outcome ends its test. Where ``CI`` is set, what was compared with nothing fails as well."""


SILENT = ("skipped", "saved", "calibrated", "oom")
"""Outcomes of rows that had nothing to judge, or no time: they compare with nothing, or do not fit in memory."""

CONCLUSIVE = ("ok", "regression", "environment", "improvement")
"""Outcomes of a metric that was judged."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One metric against its baseline.

    ``change`` is a fraction of the baseline, positive meaning better, and ``interval`` holds the true one with 95 %
    confidence; ``None`` for what is not judged by its noise. ``sees`` is the smallest change, as a fraction, that would
    have been found at least eight times in ten. ``outcome``: ok, regression, environment, improvement, noisy,
    incomparable, or not judged. ``why`` says why it is not judged, why nothing can be seen, or whether the environment
    alone is to blame.
    ``doubtful``: it may be a regression yet, if there were more launches. ``tolerance``: what it must be able to see.
    ``odd``: figures of those of the ``launches`` that differ from most, where the figure is the same in every launch.
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
    odd: tuple[float, ...] = ()
    launches: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``reason`` is one sentence for every outcome but ok, and for an ok that left launches out; ``changes`` holds the
    judged metrics; ``suspects`` what differs in the environment; ``causes`` what the launches ran under that was worse
    than the baseline's; ``compared`` is false where a baseline was wanted and missing."""

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
        """``ci``: what was compared with nothing fails too."""
        beaten = on_improvement and self.outcome == "improvement"
        return OUTCOMES[self.outcome] == "fails" or beaten or (ci and not self.compared)
