"""Prints the tables and goals of docs/detection.md, as Markdown.

python -m benchmarks.detection [--quick] > docs/detection.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from benchmarks.detection.histories import (
    WATCHERS,
    changed,
    dealt,
    found_after,
    histories,
    lasting,
    own,
    replaced,
    sometimes,
    suites,
    wandering,
    weekly,
)
from benchmarks.detection.judges import JUDGES, METRIC_ERROR, Calls, Judge, limit, ours
from benchmarks.detection.nights import (
    FIRST,
    MORE,
    Nights,
    bimodal,
    fleet,
    nights,
    real,
    slowest_of,
    tailed,
)
from benchmarks.detection.sight import goals, held_by, passed, share_of
from benchmarks.detection.traces import Trace, read
from pytest_trainbench.judge.visits import BETWEEN_VISITS

SLOWER = (0.01, 0.02, 0.03, 0.05, 0.10)
SLOWER_CPU = (0.05, 0.10, 0.25, 0.50)
SLOWER_HOST = (0.10, 0.15, 0.20)
NOISE = (0.002, 0.005, 0.01, 0.025)
STORED = (3, 5, 10)

DRIFT = 0.003
"""Slowdown of each night, against one fixed baseline."""

DRIFT_NIGHTS = 40

RESAVED = 3
"""Number of nights after which someone saves the baseline again."""

BEFORE, AFTER = 40, 45
"""Nights of a history before its row changed, and after."""

CHANGES: dict[str, dict[str, float]] = {
    "jump of 1.5%": {"jump": 0.015},
    "jump of 2%": {"jump": 0.02},
    "jump of 3%": {"jump": 0.03},
    "drift of 0.3% a night": {"drift": 0.003},
    "drift of 0.1% a night": {"drift": 0.001},
    "drift of 0.05% a night": {"drift": 0.0005},
}

WATCHED = {"ours": 1.0, "Student's t": 0.025}
"""Share of the histories that a method is replayed on."""

WATCHED_ELSE = 0.1


@dataclass(frozen=True, kw_only=True)
class Goal:
    """At launch noise ``sd``, the judge must find the share ``found`` of slowdowns of size ``slower``."""

    sd: float
    slower: float
    found: float


GOALS = (
    Goal(sd=0.01, slower=0.05, found=0.99),
    Goal(sd=0.01, slower=0.03, found=0.90),
    Goal(sd=0.005, slower=0.02, found=0.95),
    Goal(sd=0.025, slower=0.10, found=0.98),
)

QUIET_COST = {0.005: 0.05, 0.01: 0.25}
"""Launch noise -> largest share of additional launches in a night without a change."""


def page(traces: Sequence[Trace], *, scale: float = 1.0) -> Iterator[str]:
    """The paragraphs of the page. ``scale`` multiplies the number of nights."""

    def many(count: int, least: int = 50) -> int:
        return max(least, round(count * scale))

    gpu = [trace for trace in traces if not trace.hardware.startswith("cpu")]
    cpu = [trace for trace in traces if trace.hardware.startswith("cpu")]
    yield "# False alarms and detection"
    yield (
        "`python -m benchmarks.detection` prints this page; `tox run -e detection` installs the libraries that it"
        " compares with. It replays nights through this plugin's judge and through the rules of other tools, on the"
        " same launches."
    )
    yield (
        f"* *Real* nights are resampled from the {_launches(gpu)} launches on"
        f" {len({trace.machine for trace in gpu})} machines with H200s and the {_launches(cpu)} of small models on 2"
        " busy CPU cores in `benchmarks/detection/traces`. All others are synthetic: noise with the tails of Student's"
        " t with 5 degrees of freedom.\n"
        "* *Suites* have 100 rows each, as noisy as the real rows on H200s. One launch in 50 is 14 % slow.\n"
        "* Baselines hold 5 launches unless the row says otherwise.\n"
        "* A row that is *alone* has no other rows from which to learn its noise.\n"
        "* The visits of a *host-bound* row differ by more than its launches say. Resampled real launches have no"
        " visits, so our judge is too careful there.\n"
        f"* The allowed error of our judge is {METRIC_ERROR:.2g} per metric and night: one false alarm a month with 200"
        " metrics.\n"
        "* Parentheses hold the exact 95 % interval (Clopper-Pearson)."
    )

    quiet = {
        "suites of 100 rows": fleet(many(120_000), gpu),
        "real launches on H200s, resampled": real(many(20_000), gpu),
        "real launches on a CPU, resampled": real(many(20_000), cpu),
        **{f"noise {sd:.1%}": nights(many(20_000), tailed(sd)) for sd in NOISE},
        "noise 5.0%, a row alone": replace(nights(many(20_000), tailed(0.05)), block=1),
        "noise 0.2%, and 1% in one row of ten": nights(
            many(20_000), tailed(np.where(np.arange(many(20_000)) % 10, 0.002, 0.01))
        ),
        "noise 0.3%, 1 launch in 17 is 14% slow": nights(many(20_000), tailed(0.003, outliers=1 / 17)),
        "noise 0.5%, 10% of steps take half as long again": nights(many(2_000), tailed(0.005), step_outliers=0.1),
        "host-bound, noise 2.5%, and 1.8% of each visit's own": nights(
            many(20_000), tailed(0.025), visit=BETWEEN_VISITS * 0.025
        ),
        "host, bimodal, 5% apart, 1 launch in 2": nights(many(4_000), bimodal(0.003, by=0.05, chance=0.5)),
        "host, bimodal, 5% apart, 1 launch in 5": nights(many(4_000), bimodal(0.003, by=0.05, chance=0.2)),
    }
    calm = {name: ours(each) for name, each in quiet.items()}
    yield "## False alarms: red nights without a change"
    yield (
        "A bimodal host is the limit. If one launch in five is slow, a third of the baselines of five launches"
        " never saw a slow one. Then nothing in the launches tells the slow mode from new code."
    )
    yield _table(quiet, calm)

    alike, slow = slowest_of(4, 0.005, slow=0.05)
    slowed = {
        f"noise {sd:.1%}, {slower:.0%} slower": nights(many(2_000), tailed(sd), slower=slower, seed=2)
        for sd in NOISE
        for slower in SLOWER
    } | {
        **{
            f"suites of 100 rows, {slower:.0%} slower": fleet(many(4_000), gpu, slower=slower, seed=2)
            for slower in SLOWER
        },
        **{
            f"real launches on H200s, {slower:.0%} slower": real(many(2_000), gpu, slower=slower, seed=2)
            for slower in SLOWER
        },
        **{
            f"real launches on a CPU, {slower:.0%} slower": real(many(2_000), cpu, slower=slower, seed=2)
            for slower in SLOWER_CPU
        },
        **{
            f"host-bound, noise 2.5%, {slower:.0%} slower": nights(
                many(2_000), tailed(0.025), visit=BETWEEN_VISITS * 0.025, slower=slower, seed=2
            )
            for slower in SLOWER_HOST
        },
        "noise 0.5%, one rank of 4 is 5% slower": nights(many(2_000), alike, now=slow, seed=2),
    }
    yield "## Slowdowns found: red nights"
    yield (
        "A night that our judge could not decide is `noisy`, not green: the column before the last. One slow rank"
        " slows the step, and is found as a slower step. No judge here says which rank is slow. For the real rows"
        " on H200s only two extra launches are left."
    )
    yield _table(slowed, {name: ours(each) for name, each in slowed.items()})

    yield f"## Drift of {DRIFT:.1%} a night"
    yield (
        "How much slower a row with 0.5 % noise was, against one baseline, when it was first red: median, 90th"
        " percentile."
    )
    drifted = [(name, *map(_when, _drift(judge, many(200)))) for name, judge in JUDGES.items() if name != "Otava"]
    columns = ["left", "right", "right"]
    yield tabulate(drifted, headers=["judge", "median", "90th percentile"], tablefmt="pipe", colalign=columns)

    yield from _histories(gpu, cpu, many)

    yield "## Goals"
    yield (
        "*Best* is a bound that no judge with the same error exceeds by much. It knows the noise, starts all"
        f" {FIRST + MORE} launches every night, and uses them as well as their tails allow."
    )
    lines = [*_goals(calm, quiet, many), *goals(gpu, many)]
    yield tabulate(lines, headers=["goal", "stored", "reached", "best", ""], tablefmt="pipe")


def _histories(gpu: Sequence[Trace], cpu: Sequence[Trace], many: Callable[..., int]) -> Iterator[str]:
    """What our drift check and libraries for change points report of a row's own history."""
    rows, fewer = many(20_000), many(4_000)
    quiet = {
        "noise 0.5%": histories(rows, tailed(0.005)),
        "noise 0.5%, and 0.5% of each night's own": histories(rows, tailed(0.005), night=own(0.005)),
        "suites of 100 rows": suites(rows, gpu),
        "real launches on H200s, resampled": dealt(rows, gpu),
        "real launches on a CPU, resampled": dealt(rows, cpu),
        "noise 0.5%, 1 night in 10 is 14% slow": histories(fewer, tailed(0.005), night=sometimes(0.14, 0.1)),
        "host, bimodal, 5% apart, 1 night in 5": histories(fewer, tailed(0.003), night=sometimes(0.05, 0.2)),
        "another machine, 3% slower, since 10 nights": replaced(
            histories(fewer, tailed(0.005)), nights_ago=10, slower=0.03
        ),
        "five nights of seven 1.5% slower": histories(fewer, tailed(0.005), night=weekly(0.015)),
        "bimodal, modes last 3 nights, 2% apart, 1 night in 5": histories(
            fewer, tailed(0.003), night=lasting(0.02, 0.2, 3)
        ),
        "0.5% of each night's own, half of it stays": histories(fewer, tailed(0.005), night=wandering(0.005, 0.5)),
    }
    yield "## False alarms: histories without a change"
    yield (
        "How often a drift was reported tonight. A history has 20 to 90 nights, each the median of three launches. Our"
        f" test may err {METRIC_ERROR:.2g} times, as for a single night, and looks at the nights of tonight's machine."
        " The others see all nights. The last three rows break our test's one assumption, that nights could have come"
        " in any order: what stays for some nights looks like a change."
    )
    lines = [
        [
            name,
            *(
                share_of(np.array([watcher(one) for one in each[: round(rows * WATCHED.get(who, WATCHED_ELSE))]]))
                for who, watcher in WATCHERS.items()
            ),
        ]
        for name, each in quiet.items()
    ]
    columns = ["left", *["right"] * len(WATCHERS)]
    yield tabulate(lines, headers=["", *WATCHERS], tablefmt="pipe", colalign=columns)

    yield "## Drift that no single night detects"
    yield (
        f"Nights until the drift was reported: median, 90th percentile. {BEFORE} quiet nights came before. Launches"
        " have 0.5 % noise, and each night 0.3 % of its own. *Single nights* is the verdict alone, if someone saves the"
        f" baseline every {RESAVED} nights; our drift test does not depend on that. *Never*: not in {AFTER} nights."
    )
    lines = []
    for name, change in CHANGES.items():
        base = histories(many(300, 10), tailed(0.005), length=BEFORE + AFTER, night=own(0.003), seed=6)
        made = changed(base, after=BEFORE, **change)
        after = [
            found_after(watcher, made if who == "ours" else made[: many(60, 5)], after=BEFORE)
            for who, watcher in WATCHERS.items()
        ]
        lines.append([name, _nights(_resaved(many(100, 10), **change)), *map(_nights, after)])
    headers = ["", "single nights", *WATCHERS]
    yield tabulate(lines, headers=headers, tablefmt="pipe", colalign=["left", *["right"] * (len(headers) - 1)])


def _nights(first: NDArray[np.float64]) -> str:
    ends = np.quantile(first, [0.5, 0.9], method="higher")
    return ", ".join("never" if np.isinf(night) else f"{night:.0f}" for night in ends)


def _resaved(rows: int, *, jump: float = 0.0, drift: float = 0.0) -> NDArray[np.float64]:
    """Nights until the verdict is red, against a baseline that is saved again every :data:`RESAVED` nights."""
    first: NDArray[np.float64] = np.full(rows, np.inf)
    for night in range(1, AFTER + 1):
        saved = (night - 1) // RESAVED * RESAVED
        grown = [(1 + jump * (at > 0)) * (1 + drift * at) for at in (saved, night)]
        tonight = nights(rows, tailed(0.005), slower=grown[1] / grown[0] - 1, seed=100 + night)
        first = np.where(ours(tonight).red & np.isinf(first), night, first)
    return first


def _goals(calm: dict[str, Calls], quiet: dict[str, Nights], many: Callable[..., int]) -> Iterator[tuple[str, ...]]:
    for name, calls in calm.items():
        good = calls.red.mean() <= METRIC_ERROR
        yield f"at most {METRIC_ERROR:.2g} of nights red: {name}", "5", share_of(calls.red), "", passed(good)
    for sd, most in QUIET_COST.items():
        more = calm[f"noise {sd:.1%}"].spent.mean() / FIRST - 1
        yield f"at most {most:.0%} more launches at {sd:.1%} noise", "5", f"{more:.1%}", "", passed(more <= most)
    for name, calls in calm.items():
        if not name.startswith(
            ("host", "real launches on H200s")
        ):  # those have no visits, which the intervals allow for
            held = held_by(calls, quiet[name].truth)
            good = 0.93 <= held <= 0.97
            yield f"95% intervals hold 93 to 97%: {name}", "5", f"{held:.1%}", "", passed(good)
    for goal in GOALS:
        for stored in STORED:
            calls = ours(nights(many(4_000), tailed(goal.sd), slower=goal.slower, stored=stored, seed=3))
            best = limit(goal.sd, goal.slower, stored=stored, launches=FIRST + MORE)
            what = f"{goal.found:.0%} of {goal.slower:.0%} slower at {goal.sd:.1%} noise"
            yield what, str(stored), share_of(calls.red), f"{best:.1%}", passed(calls.red.mean() >= goal.found)


def _table(rows: dict[str, Nights], judged: dict[str, Calls]) -> str:
    lines = []
    for name, each in rows.items():
        calls = {judge: judged[name] if judge == "ours" else JUDGES[judge](each) for judge in JUDGES}
        noisy = np.mean([change.outcome == "noisy" for change in judged[name].changes])
        spent = f"{judged[name].spent.mean():.2f}"
        shares = [share_of(each.red) for each in calls.values()]
        lines.append([name, f"{len(each.now):,}", *shares, f"{noisy:.1%}", spent])
    headers = ["", "nights", *JUDGES, "noisy (ours)", "launches (ours)"]
    return tabulate(lines, headers=headers, tablefmt="pipe", colalign=["left", *["right"] * (len(headers) - 1)])


def _launches(traces: Sequence[Trace]) -> int:
    return sum(len(trace.values) for trace in traces if trace.metric == "step_ms")


def _drift(judge: Judge, rows: int) -> tuple[float, float]:
    """Slowdown of a row when it is first red: median and 90th percentile. Infinite if it is never red."""
    first: NDArray[np.float64] = np.full(rows, np.inf)
    before = nights(rows, tailed(0.005), seed=5)
    for night in range(1, DRIFT_NIGHTS + 1):
        now = nights(rows, tailed(0.005), slower=DRIFT * night, seed=100 + night).now
        red = judge(Nights(before=before.before, now=now, group=before.group)).red
        first = np.where(red & np.isinf(first), DRIFT * night, first)
    middle, most = np.quantile(first, [0.5, 0.9], method="higher")
    return float(middle), float(most)


def _when(slower: float) -> str:
    return "never" if np.isinf(slower) else f"{slower:.1%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="replay a fiftieth of the nights")
    quick = parser.parse_args().quick
    for paragraph in page(read(), scale=0.02 if quick else 1.0):
        print(paragraph, end="\n\n", flush=True)
