"""The words of a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_trainbench.judge import attribution
from pytest_trainbench.judge.attribution import Cause
from pytest_trainbench.judge.outcome import Change
from pytest_trainbench.schema.metrics import METRICS, Counted
from pytest_trainbench.schema.record import Record

ANOTHER_HOST = "its host sets the pace, and the baseline is another machine's: store one of this, or use --against"

UNKNOWN_HOST = (
    "its host sets the pace, and this machine has no id, so that the baseline may be another machine's: give it a host"
    " name or an /etc/machine-id, or use --against"
)

NOT_THE_CODE = "the machine, not the code"
PERHAPS_THE_CODE = "the machine first; the code is not excluded"
"""What a slowdown that conditions account for says of the code: whether undisturbed launches show that it is as fast as
before."""


def went_missing(names: Sequence[str], theirs: str) -> str:
    """Which metrics this run lacks, and what to do."""
    lost = f"{theirs} has {titles(names)} and this run has not"
    if any(METRICS[name].compiled for name in names):
        return f"{lost}: its step was compiled and this one was not; compile it again, or accept it as another step"
    return f"{lost}; bring that back, or accept its loss"


def titles(names: Sequence[str]) -> str:
    return ", ".join(METRICS[name].title for name in names)


def slowdown(change: Change) -> float:
    """Logarithm of the ratio of the two figures, infinite for a figure of 0. No cause explains infinity or NaN."""
    if not (change.now and change.before):
        return math.inf
    return abs(math.log(change.now / change.before))


def reason_for(
    outcome: str,
    changes: Sequence[Change],
    *,
    causes: Sequence[Cause],
    theirs: str,
    other_host: bool,
    unknown_host: bool = False,
) -> str:
    """The reason of a row's ``outcome``, in one sentence; empty if all is well.

    causes: conditions of the launches that were worse than the baseline's.
    theirs: name of the other side.
    other_host: whether the host sets the pace and the baseline is another machine's, or, with ``unknown_host``, may be.
    """
    deciding = [change for change in changes if change.outcome == outcome and outcome != "ok"]
    seen = {change.metric for change in deciding}
    deciding = [change for change in deciding if METRICS[change.metric].derived_from not in seen]
    told = [describe(change, causes, theirs) for change in deciding]
    step = next(change for change in changes if METRICS[change.metric].leads)
    if outcome == "regression" and step not in deciding:
        told.append(beside(step, causes))
    if outcome == "noisy" and step in deciding:
        known = next((change for change in changes if METRICS[change.metric].paced_by == "device"), None)
        if known is not None and known.outcome == "ok":
            told.append(f"its kernels take as long as before ({sight(known)})")
        if other_host:
            told.append(UNKNOWN_HOST if unknown_host else ANOTHER_HOST)
    return "; ".join(told)


def describe(change: Change, unlike: Sequence[Cause] = (), theirs: str = "the baseline") -> str:
    """One change in words: the metric, the change, the smallest change that the row sees, and the conditions that
    explain it. ``theirs``: name of the other side."""
    title = METRICS[change.metric].title
    if change.outcome == "incomparable":
        # In full, because a difference of one must be visible.
        return f"{title}: {change.before:,.17g}, now {change.now:,.17g}: the step does other work than {theirs}'s"
    if isinstance(METRICS[change.metric].gate, Counted):
        odd = f" ({oddity(change)})" if change.odd else ""
        return f"{title}: {exactly(change.before)} → {exactly(change.now)}{odd}"
    if change.outcome == "noisy" and change.why:
        return f"{title}: {change.why}"
    if change.outcome == "noisy":
        if math.isinf(change.sees):
            return f"{title}: no change could have been seen, however large"
        wanted = "" if change.tolerance is None else f", not one of {percent(change.tolerance)}"
        return f"{title}: only a change of {percent(change.sees)} or more could have been seen{wanted}"
    said = f"{title} {movement(change)}"
    if change.outcome == "environment":
        grown = slowdown(change)
        explained = attribution.explained(grown, change.metric, unlike)
        most = max(cause.slows for cause in explained)
        part = f" (explains {percent(math.expm1(most))} at most)" if most < grown else ""
        return f"{said}; {change.why}: {', and '.join(map(str, explained))}{part}"
    return said


def beside(step: Change, unlike: Sequence[Cause]) -> str:
    """The step time of a row that is red for another metric."""
    if step.outcome in ("noisy", "environment"):
        return describe(step, unlike)
    if step.outcome == "improvement":
        return f"the step time is {movement(step)}"
    if step.doubtful:
        return f"the step time may be {movement(step)} too"
    return f"the step time did not change ({sight(step)})"


def oddity(change: Change) -> str:
    """Which launches differ from most, for example ``1 of 3 launches counted 1,067 instead of 1,066``; empty if none
    does."""
    if not change.odd:
        return ""
    amount, verb = (mebibytes, "needed") if METRICS[change.metric].unit == "B" else (exactly, "counted")
    if isinstance(METRICS[change.metric].gate, Counted):
        amount = exactly
    seen = " and ".join(map(amount, sorted(set(change.odd))))
    return f"{len(change.odd)} of {change.launches} launches {verb} {seen} instead of {amount(change.now)}"


def mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def cold_start(changes: Sequence[Change]) -> str:
    """That the first pair of launches was left out; empty if it was not."""
    step = next(change for change in changes if METRICS[change.metric].leads)
    return f"the first pair was left out: a cold start, {percent(abs(step.cold))} from the others" if step.cold else ""


def exactly(value: float) -> str:
    """A count with all its digits, because a difference of one must be visible."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"


def movement(change: Change, *, full: bool = False) -> str:
    """For example ``8.3% worse (sees ≥ 1.3%)``. ``full`` adds the interval. An exact metric sees every change, so it
    shows no smallest one."""
    if change.outcome == "not judged":
        return change.why
    if isinstance(METRICS[change.metric].gate, Counted) and change.change:
        return f"{exactly(abs(change.now - change.before))} {'more' if change.now > change.before else 'fewer'}"
    if change.outcome == "incomparable":
        way = "more" if change.now > change.before else "less"
    else:
        way = "better" if change.change > 0 else "worse"
    moved = f"{percent(abs(change.change))} {way}"
    facts = [sight(change)] if change.sees else []
    if full and change.interval:
        low, high = (f"{end:+.1%}".replace("-", "−") for end in change.interval)
        facts.append(f"95 % sure: {low} … {high}")
    return (moved if change.change else "unchanged") + (f" ({'; '.join(facts)})" if facts else "")


def sight(change: Change) -> str:
    """The smallest change that would have been found, for example ``sees ≥ 1.3%``."""
    return f"sees ≥ {percent(change.sees)}" if math.isfinite(change.sees) else "sees nothing"


def least(sees: float) -> str:
    """The same for a cell of a table."""
    return f"≥{sees:.1%}" if math.isfinite(sees) else "nothing"


def percent(fraction: float) -> str:
    """One decimal, or as many as show that a fraction is not 0."""
    if round(fraction, 3) or not fraction:
        return f"{fraction:.1%}"
    return f"{fraction:.2%}" if round(fraction, 4) else "under 0.01%"


def far_apart(night: Change, *, enough: int | None, host: bool) -> str:
    """What a new baseline's launches let the next run see of a metric that will be noisy, and what helps.

    ``enough``: launches of a baseline with which it is not noisy, if any number is. ``host``: whether the host sets the
    pace.
    """
    if enough is not None:
        helps = f"--launches {enough} would be enough"
    elif host:
        helps = (
            "more launches do not help, because its host changes between visits: use a calmer host, or let the device"
            " set the pace (a larger batch, a CUDA graph)"
        )
    else:
        helps = "more launches do not help: save it again on a calmer machine, or on another visit"
    wanted = "" if night.tolerance is None else f", not {percent(night.tolerance)}"
    title = METRICS[night.metric].title
    return f"the launches are so far apart that the next run {sight(night)} of {title}{wanted}; {helps}"


def disturbance(record: Record) -> str:
    """The conditions of the launches that are abnormal without any baseline; empty if there are none."""
    found = attribution.unlike(attribution.typical(record.launches), {}, places=attribution.places(record))
    return ", ".join(cause.what for cause in found)


def eased(record: Record, baseline: Record) -> str:
    """The conditions of the baseline that were worse than those of ``record``, so that slower code may hide behind
    them; empty if there are none."""
    now, before = attribution.typical(record.launches), attribution.typical(baseline.launches)
    if not now:
        return ""
    found = attribution.unlike(before, now, places=attribution.places(baseline))
    return ", ".join(f"{cause.what}, now {cause.usual}" for cause in found)
