"""One metric against its baseline: how far it moved, and whether chance may have done that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_trainbench.judge.noise import Comparison, Prior, learned
from pytest_trainbench.judge.outcome import Change
from pytest_trainbench.judge.policy import FRESH_LEAST, Policy
from pytest_trainbench.schema.metrics import METRICS, Counted, Exact, Gate, Metric, Relative, Statistical, host_bound
from pytest_trainbench.schema.record import Record, as_stored

POWER = 0.9
"""A change of the size that a row "sees" makes it suspicious with this probability, and is confirmed with this
probability: found at least eight times in ten."""

HOPELESS = 0.01
"""A row gets no more launches where the chance that they make it a regression is below this."""

BLIND = math.log(1000)
"""Larger changes are not told apart: a row that sees no less than a thousandfold sees nothing. (Two pairs of launches
of which one in a million may err would see, by Student's t, no less than e to the thousandth power.)"""

MACHINE_NOISE, HOST_NOISE = 0.005, 0.3
"""Relative standard deviation of one machine among others of its kind, which no number of launches on it shows: added
to a comparison between two machines. A BERT step took 28.7, 28.7 and 28.9 ms on three H200 machines. A step that the
host sets the pace of took 42, 49, 61, 63, 78 and 93 ms on six of them (GPT-1.3B under FSDP2, four devices), while its
kernels took 37 to 38 ms on all."""

BETWEEN_VISITS = 0.7
"""Standard deviation of a host between one visit and the next, as a multiple of what launches of one visit differ by:
what a host is busy with stays for minutes. Fourteen rows that their host sets the pace of, compared with baselines of
some minutes before on two machines with H200s where nothing had changed, were 0.4 and 1.0 of it apart."""

UNSTEADY = "not the same in every launch"
GENERATED = "torch.compile generated the step, and what it generates may differ between machines and runs"
"""Why a count is not judged."""


def between_visit_sd(name: str, *records: Record) -> float:
    """:data:`BETWEEN_VISITS` of a metric that the host of any of these sets the pace of; 0 for others. A device
    computes as long whatever its host does."""
    return BETWEEN_VISITS if METRICS[name].paced_by == "host" and any(map(host_bound, records)) else 0.0


def is_compiled(record: Record) -> bool:
    """Whether ``torch.compile`` generated any part of the step."""
    return any(record.values(name) for name, metric in METRICS.items() if metric.compiled)


def judged(baseline: Record) -> list[str]:
    """The metrics that a row is held to."""
    return [name for name, metric in METRICS.items() if metric.gate is not None and baseline.values(name)]


def chances_of(baseline: Record, policy: Policy) -> tuple[list[str], float]:
    """The metrics of a row that may be red by chance, and the error that each of them has."""
    varying = [name for name in judged(baseline) if varies(policy.gate(name), baseline.values(name))]
    return varying, policy.error_of(len(varying))


def learn(baselines: Sequence[Record], machine: str = "") -> dict[tuple[str, bool], Prior]:
    """What the baselines of one kind of hardware teach about the noise of rows on one ``machine``. A metric without
    rows enough is left out.

    Host-bound rows are apart, and of these the machine's own go first: such noise is the host's. Those of six machines
    with H200s differed by 0.2 to 10 % between launches (medians of their rows), other rows by 0.1 to 0.2 % on all.
    Where there are too few of a sort, what more of them teach together.
    """
    bound = [one for one in baselines if host_bound(one)]
    others = [one for one in baselines if not host_bound(one)]
    own = [one for one in bound if machine and one.machine == machine]
    alike = {False: (others, baselines), True: (own, bound, baselines)}
    found = {}
    for name, metric in METRICS.items():
        if isinstance(metric.gate, Statistical):
            for sort, sets in alike.items():
                priors = (learned([one.values(name) for one in rows]) for rows in sets)
                if prior := next(filter(None, priors), None):
                    found[name, sort] = prior
    return found


def varies(gate: Gate, before: Sequence[float]) -> bool:
    """Whether a metric is judged by the noise of its launches."""
    match gate:
        case Statistical():
            return True
        case Relative(floor=floor):
            # Launches of FairScale's ShardedDataParallel on 4 H200s needed 16.4 to 21.3 GB, as the timing of its
            # reductions has it: a gate of 0.5 % would be red on most nights.
            return max(before) > (1 + floor) * min(before)
    return False


def weigh(name: str, found: Comparison, *, error: float, policy: Policy) -> Change:
    """A change held against the noise of its launches. All is compared as logarithms, "worse" being above 0."""
    metric = METRICS[name]
    match policy.gate(name):
        case Statistical(floor=floor, tolerance=tolerance) | Relative(floor=floor, tolerance=tolerance):
            floor = math.log1p(floor)
        case _:
            raise ValueError(f"{name} is not judged by its noise")
    launches, last = found.launches_now, max(policy.last - policy.left_out, found.launches_now)
    final = found.after(last)
    worse = -found.change if metric.higher_is_better else found.change
    red = max(floor, found.reach(error * policy.share(launches)))
    red_at_last = max(floor, final.reach(error * policy.share(last)))
    green = red if policy.fail_on_improvement else max(floor, found.reach(error))

    hurdles = [red_at_last + final.reach(1 - POWER)]
    if launches < last:
        hurdles.append(floor + found.reach(1 - POWER))
    sees = math.expm1(max(hurdles)) if max(hurdles) < BLIND else math.inf

    def doubtful(by: float) -> bool:
        return launches < last and by > floor and by + found.drift(last, HOPELESS) > red_at_last

    if not worse <= red:  # so written, NaN is a regression
        outcome, doubt = "regression", False
    elif -worse > green:
        outcome, doubt = "improvement", False
    else:
        outcome = "noisy" if sees > tolerance else "ok"
        doubt = doubtful(worse) or (policy.fail_on_improvement and doubtful(-worse))
    low, high = (math.expm1(found.change + way * min(BLIND, found.reach(0.025))) for way in (-1, 1))
    better = 1 if metric.higher_is_better else -1
    return Change(
        metric=name,
        before=found.before,
        now=found.now,
        change=round(better * (found.now / found.before - 1), 9) + 0.0,  # past what a logarithm rounds, and no −0
        sees=_own(metric, sees),
        outcome=outcome,
        interval=(low, high) if metric.higher_is_better else (-high, -low),
        doubtful=doubt,
        tolerance=_own(metric, tolerance),
    )


def _own(metric: Metric, slower: float) -> float:
    """A slowdown, a fraction of the time, as a fraction of the metric: a rate falls by less than the time grows."""
    return 1 - 1 / (1 + slower) if metric.higher_is_better and slower < math.inf else slower


def compare_with_zeros(name: str, before: Sequence[float], now: Sequence[float], *, policy: Policy) -> Change:
    """A change of a metric that is judged by its noise, where a launch has a figure of 0, which has no logarithm.

    Where the baseline has none and this run nothing else, the metric changed. Otherwise the row is in doubt.
    """
    if all(before) and not any(now):
        return compare_constant(name, before, now, policy=policy)
    zeros, all_of_them = [*before, *now].count(0), len(before) + len(now)
    return Change(
        metric=name,
        before=statistics.median(before),
        now=statistics.median(now),
        change=0.0,
        sees=math.inf,
        outcome="noisy",
        doubtful=len(now) < policy.last - policy.left_out,
        why=f"{zeros} of {all_of_them} launches of both sides have 0, and others have not",
    )


def compare_constant(
    name: str, before: Sequence[float], now: Sequence[float], *, policy: Policy, compiled: bool = False
) -> Change:
    """A change of a metric that does not vary between launches.

    Most of the launches decide. An odd launch is named, and only a majority of odd launches is a change: after the
    usual confirmation, unless all launches agree. ``compiled``: whether ``torch.compile`` generated the step.
    """
    metric, gate = METRICS[name], policy.gate(name)
    if isinstance(gate, Statistical):
        raise ValueError(f"{name} is judged by its noise")
    if isinstance(gate, Counted):
        before, now = as_stored(before), as_stored(now)  # as the baseline was, when its file was written
    old, new = statistics.median(before), statistics.median(now)
    moved = [_moved(gate, before, value) for value in now]
    most = next((way for way in (0, 1, -1) if moved.count(way) * 2 > len(now) - (way == 0)), None)
    if isinstance(gate, Exact):
        new = max(now, key=lambda value: abs(value - old))  # a median hides a launch that did other work
    elif most is not None:
        new = statistics.median(value for value, way in zip(now, moved, strict=True) if way == most)
    better = _grown(old, new) if metric.higher_is_better else -_grown(old, new)
    outcome, why, doubtful = "ok", "", False
    if isinstance(gate, Exact):
        # A step that does less work is not a faster one.
        outcome = "incomparable" if any(moved) else "ok"
    elif most is None or (most == 0 and isinstance(gate, Counted) and len(set(before)) > 1):
        outcome, why = "not judged", UNSTEADY
    elif most and isinstance(gate, Counted) and gate.generated and compiled:
        outcome, why = "not judged", GENERATED
    elif most:
        found = "improvement" if better > 0 else "regression"  # so written, NaN is a regression
        wanted = min(policy.last, policy.first + FRESH_LEAST) - policy.left_out
        fails = found == "regression" or policy.fail_on_improvement
        doubtful = fails and moved.count(most) < len(now) < wanted
        outcome = "ok" if doubtful else found
    odd = tuple(value for value, way in zip(now, moved, strict=True) if way != most)
    odd = () if why or isinstance(gate, Exact) else odd
    return Change(
        metric=name,
        before=old,
        now=new,
        change=better,
        sees=gate.floor if isinstance(gate, Relative) else 0.0,
        outcome=outcome,
        doubtful=doubtful,
        why=why,
        odd=odd,
        launches=len(now) if odd else 0,
    )


def _moved(gate: Gate, before: Sequence[float], value: float) -> int:
    """1 if a launch's figure is above the baseline's, −1 if it is below, 0 if it is the same. NaN counts as above.

    Launches of a baseline whose counts differ are a few of many possible ones, so that the next may lie beyond them. A
    count is then the same up to the width of what they showed.
    """
    if isinstance(gate, Relative):
        old = statistics.median(before)
        return 0 if abs(_grown(old, value)) <= gate.floor else -1 if value < old else 1
    if isinstance(gate, Exact):
        return int(value != statistics.median(before))
    width = max(before) - min(before)
    return -1 if value < min(before) - width else 0 if value <= max(before) + width else 1


def _grown(old: float, new: float) -> float:
    """How much larger ``new`` is, as a fraction of ``old``."""
    return 0.0 if new == old else math.inf if old == 0 else new / old - 1
