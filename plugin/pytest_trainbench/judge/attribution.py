"""Is the machine to blame? Finds conditions that were worse than the baseline's, and what they may cost. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_trainbench.schema.conditions import CONDITIONS, Condition, Conditions, LostShare, LostSpeed, Present, worst
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import LEADING, METRICS, host_bound
from pytest_trainbench.schema.record import Launch, Record

EXPLAINS_LEAST = 0.5
"""Share of a slowdown (of its logarithm) that a cause must account for. A lower share would excuse changes of the code.
All of it is too much to ask: a disturbance also costs what nobody counts (caches, memory)."""

SLOW_RANK = 0.03
"""A rank stands out if it computes longer than its data-parallel peers by more than this fraction. They do the same
work, and devices of one kind differ by 1 to 2 %."""

MODES_APART = 0.05
MODE_LEAST = 0.2
MODE_TIMES = 3
MODE_SPREAD = 6.0
"""Times are bimodal if they fall into two groups whose medians are at least 5 % apart. Each group has at least three
times, and at least a fifth of all times. The distance of the medians is more than six times the width of the middle
half of a group. (For normal noise that is cut in two, it is 1.6 times.) Ten launches with heavy tails and 5 % noise
look bimodal once in a hundred."""


PLACES = {"host": "node", "device": "device"}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A possible cause of a slowdown.

    what: the cause with its figure.
    usual: the baseline's figure.
    slows: logarithm of the largest factor by which it may lengthen a step; infinite if there is no limit.
    of: where it lies, as for :class:`Condition`, or ``step``.
    """

    what: str
    usual: str
    slows: float
    of: str

    def __str__(self) -> str:
        return f"{self.what}, baseline {self.usual}"


@dataclass(frozen=True, kw_only=True)
class Bimodal:
    """Two groups of times: the median of each group in ms, and the share of the slow group."""

    fast_ms: float
    slow_ms: float
    slow_share: float


def unlike(now: Conditions, before: Conditions, *, places: Collection[str] = ("host", "device")) -> list[Cause]:
    """The conditions of these ``places`` that were worse than the baseline's, by their rules in
    :data:`~pytest_trainbench.schema.conditions.CONDITIONS`."""
    found = []
    for name, condition in CONDITIONS.items():
        values = now.get(name)
        if values and condition.rule is not None and condition.of in places:
            reached = worst(name, values)
            usual = worst(name, before[name]) if before.get(name) else None
            slows = _slows(condition, reached, usual, now, before)
            if slows is not None:
                what = condition.text.format(condition.figure.format(reached))
                if len(values) > 1:
                    what += f" on {PLACES[condition.of]} {list(values).index(reached)}"
                told = "not known" if usual is None else condition.figure.format(usual)
                found.append(Cause(what=what, usual=told, slows=slows, of=condition.of))
    return found


def typical(launches: Sequence[Launch]) -> dict[str, list[float]]:
    """The median of each condition over the launches, device by device."""
    series: dict[str, list[list[float]]] = defaultdict(list)
    for launch in launches:
        for name, values in launch.conditions.items():
            series[name].append(values)
    return {name: [statistics.median(each) for each in zip(*rows, strict=False)] for name, rows in series.items()}


def places(record: Record) -> tuple[str, ...]:
    """What sets the pace of a step: the device alone, or the host too. The host counts if it is also the device (a
    CPU), or if the row is host-bound."""
    return ("host", "device") if host_bound(record) or not _computes_apart(record) else ("device",)


def _computes_apart(record: Record) -> bool:
    """Whether the device is not the host. Only then is its compute time known."""
    return any(record.values(name) for name, metric in METRICS.items() if metric.paced_by == "device")


def of_launches(now: Record, before: Record) -> list[list[Cause]]:
    """The causes of each launch by itself. Only its conditions count, never its figures, so that no launch is left out
    because it is slow."""
    usual, where = typical(before.launches), places(now)
    return [unlike(launch.conditions, usual, places=where) for launch in now.launches]


def undisturbed(now: Record, before: Record) -> tuple[Launch, ...]:
    """The launches that no condition disturbed."""
    return tuple(launch for launch, why in zip(now.launches, of_launches(now, before), strict=True) if not why)


def of_record(now: Record, before: Record) -> list[Cause]:
    """All causes on the machine that may have slowed ``now``."""
    found = unlike(typical(now.launches), typical(before.launches), places=places(now))
    return [*found, *filter(None, (slow_rank(now, before), bimodal_times(now, before)))]


def explained(slowdown: float, metric: str, causes: Sequence[Cause]) -> list[Cause]:
    """The causes that can account for a slowdown (the logarithm of new / old) of a time. The host does not lengthen the
    device's compute time, and only whole steps are bimodal."""
    places = ("device", "rank") if METRICS[metric].paced_by == "device" else ("host", "device", "rank", "step")
    return [cause for cause in causes if cause.of in places and cause.slows >= EXPLAINS_LEAST * slowdown]


def slow_rank(now: Record, before: Record) -> Cause | None:
    """One rank that computes longer than the ranks that do the same work."""
    rank, excess = _slowest(now)
    _, usual = _slowest(before)
    if excess is None or excess - (usual or 0.0) <= SLOW_RANK:
        return None
    return Cause(
        what=f"rank {rank} computes {excess:.1%} longer than its data-parallel peers",
        usual="not known" if usual is None else f"{usual:.1%}",
        slows=math.log1p(excess) - math.log1p(usual or 0.0),
        of="rank",
    )


def bimodal_times(now: Record, before: Record) -> Cause | None:
    """Steps or launches that are bimodal, if the baseline's are not. Without the slow group, the step would be as fast
    as the fast group."""
    for kind, found, usual in (
        ("steps", _bimodal_steps(now), _bimodal_steps(before)),
        ("launches", bimodal(now.values(LEADING)), bimodal(before.values(LEADING))),
    ):
        if found is not None and usual is None:
            median_ms = statistics.median(now.values(LEADING))
            shares = f"{1 - found.slow_share:.0%} at {found.fast_ms:,.4g} ms, {found.slow_share:.0%} at"
            return Cause(
                what=f"bimodal {kind}: {shares} {found.slow_ms:,.4g} ms",
                usual="not bimodal",
                slows=max(0.0, math.log(median_ms / found.fast_ms)),
                of="step",
            )
    return None


def bimodal(times_ms: Sequence[float]) -> Bimodal | None:
    """The two groups of bimodal times, whatever their order; ``None`` if they are one group. See
    :data:`MODES_APART`."""
    ordered = sorted(times_ms)
    least = max(MODE_TIMES, math.ceil(MODE_LEAST * len(ordered)))
    if len(ordered) < 2 * least:
        return None
    cut = max(range(least, len(ordered) - least + 1), key=lambda at: ordered[at] - ordered[at - 1])
    fast, slow = ordered[:cut], ordered[cut:]
    fast_ms, slow_ms = statistics.median(fast), statistics.median(slow)
    if slow_ms < fast_ms * (1 + MODES_APART) or slow_ms - fast_ms < MODE_SPREAD * max(_width(fast), _width(slow)):
        return None
    return Bimodal(fast_ms=fast_ms, slow_ms=slow_ms, slow_share=len(slow) / len(ordered))


def _slows(
    condition: Condition, reached: float, usual: float | None, now: Conditions, before: Conditions
) -> float | None:
    """See :class:`Cause`; ``None`` if the condition is not worse than usual."""
    match condition.rule:
        case LostSpeed(margin=margin, share=share):
            return share * math.log(usual / reached) if usual and 0 < reached < usual * (1 - margin) else None
        case LostShare(margin=margin, normal=normal, cost=cost):
            against = usual if before else normal
            if against is None or reached - against <= margin:
                return None
            if cost in now:
                reached, against = max(now[cost]), max(before.get(cost, [0.0]))
            return max(0.0, math.log(1 - against) - math.log(1 - reached)) if max(reached, against) < 1 else math.inf
        case Present():
            against = usual if before else 0.0
            return math.inf if against is not None and reached > against else None
    return None


def _slowest(record: Record) -> tuple[int, float | None]:
    """The rank that computes longest compared with the ranks that do the same work, and by which fraction."""
    compute_ms = typical(record.launches).get("rank_compute_ms", [])
    most: tuple[int, float | None] = (0, None)
    for ranks in _peers(record.case.mesh):
        if len(ranks) > 1 and max(ranks) < len(compute_ms):
            slow = max(ranks, key=lambda rank: compute_ms[rank])
            others = statistics.median(compute_ms[rank] for rank in ranks if rank != slow)
            if not others:  # the step only communicates
                continue
            excess = compute_ms[slow] / others - 1
            if most[1] is None or excess > most[1]:
                most = slow, excess
    return most


def _peers(mesh: MeshShape) -> list[list[int]]:
    """Groups of ranks that do the same work on different data."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(mesh.world_size):
        groups[tuple(at for axis, at in mesh.coordinates(rank).items() if axis != "dp")].append(rank)
    return list(groups.values())


def _bimodal_steps(record: Record) -> Bimodal | None:
    """The groups of the median launch, if the steps of most launches are bimodal. Slow steps at equal distances do not
    count, because the code causes them: it does something every few steps."""
    found = [bimodal(launch.steady_ms) for launch in record.launches]
    told = [each for each, launch in zip(found, record.launches, strict=True) if each and not _regular(each, launch)]
    if 2 * len(told) <= len(found):
        return None
    return sorted(told, key=lambda each: each.slow_share)[len(told) // 2]


def _regular(found: Bimodal, launch: Launch) -> bool:
    border_ms = (found.fast_ms + found.slow_ms) / 2
    slow = [ms > border_ms for ms in launch.steady_ms]
    starts = [at for at, (before, now) in enumerate(pairwise([False, *slow])) if now and not before]
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    return len(gaps) > 1 and gaps.count(statistics.mode(gaps)) >= 0.9 * len(gaps)


def _width(times: Sequence[float]) -> float:
    """The distance between the quartiles."""
    if len(times) < 2:
        return 0.0
    quarters = statistics.quantiles(times, n=4, method="inclusive")
    return quarters[2] - quarters[0]
