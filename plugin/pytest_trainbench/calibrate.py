"""Test which slowdowns this machine can detect, with unchanged launches and with launches that have a planted delay."""

from __future__ import annotations

import dataclasses
from statistics import median

from pytest_trainbench.judge.compare import host_paced, weigh
from pytest_trainbench.judge.noise import DEFAULT, compare, unchanged
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.judge.visits import PRESUMED, VISIT
from pytest_trainbench.report.calibration import Calibration, Trial
from pytest_trainbench.report.rows import Row
from pytest_trainbench.runner import Request, Runner
from pytest_trainbench.schema.metrics import METRICS, Statistical, host_bound
from pytest_trainbench.schema.record import Record

PLANTED = (0.02, 0.05, 0.10)
"""Planted slowdowns, as fractions of the step time."""

ASKED = (3, 5, 10)
"""Numbers of launches, the same for the baseline and for the run, whose ``sees`` the report shows."""


def calibrate(runner: Runner, request: Request) -> Row:
    """Measure a case as for a baseline. Then judge new launches without a change, and launches made slower on purpose.

    No baseline is stored, and none is compared with. The stored baselines of this hardware only give the priors of the
    noise. If the row is red with no change, it stays a regression, because red rows mean nothing on such a machine.
    """
    base = runner.measure(request, before=None, saves=True)
    stored = base.record
    assert stored is not None
    if stored.outcome != "ok":
        return base
    again = runner.measure(request, before=stored)
    if not again.verdict.changes:
        return again  # not compared: the launches failed, or did not measure the same work
    step_ms = median(stored.values("step_ms"))
    trials = []
    for planted in PLANTED:
        slower = runner.measure(request, before=stored, delay_ms=planted * step_ms)
        assert slower.record is not None
        if slower.record.outcome != "ok":
            return slower  # a failed launch is not a missed slowdown
        trials.append(Trial(planted=planted, found=_slower(slower), launches=len(slower.record.launches)))
    red = OUTCOMES[again.verdict.outcome] == "fails"
    reason = f"nothing changed, but the row is red: {again.verdict.reason}" if red else None
    return dataclasses.replace(
        again,
        verdict=dataclasses.replace(
            again.verdict, outcome=again.verdict.outcome if red else "calibrated", reason=reason, compared=True
        ),
        calibration=_calibration(runner, request, stored, again, red=red, trials=tuple(trials)),
    )


def _slower(row: Row) -> bool:
    """Whether a timed metric regressed. Counted metrics do not qualify: they also count the planted kernel."""
    return any(
        change.outcome == "regression" and isinstance(METRICS[change.metric].gate, Statistical)
        for change in row.verdict.changes
    )


def _calibration(
    runner: Runner, request: Request, stored: Record, again: Row, *, red: bool, trials: tuple[Trial, ...]
) -> Calibration:
    assert again.record is not None
    prior = runner.priors(stored).noise.get(("step_ms", host_bound(stored)), DEFAULT)
    apart = PRESUMED["host" if host_paced("step_ms", stored) else "device", VISIT]
    found = compare([stored.values("step_ms")], again.record.values("step_ms"), prior=prior)
    judged = sum(isinstance(METRICS[change.metric].gate, Statistical) for change in again.verdict.changes)

    def sees(launches: int) -> float:
        alike = unchanged(found.before, found.noise, stored=launches, launches=launches, prior=prior, spread=apart)
        alike = dataclasses.replace(alike, shown=found.shown)
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
