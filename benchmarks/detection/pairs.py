"""What `--against` detects, and how often it is wrong: the table of docs/ab.md.

    python -m benchmarks.detection.pairs [--quick]

The runs contain launches in their order of start. The plugin's own code judges each run twice: in pairs, with both
sides taking turns, and as a baseline of five launches followed by the launches of a night.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from tabulate import tabulate

from benchmarks.detection.judges import METRIC_ERROR, ours
from benchmarks.detection.nights import FIRST, MORE, Floats, Nights, tailed
from benchmarks.detection.traces import Trace, read
from pytest_trainbench.judge.compare import weigh
from pytest_trainbench.judge.noise import paired
from pytest_trainbench.judge.outcome import Change
from pytest_trainbench.judge.policy import Policy

STORED = 5
SLOWER = (0.02, 0.05, 0.10, 0.20)

Runs = Callable[[int, int], Floats]
"""A function that returns logarithms of this number of runs with this number of launches each, in order of start."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the runs that are red, that are noisy, and whose 95 % interval contains the truth; and the mean number
    of launches."""

    runs: int
    red: float
    noisy: float
    held: float
    launches: float


def turns(launches: int) -> NDArray[np.bool_]:
    """Which launches belong to this side: A B B A A B B A …"""
    return np.arange(launches) % 4 % 3 > 0


def nights_in_pairs(
    runs: Floats, *, slower: float | Floats = 0.0, error: float = METRIC_ERROR
) -> list[tuple[Change, int]]:
    """Judge the launches in pairs, without earlier knowledge of the noise, as without stored results: the last change
    of each run, and its number of pairs. ``slower``: the slowdown of all runs, or of each."""
    launches = runs.shape[1] // 2 * 2
    now = turns(launches)
    ms = 100 * np.exp(runs[:, :launches] + np.log1p(np.broadcast_to(slower, len(runs)))[:, None] * now)
    policy = Policy(error=error, first=FIRST, last=launches // 2)
    return [_night(*sides, policy) for sides in zip(ms[:, ~now].tolist(), ms[:, now].tolist(), strict=True)]


def in_pairs(runs: Floats, *, slower: float = 0.0, error: float = METRIC_ERROR) -> Shares:
    """The same, summed up."""
    nights = nights_in_pairs(runs, slower=slower, error=error)
    return _calls([change for change, _ in nights], [2 * pairs for _, pairs in nights], slower)


def _night(before: list[float], now: list[float], policy: Policy) -> tuple[Change, int]:
    for pairs in range(policy.first, policy.last + 1):
        found = paired(before[:pairs], now[:pairs])
        looks = replace(policy, left_out=int(found.cold != 0))
        change = weigh("step_ms", found, error=policy.error, policy=looks)
        if change.outcome == "regression" or not change.doubtful:
            break
    return change, pairs


def stored(runs: Floats, *, slower: float = 0.0, error: float = METRIC_ERROR) -> Shares:
    """Judge against stored launches. The noise is learned from the baselines of all runs, as within one suite."""
    before, now = 100 * np.exp(runs[:, :STORED]), 100 * (1 + slower) * np.exp(runs[:, STORED : STORED + FIRST + MORE])
    calls = ours(Nights(before=before, now=now, group=np.zeros(len(runs), dtype=int), truth=slower), error=error)
    return _calls(calls.changes, (STORED + calls.spent).tolist(), slower)


def _calls(changes: Sequence[Change], launches: Sequence[int], slower: float) -> Shares:
    ends = np.array([change.interval for change in changes])
    outcomes = np.array([change.outcome for change in changes])
    return Shares(
        runs=len(changes),
        red=float(np.mean(outcomes == "regression")),
        noisy=float(np.mean(outcomes == "noisy")),
        held=float(np.mean((ends[:, 0] <= -slower) & (-slower <= ends[:, 1]))),
        launches=float(np.mean(launches)),
    )


def made(sd: float, *, outliers: float = 0.0, drift: float = 0.0, wander: float = 0.0, cold: float = 0.0) -> Runs:
    """Synthetic runs.

    ``drift`` is the slowdown of each launch against the previous one. ``wander`` is the standard deviation of a random,
    lasting change from one launch to the next. ``cold`` is the slowdown of the first launch of a run.
    """

    def runs(count: int, launches: int) -> Floats:
        rng = np.random.default_rng(1)
        noise = tailed(sd, outliers=outliers)(rng, (count, launches))
        walk = np.cumsum(rng.normal(0, wander, (count, launches)), axis=1)
        first = np.log1p(cold) * (np.arange(launches) == 0)
        return np.asarray(noise + walk + drift * np.arange(launches) + first)

    return runs


def recorded(traces: Sequence[Trace]) -> Runs:
    """Real launches in their order of start, forwards and backwards, from every start with enough launches after it."""

    def runs(count: int, launches: int) -> Floats:
        long = [np.log(trace.values) for trace in traces if trace.metric == "step_ms" and len(trace.values) >= launches]
        starts = [each[start : start + launches] for each in long for start in range(len(each) - launches + 1)]
        return np.array([run for each in starts for run in (each, each[::-1])])

    return runs


WORLDS: dict[str, Runs] = {
    "noise 0.5%": made(0.005),
    "noise 1%": made(0.01),
    "noise 5%": made(0.05),
    "noise 0.3%, 1 launch in 17 is 14% slow": made(0.003, outliers=1 / 17),
    "noise 0.5%, every launch 0.2% slower than the last": made(0.005, drift=0.002),
    "noise 0.5%, every launch 1% slower than the last": made(0.005, drift=0.01),
    "noise 0.5%, a walk of 0.5% a launch": made(0.005, wander=0.005),
    "noise 1%, a walk of 3% a launch": made(0.01, wander=0.03),
    "noise 0.5%, the first launch takes 30% longer": made(0.005, cold=0.3),
}

LAUNCHES = 2 * (FIRST + MORE)


def table(worlds: dict[str, Runs], *, launches: int, quiet: int, slow: int) -> str:
    """Two lines for each world, one for each way of judging."""
    ways = {"in turns": in_pairs, "stored": stored}
    lines = []
    for name, runs in worlds.items():
        for way, judged in ways.items():
            calm = judged(runs(quiet, launches))
            found = [judged(runs(slow, launches), slower=slower).red for slower in SLOWER]
            lines.append(
                [name, way, _share(calm), f"{calm.held:.1%}", f"{calm.noisy:.0%}", f"{calm.launches:.1f}"]
                + [f"{share:.0%}" for share in found]
            )
    slowed = [f"{slower:.0%} slower" for slower in SLOWER]
    headers = ["", "judged", "red, nothing changed", "95% held", "noisy", "launches", *slowed]
    return tabulate(lines, headers=headers, tablefmt="pipe", colalign=["left", "left", *["right"] * (len(headers) - 2)])


def _share(calls: Shares) -> str:
    low, high = binomtest(round(calls.red * calls.runs), calls.runs).proportion_ci(method="exact")
    return f"{calls.red:.2%} ({low:.2%}–{high:.2%})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="replay a fiftieth of the runs")
    scale = 0.02 if parser.parse_args().quick else 1.0
    print(table(WORLDS, launches=LAUNCHES, quiet=round(20_000 * scale), slow=round(2_000 * scale)), end="\n\n")
    real = {"real launches on 2 busy CPU cores": recorded(read())}
    print(table(real, launches=16, quiet=0, slow=0))
