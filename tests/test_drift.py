"""Drift over many nights: an exact test per machine, and an accepted drift is not reported again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.judge.drift import (
    NIGHTS_MOST,
    SPLITS,
    Drift,
    Findings,
    _above,
    _chances,
    needed,
    nights,
    rise,
    watch,
)
from pytest_trainbench.report.drift import lines
from pytest_trainbench.store.history import Entry, Run

ERROR = 1 / 30 / 200
CASE = "train_step(strategy=zero2) @ dp4"
START = datetime(2026, 9, 1, 2, 17, tzinfo=timezone.utc)


def test_a_halved_rate_is_a_drift_of_half() -> None:
    """As in a verdict, the change is a fraction of the baseline's rate and not of tonight's."""
    history = [
        replace(one, entries={CASE: replace(entry, launches=({"samples_per_s": 100.0 if number < 20 else 50.0},))})
        for number in range(30)
        for one in [run(number, 1.0)]
        for entry in one.entries.values()
    ]
    (drift,) = watch(history[:-1], history[-1], night_error=1 / 30, floor=None).drifts
    assert drift.metric == "samples_per_s"
    assert drift.change == pytest.approx(0.5)


def quiet(count: int, *, seed: int = 1, noise: float = 0.004) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(0, noise, count)]


def risen(count: int, by: float, *, after: int, seed: int = 1) -> list[float]:
    return [value + (number >= after) * math.log1p(by) for number, value in enumerate(quiet(count, seed=seed))]


def run(
    number: int,
    *values: float,
    outcome: str = "ok",
    baseline: str = "old",
    machine: str = "0123abcd",
    commit: str = "a1b2c3",
    drifted: bool = False,
    hours: int = 0,
    power_cap_w: int = 700,
    nodes: str = "",
    code: str = "",
) -> Run:
    """The run of one night, with one launch per step time (ms)."""
    entry = Entry(
        id=CASE,
        label="sharding[zero2-dp4]",
        outcome=outcome,
        baseline=baseline,
        launches=tuple({"step_ms": value} for value in values),
        machine=nodes,
        code=code,
    )
    return Run(
        path=Path(f"{number}.jsonl"),
        started=START + timedelta(days=number, hours=hours),
        hardware="h200",
        environment=Environment(must_match={"power_cap_w": power_cap_w}, suspects={"commit": commit}, machine=machine),
        entries={CASE: entry},
        drifted=frozenset({CASE} if drifted else ()),
    )


def runs(logs: Sequence[float], **facts: Any) -> list[Run]:
    return [run(number, 100 * math.exp(value), **facts) for number, value in enumerate(logs)]


def figures(history: Sequence[Run]) -> list[float]:
    return [night.figure for night in nights(history, CASE, "step_ms")]


# The statistic


@pytest.mark.parametrize(("before", "since"), [(4, 4), (3, 5), (9, 6)])
def test_the_chance_matches_counting_all_orders(before: int, since: int) -> None:
    every = [
        _above([*(set(range(before + since)) - set(late)), *late])[since]
        for late in itertools.combinations(range(before + since), since)
    ]
    counted = [sum(above >= u for above in every) / len(every) for u in range(before * since + 1)]
    assert _chances(before, since) == pytest.approx(counted)


def test_the_chance_matches_scipy() -> None:
    values = quiet(40, seed=3)
    expected = mannwhitneyu(values[28:], values[:28], alternative="greater", method="exact").pvalue
    assert _chances(28, 12)[_above(values)[12]] == pytest.approx(expected)


def test_equal_nights_are_no_rise() -> None:
    assert rise([0.0] * 60, error=ERROR, floor=0.0) is None
    assert _above([1.0, 2.0, 2.0, 3.0]) == [0, 3, 3, 3, 0], "2 and 2 are equal"


def test_a_jump_is_dated_and_sized() -> None:
    found = rise(risen(40, 0.02, after=33), error=ERROR, floor=0.01)
    assert found is not None
    assert found[0] == 33 and found[1] == pytest.approx(0.02, abs=0.004)


def test_a_slow_drift_is_found() -> None:
    slow = [value + math.log1p(0.003) * max(0, number - 30) for number, value in enumerate(quiet(42))]
    found = rise(slow, error=ERROR, floor=0.01)
    assert found is not None and 28 <= found[0] <= 38 and 0.015 < found[1] < 0.04
    assert rise(slow[:31], error=ERROR, floor=0.01) is None


@pytest.mark.parametrize("by", [-0.02, 0.005, 0.0])
def test_an_improvement_or_a_change_under_the_floor_is_no_drift(by: float) -> None:
    assert rise(risen(60, by, after=40), error=ERROR, floor=0.01) is None


def test_a_drift_that_has_recovered_is_not_reported() -> None:
    passed = [value + (30 <= number < 40) * 0.02 for number, value in enumerate(quiet(60))]
    assert rise(passed[:40], error=ERROR, floor=0.01) is not None
    assert rise(passed, error=ERROR, floor=0.01) is None


def test_unchanged_series_drift_no_more_often_than_allowed() -> None:
    """The error rate is large enough to count: 5 % of 400 is 20, and 32 or more have a probability of 1 in 150."""
    rng = np.random.default_rng(5)
    moods = rng.normal(0, 0.002, (400, 40)) + (rng.random((400, 40)) < 0.3) * 0.05
    tails = rng.standard_t(2, (400, 40)) * 0.005
    for rows in (moods, tails):
        assert 0 < sum(rise(row.tolist(), error=0.05, floor=0.0) is not None for row in rows) < 32


@pytest.mark.parametrize(("error", "least"), [(ERROR, 18), (0.005, 13)])
def test_fewer_than_the_needed_nights_show_no_drift(error: float, least: int) -> None:
    assert needed(error) == least

    def best(count: int) -> bool:
        return any(
            rise([0.0] * (count - last) + [1.0 + number for number in range(last)], error=error, floor=0.01)
            for last in SPLITS
            if last < count
        )

    assert best(least) and not best(least - 1)


# From runs to nights


def test_the_launches_of_one_day_are_one_night() -> None:
    history = [run(0, 100.0, 101.0, 120.0), run(0, 102.0, 103.0, hours=9, commit="later"), run(1, 100.0)]
    found = nights(history, CASE, "step_ms")
    assert [(night.day, night.figure) for night in found] == [(date(2026, 9, 1), 102.0), (date(2026, 9, 2), 100.0)]
    assert found[0].environment.suspects["commit"] == "later"


def test_another_machine_or_power_cap_is_another_history() -> None:
    history = [run(0, 90.0, machine="ffffffff"), run(1, 80.0, power_cap_w=350), run(2, 100.0), run(3, 101.0)]
    assert figures(history) == [100.0, 101.0]


def test_nights_of_a_machine_without_an_id_are_not_compared() -> None:
    history = runs(risen(40, 0.05, after=20), machine="")
    assert figures(history) == []
    assert lines(watch(history[:-1], history[-1], night_error=1 / 30), Path("/history")) == [
        "history: this machine has no id (a host name or an /etc/machine-id), so its nights are not compared"
    ]


def test_nights_on_several_nodes_count_only_for_the_same_nodes() -> None:
    history = [run(0, 90.0), run(1, 80.0, nodes="ba987654"), run(2, 100.0, nodes="ffffffff")]
    assert figures([*history, run(3, 101.0, nodes="ffffffff")]) == [100.0, 101.0]
    assert figures([*history, run(3, 91.0)]) == [90.0, 91.0]


def test_reports_of_another_machine_accept_nothing_on_this_machine() -> None:
    """A fleet shares one folder, and each machine has its own baseline."""
    other: dict[str, Any] = {"machine": "fedcba98", "baseline": "theirs", "hours": 1}
    history = [
        each for day in range(4) for each in (run(day, 100.0 + day), run(day, 9.0, outcome="regression", **other))
    ]
    assert figures([*history, run(4, 104.0)]) == [100.0, 101.0, 102.0, 103.0, 104.0]


def test_runs_of_another_machine_do_not_clear_a_report_of_this_machine() -> None:
    history = [run(0, 100.0), run(1, 110.0, outcome="regression"), run(1, 100.0, machine="fedcba98", hours=1)]
    assert figures([*history, run(2, 110.0, outcome="saved", baseline="new")]) == [110.0]


@pytest.mark.parametrize("outcome", ["invalid", "crash", "timeout", "incomparable", "environment"])
def test_a_run_without_a_valid_measurement_is_no_night(outcome: str) -> None:
    assert figures([run(0, 100.0), run(1, 200.0, outcome=outcome), run(2, 101.0)]) == [100.0, 101.0]


@pytest.mark.parametrize("outcome", ["regression", "improvement", "incomparable"])
def test_a_baseline_saved_after_a_reported_change_starts_a_new_history(outcome: str) -> None:
    history = [run(0, 100.0), run(1, 110.0, outcome=outcome), run(2, 110.0, outcome="saved", baseline="new")]
    assert figures([*history, run(3, 111.0, baseline="new")]) == [110.0, 111.0]


def test_a_baseline_saved_after_a_reported_drift_starts_a_new_history() -> None:
    history = [run(0, 100.0), run(1, 101.0, drifted=True), run(2, 102.0, baseline="new")]
    assert figures(history) == [102.0]


def test_a_baseline_saved_without_a_reported_change_keeps_the_history() -> None:
    history = [run(0, 100.0, outcome="regression"), run(1, 100.0), run(2, 101.0, baseline="new")]
    assert figures([*history, run(3, 102.0, baseline="new")]) == [100.0, 100.0, 101.0, 102.0]


def test_old_nights_are_left_out() -> None:
    assert len(figures(runs(quiet(NIGHTS_MOST + 5)))) == NIGHTS_MOST


# The report


def test_a_drift_gives_its_first_night_and_the_differences() -> None:
    values = risen(40, 0.03, after=32)
    history = [
        *runs(values[:32], commit="a1b2c3", code="1a"),
        *[
            run(number, 100 * math.exp(value), commit="d4e5f6", code="2b")
            for number, value in enumerate(values)
            if number >= 32
        ],
    ]
    found = watch(history[:-1], history[-1], night_error=1 / 30)
    (drift,) = found.drifts
    assert drift == Drift(
        id=CASE,
        label="sharding[zero2-dp4]",
        metric="step_ms",
        change=drift.change,
        since=date(2026, 10, 3),
        nights_since=8,
        nights_before=32,
        differs=(("your code", "1a", "2b"), ("commit", "a1b2c3", "d4e5f6")),
    )
    assert lines(found, Path("/history")) == [
        f"drift: sharding[zero2-dp4]: step time {drift.change:.1%} worse since 2026-10-03"
        " (8 nights against 32 before; your code: 1a → 2b; commit: a1b2c3 → d4e5f6)",
        "a drift is reported in every run, until it is repaired or --save-baseline accepts it",
        "history: 1 drift over 40 nights on this machine",
    ]


def test_baselines_saved_now_and_then_hide_no_drift() -> None:
    history = [
        run(number, 100 * math.exp(value) * 1.003 ** max(0, number - 30), baseline=f"baseline {number // 4}")
        for number, value in enumerate(quiet(42))
    ]
    assert [one.metric for one in watch(history[:-1], history[-1], night_error=1 / 30).drifts] == ["step_ms"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, ["step_ms", "samples_per_s"]),
        ({"step_ms": {"floor": 0.02}}, ["step_ms", "samples_per_s"]),
        ({"step_ms": {"floor": 0.05}}, []),
        ({"step_ms": {"floor": 0.05}, "samples_per_s": {"floor": 0.02}}, ["samples_per_s"]),
        ({"step_ms": {"tolerance": 0.1}}, ["step_ms", "samples_per_s"]),
    ],
)
def test_the_floor_of_a_test_applies_to_drift(limits: dict[str, dict[str, float]], said: list[str]) -> None:
    """As in a verdict, the test's floor wins over ``--floor``. It applies to the rate too, which is the same time."""
    history = []
    for night in runs(risen(40, 0.03, after=32)):
        entry = night.entries[CASE]
        launches = tuple({**each, "samples_per_s": 1e5 / each["step_ms"]} for each in entry.launches)
        history.append(replace(night, entries={CASE: replace(entry, launches=launches)}))
    gates = {CASE: limits, "another": {"step_ms": {"floor": 0.5}}}
    found = watch(history[:-1], history[-1], night_error=1 / 30, gates=gates)
    assert [one.metric for one in found.drifts] == said
    if "floor" in limits.get("step_ms", {}):
        assert watch(history[:-1], history[-1], night_error=1 / 30, floor=0.01, gates=gates) == found


def test_only_the_largest_drifts_are_listed() -> None:
    drifts = tuple(
        Drift(
            id=str(number),
            label=f"row {number}",
            metric="step_ms",
            change=number / 100,
            since=date(2026, 10, 2),
            nights_since=5,
            nights_before=30,
            differs=tuple((f"library {each}", "1", "2") for each in range(4)),
        )
        for number in range(1, 13)
    )
    said = lines(Findings(nights={one.id: 35 for one in drifts}, needed=18, drifts=drifts), Path("/history"))
    assert said[0] == (
        "drift: row 12: step time 12.0% worse since 2026-10-02"
        " (5 nights against 30 before; library 0: 1 → 2; library 1: 1 → 2; library 2: 1 → 2; and 1 more)"
    )
    assert said[10:] == [
        "drift: and 2 more, all smaller",
        "a drift is reported in every run, until it is repaired or --save-baseline accepts it",
        "history: 12 drifts over 35 nights on this machine",
    ]


def test_rows_that_have_too_few_nights_are_counted() -> None:
    said = lines(Findings(nights={"one": 3, "two": 40, "three": 5}, needed=14), Path("/history"))
    assert said == [
        "history: 2 of 3 rows have fewer than the 14 nights on this machine that drift detection needs;"
        " no drift in the others"
    ]


def test_a_history_that_is_too_short_says_so() -> None:
    history = runs(quiet(4))
    found = watch(history[:-1], history[-1], night_error=1 / 30)
    assert lines(found, Path("/history")) == [
        "history: 4 nights of these rows on this machine; drift detection needs 13 (/history)"
    ]


def test_a_quiet_history_says_so() -> None:
    history = runs(quiet(20))
    assert lines(watch(history[:-1], history[-1], night_error=1 / 30), Path("/history")) == [
        "history: no drift over 20 nights on this machine"
    ]


def test_rows_without_figures_give_no_history_line() -> None:
    history = runs(quiet(20))
    assert lines(watch(history, run(20, outcome="crash"), night_error=1 / 30), Path("/history")) == []
