"""Whether a row finds what it says it sees, and how often it says nothing: on launches, visits and machines.

The goals of docs/detection.md that are about what users see: the column ``sees``, other machines, further visits, and
launches that differ in ways that the verdict does not model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from benchmarks.detection.judges import METRIC_ERROR, Calls, limit, ours
from benchmarks.detection.nights import FIRST, MORE, Floats, Nights, Noise, fleet, nights, tailed, visited
from benchmarks.detection.pairs import made, nights_in_pairs
from benchmarks.detection.traces import Trace
from pytest_trainbench.judge.compare import learn
from pytest_trainbench.judge.noise import Prior, learned
from pytest_trainbench.judge.policy import Policy
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.schema.metrics import LEADING, host_bound
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store import baseline

STORED_ROWS = Path(__file__).parents[2] / "baselines"

NEIGHBOURS = 10
"""Rows whose launches are mixed for one case of :func:`neighbours`: the row itself and those of most similar noise."""

BOASTFUL = 0.1
"""Share of the nights that say they see most."""


def normal(sd: float) -> Noise:
    """Synthetic noise without heavy tails, for visits and machines."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        return rng.normal(0, sd, shape)

    return draw


def skewed(sd: float) -> Noise:
    """Synthetic noise with a long tail to the left: most launches are a little slow, and some are much faster."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        return np.asarray(sd * (1 - rng.exponential(1, shape)))

    return draw


def real_prior(traces: Sequence[Trace], *, bound: bool) -> Prior:
    """What the stored rows teach about the noise of a launch."""
    rows = [trace.values for trace in traces if trace.metric == "step_ms" and trace.host_bound == bound]
    found = learned(rows)
    assert found is not None
    return found


@dataclass(frozen=True, kw_only=True)
class Sight:
    """How often a slowdown is found that is as large as the row of another night said it sees: on average, and in the
    nights that said they see most."""

    nights: int
    found: float
    boastful: float
    sees: float


def sight(world: Callable[[int], Nights], *, error: float, priors: Sequence[Prior] | None = None) -> Sight:
    """``world`` gives two nights of the same rows. The first night says what it sees, and the second night has a
    slowdown of that size."""
    said, again = world(1), world(2)
    sees = np.array([change.sees for change in ours(said, error=error, priors=priors).changes])
    finite = np.isfinite(sees)
    slowed = dataclasses.replace(said, now=again.now * (1 + np.where(finite, sees, 0))[:, None])
    return _sight(ours(slowed, error=error, priors=priors).red[finite], sees[finite])


def sight_in_pairs(sd: float, count: int, *, error: float) -> Sight:
    """The same for ``--against``, without stored results."""
    runs = made(sd)(2 * count, 2 * (FIRST + MORE))
    sees = np.array([change.sees for change, _ in nights_in_pairs(runs[:count], error=error)])
    finite = np.isfinite(sees)
    slowed = nights_in_pairs(runs[count:][finite], slower=sees[finite], error=error)
    return _sight(np.array([change.outcome == "regression" for change, _ in slowed]), sees[finite])


def _sight(found: NDArray[np.bool_], sees: Floats) -> Sight:
    most = np.argsort(sees)[: max(1, round(BOASTFUL * len(sees)))]
    return Sight(
        nights=len(sees),
        found=float(found.mean()),
        boastful=float(found[most].mean()),
        sees=float(np.median(sees)),
    )


def neighbours(
    count: int, records: Sequence[Record], *, bound: bool, slower: float = 0.0, stored: int = 5, seed: int = 1
) -> Nights:
    """Real launches of every stored row, host-bound or not.

    A stored row has three to five launches, too few to deal a baseline and a night. So each case mixes its own launches
    with those of the rows of most similar noise, each as a fraction of its row's mean, and widened for what the mean
    takes away. A night deals them without repetition.
    """
    rng = np.random.default_rng(seed)
    rows = [np.log(one.values(LEADING)) for one in records if host_bound(one) == bound and len(one.launches) > 1]
    rows.sort(key=lambda row: float(np.std(row, ddof=1)))
    residuals = [(row - row.mean()) * np.sqrt(len(row) / (len(row) - 1)) for row in rows]
    decks = []
    for place in range(len(rows)):
        first = min(max(0, place - NEIGHBOURS // 2), max(0, len(rows) - NEIGHBOURS))
        decks.append(np.concatenate(residuals[first : first + NEIGHBOURS]))
    launches = stored + FIRST + MORE
    dealt = np.stack([rng.permutation(decks[number % len(decks)])[:launches] for number in range(count)])
    return Nights(
        before=100 * np.exp(dealt[:, :stored]),
        now=100 * (1 + slower) * np.exp(dealt[:, stored:]),
        group=np.full(count, int(bound)),
        truth=slower,
        block=len(decks),
    )


def quieter_of(savings: int, nights: Nights) -> Nights:
    """The same nights, with the baseline that someone keeps who saves several times and takes the quietest saving."""
    sets = nights.before.reshape(len(nights.before), savings, -1)
    quietest = np.log(sets).std(axis=2).argmin(axis=1)
    return dataclasses.replace(nights, before=sets[np.arange(len(sets)), quietest])


UNKNOWN = "ffffffff"
"""A machine that no baseline knows."""


def elsewhere(
    records: Sequence[Record], *, machine: str | None = UNKNOWN, machines: int = 1, apart: float = 0.0025
) -> Iterator[tuple[bool, str, float]]:
    """A night of all stored rows on ``machine``, or on the machine of each baseline: whether each row is host-bound,
    the most that was judged (:attr:`~pytest_trainbench.judge.outcome.Verdict.judged`), and what its step sees.

    The launches are the stored ones. With more than one of ``machines``, each baseline has visits of that many, made up
    from the stored launches, which are ``apart`` (standard deviation).
    """
    if not records:
        return
    draw = np.random.default_rng(1)
    rows = [_on_machines(record, machines, apart, draw) for record in records]
    priors = learn(rows)
    policy = Policy(error=1 / 30 / len(rows), first=FIRST, last=FIRST + MORE)
    for row in rows:
        stored = row.visits[0].launches
        launches = [stored[number % len(stored)] for number in range(FIRST + MORE)]
        for count in range(FIRST, FIRST + MORE + 1):
            now = dataclasses.replace(
                row.visits[0],
                launches=tuple(launches[:count]),
                environment={**row.environment, "machine": machine or row.visits[0].machine},
            )
            verdict = judge(now, row, policy=policy, priors=priors)
            if not verdict.doubtful:
                break
        change = verdict.change(LEADING)
        assert change is not None
        yield host_bound(row), verdict.judged, change.sees


def _on_machines(record: Record, machines: int, apart: float, draw: np.random.Generator) -> Record:
    found = record
    for number in range(1, machines):
        by = float(np.exp(draw.normal(0, apart)))
        launches = tuple(
            dataclasses.replace(
                launch,
                step_ms=[ms * by for ms in launch.step_ms],
                metrics={name: _scaled(name, value, by) for name, value in launch.metrics.items()},
            )
            for launch in record.launches
        )
        there = {**record.environment, "machine": f"{number:08x}"}
        found = baseline.joined(found, dataclasses.replace(record, launches=launches, environment=there))
    return found


def _scaled(name: str, value: float, by: float) -> float:
    return value * by if name in ("step_ms", "compute_ms") else value / by if name == "samples_per_s" else value


def stored_rows(hardware: str = "h200-sxm-141gb") -> list[Record]:
    """The stored baselines with figures."""
    return [record for record in baseline.load_all(STORED_ROWS, hardware) if record.outcome == "ok"]


def judged(calls: Calls) -> float:
    """Share of the nights that are not noisy."""
    return float(np.mean([change.outcome != "noisy" for change in calls.changes]))


Many = Callable[..., int]
"""A number of nights, scaled for a quick look."""

Line = tuple[str, str, str, str, str]
"""Goal, stored launches, what was reached, the best that is possible, and whether that passes."""


def goals(traces: Sequence[Trace], many: Many) -> Iterator[Line]:
    """The lines of all goals of this module."""
    records = stored_rows()
    priors = [real_prior(traces, bound=bound) for bound in (False, True)]
    yield from _of_machines(records, many)
    yield from _of_visits(many)
    yield from _of_sight(traces, priors, many)
    yield from _of_power(priors, many)
    yield from _of_real_launches(records, many)
    yield from _of_odd_launches(many)


def _of_machines(records: Sequence[Record], many: Many) -> Iterator[Line]:
    for machines, least in ((1, 144 / 159), (3, 0.0)):
        night = [(judged, sees) for bound, judged, sees in elsewhere(records, machines=machines) if not bound]
        share = sum(judged == "time" for judged, _ in night) / len(night)
        sees = float(np.median([each for _, each in night]))
        known = "1 machine" if machines == 1 else f"{machines} machines, 0.25% apart"
        if least:
            what = f"another machine, {known} known: 144 of 159 device-bound rows judged"
            yield what, "3 to 5", f"{share:.1%} of {len(night)}", "", passed(share >= least)
            yield f"another machine, {known} known: median sees", "3 to 5", f"{sees:.1%}", "", ""
        else:
            what = f"another machine, {known}: median sees at most 2.5%"
            yield what, "3 to 5", f"{sees:.1%}", "", passed(sees <= 0.025)


def _of_visits(many: Many) -> Iterator[Line]:
    count = many(20_000)
    worlds = {
        "visits 0.3% apart, 1 stored": visited(count, tailed(0.002), apart=normal(0.003)),
        "visits 0.3% apart, 3 stored": visited(count, tailed(0.002), apart=normal(0.003), visits=3),
        "visits 0.3% apart, 20 green nights": visited(count // 2, tailed(0.002), apart=normal(0.003), green=20),
    }
    for sd in (0.0075, 0.01):
        for stored in (1, 3):
            worlds[f"machines {sd:.2%} apart, {stored} stored"] = visited(
                count, tailed(0.002), apart=normal(sd), visits=stored, machines=True
            )
    worlds["machines 0.50% apart with the tails of t3, 3 stored"] = visited(
        count, tailed(0.002), apart=tailed(0.005, tails=3), visits=3, machines=True
    )
    for name, nights_of in worlds.items():
        calls = ours(nights_of)
        limit = 2 * METRIC_ERROR if "t3" in name else METRIC_ERROR
        yield (
            f"at most {limit:.2g} of nights red: {name}",
            "5",
            share_of(calls.red),
            "",
            passed(calls.red.mean() <= limit),
        )


def _of_sight(traces: Sequence[Trace], priors: Sequence[Prior], many: Many) -> Iterator[Line]:
    count = many(4_000)
    found: dict[tuple[str, str], Sight] = {}
    for stored in (3, 5):
        row = partial(_one_noise, count, 0.01, stored)
        found["1% noise and the prior of the stored rows", f"{stored}"] = sight(row, error=METRIC_ERROR, priors=priors)
        found["1% noise, a row alone", f"{stored}"] = sight(partial(_alone, row), error=METRIC_ERROR)
        found["suites of 100 rows", f"{stored}"] = sight(
            lambda night, stored=stored: fleet(count, traces, stored=stored, tonight=night),  # type: ignore[misc]
            error=METRIC_ERROR,
        )
    for sd in (0.01, 0.05):
        found[f"`--against`, {sd:.0%} noise", "in pairs"] = sight_in_pairs(sd, count, error=METRIC_ERROR)
    for (name, of), one in found.items():
        what = f"what the row sees is found in 78%, and in 60% of the nights that say they see most: {name}"
        reached = f"{one.found:.1%}, {one.boastful:.1%} (sees {one.sees:.1%})"
        yield what, of, reached, "", passed(one.found >= 0.78 and one.boastful >= 0.6)


def _one_noise(count: int, sd: float, stored: int, night: int) -> Nights:
    return nights(count, tailed(sd), stored=stored, seed=night)


def _alone(world: Callable[[int], Nights], night: int) -> Nights:
    return dataclasses.replace(world(night), block=1)


def _of_power(priors: Sequence[Prior], many: Many) -> Iterator[Line]:
    for metrics in (1, 200, 789):
        error = min(0.005, 1 / 30 / metrics)
        for sd, slower, least in ((0.01, 0.03, 0.90), (0.025, 0.10, 0.98)):
            for stored in (3, 5):
                calls = ours(
                    nights(many(4_000), tailed(sd), slower=slower, stored=stored, seed=3), error=error, priors=priors
                )
                best = limit(sd, slower, stored=stored, launches=FIRST + MORE, error=error)
                what = (
                    f"{least:.0%} of {slower:.0%} slower at {sd:.1%} noise, prior of the stored rows, {metrics} metrics"
                )
                yield what, f"{stored}", share_of(calls.red), f"{best:.1%}", passed(calls.red.mean() >= least)


def _of_real_launches(records: Sequence[Record], many: Many) -> Iterator[Line]:
    for bound, sort in ((False, "device-bound"), (True, "host-bound")):
        quiet = ours(neighbours(many(20_000), records, bound=bound))
        rows = sum(host_bound(one) == bound for one in records)
        name = f"real launches of {rows} {sort} rows"
        yield (
            f"at most {METRIC_ERROR:.2g} of nights red: {name}",
            "5",
            share_of(quiet.red),
            "",
            passed(quiet.red.mean() <= METRIC_ERROR),
        )
        if not bound:  # the interval of a host-bound row has room for visits, which resampled launches do not have
            held = held_by(quiet, 0.0)
            yield f"95% intervals hold 93 to 97%: {name}", "5", f"{held:.1%}", "", passed(0.93 <= held <= 0.97)
        yield f"noisy: {name}", "5", f"{1 - judged(quiet):.1%}", "", ""
        for slower, least in ((0.05, 0.85), (0.10, 0.95)):
            calls = ours(neighbours(many(4_000), records, bound=bound, slower=slower, seed=2))
            what = f"{least:.0%} of {slower:.0%} slower: {name}"
            yield what, "5", share_of(calls.red), "", passed(calls.red.mean() >= least)


def _of_odd_launches(many: Many) -> Iterator[Line]:
    count = many(20_000)
    noise = tailed(0.003, outliers=1 / 17)
    calls = ours(nights(count, noise))
    more = calls.spent.mean() / FIRST - 1
    yield (
        "at most 5% noisy: 1 launch in 17 is 14% slow",
        "5",
        (f"{1 - judged(calls):.1%} (and {more:.0%} more launches)"),
        "",
        passed(judged(calls) >= 0.95),
    )
    slow = ours(nights(many(4_000), noise, slower=0.05, seed=2))
    yield "95% of 5% slower: 1 launch in 17 is 14% slow", "5", share_of(slow.red), "", passed(slow.red.mean() >= 0.95)
    for sd in (0.01, 0.02):
        calls = ours(nights(count, skewed(sd)))
        yield (
            f"at most {2 * METRIC_ERROR:.2g} of nights red: noise {sd:.0%}, skewed to the left",
            "5",
            share_of(calls.red),
            "",
            passed(calls.red.mean() <= 2 * METRIC_ERROR),
        )
    twice = nights(count, tailed(0.01), stored=10)
    kept = {
        "the second saving joins the first": dataclasses.replace(twice, visits=2),
        "someone keeps the quieter of two": quieter_of(2, twice),
        "someone keeps the quietest of four": quieter_of(4, nights(count, tailed(0.01), stored=20)),
    }
    for name, nights_of in kept.items():
        calls = ours(nights_of)
        yield (
            f"at most {METRIC_ERROR:.2g} of nights red: noise 1%, {name}",
            "5",
            share_of(calls.red),
            "",
            passed(calls.red.mean() <= METRIC_ERROR),
        )


def held_by(calls: Calls, slower: float) -> float:
    """Share of the intervals that contain the true change."""
    ends = np.array([change.interval for change in calls.changes])
    return float(np.mean((ends[:, 0] <= -slower) & (-slower <= ends[:, 1])))


def share_of(red: NDArray[np.bool_]) -> str:
    """A share of nights with its exact 95 % interval, such as ``0.9% (0.5–1.4)``. Shares below 0.1 % are in scientific
    notation."""
    found, count = int(red.sum()), len(red)
    low, high = binomtest(found, count).proportion_ci(method="exact")
    if high < 1e-3:
        return f"{found / count:.1e} ({low:.1e}–{high:.1e})"
    return f"{found / count:.1%} ({100 * low:.1f}–{100 * high:.1f})"


def passed(good: bool) -> str:
    return "pass" if good else "FAIL"
