"""Finds rows that became worse over many nights, in steps that no single night sees. Pure: nothing here reads a file.

A night is one day (UTC) of one row on one machine. Its figure is the median of that day's launches. The last nights are
compared with the nights before them, for several numbers of last nights. The test is the rank sum test of Wilcoxon,
Mann and Whitney: how often is a later night worse than an earlier one? Its chance is exact for any noise (outliers,
bimodal, heavy tails), if nights without a change could have come in any order. F. Wilcoxon, Biometrics Bulletin 1(6),
1945; H. B. Mann and D. R. Whitney, Annals of Mathematical Statistics 18(1), 1947.

docs/detection.md shows what the test finds, and how often it is wrong.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timezone
from functools import cache
from itertools import accumulate, count
from types import MappingProxyType

from pytest_trainbench.hardware.environment import Difference, Environment, differences
from pytest_trainbench.judge.policy import ERROR_MOST, Policy
from pytest_trainbench.schema.metrics import METRICS, Gates, Relative, Statistical
from pytest_trainbench.store.history import Run, own_code

SPLITS = (4, 6, 9, 13, 19, 28, 42)
"""Numbers of last nights that are compared with the nights before. They share the error budget (Bonferroni)."""

NIGHTS_MOST = 90
"""Number of nights that count. Older nights say nothing about today."""

BELIEVED = ("ok", "saved", "improvement", "no-baseline", "noisy", "regression")
"""Outcomes whose figures show the speed of the code on this machine."""

SAID = ("regression", "improvement", "incomparable")
"""Outcomes that report a change to a person. A baseline that is saved next accepts the change."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """One night of a row. ``figure``: median of the launches, in the metric's unit. ``code``: see
    :class:`~pytest_trainbench.store.history.Entry`."""

    day: date
    figure: float
    environment: Environment
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A metric of one row that became worse.

    change: by which fraction it is worse.
    since: the first night that is worse.
    nights_since, nights_before: the number of nights from then on, and before.
    differs: what differs between the last night before and the first night since, in the project's code and in the
    environment.
    """

    id: str
    label: str
    metric: str
    change: float
    since: date
    nights_since: int
    nights_before: int
    differs: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result for one run.

    nights: number of nights in the history on this machine, by the id of tonight's cases.
    needed: minimum number of nights for a drift to be found.
    drifts: the drifts that were found.
    """

    nights: dict[str, int]
    needed: int
    drifts: tuple[Drift, ...] = ()


def watch(
    earlier: Sequence[Run],
    tonight: Run,
    *,
    night_error: float,
    floor: float | None = None,
    gates: Mapping[str, Gates] = MappingProxyType({}),
) -> Findings:
    """Compare every row of tonight with its own history. ``earlier`` holds the oldest run first.

    night_error: chance that any drift is reported if nothing changed, over all rows.
    floor, gates: as for a verdict of tonight (:class:`~pytest_trainbench.judge.policy.Policy`). ``gates`` are by the id
    of a case.
    """
    runs = [*earlier, tonight]
    series = {
        (entry.id, name): nights(runs, entry.id, name)
        for entry in tonight.entries.values()
        for name, metric in METRICS.items()
        if isinstance(metric.gate, (Statistical, Relative)) and entry.outcome in BELIEVED and entry.values(name)
    }
    error = min(ERROR_MOST, night_error / max(1, len(series)))
    drifts = []
    for (case_id, name), row in series.items():
        policy = Policy(floor=floor, gates=gates.get(case_id, {}))
        if found := rise(_worse(name, row), error=error, floor=_floor(name, policy)):
            first, change = found
            if METRICS[name].higher_is_better:
                change /= 1 + change  # a fraction of the rate before, as in a verdict: half the rate is 50 % less
            drifts.append(
                Drift(
                    id=case_id,
                    label=tonight.entries[case_id].label,
                    metric=name,
                    change=change,
                    since=row[first].day,
                    nights_since=len(row) - first,
                    nights_before=first,
                    differs=(
                        *own_code(row[first - 1].code, row[first].code),
                        *differences(row[first - 1].environment, row[first].environment),
                    ),
                )
            )
    held: dict[str, int] = {}
    for (case_id, _), row in series.items():
        held[case_id] = max(held.get(case_id, 0), len(row))
    return Findings(nights=held, needed=needed(error), drifts=tuple(drifts))


def nights(runs: Sequence[Run], case_id: str, metric: str) -> list[Night]:
    """The nights of one row that compare with the last run, the oldest first.

    They ran on its machine, with the same device, link and power cap, after the last change that was accepted. A
    machine without an id has no nights, because another such machine may have run the earlier ones.

    A new baseline accepts a change if it comes right after the change was reported: after a night that was red, better
    or of other work, or that had a drift. Any other new baseline accepts nothing, or it would hide a slow drift.
    """
    here, machine = runs[-1].environment, runs[-1].machine_of(case_id)
    if not machine:
        return []
    found: list[tuple[Run, list[float]]] = []
    baseline, said = "", False
    for run in runs:
        entry = run.entries.get(case_id)
        # Another machine has its own baseline, and its reports say nothing about this machine.
        if entry is None or entry.outcome not in {*BELIEVED, *SAID} or run.machine_of(case_id) != machine:
            continue
        if said and entry.baseline != baseline:
            found.clear()
        baseline, said = entry.baseline, entry.outcome in SAID or case_id in run.drifted
        if entry.outcome in BELIEVED:
            found.append((run, entry.values(metric)))
    days: dict[date, tuple[Run, list[float]]] = {}
    for run, values in found:
        if run.environment.must_match == here.must_match and min(values, default=0.0) > 0:
            day = run.started.astimezone(timezone.utc).date()
            days[day] = run, [*days[day][1], *values] if day in days else values
    return [
        Night(
            day=day,
            figure=statistics.median(values),
            environment=run.environment,
            code=run.entries[case_id].code,
        )
        for day, (run, values) in sorted(days.items())
    ][-NIGHTS_MOST:]


def rise(figures: Sequence[float], *, error: float, floor: float) -> tuple[int, float] | None:
    """The index at which a series of logarithms (higher is worse) began to be higher, and the fraction by which the
    last nights are above those before. ``None`` if chance may explain the rise, or if it is below ``floor`` (a
    fraction).

    If nothing changed and all orders are equally likely, at most the fraction ``error`` of the series is reported.
    """
    share, above = error / len(SPLITS), _above(figures)
    size, least = len(figures), SPLITS[0]
    if not any(_chances(size - last, last)[above[last]] <= share for last in SPLITS if last <= size - least):
        return None

    def score(last: int) -> float:
        """How many standard deviations the count is above its mean."""
        pairs = last * (size - last)
        return (above[last] - pairs / 2) / math.sqrt(pairs * (size + 1) / 12)

    first = size - max(range(least, size - least + 1), key=score)
    change = math.expm1(statistics.median(figures[-least:]) - statistics.median(figures[:first]))
    return (first, change) if change >= floor else None


def needed(error: float) -> int:
    """Minimum number of nights for a rise to be reported at all."""
    share = error / len(SPLITS)
    return next(
        n
        for n in count(2 * SPLITS[0])
        if any(math.comb(n, last) * share >= 1 for last in SPLITS if last <= n - SPLITS[0])
    )


def _above(figures: Sequence[float]) -> list[int]:
    """For 0, 1, … last nights: the number of pairs of a last night and a night before, in which the last one is higher.
    Equal nights count against a rise, so that the chance is never too small."""
    places = [0] * len(figures)
    for place, night in enumerate(sorted(range(len(figures)), key=lambda night: (figures[night], -night))):
        places[night] = place
    sums = accumulate(reversed(places), initial=0)
    return [total - last * (last - 1) // 2 for last, total in enumerate(sums)]


@cache
def _chances(before: int, since: int) -> list[float]:
    """For u = 0, 1, …: the chance that u pairs or more are higher if nothing changed.

    The number of orders with u such pairs is the coefficient of q^u in the Gaussian binomial coefficient, which is the
    product of (1 − q^(before + i)) / (1 − q^i) for i = 1 … since.
    """
    pairs = before * since
    orders = [1] + [0] * pairs
    for i in range(1, since + 1):
        for u in range(pairs, before + i - 1, -1):
            orders[u] -= orders[u - before - i]
        for u in range(i, pairs + 1):
            orders[u] += orders[u - i]
    total, left, chances = sum(orders), sum(orders), []
    for number in orders:
        chances.append(left / total)
        left -= number
    return chances


def _worse(metric: str, row: Sequence[Night]) -> list[float]:
    sign = -1 if METRICS[metric].higher_is_better else 1
    return [sign * math.log(night.figure) for night in row]


def _floor(metric: str, policy: Policy) -> float:
    gate = policy.gate(metric)
    assert isinstance(gate, (Statistical, Relative))
    return gate.floor
