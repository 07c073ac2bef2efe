"""Judges: what each tool would report for a night. Each judge is a function from nights to calls.

The rules of other tools are restated from their documentation and sources, which the docstrings name. Where a rule
leaves a choice, the choice favours the tool. Every judge gets the launches that its tool would start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.detection.nights import EARLIER, FIRST, Floats, Nights
from pytest_trainbench.judge.compare import weigh
from pytest_trainbench.judge.noise import DEFAULT, Comparison, Prior, Spread, compare, learned, learned_spread
from pytest_trainbench.judge.outcome import Change
from pytest_trainbench.judge.policy import Policy
from pytest_trainbench.judge.visits import MACHINE, VISIT, spread

METRIC_ERROR = 1 / 30 / 200
"""One false alarm a month of 30 nights with 200 metrics: 1.7e-4 a metric and night."""


@dataclass(frozen=True, kw_only=True)
class Calls:
    """For each night: whether it is red, how many launches it took, and, for our judge only, its last change."""

    red: NDArray[np.bool_]
    spent: NDArray[np.int_]
    changes: tuple[Change, ...] = ()


Judge = Callable[[Nights], Calls]


def ours(nights: Nights, *, error: float = METRIC_ERROR, priors: Sequence[Prior] | None = None) -> Calls:
    """The plugin's own code, launch by launch as in the runner.

    It learns the noise of launches and of visits from the baselines and green nights of the same suite, and a row in
    doubt gets more launches. ``priors`` replaces the learned noise of launches, by group.
    """
    policy = Policy(error=error, first=FIRST, last=nights.now.shape[1])
    kind = MACHINE if nights.machines else VISIT
    red, spent, changes = [], [], []
    for start in range(0, len(nights.before), nights.block):
        suite = slice(start, start + nights.block)
        group = nights.group[suite].tolist()
        before = _visits(nights.before[suite], nights.visits)
        known = before
        if nights.green is not None:
            green = nights.green[suite].tolist()
            known = [[*visits, *more] for visits, more in zip(before, green, strict=True)]
        noises, laws = {}, {}
        for one in set(group):
            rows = [visits for visits, of in zip(known, group, strict=True) if of == one]
            noises[one] = priors[one] if priors else _noise(before, group, one)
            laws[one] = learned_spread(rows, visits=len(known[0]))
        for stored, visits, fresh, one in zip(before, known, nights.now[suite].tolist(), group, strict=True):
            prior = noises[one]
            apart = spread("host" if one else "device", kind, visits, laws[one], prior.noise)
            found = partial(_compared, stored, fresh, prior, apart)
            change, launches = _night(found, policy)
            red.append(change.outcome == "regression")
            spent.append(launches)
            changes.append(change)
    return Calls(red=np.array(red), spent=np.array(spent), changes=tuple(changes))


def _visits(before: Floats, visits: int) -> list[list[list[float]]]:
    """Rows × visits × launches."""
    return before.reshape(len(before), visits, -1).tolist()


def _compared(stored: list[list[float]], fresh: list[float], prior: Prior, apart: Spread, launches: int) -> Comparison:
    return compare(stored, fresh[:launches], prior=prior, spread=apart)


def _noise(before: Sequence[Sequence[Sequence[float]]], group: Sequence[int], one: int) -> Prior:
    """What the launches of each visit teach: of the group if it has rows enough, else of all rows."""
    own = [visit for visits, of in zip(before, group, strict=True) if of == one for visit in visits]
    return learned(own) or learned([visit for visits in before for visit in visits]) or DEFAULT


def _night(found: Callable[[int], Comparison], policy: Policy) -> tuple[Change, int]:
    launches = policy.first
    while True:
        change = weigh("step_ms", found(launches), error=policy.error, policy=policy)
        if change.outcome == "regression" or not change.doubtful:
            return change, launches
        launches += 1


def _calls(red: NDArray[np.bool_], launches: int) -> Calls:
    return Calls(red=red, spent=np.full(len(red), launches))


def fixed_gate(nights: Nights) -> Calls:
    """A gate of 5 % on the median of three launches against the stored median. Megatron-LM's functional tests and many
    CI scripts have such a gate."""
    return _calls(np.median(nights.now[:, :3], axis=1) > 1.05 * np.median(nights.before, axis=1), 3)


def pytest_benchmark_mean(nights: Nights) -> Calls:
    """``--benchmark-compare-fail=mean:5%``: the mean of the rounds of one process against the mean of one stored
    process.

    Source: pytest-benchmark's ``--help``, "Fail test if performance regresses according to given EXPR".
    """
    before, now = (nights.steps(side, 1).mean(axis=(1, 2)) for side in ("before", "now"))
    return _calls(now > 1.05 * before, 1)


def pytest_benchmark_min(nights: Nights) -> Calls:
    """``--benchmark-compare-fail=min:5%``: the fastest round of one process against that of one stored process.

    Source: the first example of pytest-benchmark's ``--help``.
    """
    before, now = (nights.steps(side, 1).min(axis=(1, 2)) for side in ("before", "now"))
    return _calls(now > 1.05 * before, 1)


def torchbench(nights: Nights) -> Calls:
    """TorchBench's nightly detector: red if the figure of one process is 7 % higher than the stored figure.

    Source: pytorch/benchmark, ``userbenchmark/torch-nightly/regression_detector.py``,
    ``DEFAULT_REGRESSION_DELTA_THRESHOLD = 0.07``.
    """
    return _calls(nights.now[:, 0] > 1.07 * nights.before[:, 0], 1)


def asv(nights: Nights) -> Calls:
    """``asv continuous`` with its defaults: two processes a side (``processes = 2``), their samples pooled.

    Red if the medians differ by the factor 1.1 and Mann-Whitney's U has p < 0.002. Each sample is a step. Source: asv,
    ``commands/compare.py`` and ``statistics.py``, ``is_different``.
    """
    before, now = (nights.steps(side, 2).reshape(len(nights.now), -1) for side in ("before", "now"))
    different = stats.mannwhitneyu(now, before, axis=1, method="asymptotic").pvalue < 0.002
    return _calls(different & (np.median(now, axis=1) > 1.1 * np.median(before, axis=1)), 2)


def criterion(nights: Nights) -> Calls:
    """Criterion.rs's "performance has regressed", with one process a side.

    Red if a t-test of the means has p < 0.05 and the 95 % interval of the relative change is above the noise threshold
    of 1 %. Source: bheisler/criterion.rs, ``report.rs``, ``compare_to_threshold``. The normal interval replaces
    Criterion's bootstrap of 100,000 resamples, which converges to it.
    """
    before, now = (nights.steps(side, 1)[:, 0] for side in ("before", "now"))
    p = stats.ttest_ind(now, before, axis=1, equal_var=False).pvalue
    change = now.mean(axis=1) / before.mean(axis=1) - 1
    error = np.sqrt(now.var(axis=1, ddof=1) + before.var(axis=1, ddof=1)) / np.sqrt(now.shape[1]) / before.mean(axis=1)
    return _calls((p < 0.05) & (change - stats.norm.ppf(0.975) * error > 0.01), 1)


def bencher(nights: Nights) -> Calls:
    """Bencher's t-test threshold with the upper boundary of its example, 0.99.

    Red if one new figure is above the mean of the stored figures plus t(0.99, n − 1) of their standard deviations.
    Source: bencher.dev, "Thresholds & Alerts".
    """
    stored = nights.before
    limit = stats.t.ppf(0.99, stored.shape[1] - 1) * stored.std(axis=1, ddof=1)
    return _calls(nights.now[:, 0] > stored.mean(axis=1) + limit, 1)


def otava(nights: Nights) -> Calls:
    """Apache Otava (Hunter; Fleming et al., ICPE 2023) on tonight's median after the medians of earlier nights without
    a change.

    Red if tonight is a change point upwards. The library's defaults apply: p < 0.001 and no minimum magnitude. There is
    one window (see :func:`benchmarks.detection.histories.otava`).
    """
    from otava.analysis import compute_change_points

    red = []
    for before, now in zip(nights.earlier, np.median(nights.now[:, :FIRST], axis=1), strict=False):
        points, _ = compute_change_points(
            np.array([*before, now]), window_len=2 * EARLIER + 2, max_pvalue=0.001, min_magnitude=0.0
        )
        tonight = [point.stats for point in points if point.index == len(before)]
        red.append(any(stats.mean_2 > stats.mean_1 for stats in tonight))
    return _calls(np.array(red), FIRST)


JUDGES: dict[str, Judge] = {
    "ours": ours,
    "fixed 5 %": fixed_gate,
    "pytest-benchmark mean:5%": pytest_benchmark_mean,
    "pytest-benchmark min:5%": pytest_benchmark_min,
    "TorchBench 7 %": torchbench,
    "asv": asv,
    "Criterion.rs": criterion,
    "Bencher t, 0.99": bencher,
    **({"Otava": otava} if find_spec("otava") else {}),
}
"""Name of a judge -> its function. Otava is included only if it is installed: ``pip install --no-deps
apache-otava``."""


def limit(
    sd: float, slower: float, *, stored: int, launches: int, error: float = METRIC_ERROR, floor: float = 0.01
) -> float:
    """Chance to find a slowdown, as an upper bound that no judge with this error exceeds by much.

    The bound knows the noise, gets all launches every night, and extracts as much from them as their tails allow. That
    is Fisher's information of Student's t with 5 degrees of freedom: the variance is 0.8 of a mean's variance.
    """
    spread = sd * np.sqrt(0.8 * (1 / stored + 1 / launches))
    reach = max(np.log1p(floor), stats.norm.ppf(1 - error) * spread)
    return float(stats.norm.sf((reach - np.log1p(slower)) / spread))
