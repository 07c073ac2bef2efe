"""Judges a record against its baseline. Pure: nothing here reads a file or a clock.

:func:`judge` answers four questions in turn. Can the two be compared? How did each metric change? What is the outcome
of the row? What is its reason?
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainbench.hardware import environment
from pytest_trainbench.hardware.environment import fact
from pytest_trainbench.judge import attribution
from pytest_trainbench.judge.attribution import Cause
from pytest_trainbench.judge.compare import (
    chances_of,
    compare_constant,
    compare_with_zeros,
    host_paced,
    is_compiled,
    judged,
    weigh,
)
from pytest_trainbench.judge.explain import (
    NOT_THE_CODE,
    PERHAPS_THE_CODE,
    cold_start,
    reason_for,
    slowdown,
    titles,
    went_missing,
)
from pytest_trainbench.judge.noise import DEFAULT, NO_SPREAD, Spread, compare, expected, paired
from pytest_trainbench.judge.outcome import Change, Verdict
from pytest_trainbench.judge.policy import DEFAULT_POLICY, FRESH_LEAST, NO_PRIORS, Policy, Priors
from pytest_trainbench.judge.visits import MACHINE, PRESUMED, VISIT, between, grouped, spread
from pytest_trainbench.schema.metrics import LEADING, METRICS, Statistical, host_bound
from pytest_trainbench.schema.record import Launch, Record

UNDISTURBED_LEAST = 2
"""Minimum number of undisturbed launches whose figures tell the cause of a slowdown. A single launch may be an
outlier."""

STORED_TRIED = (5, 7, 10, 15, 20, 30)
"""Numbers of launches that may be advised for a baseline: the smallest sufficient one. More launches take too long."""

FAILED = ("invalid", "timeout", "crash")
"""Outcomes of a record without figures that can be trusted."""

WORST_FIRST = ("incomparable", "regression", "environment", "noisy", "improvement")
"""Outcomes of metrics. The first of them that any metric has is the outcome of the row. A row without them is ok."""


def judge(
    record: Record,
    baseline: Record | None,
    *,
    against: str = "",
    must_match: Sequence[environment.Difference] = (),
    suspects: Sequence[environment.Difference] = (),
    policy: Policy = DEFAULT_POLICY,
    priors: Priors = NO_PRIORS,
) -> Verdict:
    """The verdict on ``record``, compared with ``baseline``.

    against: the name of the other side, if its launches took turns with the launches of ``record``. ``baseline`` is
    then the record of that side, and the launches are judged in pairs.
    must_match: differences between the two environments that forbid a comparison.
    suspects: differences between the two environments that may explain a change.
    priors: see :func:`~pytest_trainbench.judge.compare.learn`.
    """
    if baseline is None:
        return _without_baseline(record, suspects)
    theirs = against or "the baseline"
    ended = (
        _failed(record, baseline, against)
        or _of_other_conditions(theirs, must_match)
        or _out_of_memory(record, baseline, theirs)
        or _without_time(baseline, theirs)
    )
    if ended is not None:
        return dataclasses.replace(ended, suspects=tuple(suspects))
    evidence = Evidence(
        record=record, baseline=baseline, against=against, suspects=tuple(suspects), policy=policy, priors=priors
    )
    if not against:  # sides that took turns share a machine: if its conditions differ, a side caused the difference
        evidence = _attributed(evidence)
    if (missing := _without_figures(evidence, theirs)) is not None:
        return dataclasses.replace(missing, suspects=evidence.suspects)
    changes = tuple(_blamed(_measured(name, evidence), evidence) for name in judged(baseline))
    outcome = _decided(changes)
    why = reason_for(
        outcome,
        changes,
        causes=evidence.causes,
        theirs=theirs,
        other_host=evidence.other_machine and evidence.host_paced,
        unknown_host=evidence.unknown_machine,
    )
    return Verdict(
        outcome=outcome,
        reason="; ".join(filter(None, (why, evidence.note, cold_start(changes)))) or None,
        changes=changes,
        suspects=evidence.suspects,
        causes=evidence.causes,
    )


# Can the two be compared?


def _without_baseline(record: Record, suspects: Sequence[environment.Difference]) -> Verdict:
    if record.outcome in FAILED:
        return Verdict(outcome=record.outcome, reason=record.reason, suspects=tuple(suspects))
    reason = "there is no baseline for this case on this hardware; --save-baseline stores one"
    if record.outcome == "oom":  # where CI is set, this row fails because its baseline is missing
        told = "; ".join(filter(None, (record.reason, reason)))
        return Verdict(outcome="oom", reason=told, compared=False)
    return Verdict(outcome="no-baseline", reason=reason, compared=False)


def _failed(record: Record, baseline: Record, against: str) -> Verdict | None:
    if record.outcome in FAILED:
        reason = record.reason
        if against:
            too = f"not {against}" if baseline.outcome in ("ok", "oom") else f"and {against} too"
            reason = f"this side, {too}: {reason}"
        return Verdict(outcome=record.outcome, reason=reason)
    if baseline.outcome in FAILED:
        theirs = against or "the baseline"
        return Verdict(outcome=baseline.outcome, reason=f"nothing to compare with: {theirs}: {baseline.reason}")
    return None


def _of_other_conditions(theirs: str, must_match: Sequence[environment.Difference]) -> Verdict | None:
    if not must_match:
        return None
    what = "; ".join(f"{name} was {fact(before)}, is {fact(now)}" for name, before, now in must_match)
    return Verdict(outcome="incomparable", reason=f"{theirs} is of other conditions: {what}")


def _out_of_memory(record: Record, baseline: Record, theirs: str) -> Verdict | None:
    match record.outcome, baseline.outcome:
        case "oom", "oom":
            return Verdict(outcome="oom", reason=f"out of memory, as in {theirs}")
        case "oom", _:
            return Verdict(outcome="regression", reason=f"out of memory where {theirs} fitted: {record.reason}")
        case _, "oom":
            return Verdict(outcome="improvement", reason=f"fits in memory where {theirs} did not")
    return None


def _without_time(baseline: Record, theirs: str) -> Verdict | None:
    if LEADING in judged(baseline):
        return None
    return Verdict(outcome="incomparable", reason=f"{theirs} has no {titles([LEADING])}")


# What is judged


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Both sides of a comparison, after it is known that they can be compared.

    record: the judged record. If it has enough undisturbed launches for a verdict, it has only these.
    baseline: the record of the other side.
    against: the name of the other side, if its launches took turns with the launches of ``record``; else empty.
    suspects: differences between the two environments that may explain a change.
    policy: how sure the verdict must be.
    priors: what similar rows teach.
    undisturbed: the undisturbed launches, if others were disturbed; empty if none was disturbed.
    early: whether some launches are undisturbed, but too few for a verdict, and launches are left that may add to them.
    note: a phrase that says which launches were left out; empty if none was.
    causes: conditions of the launches that were worse than the baseline's.
    """

    record: Record
    baseline: Record
    against: str
    suspects: tuple[environment.Difference, ...]
    policy: Policy
    priors: Priors
    undisturbed: tuple[Launch, ...] = ()
    early: bool = False
    note: str = ""
    causes: tuple[Cause, ...] = ()

    @property
    def other_machine(self) -> bool:
        """Whether the baseline is of another machine, or may be."""
        return between(self.baseline.visits, self.record.machine) == MACHINE

    @property
    def unknown_machine(self) -> bool:
        """Whether the machine of the record has no id. Two machines without an id may be different machines."""
        return not (self.against or self.record.machine)

    @property
    def host_paced(self) -> bool:
        """Whether the host sets the pace of either side."""
        return any("host" in attribution.places(one) for one in (self.baseline, self.record))


def _attributed(evidence: Evidence) -> Evidence:
    """The same evidence with its causes. If enough launches are undisturbed, the other launches are left out."""
    launches = attribution.undisturbed(evidence.record, evidence.baseline)
    if len(launches) < len(evidence.record.launches):  # else no launch was disturbed by itself
        evidence = _left_out(dataclasses.replace(evidence, undisturbed=launches))
    return dataclasses.replace(evidence, causes=tuple(attribution.of_record(evidence.record, evidence.baseline)))


def _left_out(evidence: Evidence) -> Evidence:
    """The same evidence with its undisturbed launches alone, if there are enough of them for a regression.

    Otherwise it may be ``early``: too early for a regression.
    """
    record, policy, launches = evidence.record, evidence.policy, evidence.undisturbed
    if len(launches) < policy.first + FRESH_LEAST:
        return dataclasses.replace(evidence, early=bool(launches) and len(record.launches) < policy.last)
    left_out = len(record.launches) - len(launches)
    first = next(filter(None, attribution.of_launches(record, evidence.baseline)))[0]
    return dataclasses.replace(
        evidence,
        record=dataclasses.replace(record, launches=launches),
        policy=dataclasses.replace(policy, left_out=left_out),
        note=f"{left_out} of {len(record.launches)} launches left out for what they ran under: {first}",
    )


def _without_figures(evidence: Evidence, theirs: str) -> Verdict | None:
    """The verdict *incomparable* if this run lacks a metric of the baseline; else ``None``."""
    record, baseline = evidence.record, evidence.baseline
    names = judged(baseline)
    if lost := [name for name in names if not record.values(name)]:
        return Verdict(outcome="incomparable", reason=went_missing(lost, theirs))
    odd = [name for name in names if len(record.values(name)) != len(baseline.values(name))]
    if evidence.against and odd:
        reason = f"not every launch has {titles(odd)}, so that there are no pairs"
        return Verdict(outcome="incomparable", reason=reason)
    return None


# How did each metric change?


def _measured(name: str, evidence: Evidence) -> Change:
    """One metric compared with its baseline. If its launches differ, their noise judges it."""
    record, baseline, policy = evidence.record, evidence.baseline, evidence.policy
    before, now = baseline.values(name), record.values(name)
    varying, error = chances_of(baseline, policy)
    if name not in varying:
        return compare_constant(name, before, now, policy=policy, compiled=is_compiled(record))
    if not (all(before) and all(now)):
        return compare_with_zeros(name, before, now, policy=policy)
    prior = evidence.priors.noise.get((name, host_bound(baseline)), DEFAULT)
    if evidence.against:
        pairs = paired(before, now, prior=prior)
        # A cold pair is not judged, but it counts as a look.
        looks = dataclasses.replace(policy, left_out=policy.left_out + (pairs.cold != 0))
        return weigh(name, pairs, error=error, policy=looks)
    found = compare(
        grouped(baseline.visits, name, record.machine), now, prior=prior, spread=_spread(name, evidence, prior.noise)
    )
    # A launch without the metric counts as a look. Otherwise the looks would never end.
    without = policy.left_out + len(record.launches) - len(now)
    return weigh(name, found, error=error, policy=dataclasses.replace(policy, left_out=without))


def _spread(name: str, evidence: Evidence, noise: float) -> Spread:
    """How far this visit may differ from the baseline's with nothing changed. ``noise``: relative standard deviation of
    one launch of similar rows."""
    record, baseline, priors = evidence.record, evidence.baseline, evidence.priors
    metric = METRICS[name]
    if not isinstance(metric.gate, Statistical):
        return NO_SPREAD
    kind = between(baseline.visits, record.machine)
    by_host = host_paced(name, baseline, record) or (
        kind == MACHINE and evidence.host_paced and metric.paced_by == "host"
    )
    known = grouped((*baseline.visits, *priors.nights.get(baseline.case.id, ())), name, _within(record, kind))
    law = priors.visits.get((name, host_bound(baseline), kind))
    return spread("host" if by_host else "device", kind, known, law, noise)


def _within(record: Record, kind: str) -> str:
    """The machine whose visits tell how far visits differ; empty if machines are compared."""
    return record.machine if kind == VISIT else ""


def _blamed(change: Change, evidence: Evidence) -> Change:
    """The change, with the outcome ``environment`` if the conditions explain a slowdown and the undisturbed launches do
    not show most of it.

    Such a change is in doubt while launches are left, unless the undisturbed launches show that the code is as fast as
    before. While the evidence is ``early``, a slowdown above the floor is noisy and in doubt: the disturbed launches
    may have caused it, or may hide a regression in their noise.
    """
    gate = evidence.policy.gate(change.metric)
    if not isinstance(gate, Statistical) or change.outcome not in ("regression", "noisy"):
        return change
    if evidence.early and -change.change > gate.floor:
        return dataclasses.replace(change, outcome="noisy", doubtful=True)
    if change.outcome == "noisy":
        return change
    grown, undisturbed = slowdown(change), _slowdown_undisturbed(change, evidence.undisturbed)
    explained = attribution.explained(grown, change.metric, evidence.causes)
    if not explained or (undisturbed is not None and undisturbed > attribution.EXPLAINS_LEAST * grown):
        return change
    excluded = undisturbed is not None and undisturbed <= math.log1p(gate.floor)
    left = len(evidence.record.launches) + evidence.policy.left_out < evidence.policy.last
    return dataclasses.replace(
        change,
        outcome="environment",
        doubtful=left and not excluded,
        why=NOT_THE_CODE if excluded else PERHAPS_THE_CODE,
    )


def _slowdown_undisturbed(change: Change, launches: Sequence[Launch]) -> float | None:
    """The part of a slowdown that undisturbed launches show, as a logarithm; ``None`` if there are fewer than
    :data:`UNDISTURBED_LEAST`. That is too few for a verdict, but enough not to blame the machine."""
    values = [launch.metrics[change.metric] for launch in launches if change.metric in launch.metrics]
    if len(values) < UNDISTURBED_LEAST:
        return None
    # Positive in the direction of the change. Launches that are faster than the baseline do not show a slowdown.
    moved = math.log(statistics.median(values) / change.before)
    return math.copysign(1.0, math.log(change.now / change.before)) * moved


# What is the outcome of the row?


def _decided(changes: Sequence[Change]) -> str:
    found = {change.outcome for change in changes}
    return next((outcome for outcome in WORST_FIRST if outcome in found), "ok")


# What can a later run find?


def foreseen(
    record: Record, *, stored: int, launches: int, policy: Policy, priors: Priors = NO_PRIORS
) -> tuple[Change, ...]:
    """The change to expect of each metric that varies, in a night without a change: ``ok`` or ``noisy``.

    The night starts at least ``launches`` launches. Its baseline has ``stored`` launches like those of ``record``.
    """
    bound = host_bound(record)
    chances, error = chances_of(record, policy)
    night = dataclasses.replace(policy, first=launches, last=launches + policy.last - policy.first)

    def seen(name: str) -> Change:
        if not all(values := record.values(name)):
            return compare_with_zeros(name, values, values, policy=night)
        prior = priors.noise.get((name, bound), DEFAULT)
        apart = PRESUMED["host" if host_paced(name, record) else "device", VISIT]
        found = expected(record.values(name), stored=stored, launches=launches, prior=prior, spread=apart)
        return weigh(name, found, error=error, policy=night)

    return tuple(map(seen, chances))


def enough_stored(record: Record, *, launches: int, policy: Policy, priors: Priors = NO_PRIORS) -> int | None:
    """The smallest number of stored launches with which no metric is noisy in a night of ``launches`` launches.

    It is the first sufficient number of :data:`STORED_TRIED` above the number of launches of ``record``. ``None`` if
    more launches do not help.
    """
    return next(
        (
            stored
            for stored in STORED_TRIED
            if stored > len(record.launches)
            and all(
                change.outcome != "noisy"
                for change in foreseen(record, stored=stored, launches=launches, policy=policy, priors=priors)
            )
        ),
        None,
    )
