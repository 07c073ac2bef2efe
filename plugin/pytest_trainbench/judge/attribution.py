"""Is it the machine? What of a launch's conditions was unlike the baseline's, and how much that may have cost. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_trainbench.schema.conditions import CONDITIONS, Condition, Conditions, Lost, Present, Rate, worst
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import host_bound
from pytest_trainbench.schema.record import Launch, Record

EXPLAINS_LEAST = 0.5
"""Share of a slowdown (of its logarithm) that a cause must be able to account for. Less would excuse changes of code;
all of it is too much to ask: a disturbance costs more than can be counted (caches, memory), and none comes alone."""

SLOW_RANK = 0.03
"""How much longer than its data-parallel peers, which do the same work, one rank computes where it stands out. Devices
of one kind differ by 1 to 2 %."""

MOODS_APART = 0.05
MOOD_LEAST = 0.2
MOOD_TIMES = 3
MOOD_SPREAD = 6.0
"""Times are of two moods where they fall into two groups at least 5 % apart, each of at least three of the times and a
fifth of them, and their middles are more than six times as far apart as the middle half of a group is wide: where
normal noise is cut in two it is 1.6 times. Ten launches with heavy tails and 5 % noise look so once in a hundred."""


PLACES = {"host": "node", "device": "device"}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """``what`` it is, with its figure, and the baseline's, ``usual``. ``slows``: log of how many times as long it may
    make a step, at most; infinite where nothing says. ``of``: where it lies, as for :class:`Condition`, or ``step``."""

    what: str
    usual: str
    slows: float
    of: str

    def __str__(self) -> str:
        return f"{self.what}, baseline {self.usual}"


@dataclass(frozen=True, kw_only=True)
class Moods:
    """Two groups of times: the middle of each in ms, and the slow one's share."""

    fast_ms: float
    slow_ms: float
    slow_share: float


def unlike(now: Conditions, before: Conditions, *, places: Collection[str] = ("host", "device")) -> list[Cause]:
    """Conditions that were worse than the baseline's, of these ``places``; each by its rule in
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
    """The median launch's conditions: of each fact, device by device."""
    series: dict[str, list[list[float]]] = defaultdict(list)
    for launch in launches:
        for name, values in launch.conditions.items():
            series[name].append(values)
    return {name: [statistics.median(each) for each in zip(*rows, strict=False)] for name, rows in series.items()}


def places(record: Record) -> tuple[str, ...]:
    """Where the pace of a step is set: on the device, on its host, or on both where they are one or the host issues the
    steps as slowly as they run."""
    return ("host", "device") if host_bound(record) or not record.values("compute_ms") else ("device",)


def of_launches(now: Record, before: Record) -> list[list[Cause]]:
    """Of each launch by itself: its conditions alone, never its figures, so that a launch which is left out for them is
    not left out for being slow."""
    usual, where = typical(before.launches), places(now)
    return [unlike(launch.conditions, usual, places=where) for launch in now.launches]


def calm(now: Record, before: Record) -> tuple[Launch, ...]:
    """The launches that nothing disturbed."""
    return tuple(launch for launch, why in zip(now.launches, of_launches(now, before), strict=True) if not why)


def of_record(now: Record, before: Record) -> list[Cause]:
    """All that may have slowed ``now`` and lay with the machine."""
    found = unlike(typical(now.launches), typical(before.launches), places=places(now))
    return [*found, *filter(None, (slow_rank(now, before), two_moods(now, before)))]


def explained(slowdown: float, metric: str, causes: Sequence[Cause]) -> list[Cause]:
    """Those that can account for a slowdown (the logarithm of new / old) of a time. The host does not change how long
    the device computes, and moods are of whole steps."""
    places = ("device", "rank") if metric == "compute_ms" else ("host", "device", "rank", "step")
    return [cause for cause in causes if cause.of in places and cause.slows >= EXPLAINS_LEAST * slowdown]


def slow_rank(now: Record, before: Record) -> Cause | None:
    """One rank that computes longer than those that do the same work."""
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


def two_moods(now: Record, before: Record) -> Cause | None:
    """Steps, or launches, of two moods where the baseline's are of one: without the slow ones they would be as fast as
    their fast ones."""
    for kind, found, usual in (
        ("steps", _step_moods(now), _step_moods(before)),
        ("launches", moods(now.values("step_ms")), moods(before.values("step_ms"))),
    ):
        if found is not None and usual is None:
            middle_ms = statistics.median(now.values("step_ms"))
            shares = f"{1 - found.slow_share:.0%} at {found.fast_ms:,.4g} ms, {found.slow_share:.0%} at"
            return Cause(
                what=f"{kind} of two moods: {shares} {found.slow_ms:,.4g} ms",
                usual="one",
                slows=max(0.0, math.log(middle_ms / found.fast_ms)),
                of="step",
            )
    return None


def moods(times_ms: Sequence[float]) -> Moods | None:
    """The two groups that times fall into, in whatever order, ``None`` where they are one. See :data:`MOODS_APART`."""
    ordered = sorted(times_ms)
    least = max(MOOD_TIMES, math.ceil(MOOD_LEAST * len(ordered)))
    if len(ordered) < 2 * least:
        return None
    cut = max(range(least, len(ordered) - least + 1), key=lambda at: ordered[at] - ordered[at - 1])
    fast, slow = ordered[:cut], ordered[cut:]
    fast_ms, slow_ms = statistics.median(fast), statistics.median(slow)
    if slow_ms < fast_ms * (1 + MOODS_APART) or slow_ms - fast_ms < MOOD_SPREAD * max(_width(fast), _width(slow)):
        return None
    return Moods(fast_ms=fast_ms, slow_ms=slow_ms, slow_share=len(slow) / len(ordered))


def _slows(
    condition: Condition, reached: float, usual: float | None, now: Conditions, before: Conditions
) -> float | None:
    """See :class:`Cause`; ``None`` where the condition is not worse than usual."""
    match condition.rule:
        case Rate(margin=margin, share=share):
            return share * math.log(usual / reached) if usual and 0 < reached < usual * (1 - margin) else None
        case Lost(margin=margin, normal=normal, cost=cost):
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
    """The rank that stands out most among those that do the same work, and by which fraction."""
    compute_ms = typical(record.launches).get("rank_compute_ms", [])
    most: tuple[int, float | None] = (0, None)
    for ranks in _peers(record.case.mesh):
        if len(ranks) > 1 and max(ranks) < len(compute_ms):
            slow = max(ranks, key=lambda rank: compute_ms[rank])
            others = statistics.median(compute_ms[rank] for rank in ranks if rank != slow)
            if not others:  # their step only communicates
                continue
            excess = compute_ms[slow] / others - 1
            if most[1] is None or excess > most[1]:
                most = slow, excess
    return most


def _peers(mesh: MeshShape) -> list[list[int]]:
    """Ranks that do the same work on other data."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(mesh.world_size):
        groups[tuple(at for axis, at in mesh.coordinates(rank).items() if axis != "dp")].append(rank)
    return list(groups.values())


def _step_moods(record: Record) -> Moods | None:
    """Of the steps inside the launches, where most launches have two moods; the one in the middle. Slow steps at equal
    distances are the code's: something that it does every so many steps."""
    found = [moods(launch.steady_ms) for launch in record.launches]
    told = [each for each, launch in zip(found, record.launches, strict=True) if each and not _regular(each, launch)]
    if 2 * len(told) <= len(found):
        return None
    return sorted(told, key=lambda each: each.slow_share)[len(told) // 2]


def _regular(found: Moods, launch: Launch) -> bool:
    border_ms = (found.fast_ms + found.slow_ms) / 2
    slow = [ms > border_ms for ms in launch.steady_ms]
    starts = [at for at, (before, now) in enumerate(pairwise([False, *slow])) if now and not before]
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    return len(gaps) > 1 and gaps.count(statistics.mode(gaps)) >= 0.9 * len(gaps)


def _width(times: Sequence[float]) -> float:
    """Between the quartiles."""
    if len(times) < 2:
        return 0.0
    quarters = statistics.quantiles(times, n=4, method="inclusive")
    return quarters[2] - quarters[0]
