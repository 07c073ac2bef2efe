"""What can be seen on this machine? Tried, not computed: launches with nothing changed, and with delays planted."""

from __future__ import annotations

import dataclasses
from statistics import median

from pytest_trainbench.judge.compare import between_visit_sd, weigh
from pytest_trainbench.judge.noise import DEFAULT, compare, unchanged
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.report.calibration import Calibration, Trial
from pytest_trainbench.report.rows import Row
from pytest_trainbench.runner import Request, Runner
from pytest_trainbench.schema.metrics import METRICS, Statistical, host_bound
from pytest_trainbench.schema.record import Record

PLANTED = (0.02, 0.05, 0.10)
"""Slowdowns, as fractions of a step."""

ASKED = (3, 5, 10)
"""Launches, of the baseline and of a night, for which it is said what they would see."""


def calibrate(runner: Runner, request: Request) -> Row:
    """Measure a case as for a baseline, judge fresh launches of it, and then launches of it made slower.

    Nothing stored is read or written, but for what the stored baselines of this hardware teach about noise. A row that
    is red although nothing changed stays a regression: on such a machine no red row means anything.
    """
    base = runner.measure(request, before=None, saves=True)
    stored = base.record
    assert stored is not None
    if stored.outcome != "ok":
        return base
    again = runner.measure(request, before=stored)
    if not again.verdict.changes:
        return again  # nothing was compared: it failed, or did not measure what it measured before
    step_ms = median(stored.values("step_ms"))
    trials = []
    for planted in PLANTED:
        slower = runner.measure(request, before=stored, delay_ms=planted * step_ms)
        assert slower.record is not None
        if slower.record.outcome != "ok":
            return slower  # it was not missed
        trials.append(Trial(planted=planted, found=_slower(slower), launches=len(slower.record.launches)))
    red = OUTCOMES[again.verdict.outcome] == "fails"
    reason = f"nothing was changed, and yet: {again.verdict.reason}" if red else None
    return dataclasses.replace(
        again,
        verdict=dataclasses.replace(
            again.verdict, outcome=again.verdict.outcome if red else "calibrated", reason=reason, compared=True
        ),
        calibration=_calibration(runner, request, stored, again, red=red, trials=tuple(trials)),
    )


def _slower(row: Row) -> bool:
    """Whether its time gave it away: a planted kernel also shows in figures that are counted."""
    return any(
        change.outcome == "regression" and isinstance(METRICS[change.metric].gate, Statistical)
        for change in row.verdict.changes
    )


def _calibration(
    runner: Runner, request: Request, stored: Record, again: Row, *, red: bool, trials: tuple[Trial, ...]
) -> Calibration:
    assert again.record is not None
    prior = runner.priors(stored).get(("step_ms", host_bound(stored)), DEFAULT)
    lasting = between_visit_sd("step_ms", stored)
    found = compare(stored.values("step_ms"), again.record.values("step_ms"), prior=prior)
    judged = sum(isinstance(METRICS[change.metric].gate, Statistical) for change in again.verdict.changes)

    def sees(launches: int) -> float:
        alike = unchanged(found.before, found.noise, stored=launches, launches=launches, prior=prior, lasting=lasting)
        last = launches + runner.settings.confirm
        policy = dataclasses.replace(runner.policy, first=launches, last=last, gates=request.gates)
        return weigh("step_ms", alike, error=policy.error_of(judged), policy=policy).sees

    return Calibration(
        label=request.label,
        noise=found.noise,
        sees={launches: sees(launches) for launches in ASKED},
        red=red,
        trials=trials,
    )
