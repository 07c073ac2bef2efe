"""What can be seen on this machine? Tried, not computed: launches with nothing changed, and with delays planted."""

from __future__ import annotations

import dataclasses
from statistics import median

from pytest_trainbench.judge.noise import DEFAULT, compare, unchanged
from pytest_trainbench.judge.verdict import OUTCOMES, mood, weigh
from pytest_trainbench.report.calibration import Calibration, Trial
from pytest_trainbench.report.rows import Row
from pytest_trainbench.runner import Measured, Reference, Runner
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.metrics import METRICS, Gates, Statistical, host_bound
from pytest_trainbench.schema.plan import Plan

PLANTED = (0.02, 0.05, 0.10)
"""Slowdowns, as fractions of a step."""

ASKED = (3, 5, 10)
"""Launches, of the baseline and of a night, for which it is said what they would see."""


def calibrate(runner: Runner, case: Case, *, label: str, plan: Plan, reference: Reference | None, gates: Gates) -> Row:
    """Measure ``case`` as for a baseline, judge fresh launches of it, and then launches of it made slower.

    Nothing stored is read or written, but for what the stored baselines of this hardware teach about noise. A row that
    is red although nothing changed stays a regression: on such a machine no red row means anything.
    """

    def measured(before: Measured | None, *, delay_ms: float = 0.0) -> Measured:
        return runner.measure(
            case,
            label=label,
            plan=plan,
            reference=reference,
            gates=gates,
            before=before.record if before else None,
            saves=before is None,
            delay_ms=delay_ms,
        )

    base = measured(None)
    if base.record.outcome != "ok":
        return base.row(label)
    again = measured(base)
    if not again.verdict.changes:
        return again.row(label)  # nothing was compared: it failed, or did not measure what it measured before
    step_ms = median(base.record.values("step_ms"))
    trials = []
    for planted in PLANTED:
        slower = measured(base, delay_ms=planted * step_ms)
        if slower.record.outcome != "ok":
            return slower.row(label)  # it was not missed
        trials.append(Trial(planted=planted, found=_slower(slower), launches=len(slower.record.launches)))
    red = OUTCOMES[again.verdict.outcome] == "fails"
    reason = f"nothing was changed, and yet: {again.verdict.reason}" if red else None
    return dataclasses.replace(
        again.row(label),
        verdict=dataclasses.replace(
            again.verdict, outcome=again.verdict.outcome if red else "calibrated", reason=reason, compared=True
        ),
        calibration=_calibration(runner, base, again, label=label, gates=gates, red=red, trials=tuple(trials)),
    )


def _slower(measured: Measured) -> bool:
    """Whether its time gave it away: a planted kernel also shows in figures that are counted."""
    return any(
        change.outcome == "regression" and isinstance(METRICS[change.metric].gate, Statistical)
        for change in measured.verdict.changes
    )


def _calibration(
    runner: Runner, base: Measured, again: Measured, *, label: str, gates: Gates, red: bool, trials: tuple[Trial, ...]
) -> Calibration:
    prior = runner.priors(base.record).get(("step_ms", host_bound(base.record)), DEFAULT)
    lasting = mood("step_ms", base.record)
    found = compare(base.record.values("step_ms"), again.record.values("step_ms"), prior=prior)
    judged = sum(isinstance(METRICS[change.metric].gate, Statistical) for change in again.verdict.changes)

    def sees(launches: int) -> float:
        alike = unchanged(found.before, found.noise, stored=launches, launches=launches, prior=prior, lasting=lasting)
        last = launches + runner.settings.confirm
        policy = dataclasses.replace(runner.policy, first=launches, last=last, gates=gates)
        return weigh("step_ms", alike, error=policy.error_of(judged), policy=policy).sees

    return Calibration(
        label=label,
        noise=found.noise,
        sees={launches: sees(launches) for launches in ASKED},
        red=red,
        trials=trials,
    )
