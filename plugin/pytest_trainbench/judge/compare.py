"""Compares one metric with its baseline: how much it changed, and whether chance may explain the change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_trainbench.judge.noise import Comparison, learned
from pytest_trainbench.judge.outcome import Change
from pytest_trainbench.judge.policy import FRESH_LEAST, Policy, Priors
from pytest_trainbench.judge.visits import Visit, laws
from pytest_trainbench.schema.metrics import METRICS, Counted, Exact, Gate, Metric, Relative, Statistical, host_bound
from pytest_trainbench.schema.record import Record, as_stored

POWER = 0.9
"""Probability that a change of the size that a row ``sees`` puts the row in doubt. A change in doubt is confirmed with
the same probability. So the change is found at least eight times in ten."""

HOPELESS = 0.01
"""A row gets no more launches if the chance that they make it a regression is below this."""

UNSURE = 0.05
"""Chance that the noise of a row is larger than ``sees`` assumes."""

FUTILE = 0.05
"""A noisy row gets no more launches if the chance that they let it see its tolerance is below this."""

BLIND = math.log(1000)
"""Largest change that is computed, as a logarithm. A row that sees only a larger change sees nothing. (By Student's t,
two pairs of launches with an error of one in a million see no less than e to the thousandth power.)"""

UNSTEADY = "not the same in every launch"
GENERATED = "torch.compile generated the step, and what it generates may differ between machines and runs"
"""Why a count is not judged."""


def is_compiled(record: Record) -> bool:
    """Whether ``torch.compile`` generated any part of the step."""
    return any(record.values(name) for name, metric in METRICS.items() if metric.compiled)


def judged(baseline: Record) -> list[str]:
    """The metrics on which a row is judged: those that have a gate and a figure in the baseline."""
    return [name for name, metric in METRICS.items() if metric.gate is not None and baseline.values(name)]


def chances_of(baseline: Record, policy: Policy) -> tuple[list[str], float]:
    """The metrics of a row that may be red by chance, and the error budget of each of them."""
    varying = [name for name in judged(baseline) if varies(policy.gate(name), baseline.values(name))]
    return varying, policy.error_of(len(varying))


def learn(
    baselines: Sequence[Record], machine: str = "", nights: Mapping[str, Sequence[Visit]] = MappingProxyType({})
) -> Priors:
    """The priors for rows on one ``machine``, from the ``baselines`` of its kind of hardware. The green ``nights`` of
    these baselines, by case id, add visits. A metric without enough rows has no prior.

    Host-bound rows are a group of their own, because their noise is the noise of their host. Host-bound rows of the
    same machine come first. If a group is too small, a larger group takes its place. (Launches of host-bound rows
    differed by 0.2 to 10 %, depending on which of six machines with H200s they ran on. Launches of other rows differed
    by 0.1 to 0.2 % on all six. These are the medians of each machine's rows.)
    """
    bound = [one for one in baselines if host_bound(one)]
    others = [one for one in baselines if not host_bound(one)]
    own = [one for one in bound if machine and one.machine == machine]
    alike = {False: (others, baselines), True: (own, bound, baselines)}
    noise, visits = {}, {}
    for name, metric in METRICS.items():
        if isinstance(metric.gate, Statistical):
            for sort, sets in alike.items():
                found = (learned([one.values(name) for row in rows for one in row.visits]) for rows in sets)
                if prior := next(filter(None, found), None):
                    noise[name, sort] = prior
                rows = [(*one.visits, *nights.get(one.case.id, ())) for one in (bound if sort else others)]
                visits.update({(name, sort, kind): law for kind, law in laws(rows, name).items()})
    return Priors(noise=noise, visits=visits, nights=nights)


def host_paced(name: str, *records: Record) -> bool:
    """Whether the host of any of these records sets the pace of the metric."""
    return METRICS[name].paced_by == "host" and any(map(host_bound, records))


def varies(gate: Gate, before: Sequence[float]) -> bool:
    """Whether a metric is judged by the noise of its launches."""
    match gate:
        case Statistical():
            return True
        case Relative(floor=floor):
            # Launches of FairScale's ShardedDataParallel on 4 H200s needed 16.4 to 21.3 GB, depending on the timing of
            # its reductions. A gate of 0.5 % would be red on most nights.
            return max(before) > (1 + floor) * min(before)
    return False


def weigh(name: str, found: Comparison, *, error: float, policy: Policy) -> Change:
    """Judge a change by the noise of its launches. Raises ``ValueError`` if noise does not judge the metric.

    All comparisons are between logarithms. A positive logarithm means "worse".
    """
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

    seen = _sees(found, final, floor=floor, error=error * policy.share(last))
    sees = math.expm1(seen) if seen < BLIND else math.inf

    def doubtful(by: float) -> bool:
        return launches < last and by > floor and by + found.drift(last, HOPELESS) > red_at_last

    def could_see() -> bool:
        """Whether more launches may show that the noise is low enough to see the tolerance."""
        best = found.quieter(FUTILE).after(last)
        return math.expm1(min(BLIND, _sees(best, best, floor=floor, error=error * policy.share(last)))) <= tolerance

    if not worse <= red:  # this form makes NaN a regression
        outcome, unsettled = "regression", False
    elif -worse > green:
        outcome, unsettled = "improvement", False
    else:
        outcome = "noisy" if sees > tolerance else "ok"
        unsettled = doubtful(worse) or (policy.fail_on_improvement and doubtful(-worse))
        unsettled = unsettled or (outcome == "noisy" and launches < last and could_see())
    low, high = (math.expm1(max(-BLIND, min(BLIND, end))) for end in found.interval())
    better = 1 if metric.higher_is_better else -1
    return Change(
        metric=name,
        before=found.before,
        now=found.now,
        change=round(better * (found.now / found.before - 1), 9) + 0.0,  # rounds away the logarithm's error, and −0
        sees=_own(metric, sees),
        outcome=outcome,
        interval=(low, high) if metric.higher_is_better else (-high, -low),
        doubtful=unsettled,
        cold=math.expm1(found.cold),
        tolerance=_own(metric, tolerance),
    )


def _sees(found: Comparison, final: Comparison, *, floor: float, error: float) -> float:
    """Logarithm of the smallest slowdown that another night finds at least eight times in ten. ``found`` is the
    comparison of tonight. ``final`` is the comparison as expected at the last look.

    The launches of another night show the true noise. It may be larger than these launches show (:data:`UNSURE`), and
    then the limit of that night is higher.
    """
    fresh = min(1.0, (final.launches_now - 1) / final.noise_df) if final.noise_df else 0.0
    margin = math.sqrt(1 + fresh * (found.worse(UNSURE) ** 2 - 1))
    confirmed = max(floor, margin * final.reach(error)) + final.reach(1 - POWER)
    if found.launches_now >= final.launches_now:
        return confirmed
    return max(confirmed, floor + found.reach(1 - POWER))


def _own(metric: Metric, slower: float) -> float:
    """Convert a slowdown from a fraction of the time to a fraction of the metric. A rate falls by a smaller fraction
    than the time grows."""
    return 1 - 1 / (1 + slower) if metric.higher_is_better and slower < math.inf else slower


def compare_with_zeros(name: str, before: Sequence[float], now: Sequence[float], *, policy: Policy) -> Change:
    """The change of a metric that is judged by its noise, if a launch has a figure of 0. Zero has no logarithm.

    If the baseline has no zero and this run has only zeros, the metric changed. Otherwise the metric is noisy, and in
    doubt while launches are left.
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
    """The change of a metric that does not vary between launches.

    The metric changed if a majority of the launches changed in the same direction. Unless all launches agree, a change
    that fails the row needs extra launches to confirm it. The result names launches that differ from the majority.
    ``compiled``: whether ``torch.compile`` generated the step.
    """
    metric, gate = METRICS[name], policy.gate(name)
    if isinstance(gate, Statistical):
        raise ValueError(f"{name} is judged by its noise")
    if isinstance(gate, Counted):
        before, now = as_stored(before), as_stored(now)  # the baseline's file rounded its figures
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
        # A step that does less work is not a faster step.
        outcome = "incomparable" if any(moved) else "ok"
    elif most is None or (most == 0 and isinstance(gate, Counted) and len(set(before)) > 1):
        outcome, why = "not judged", UNSTEADY
    elif most and isinstance(gate, Counted) and gate.generated and compiled:
        outcome, why = "not judged", GENERATED
    elif most:
        found = "improvement" if better > 0 else "regression"  # this form makes NaN a regression
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

    If the baseline's launches have different counts, further launches may lie outside their range. So a count is the
    same if its distance from that range is at most the width of the range.
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
