"""Every outcome, what decides it, and what must never pass."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from samples import MIB, failed, launch, metric, near, record, steps, trace

from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.judge.compare import GENERATED, compare_constant, learn, weigh
from pytest_trainbench.judge.explain import (
    ANOTHER_HOST,
    NOT_THE_CODE,
    PERHAPS_THE_CODE,
    UNKNOWN_HOST,
    describe,
    movement,
    oddity,
)
from pytest_trainbench.judge.noise import CLIPPED, Prior, compare
from pytest_trainbench.judge.outcome import OUTCOMES, Change, Verdict
from pytest_trainbench.judge.policy import ERROR_MOST, Policy, Priors
from pytest_trainbench.judge.verdict import foreseen, judge
from pytest_trainbench.schema.metrics import METRICS, Statistical, gates, host_bound
from pytest_trainbench.schema.record import LAUNCH_OUTCOMES, Record, as_stored

QUIET = steps(100.0, 100.0, 100.0)
SUSPECTS = (("torch", "2.11.0", "2.13.0"), ("ecc", None, True))


def step_change(now: Record, before: Record = QUIET) -> Change:
    change = judge(now, before).change("step_ms")
    assert change is not None
    return change


# Step time


def test_equal_figures_are_ok() -> None:
    memory = metric("peak_allocated_bytes", [1000] * 3)
    found = judge(memory, memory, suspects=SUSPECTS)
    assert found == Verdict(
        outcome="ok",
        changes=(
            dataclasses.replace(found.changes[0], change=0.0, outcome="ok", doubtful=False),
            Change(metric="peak_allocated_bytes", before=1000, now=1000, change=0.0, sees=0.005, outcome="ok"),
        ),
        suspects=SUSPECTS,
    )
    assert (found.changes[0].before, found.changes[0].now) == pytest.approx((100.0, 100.0))


@pytest.mark.parametrize(
    ("ms", "outcome", "change"),
    [(105.0, "regression", -0.05), (95.0, "improvement", 0.05), (100.5, "ok", -0.005)],
)
def test_a_slower_step_is_a_regression_with_a_negative_change(ms: float, outcome: str, change: float) -> None:
    found = judge(steps(ms, ms, ms), QUIET, suspects=SUSPECTS)
    assert (found.outcome, found.suspects) == (outcome, SUSPECTS)
    assert step_change(steps(ms, ms, ms)).change == pytest.approx(change)


def test_a_reason_names_the_metric_the_change_and_what_the_row_sees() -> None:
    assert judge(steps(108.0, 108.0, 108.0), QUIET).reason == "step time 8.0% worse (sees ≥ 1.5%)"
    assert judge(steps(92.0, 92.0, 92.0), QUIET).reason == "step time 8.0% better (sees ≥ 1.5%)"
    assert judge(QUIET, QUIET).reason is None


def test_a_change_under_the_floor_is_never_a_regression_however_certain() -> None:
    before, now = steps(*[100.0] * 50), steps(*[100.9] * 50)
    assert judge(now, before).outcome == "ok"
    assert judge(steps(*[101.1] * 50), before).outcome == "regression"
    assert judge(steps(*[101.1] * 50), before, policy=Policy(floor=0.02)).outcome == "ok"
    assert judge(steps(*[102.1] * 50), before, policy=Policy(floor=0.02)).outcome == "regression"


def test_a_change_within_the_noise_is_no_regression() -> None:
    loud = steps(97.0, 100.0, 103.0)
    assert judge(steps(100.0, 103.0, 106.0), loud).outcome == "noisy"
    assert judge(steps(100.0, 103.0, 106.0), QUIET).outcome != "regression"
    assert judge(steps(103.0, 103.0, 103.0), QUIET).outcome == "regression"


def test_a_noisy_row_states_the_smallest_change_it_could_see() -> None:
    found = judge(steps(90.0, 100.0, 110.0), steps(90.0, 100.0, 110.0))
    (change,) = found.changes
    assert (found.outcome, change.outcome) == ("noisy", "noisy")
    assert (
        found.reason == f"step time: only a change of {change.sees:.1%} or more could have been seen, not one of 5.0%"
    )
    assert change.sees > 0.05


def test_a_change_larger_than_the_noise_is_seen_in_a_noisy_row() -> None:
    assert judge(steps(180.0, 200.0, 220.0), steps(90.0, 100.0, 110.0)).outcome == "regression"
    assert judge(steps(45.0, 50.0, 55.0), steps(90.0, 100.0, 110.0)).outcome == "improvement"


def test_one_launch_with_other_work_is_not_hidden_by_the_others() -> None:
    before = steps(*[100.0] * 3, flops_per_step=100)
    odd = record(*[launch(flops_per_step=flops) for flops in (100, 50, 100)])
    found = judge(odd, before)
    assert found.outcome == "incomparable"
    assert "100, now 50" in str(found.reason)


def test_launches_without_the_metric_count_as_looks_too() -> None:
    """Otherwise a row in doubt would get launches for ever if none of them has the metric in doubt."""
    policy = Policy(first=3, last=10)
    before = record(*[launch(compute_ms=50.0 + number / 100) for number in range(3)])
    with_it = [launch(compute_ms=100.0 + number / 100) for number in range(4)]
    early = judge(record(*with_it), before, policy=policy)
    assert early.doubtful
    late = judge(record(*with_it, *[launch()] * 6), before, policy=policy)
    assert not late.doubtful


def test_a_floor_for_all_rows_respects_a_rows_own_tolerance() -> None:
    policy = Policy(floor=0.1, gates=gates({"step_ms": {"tolerance": 0.05}}))
    assert judge(QUIET, QUIET, policy=policy).outcome == "ok"
    own = Policy(floor=0.1, gates=gates({"step_ms": {"floor": 0.02, "tolerance": 0.05}})).gate("step_ms")
    assert (getattr(own, "floor", None), getattr(own, "tolerance", None)) == (0.02, 0.05)


def test_more_launches_see_smaller_changes() -> None:
    seen = [step_change(steps(*[98.0, 102.0] * n), steps(*[98.0, 102.0] * n)).sees for n in (1, 2, 4, 8, 16)]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 5


def test_one_launch_a_side_is_too_few_to_say_ok() -> None:
    assert judge(steps(100.0), steps(100.0)).outcome == "noisy"


def test_the_interval_is_students_from_launches_and_prior() -> None:
    """Computed by hand. Both sides have two launches with logs ±d, none far enough out to lose weight.

    Degrees of freedom: 2 + 2 + 2 - 2 = 4, and t(0.975, 4) = 2.77645. ``sees`` is the change that passes the 99.5 %
    limit nine times in ten: t(0.995, 4) + t(0.9, 4). The limit has a margin for the noise of another night. One time in
    twenty, the variance is 4 / 0.710723 times its estimate, by χ². One of the four degrees of freedom is of that night.
    """
    d = 0.02
    side = steps(100 * math.exp(-d), 100 * math.exp(d))
    variance = (2 * 0.005**2 + (2 * d**2 + 2 * d**2) / CLIPPED) / 4
    error = math.sqrt(variance * (1 / 2 + 1 / 2))
    change = judge(side, side, priors=Priors(noise={("step_ms", False): Prior(noise=0.005, prior_df=2.0)})).change(
        "step_ms"
    )
    margin = math.sqrt(1 + (4 / 0.710723 - 1) / 4)
    assert change is not None
    assert change.interval == pytest.approx((-math.expm1(2.77645 * error), -math.expm1(-2.77645 * error)), rel=1e-5)
    assert change.sees == pytest.approx(math.expm1((margin * 4.60409 + 1.53321) * error), rel=1e-5)


def test_a_slow_baseline_launch_hides_no_regression_and_makes_no_improvement() -> None:
    before = steps(100.0, 100.1, 114.0, 99.9, 100.0)
    assert judge(steps(*[100.0] * 3), before).outcome == "ok"
    assert judge(steps(*[104.0] * 5), before).outcome == "regression"


def test_the_noise_of_similar_rows_decides_what_a_row_sees() -> None:
    quiet, loud = (
        learn([steps(*(100 + spread * noise for spread in (-1, 0, 1.2))) for noise in (a, 1.1 * a, 0.9 * a)])
        for a in (0.1, 2.0)
    )
    now = steps(101.5, 101.5, 101.5)
    assert judge(now, QUIET, priors=quiet).outcome == "regression"
    assert judge(now, QUIET, priors=loud).outcome != "regression"


def test_a_host_bound_row_learns_from_host_bound_rows() -> None:
    def rows(noise: float, host_ms: float) -> list[Record]:
        spreads = (noise, noise * 1.1, noise * 0.9)
        return [steps(100 - spread, 100.0, 100 + spread, host_ms=host_ms) for spread in spreads]

    found = learn([*rows(0.2, 50.0), *rows(3.0, 100.0)])
    assert set(found.noise) == {("step_ms", False), ("step_ms", True)}
    assert found.noise["step_ms", False].noise < 0.005 < found.noise["step_ms", True].noise
    assert learn(rows(0.2, 50.0)).noise["step_ms", True] == found.noise["step_ms", False], (
        "where there are none, from all"
    )
    assert learn([]) == Priors()


def test_a_host_bound_row_learns_from_its_own_machine_first() -> None:
    def rows(noise: float, machine: str, host_ms: float) -> list[Record]:
        found = [steps(100 - spread, 100.0, 100 + spread, host_ms=host_ms) for spread in (noise, 1.1 * noise)]
        return [dataclasses.replace(one, environment={"machine": machine}) for one in 2 * found]

    every = [*rows(0.2, "calm", 100.0), *rows(9.0, "busy", 100.0), *rows(0.2, "busy", 50.0)]
    calm, busy, new = (learn(every, machine) for machine in ("calm", "busy", "new"))
    assert calm.noise["step_ms", True].noise < 0.005 < 0.05 < busy.noise["step_ms", True].noise
    assert new == learn(every), "a machine without baselines has what all teach"
    assert calm.noise["step_ms", False] == busy.noise["step_ms", False] == new.noise["step_ms", False]


@pytest.mark.parametrize(("host_ms", "outcome"), [(54.0, "noisy"), (20.0, "regression")])
def test_a_busy_host_makes_host_bound_rows_noisy_and_not_red(host_ms: float, outcome: str) -> None:
    """FSDP1 ran on two H200s of a shared host. Six minutes after four launches, seven launches were 17 % slower with
    nothing changed. In a row that is not host-bound, that is a regression."""
    before = steps(53.6, 58.7, 52.2, 50.4, host_ms=host_ms, compute_ms=38.8)
    now = steps(60.5, 63.3, 65.0, 62.1, 66.0, 61.8, host_ms=host_ms * 1.1, compute_ms=38.8)
    found = judge(now, before)
    assert found.outcome == outcome
    kernels = "its kernels take as long as before (sees ≥ 1.2%)"
    assert (kernels in (found.reason or "")) == (outcome == "noisy"), "they are judged all the same"


@pytest.mark.parametrize(
    ("step_ms", "parts", "bound"),
    [
        pytest.param(42.0, {"host_ms": 40.0, "compute_ms": 37.0}, True, id="as-long-as-the-step"),
        pytest.param(209.7, {"host_ms": 188.1, "compute_ms": 45.2, "exposed_communication_ms": 15.0}, True, id="zero3"),
        pytest.param(1.62, {"host_ms": 0.03, "compute_ms": 1.38}, False, id="product-that-the-power-cap-slows"),
        pytest.param(
            58.5, {"host_ms": 45.7, "compute_ms": 39.2, "exposed_communication_ms": 19.3}, False, id="messages"
        ),
        pytest.param(638.2, {"host_ms": 634.9, "compute_ms": 627.4}, False, id="more-launches-than-a-device-holds"),
        pytest.param(100.0, {"compute_ms": 50.0}, False, id="not-measured"),
    ],
)
def test_a_step_is_host_bound_if_its_device_waits_for_the_host(
    step_ms: float, parts: dict[str, float], bound: bool
) -> None:
    assert host_bound(steps(step_ms, **parts)) == bound


@pytest.mark.parametrize(("host_ms", "outcome"), [(50.0, "regression"), (100.0, "noisy"), (None, "noisy")])
def test_host_bound_rows_are_not_red_on_another_machine(host_ms: float | None, outcome: str) -> None:
    """A host-bound FSDP2 step took 50.1 ms on the baseline's machine and 81.1 ms on another machine of the kind. The
    kernels were the same and took the same time. On a CPU the host is the device."""

    def took(ms: float) -> Record:
        times = [0.97 * ms, ms, 1.03 * ms, ms, ms]
        return steps(*times, **({} if host_ms is None else {"compute_ms": 90.0, "host_ms": host_ms * ms / 100}))

    before, now = took(100.0), took(162.0)
    there = judge(elsewhere(now), before)
    assert there.outcome == outcome
    assert (ANOTHER_HOST in (there.reason or "")) == (outcome == "noisy")
    assert judge(now, before).outcome == "regression"


def elsewhere(one: Record) -> Record:
    """The record, measured on another machine of the kind."""
    return dataclasses.replace(one, environment={**one.environment, "machine": "4567cdef"})


def test_a_machine_without_an_id_may_be_another_one() -> None:
    unknown: dict[str, Any] = {"environment": {"must_match": {}, "suspects": {}, "machine": ""}}

    def took(ms: float) -> Record:
        times = [0.97 * ms, ms, 1.03 * ms, ms, ms]
        return record(*(launch(each, compute_ms=90.0, host_ms=ms) for each in times), **unknown)

    there = judge(took(162.0), took(100.0))
    assert (there.outcome, str(there.reason).endswith(UNKNOWN_HOST)) == ("noisy", True)
    assert judge(took(162.0), took(100.0), against="main").outcome == "regression", "one machine, whichever it is"
    device = judge(*(record(*[launch(ms)] * 5, **unknown) for ms in (103.0, 100.0)))
    known = judge(*(record(*[launch(ms)] * 5) for ms in (103.0, 100.0)))
    assert device.changes[0].sees > known.changes[0].sees


# Repeated looks


def test_the_looks_together_spend_the_error_budget_once() -> None:
    """The sum over all looks bounds the error, however the looks depend on each other."""
    for first in range(1, 12):
        for more in range(12):
            policy = Policy(first=first, last=first + more)
            shares = [policy.share(launches) for launches in range(first, first + more + 1)]
            assert sum(shares) == pytest.approx(1), (first, more)
    looks = Policy(first=3, last=10)
    assert [looks.share(launches) for launches in range(3, 11)] == pytest.approx([0, 0, *[0.02] * 5, 0.9])


LOOKS = Policy(first=3, last=10)


def test_the_first_launches_alone_make_no_regression() -> None:
    found = judge(steps(110.0, 110.0, 110.0), QUIET, policy=LOOKS)
    assert (found.outcome, found.doubtful) == ("ok", True)
    found = judge(steps(*[110.0] * 5), QUIET, policy=LOOKS)
    assert (found.outcome, found.doubtful) == ("regression", False)


@pytest.mark.parametrize(
    ("now", "doubtful"),
    [
        ([100.0] * 3, False),
        ([100.9] * 3, False),  # under the floor
        ([101.5] * 3, True),
        ([99.0, 101.0, 104.0], True),
        ([*[101.5] * 3, *[100.0] * 3], False),  # cleared by fresh launches
        ([95.0] * 3, False),  # an improvement fails nothing
        ([101.2] * 10, False),  # no looks are left
    ],
)
def test_a_row_is_in_doubt_only_while_it_can_become_a_regression(now: list[float], doubtful: bool) -> None:
    assert judge(steps(*now), QUIET, policy=LOOKS).doubtful is doubtful


def test_an_improvement_is_confirmed_if_it_fails_the_test() -> None:
    both = dataclasses.replace(LOOKS, fail_on_improvement=True)
    found = judge(steps(90.0, 90.0, 90.0), QUIET, policy=both)
    assert (found.outcome, found.doubtful) == ("ok", True)
    found = judge(steps(*[90.0] * 5), QUIET, policy=both)
    assert (found.outcome, found.doubtful) == ("improvement", False)
    assert (found.fails(ci=False, on_improvement=True), found.fails(ci=True)) == (True, False)


def test_with_fail_on_improvement_each_direction_gets_half_the_error() -> None:
    one = Policy(error=1 / 3000)
    assert one.error_of(2) == 1 / 6000
    assert dataclasses.replace(one, fail_on_improvement=True).error_of(2) == 1 / 12000
    assert Policy(error=0.5, fail_on_improvement=True).error_of(1) == ERROR_MOST / 2


def test_a_row_gets_no_launches_that_cannot_make_it_a_regression() -> None:
    """A change of 1.3 % is above the floor. At this noise it is far below what ten launches could confirm."""
    before = steps(96.0, 98.0, 100.0, 102.0, 104.0)
    policy = dataclasses.replace(LOOKS, error=1e-4)
    assert not judge(steps(99.3, 101.3, 103.3), before, policy=policy).doubtful
    assert judge(steps(103.3, 105.3, 107.3), before, policy=policy).doubtful


def test_a_row_red_by_memory_also_reports_its_step_time() -> None:
    """On an H200, attention that writes out its scores took 34 % more memory and made a step 85 % longer."""
    before = steps(100.0, 100.0, 100.0, peak_allocated_bytes=1000)
    found = judge(steps(*[185.0] * 3, peak_allocated_bytes=1340), before, policy=LOOKS)
    assert (found.outcome, found.doubtful) == ("regression", True)
    assert "peak allocated memory 34.0% worse (sees ≥ 0.5%); the step time may be 85.0% worse" in str(found.reason)
    done = judge(steps(*[185.0] * 5, peak_allocated_bytes=1340), before, policy=LOOKS)
    assert (done.outcome, done.doubtful) == ("regression", False)
    assert str(done.reason).startswith("step time 85.0% worse")


def test_a_row_with_other_work_is_not_in_doubt() -> None:
    before, now = steps(*[100.0] * 3, flops_per_step=7), steps(*[102.0] * 3, flops_per_step=8)
    found = judge(now, before, policy=LOOKS)
    assert (found.outcome, found.doubtful, found.changes[0].doubtful) == ("incomparable", False, True)


def test_a_smaller_error_budget_needs_stronger_evidence() -> None:
    now = steps(101.3, 101.3, 101.3)
    assert judge(now, QUIET).outcome == "regression"
    assert judge(now, QUIET, policy=Policy(error=1e-4)).outcome == "ok"
    assert judge(now, QUIET, policy=Policy(error=1.0)) == judge(now, QUIET), "ERROR_MOST holds for a single row too"


def test_the_metrics_of_a_row_share_its_error_budget() -> None:
    before, now = steps(100.0, 100.0, 100.0, compute_ms=50.0), steps(101.3, 101.3, 101.3, compute_ms=50.0)
    assert judge(now, before, policy=Policy(error=1e-3)).changes[0].sees > step_change(now).sees


def test_launches_are_averaged_geometrically() -> None:
    change = step_change(steps(50.0, 200.0), steps(400.0, 100.0))
    assert (change.before, change.now, change.change) == pytest.approx((200.0, 100.0, 0.5))


# Memory, within half a percent


@pytest.mark.parametrize(
    ("now", "outcome"),
    [(1000, "ok"), (1004, "ok"), (1005, "ok"), (1006, "regression"), (996, "ok"), (994, "improvement")],
)
def test_peak_memory_may_move_by_half_a_percent(now: int, outcome: str) -> None:
    before = metric("peak_allocated_bytes", [1000 * MIB] * 3)
    assert judge(metric("peak_allocated_bytes", [now * MIB] * 3), before).outcome == outcome


def test_memory_that_varies_in_the_baseline_is_judged_by_its_noise() -> None:
    """The baseline's launches are 3 % apart, so 2 % more is noise. A deterministic gate would be red every night."""
    before = metric("peak_allocated_bytes", [1000 * MIB, 1010 * MIB, 1015 * MIB, 1005 * MIB, 1030 * MIB])
    change = judge(metric("peak_allocated_bytes", [1030 * MIB] * 3), before).change("peak_allocated_bytes")
    assert change is not None and change.outcome == "noisy" and 0.02 < change.sees < 0.06
    assert judge(metric("peak_allocated_bytes", [1100 * MIB] * 3), before).outcome == "regression"


def test_memory_that_differs_in_every_launch_is_noisy() -> None:
    before = metric("peak_allocated_bytes", [gb * 1000 * MIB for gb in (16.5, 21.3, 17.0, 18.0, 16.4)])
    assert judge(metric("peak_allocated_bytes", [17_000 * MIB] * 3), before).outcome == "noisy"


def test_memory_is_judged_even_if_the_step_time_is_noisy() -> None:
    before, now = steps(90.0, 110.0, peak_allocated_bytes=1000), steps(90.0, 110.0, peak_allocated_bytes=1100)
    found = judge(now, before)
    assert found.outcome == "regression"
    assert str(found.reason).startswith("peak allocated memory 10.0% worse (sees ≥ 0.5%); step time: only a change of")
    assert [change.outcome for change in found.changes] == ["noisy", "regression"]


@pytest.mark.parametrize(
    ("before", "now", "outcome", "change"),
    [(0, 0, "ok", 0.0), (0, 1, "regression", -math.inf), (1, 0, "improvement", 1.0)],
)
def test_zero_is_a_value_like_any_other(before: int, now: int, outcome: str, change: float) -> None:
    name = "peak_allocated_bytes"
    found = judge(metric(name, [now] * 3), metric(name, [before] * 3))
    assert (found.outcome, found.change(name)) == (
        outcome,
        Change(metric=name, before=before, now=now, change=change, sees=0.005, outcome=outcome),
    )


VARYING = [1000 * MIB, 1010 * MIB, 1030 * MIB]


@pytest.mark.parametrize(
    ("before", "now", "outcome", "doubtful"),
    [
        (VARYING, [0, 0, 0], "improvement", False),
        ([0, 0, 0], VARYING, "regression", False),
        ([0, 0, 0], [0, 0, 0], "ok", False),
        (VARYING, [0, 1000 * MIB, 1010 * MIB], "noisy", True),
        ([0, 1000 * MIB, 1010 * MIB], VARYING, "noisy", True),
        ([0, 0, 1000 * MIB], [0, 0, 0], "noisy", True),
    ],
)
@pytest.mark.parametrize("against", ["", "main"])
def test_a_zero_among_varying_figures_is_no_error(
    before: list[int], now: list[int], outcome: str, doubtful: bool, against: str
) -> None:
    name = "peak_allocated_bytes"
    found = judge(metric(name, now), metric(name, before), policy=LOOKS, against=against)
    memory = found.change(name)
    assert memory is not None and (memory.outcome, memory.doubtful) == (outcome, doubtful)
    assert ("launches of both sides have 0, and others have not" in str(found.reason)) == (outcome == "noisy")
    last = judge(metric(name, now), metric(name, before), policy=Policy(first=3, last=3), against=against)
    assert not last.doubtful, "looks end"


def test_a_row_with_a_zero_foresees_a_noisy_night() -> None:
    with_zero = metric("peak_allocated_bytes", [0, 1000 * MIB, 1010 * MIB])
    (memory,) = [one for one in foreseen(with_zero, stored=3, launches=3, policy=LOOKS) if one.metric != "step_ms"]
    assert memory.outcome == "noisy"


# FLOPs, exactly


def flops_against(before: int, now: int) -> tuple[Verdict, Change]:
    found = judge(metric("flops_per_step", [now] * 3), metric("flops_per_step", [before] * 3), suspects=SUSPECTS)
    assert [change.metric for change in found.changes] == ["step_ms", "flops_per_step"]
    return found, found.changes[1]


def test_the_same_flops_are_ok() -> None:
    found, change = flops_against(1000, 1000)
    assert found == Verdict(outcome="ok", changes=found.changes, suspects=SUSPECTS)
    assert change == Change(metric="flops_per_step", before=1000, now=1000, change=0.0, sees=0.0, outcome="ok")


@pytest.mark.parametrize(
    ("before", "now", "fraction", "words"),
    [
        (1000, 1250, -0.25, "FLOPs: 1,000, now 1,250: the step does other work than the baseline's"),
        (1000, 750, 0.25, "FLOPs: 1,000, now 750: the step does other work than the baseline's"),
        (1000, 0, 1.0, "FLOPs: 1,000, now 0: the step does other work than the baseline's"),
        (0, 1000, -math.inf, "FLOPs: 0, now 1,000: the step does other work than the baseline's"),
    ],
)
def test_more_or_fewer_flops_are_other_work(before: int, now: int, fraction: float, words: str) -> None:
    found, change = flops_against(before, now)
    assert found == Verdict(outcome="incomparable", reason=words, changes=found.changes, suspects=SUSPECTS)
    assert change == Change(
        metric="flops_per_step", before=before, now=now, change=fraction, sees=0.0, outcome="incomparable"
    )


@pytest.mark.parametrize("by", [1, -1])
def test_a_single_flop_of_many_counts_and_is_shown(by: int) -> None:
    found, _ = flops_against(10**15, 10**15 + by)
    assert (found.outcome, found.reason) == (
        "incomparable",
        f"FLOPs: 1,000,000,000,000,000, now {10**15 + by:,}: the step does other work than the baseline's",
    )


# Counts


def counted(before: Sequence[float], now: Sequence[float], name: str = "kernels") -> tuple[Verdict, Change]:
    found = judge(metric(name, now), metric(name, before), suspects=SUSPECTS)
    assert [change.metric for change in found.changes] == ["step_ms", name]
    return found, found.changes[1]


@pytest.mark.parametrize(
    ("now", "outcome", "change"),
    [(1000, "ok", 0.0), (1001, "regression", -0.001), (999, "improvement", 0.001), (0, "improvement", 1.0)],
)
def test_one_more_kernel_is_worse_and_one_fewer_is_better(now: int, outcome: str, change: float) -> None:
    found, kernels = counted([1000] * 3, [now] * 3)
    assert (found.outcome, found.suspects) == (outcome, SUSPECTS)
    assert kernels == Change(metric="kernels", before=1000, now=now, change=near(change), sees=0.0, outcome=outcome)


def test_a_reason_shows_the_full_count_and_the_unchanged_step_time() -> None:
    found, change = counted([20_971_520] * 3, [20_971_524] * 3, "collective_bytes")
    assert found.reason == (
        "bytes into collectives a step, all ranks: 20,971,520 → 20,971,524; the step time did not change (sees ≥ 1.5%)"
    )
    assert movement(change) == "4 more"
    found, change = counted([0.5] * 3, [0.25] * 3, "collectives")
    assert found.reason == "collectives a step, all ranks: 0.5 → 0.25"
    assert movement(change) == "0.25 fewer"
    found, change = counted([0] * 3, [1] * 3, "graph_breaks")
    assert (found.outcome, found.reason) == (
        "regression",
        "graph breaks: 0 → 1; the step time did not change (sees ≥ 1.5%)",
    )


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        ([92.0, 92.0, 92.0], "the step time is 8.0% better (sees ≥ 1.5%)"),
        ([108.0, 108.0, 108.0], "step time 8.0% worse (sees ≥ 1.5%); kernels a step: 10 → 12"),
        ([90.0, 100.0, 110.0], "step time: only a change of 79.8% or more could have been seen, not one of 5.0%"),
    ],
)
def test_the_reason_of_a_changed_count_also_reports_the_step_time(ms: list[float], words: str) -> None:
    found = judge(steps(*ms, kernels=12), steps(100.0, 100.0, 100.0, kernels=10))
    assert found.outcome == "regression"
    assert words in str(found.reason)


def test_the_reason_says_if_the_step_time_is_in_doubt() -> None:
    found = judge(steps(*[102.0] * 3, kernels=12), steps(*[100.0] * 3, kernels=10), policy=LOOKS)
    assert (
        found.reason
        == f"kernels a step: 10 → 12; the step time may be 2.0% worse (sees ≥ {found.changes[0].sees:.1%}) too"
    )
    assert found.doubtful, "it gets the launches that tell"
    done = judge(steps(*[102.0] * 10, kernels=12), steps(*[100.0] * 3, kernels=10), policy=LOOKS)
    assert (done.outcome, done.changes[0].outcome, done.doubtful) == ("regression", "regression", False)


@pytest.mark.parametrize(
    ("before", "now", "outcome"),
    [
        ([10, 10, 12], [20] * 3, "regression"),
        ([10, 10, 12], [14] * 3, "not judged"),  # as far from the baseline as its launches are from each other
        ([10, 10, 12], [10] * 3, "not judged"),
        ([10, 10, 10], [10, 12, 12], "regression"),
        ([10, 10, 10], [10, 1000, 1000], "regression"),
        ([10, 10, 10], [10, *[11] * 9], "regression"),
        ([10, 10, 10], [10, 12, 10], "ok"),
        ([10, 10, 10], [10, 10, 12, 12], "ok"),
        ([10, 10, 10], [9, 10, 11], "not judged"),
        ([10, 10, 10], [11, 12, 12], "regression"),
        ([10, 10, 10], [9, 8, 9], "improvement"),
    ],
)
def test_most_launches_decide_whether_a_count_changed(before: list[int], now: list[int], outcome: str) -> None:
    """Counts vary if kernels are tuned by timing them, or if a step ends an epoch in one launch of three."""
    found, change = counted(before, now)
    assert change.outcome == outcome
    assert found.outcome == ("ok" if outcome == "not judged" else outcome)


@pytest.mark.parametrize(
    ("now", "outcome", "doubtful"),
    [
        ([10, 12, 12], "ok", True),
        ([10, 12, 12, 10], "ok", False),
        ([10, 12, 12, 12, 10], "regression", False),
        ([12, 12, 12], "regression", False),
        ([10, 8, 8], "improvement", False),
    ],
)
def test_a_count_that_most_launches_show_is_confirmed_by_fresh_launches(
    now: list[int], outcome: str, doubtful: bool
) -> None:
    found = judge(metric("kernels", now), metric("kernels", [10] * 3), policy=LOOKS)
    assert (found.outcome, found.doubtful) == (outcome, doubtful)


def test_odd_launches_are_named() -> None:
    found, kernels = counted([1066] * 3, [1066, 1067, 1066])
    assert (found.outcome, kernels.now) == ("ok", 1066)
    assert oddity(kernels) == "1 of 3 launches counted 1,067 instead of 1,066"
    found, kernels = counted([1066] * 3, [1066, *[1067] * 4])
    assert str(found.reason).startswith(
        "kernels a step: 1,066 → 1,067 (1 of 5 launches counted 1,066 instead of 1,067); the step time did not change"
    )
    _, kernels = counted([9] * 3, [9, 9, 8, 10, 9])
    assert oddity(kernels) == "2 of 5 launches counted 8 and 10 instead of 9"


def test_memory_that_one_launch_alone_needs_is_named_and_not_judged() -> None:
    name = "peak_allocated_bytes"
    found = judge(metric(name, [11_193 * MIB, 111_930 * MIB, 11_193 * MIB]), metric(name, [11_193 * MIB] * 3))
    memory = found.change(name)
    assert memory is not None and (found.outcome, memory.now) == ("ok", 11_193 * MIB)
    assert oddity(memory) == "1 of 3 launches needed 111,930 MiB instead of 11,193 MiB"
    red = judge(metric(name, [11_193 * MIB, *[111_930 * MIB] * 2]), metric(name, [11_193 * MIB] * 3))
    assert red.outcome == "regression"


def test_kernel_counts_of_compiled_steps_are_shown_and_not_judged() -> None:
    """Inductor pads a product if that was faster while it compiled, so another machine may run one more kernel."""
    before, now = (steps(*[100.0] * 3, kernels=kernels, graph_breaks=0) for kernels in (1066, 1067))
    found = judge(now, before)
    kernels = found.change("kernels")
    assert kernels is not None
    assert (found.outcome, kernels.before, kernels.now, movement(kernels)) == ("ok", 1066, 1067, GENERATED)


def test_a_gate_can_judge_the_kernel_count_of_a_compiled_step() -> None:
    before, now = (steps(*[100.0] * 3, kernels=kernels, graph_breaks=0) for kernels in (60, 61))
    assert judge(now, before, policy=Policy(gates=gates({"kernels": {"generated": False}}))).outcome == "regression"
    with pytest.raises(ValueError, match="the gate of kernels takes generated=True or generated=False"):
        gates({"kernels": {"tolerance": 0.1}})


def test_a_compiled_step_with_one_more_collective_or_graph_break_is_red() -> None:
    before = steps(*[100.0] * 3, kernels=1066, collectives=4, graph_breaks=0)
    assert judge(steps(*[100.0] * 3, kernels=1066, collectives=5, graph_breaks=0), before).outcome == "regression"
    assert judge(steps(*[100.0] * 3, kernels=1067, collectives=4, graph_breaks=1), before).outcome == "regression"


def test_counts_are_compared_with_the_digits_of_the_stored_file() -> None:
    """Fractions are cut to six digits. Whole numbers keep all digits."""
    assert counted([as_stored(12345.25)] * 3, [12345.25] * 3)[0].outcome == "ok"
    assert counted([as_stored(10.0**15)] * 3, [10.0**15 + 1] * 3)[0].outcome == "regression"


# Several metrics


def test_the_worst_metric_decides_and_all_metrics_as_bad_are_named() -> None:
    before = steps(100.0, 100.0, 100.0, peak_allocated_bytes=1000, flops_per_step=1000)
    now = steps(110.0, 110.0, 110.0, peak_allocated_bytes=1100, flops_per_step=1000)
    found = judge(now, before)
    assert found.outcome == "regression"
    assert found.reason == "step time 10.0% worse (sees ≥ 1.5%); peak allocated memory 10.0% worse (sees ≥ 0.5%)"
    assert [change.outcome for change in found.changes] == ["regression", "regression", "ok"]


@pytest.mark.parametrize(("ms", "alone"), [(50.0, "improvement"), (100.0, "ok"), (200.0, "regression")])
def test_other_work_is_neither_faster_nor_slower(ms: float, alone: str) -> None:
    before, now = steps(100.0, 100.0, 100.0, flops_per_step=1000), steps(ms, ms, ms, flops_per_step=900)
    found = judge(now, before)
    assert (found.outcome, [change.outcome for change in found.changes]) == ("incomparable", [alone, "incomparable"])
    assert found.reason == "FLOPs: 1,000, now 900: the step does other work than the baseline's"


def test_other_work_is_reported_in_a_noisy_row_too() -> None:
    before, now = steps(90.0, 110.0, flops_per_step=1000), steps(90.0, 110.0, flops_per_step=900)
    found = judge(now, before)
    assert (found.outcome, [change.outcome for change in found.changes]) == ("incomparable", ["noisy", "incomparable"])


def test_metrics_without_a_gate_are_not_judged() -> None:
    found = judge(metric("tokens_per_s", [1.0] * 3), metric("tokens_per_s", [100.0] * 3))
    assert (found.outcome, [change.metric for change in found.changes]) == ("ok", ["step_ms"])
    with pytest.raises(ValueError, match="tokens_per_s is not judged"):
        compare_constant("tokens_per_s", [1.0], [1.0], policy=Policy())


@pytest.mark.parametrize("pattern", [[100.0, 100.0, 150.0], [100.0, 100.0, 100.0, 200.0]])
def test_throughput_shows_slow_steps_that_the_median_hides(pattern: list[float]) -> None:
    """Every third step stalls, or every fourth step has a reduction."""

    def ran(times_ms: list[float]) -> Record:
        traces = [trace(rank, step_ms=times_ms * 10) for rank in range(2)]
        return record(*[reduce(traces, peak_tflops=None)] * 5)

    found = judge(ran(pattern), ran([100.0] * len(pattern)))
    assert (found.outcome, [(change.metric, change.outcome) for change in found.changes][:2]) == (
        "regression",
        [("step_ms", "ok"), ("samples_per_s", "regression")],
    )
    assert (found.reason or "").startswith("samples/s ")
    both = judge(ran([150.0]), ran([100.0]))
    assert "samples/s" not in (both.reason or ""), "which follows from the step time"
    wide = Policy(gates={"step_ms": {"floor": 1.5, "tolerance": 2.0}})
    assert judge(ran(pattern), ran([100.0] * len(pattern)), policy=wide).outcome == "ok"
    own = Policy(gates={**wide.gates, "samples_per_s": {"floor": 0.1}})
    assert judge(ran(pattern), ran([100.0] * len(pattern)), policy=own).outcome == "regression"


def test_a_case_can_set_its_own_limits() -> None:
    """The limits apply to one metric, and the others keep theirs. The reason names the limit that applied."""
    before = steps(90.0, 100.0, 110.0, peak_allocated_bytes=1000)
    now = steps(90.0, 100.0, 110.0, peak_allocated_bytes=1008)
    assert judge(now, before).outcome == "regression"
    wide = Policy(gates={"peak_allocated_bytes": {"floor": 0.01}})
    assert judge(now, before, policy=wide).outcome == "noisy"
    wider = Policy(gates={"peak_allocated_bytes": {"floor": 0.01}, "step_ms": {"tolerance": 0.2}})
    assert (judge(now, before, policy=wider).reason or "").endswith("could have been seen, not one of 20.0%")
    widest = Policy(gates={"peak_allocated_bytes": {"floor": 0.01}, "step_ms": {"tolerance": 2.0}})
    assert judge(now, before, policy=widest).outcome == "ok"


@pytest.mark.parametrize(
    ("metric", "limits", "said"),
    [
        (
            "tokens_per_s",
            {"floor": 0.1},
            "'tokens_per_s' has no floor or tolerance to set: type one of step_ms, ",
        ),
        ("flops_per_step", {"floor": 0.1}, "'flops_per_step' has no floor"),
        ("step_ms", {"limit": 0.1}, "the gate of step_ms takes floor and tolerance, not 'limit'"),
        ("step_ms", {"floor": "5%"}, "the floor of step_ms must be a fraction above 0, such as 0.05, not '5%'"),
        ("step_ms", {"tolerance": True}, "the tolerance of step_ms must be"),
        ("step_ms", {"tolerance": math.nan}, "the tolerance of step_ms must be"),
        ("step_ms", {"tolerance": 0}, "the tolerance of step_ms must be"),
        ("step_ms", {"floor": 0.1}, "step_ms with a floor of 0.1 and a tolerance of 0.05 would always be noisy"),
        ("step_ms", {"tolerance": 0.01}, "step_ms with a floor of 0.01 and a tolerance of 0.01 would always be noisy"),
    ],
)
def test_impossible_limits_are_refused(metric: str, limits: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        gates({metric: limits})


def test_a_floor_at_the_tolerance_makes_no_row_noisy() -> None:
    quiet = steps(*[100.0] * 5)
    assert judge(quiet, quiet, policy=Policy(floor=0.05)).outcome == "ok"
    assert judge(steps(*[109.0] * 5), quiet, policy=Policy(floor=0.05)).outcome == "regression"


def test_the_floor_of_a_case_wins_over_the_floor_of_the_run() -> None:
    before, now = steps(*[100.0] * 5), steps(*[102.0] * 5)
    assert judge(now, before, policy=Policy(floor=0.001)).outcome == "regression"
    gates = {"step_ms": {"floor": 0.05, "tolerance": 0.2}}
    assert judge(now, before, policy=Policy(floor=0.001, gates=gates)).outcome == "ok"


def test_a_metric_that_the_baseline_lacks_is_not_judged() -> None:
    assert judge(metric("flops_per_step", [7] * 3), QUIET).outcome == "ok"


def test_a_missing_judged_metric_makes_the_row_incomparable() -> None:
    before = steps(100.0, 100.0, 100.0, peak_allocated_bytes=1, flops_per_step=7, mfu=0.5, start_s=9.0)
    assert judge(QUIET, before, suspects=SUSPECTS) == Verdict(
        outcome="incomparable",
        reason="the baseline has peak allocated memory, FLOPs and this run has not;"
        " bring that back, or accept its loss",
        suspects=SUSPECTS,
    )


def test_a_step_that_is_no_longer_compiled_is_incomparable() -> None:
    found = judge(QUIET, steps(100.0, 100.0, 100.0, graph_breaks=0, recompiles=1))
    assert (found.outcome, found.reason) == (
        "incomparable",
        "the baseline has graph breaks, recompilations and this run has not: its step was compiled and this one was"
        " not; compile it again, or accept it as another step",
    )


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.gate is None])
def test_a_metric_without_a_gate_may_go_missing(name: str) -> None:
    found = judge(QUIET, metric(name, [0.5] * 3))
    assert (found.outcome, [change.metric for change in found.changes]) == ("ok", ["step_ms"])


@pytest.mark.parametrize(
    ("name", "outcome"), [("peak_allocated_bytes", "regression"), ("flops_per_step", "incomparable")]
)
def test_nan_does_not_pass(name: str, outcome: str) -> None:
    assert compare_constant(name, [1.0], [math.nan], policy=Policy()).outcome == outcome
    assert compare_constant(name, [math.nan], [1.0], policy=Policy()).outcome == outcome


def test_a_time_that_is_not_positive_does_not_pass() -> None:
    for broken in (math.nan, 0.0, -1.0):
        try:
            found = compare([[100.0]], [broken])
            outcome = weigh("step_ms", found, error=0.005, policy=Policy()).outcome
        except ValueError:
            outcome = "refused"
        assert outcome in ("regression", "refused")


# Without a comparison


def test_a_row_without_a_baseline_is_not_compared() -> None:
    assert judge(QUIET, None, suspects=SUSPECTS) == Verdict(
        outcome="no-baseline",
        reason="there is no baseline for this case on this hardware; --save-baseline stores one",
        compared=False,
    )


def test_rows_under_other_conditions_are_incomparable() -> None:
    found = judge(
        steps(200.0, 200.0),
        QUIET,
        must_match=(("power_cap_w", 700, 600), ("link", "SYS", None)),
        suspects=SUSPECTS,
    )
    assert found == Verdict(
        outcome="incomparable",
        reason="the baseline is of other conditions: power_cap_w was 700, is 600; link was SYS, is not known",
        suspects=SUSPECTS,
    )


def test_two_pairs_with_a_tiny_error_budget_see_no_change() -> None:
    before, now = steps(100.0, 104.0), steps(101.0, 99.0)
    found = judge(now, before, against="main", policy=Policy(error=1e-9, first=2, last=2))
    assert (found.outcome, found.reason) == (
        "noisy",
        "step time: no change could have been seen, however large",
    )
    (change,) = found.changes
    assert movement(change) == "1.9% better (sees nothing)"


def test_what_a_rate_sees_is_in_its_own_unit() -> None:
    """A step that takes 130 % longer makes a rate fall by 56.5 %."""
    before, now = (record(*[launch(ms, samples_per_s=4000 / ms)] * 3) for ms in (100.0, 230.0))
    same = Policy(gates={"samples_per_s": {"floor": 0.01}})
    changes = judge(now, before, policy=same).changes
    rate = changes[1]
    assert (rate.metric, rate.outcome) == ("samples_per_s", "regression")
    assert rate.sees == pytest.approx(1 - 1 / (1 + changes[0].sees))
    assert rate.tolerance == pytest.approx(0.2), "that of a time that grows by 25 %"
    loud = [record(*(launch(100.0, samples_per_s=40 * by) for by in (0.9, 1.0, 1.1)))] * 2
    noisy = judge(*loud).changes[1]
    assert noisy.outcome == "noisy" and 0.2 < noisy.sees < 1


def test_a_cold_first_pair_is_left_out_and_told() -> None:
    """The first launch of the other side took 30 % longer, and the code did not change."""
    before, now = steps(130.0, 100.0, 100.2, 99.9, 100.1), steps(100.0, 100.1, 100.0, 100.2, 99.9)
    found = judge(now, before, against="main", policy=Policy(first=3, last=10))
    assert (found.outcome, found.reason) == (
        "ok",
        "the first pair was left out: a cold start, 23.1% from the others",
    )
    early = judge(steps(*[100.0] * 3), steps(130.0, 100.0, 100.2), against="main", policy=Policy(first=3, last=10))
    assert early.doubtful, "a fourth pair tells whether the first one was cold"


def test_two_sides_are_judged_in_pairs() -> None:
    """Launches differ by half, but the two launches of a pair only by 3 %."""
    before = steps(100.0, 150.0, 80.0, 120.0, 99.0, 101.0)
    now = steps(*(1.03 * launch.metrics["step_ms"] for launch in before.launches))
    assert judge(now, before).outcome == "noisy"
    found = judge(now, before, against="main", suspects=SUSPECTS)
    assert (found.outcome, found.suspects) == ("regression", SUSPECTS)
    assert found.reason is not None and found.reason.startswith("step time 3.0% worse (sees ≥ ")


def test_constant_metrics_of_two_sides_are_compared_as_with_a_baseline() -> None:
    before, now = (record(*[launch(flops_per_step=flops)] * 2) for flops in (100, 101))
    found = judge(now, before, against="main")
    assert (found.outcome, found.reason) == (
        "incomparable",
        "FLOPs: 100, now 101: the step does other work than main's",
    )


def test_reasons_name_the_other_side_instead_of_the_baseline() -> None:
    lacks = judge(record(*[launch()] * 2), record(*[launch(flops_per_step=1)] * 2), against="main")
    assert lacks.reason == "main has FLOPs and this run has not; bring that back, or accept its loss"
    once, twice = record(launch(), launch(compute_ms=1.0)), record(*[launch(compute_ms=1.0)] * 2)
    for now, before in ((once, twice), (twice, once)):
        odd = judge(now, before, against="main")
        words = "not every launch has compute time of the device, so that there are no pairs"
        assert (odd.outcome, odd.reason) == ("incomparable", words)
    other = judge(QUIET, QUIET, against="main", must_match=(("power_cap_w", 700, 600),))
    assert other.reason == "main is of other conditions: power_cap_w was 700, is 600"


OOM = record(failed("oom", "rank 0: no room"))
LATE_OOM = record(launch(), failed("oom", "rank 0: no room"))


@pytest.mark.parametrize("out", [OOM, LATE_OOM], ids=["first launch", "later launch"])
def test_out_of_memory_is_compared_with_the_baseline(out: Record) -> None:
    why_red_in_ci = "there is no baseline for this case on this hardware; --save-baseline stores one"
    assert judge(out, None) == Verdict(outcome="oom", reason=f"rank 0: no room; {why_red_in_ci}", compared=False)
    assert judge(out, OOM) == Verdict(outcome="oom", reason="out of memory, as in the baseline")
    assert judge(out, QUIET) == Verdict(
        outcome="regression", reason="out of memory where the baseline fitted: rank 0: no room"
    )
    assert judge(QUIET, out) == Verdict(outcome="improvement", reason="fits in memory where the baseline did not")


@pytest.mark.parametrize("outcome", ["invalid", "timeout", "crash"])
@pytest.mark.parametrize("baseline", [None, QUIET, OOM], ids=["none", "ok", "oom"])
@pytest.mark.parametrize("must_match", [(), (("device", "A", "B"),)], ids=["same", "other"])
def test_a_failed_launch_gives_the_row_its_outcome_and_reason(
    outcome: str, baseline: Record | None, must_match: tuple[tuple[str, str, str], ...]
) -> None:
    found = judge(record(launch(), failed(outcome, "because")), baseline, must_match=must_match, suspects=SUSPECTS)
    assert found == Verdict(outcome=outcome, reason="because", suspects=SUSPECTS)


# How a test ends


FAILING = {"regression", "environment", "incomparable", "invalid", "timeout", "crash"}


@pytest.mark.parametrize(
    ("ci", "compared", "failing"),
    [
        (False, True, FAILING),
        (False, False, FAILING),
        (True, True, FAILING),
        (True, False, set(OUTCOMES)),
    ],
)
def test_these_outcomes_fail_the_test(ci: bool, compared: bool, failing: set[str]) -> None:
    verdicts = [Verdict(outcome=outcome, compared=compared) for outcome in OUTCOMES]
    assert {verdict.outcome for verdict in verdicts if verdict.fails(ci=ci)} == failing


@pytest.mark.parametrize(
    ("now", "outcome"), [(QUIET, "no-baseline"), (OOM, "oom"), (LATE_OOM, "oom")], ids=["ok", "oom", "later oom"]
)
def test_a_row_without_a_baseline_fails_only_in_ci(now: Record, outcome: str) -> None:
    found = judge(now, None)
    assert (found.outcome, found.fails(ci=False), found.fails(ci=True)) == (outcome, False, True)
    assert not judge(now, now).fails(ci=True)


def test_every_launch_outcome_is_a_row_outcome_and_others_are_refused() -> None:
    assert set(LAUNCH_OUTCOMES) <= set(OUTCOMES)
    with pytest.raises(ValueError, match="outcome 'fine' is unknown; known: ok, saved, "):
        Verdict(outcome="fine")


def test_a_change_is_found_by_its_metric() -> None:
    assert judge(QUIET, QUIET).change("mfu") is None
    assert judge(QUIET, QUIET).change("step_ms") == judge(QUIET, QUIET).changes[0]


@pytest.mark.parametrize(
    ("fraction", "words"), [(-0.1234, "12.3% worse"), (0.0004, "0.04% better"), (2e-7, "under 0.01% better")]
)
def test_a_change_is_never_rounded_to_nothing(fraction: float, words: str) -> None:
    change = Change(metric="step_ms", before=1.0, now=1.0, change=fraction, sees=0.01, outcome="regression")
    assert describe(change) == f"step time {words} (sees ≥ 1.0%)"


def test_a_small_slowdown_on_another_machine_is_no_regression() -> None:
    """A slowdown of 2 % is a regression on the same machine. On another machine it could be the machine itself."""
    before, now = (steps(*[ms] * 5, compute_ms=95.0, host_ms=50.0) for ms in (100.0, 102.0))
    here = judge(now, before)
    there = judge(elsewhere(now), before)
    assert (here.outcome, there.outcome) == ("regression", "ok")
    step = there.change("step_ms")
    assert step is not None and 0.02 < step.sees < 0.045


# The machine, not the code


CALM = {"sm_mhz": [1980.0, 1980.0], "hw_thermal": [0.0, 0.0], "other_processes": [0.0, 0.0]}
THROTTLED = {**CALM, "sm_mhz": [1980.0, 1410.0]}
CLOCK = "SM clock 1,410 MHz on device 1, baseline 1,980 MHz"


def on(*launches: tuple[float, dict[str, list[float]]], **metrics: float) -> Record:
    """A record of launches with these step times under these conditions."""
    return record(*(launch(ms, conditions=conditions, **metrics) for ms, conditions in launches))


def test_a_slowdown_that_conditions_explain_is_environment_and_fails() -> None:
    before, now = on(*[(100.0, CALM)] * 3), on(*[(130.0, THROTTLED)] * 3)
    found = judge(now, before, suspects=SUSPECTS)
    assert (found.outcome, found.suspects, list(map(str, found.causes))) == ("environment", SUSPECTS, [CLOCK])
    assert found.reason == f"step time 30.0% worse (sees ≥ 1.5%); {PERHAPS_THE_CODE}: {CLOCK}"
    assert found.fails(ci=False)
    step = dataclasses.replace(step_change(now, before), outcome="environment", why=PERHAPS_THE_CODE)
    assert found.changes == (step,)


def test_conditions_that_explain_a_part_of_a_slowdown_say_how_much() -> None:
    """A clock at 71 % makes a step 1.4 times as long, and this step takes 1.8 times as long."""
    found = judge(on(*[(180.0, THROTTLED)] * 3), on(*[(100.0, CALM)] * 3))
    said = f"step time 80.0% worse (sees ≥ 1.5%); {PERHAPS_THE_CODE}: {CLOCK} (explains 40.4% at most)"
    assert (found.outcome, found.reason) == ("environment", said)


def test_throttling_of_one_side_is_a_regression_of_that_side() -> None:
    found = judge(on(*[(130.0, THROTTLED)] * 3), on(*[(100.0, CALM)] * 3), against="main")
    assert (found.outcome, found.causes) == ("regression", ())


def test_a_slowdown_under_the_baselines_conditions_is_a_regression() -> None:
    for conditions in (CALM, THROTTLED):
        found = judge(on(*[(130.0, conditions)] * 3), on(*[(100.0, conditions)] * 3))
        assert (found.outcome, found.causes) == ("regression", ())


def test_a_slowdown_beyond_what_conditions_explain_is_a_regression() -> None:
    """A clock at 71 % makes a step 1.4 times as long, and this step takes three times as long."""
    found = judge(on(*[(300.0, THROTTLED)] * 3), on(*[(100.0, CALM)] * 3))
    assert (found.outcome, list(map(str, found.causes))) == ("regression", [CLOCK])
    assert found.reason == "step time 200.0% worse (sees ≥ 1.5%)"


def test_memory_and_flops_never_blame_the_machine() -> None:
    before = on(*[(100.0, CALM)] * 3, peak_allocated_bytes=1000, flops_per_step=7)
    found = judge(on(*[(130.0, THROTTLED)] * 3, peak_allocated_bytes=1100, flops_per_step=7), before)
    assert str(found.reason).startswith("peak allocated memory 10.0% worse (sees ≥ 0.5%); step time 30.0% worse")
    assert [change.outcome for change in found.changes] == ["environment", "regression", "ok"]
    more = judge(on(*[(130.0, THROTTLED)] * 3, peak_allocated_bytes=1000, flops_per_step=8), before)
    assert more.outcome == "incomparable"


def test_a_count_is_red_even_if_the_machine_explains_the_step_time() -> None:
    before, now = on(*[(100.0, CALM)] * 3, kernels=500), on(*[(130.0, THROTTLED)] * 3, kernels=501)
    found = judge(now, before)
    time = f"step time 30.0% worse (sees ≥ 1.5%); {PERHAPS_THE_CODE}: {CLOCK}"
    assert (found.outcome, found.reason) == ("regression", f"kernels a step: 500 → 501; {time}")


def test_harmless_conditions_are_named_and_change_no_outcome() -> None:
    found = judge(on(*[(100.0, THROTTLED)] * 3), on(*[(100.0, CALM)] * 3))
    assert (found.outcome, found.reason, list(map(str, found.causes))) == ("ok", None, [CLOCK])
    faster = judge(on(*[(90.0, THROTTLED)] * 3), on(*[(100.0, CALM)] * 3))
    assert faster.outcome == "improvement"


@pytest.mark.parametrize("stored", [{}, CALM], ids=["older than conditions", "with conditions"])
def test_without_stored_conditions_only_abnormal_conditions_count(stored: dict[str, list[float]]) -> None:
    before = on(*[(100.0, stored)] * 3)
    assert judge(on(*[(130.0, {"hw_thermal": [0.6, 0.0]})] * 3), before).outcome == "environment"
    assert judge(on(*[(130.0, {"other_processes": [0.0, 2.0]})] * 3), before).outcome == "environment"
    assert judge(on(*[(130.0, THROTTLED)] * 3), before).outcome == ("environment" if stored else "regression")


def test_a_slow_rank_or_two_speeds_of_steps_are_environment() -> None:
    even, uneven = ({"rank_compute_ms": [90.0, slow]} for slow in (90.0, 99.0))
    assert judge(on(*[(109.0, uneven)] * 3), on(*[(100.0, even)] * 3)).outcome == "environment"
    slow = [bool(int(bit)) for bit in "1101111011100111110111001"]
    moody = [(110.0 if each else 100.0) + 0.1 * (at % 3) for at, each in enumerate(slow)]
    now = dataclasses.replace(launch(110.1), step_ms=moody, steady_from=0)
    found = judge(record(*[now] * 3), record(*[dataclasses.replace(launch(100.0), step_ms=[100.0] * 40)] * 3))
    assert (found.outcome, [cause.of for cause in found.causes]) == ("environment", ["step"])


def test_disturbed_launches_are_left_out_once_there_are_enough_others() -> None:
    """Their conditions decide, not their figures. In the second case the two disturbed launches are the fast ones."""
    before = on(*[(100.0, CALM)] * 5)
    beside = {**CALM, "other_processes": [0.0, 1.0]}
    mixed = [(130.0, beside)] * 2 + [(100.0, CALM)] * 5
    found = judge(on(*mixed), before, policy=LOOKS)
    assert (found.outcome, found.changes[0].now) == ("ok", near(100.0))
    assert found.reason == (
        "2 of 7 launches left out for what they ran under: other processes: 1 on device 1, baseline 0"
    )
    found = judge(on(*[(100.0, beside)] * 2, *[(130.0, CALM)] * 5), before, policy=LOOKS)
    assert (found.outcome, found.changes[0].now, found.causes) == ("regression", near(130.0), ())
    assert found.reason == (
        "step time 30.0% worse (sees ≥ 1.2%);"
        " 2 of 7 launches left out for what they ran under: other processes: 1 on device 1, baseline 0"
    )


@pytest.mark.parametrize(
    ("disturbed", "calm", "outcome", "doubtful"),
    [
        (2, 3, "noisy", True),  # fresh launches may decide
        (4, 4, "noisy", True),
        (4, 5, "regression", False),  # enough calm launches
        (6, 4, "regression", False),  # no launches are left, and the calm ones are as slow
        (9, 1, "environment", False),  # a single calm launch may be an outlier
        (5, 0, "environment", True),  # the machine may become calm
        (10, 0, "environment", False),
    ],
)
def test_a_row_with_disturbed_launches_needs_enough_calm_ones_to_be_red(
    disturbed: int, calm: int, outcome: str, doubtful: bool
) -> None:
    now = on(*[(130.0, THROTTLED)] * disturbed, *[(130.0, CALM)] * calm)
    found = judge(now, on(*[(100.0, CALM)] * 5), policy=LOOKS)
    assert (found.outcome, found.doubtful) == (outcome, doubtful)


def test_a_slowdown_that_calm_launches_lack_is_environment() -> None:
    before = on(*[(100.0, CALM)] * 5)
    for calm_ms in (101.0, 85.0):  # as fast as the baseline, and faster by about as much as the others are slower
        now = on(*[(130.0, THROTTLED)] * 8, *[(calm_ms, CALM)] * 2)
        found = judge(now, before, policy=LOOKS)
        assert (found.outcome, found.changes[0].why) == ("environment", NOT_THE_CODE)


def test_the_code_is_not_excluded_if_calm_launches_have_a_part_of_the_slowdown() -> None:
    now = on(*[(130.0, THROTTLED)] * 8, *[(110.0, CALM)] * 2)
    found = judge(now, on(*[(100.0, CALM)] * 5), policy=LOOKS)
    assert (found.outcome, found.changes[0].why) == ("environment", PERHAPS_THE_CODE)


def test_clocks_a_little_lower_do_not_acquit_the_code() -> None:
    """Clocks 5 % lower explain a slowdown of 5 %, and half of one of 10 %."""
    before = on(*[(100.0, CALM)] * 5)
    for slower in (1.03, 1.05, 1.1):
        found = judge(on(*[(100 * slower, {**CALM, "sm_mhz": [1980.0, 1881.0]})] * 5), before, policy=LOOKS)
        assert (found.outcome, found.doubtful) == ("environment", True)
        assert PERHAPS_THE_CODE in str(found.reason)


def test_left_out_launches_spend_no_extra_error() -> None:
    """Every started launch is at most one look, whichever launches are judged in it."""
    for started in range(3, 11):
        for left_out in range(started):
            looks = dataclasses.replace(LOOKS, left_out=left_out)
            assert looks.share(started - left_out) == LOOKS.share(started)
    before = on(*[(100.0, CALM)] * 5)
    now = on(*[(100.0, THROTTLED)] * 2, *[(101.5, CALM)] * 8)
    assert judge(now, before, policy=LOOKS).doubtful is False, "none is left to start"


def test_a_nan_is_a_regression_and_not_environment() -> None:
    before, now = on(*[(100.0, CALM)] * 3), on(*[(130.0, THROTTLED)] * 3)
    broken = dataclasses.replace(before.launches[0], metrics={"step_ms": 100.0})
    object.__setattr__(broken, "metrics", {"step_ms": math.nan})
    assert judge(dataclasses.replace(now, launches=(broken,) * 3), before).outcome == "regression"


@pytest.mark.parametrize(("step", "waits"), [("ok", True), ("regression", False)])
def test_a_row_red_only_by_throughput_waits_for_its_step_time(step: str, waits: bool) -> None:
    """While the median step time is in doubt, the row gets more launches. A red throughput does not end that."""
    rate = Change(metric="samples_per_s", before=40.0, now=30.0, change=-0.25, sees=0.05, outcome="regression")
    median = Change(metric="step_ms", before=10.0, now=13.0, change=-0.3, sees=0.1, outcome=step, doubtful=step == "ok")
    assert Verdict(outcome="regression", changes=(median, rate)).doubtful is waits


def test_one_metric_leads_and_every_time_metric_names_what_paces_it() -> None:
    assert [name for name, metric in METRICS.items() if metric.leads] == [next(iter(METRICS))]
    assert all((metric.paced_by is not None) == isinstance(metric.gate, Statistical) for metric in METRICS.values())


def test_any_metric_paced_by_the_device_is_judged_without_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry in the table of metrics decides, not its name. A noisier host on another machine is no excuse."""
    monkeypatch.setitem(METRICS, "kernel_ms", dataclasses.replace(METRICS["compute_ms"], title="kernel time"))
    before, now = (
        record(*[launch(100.0 + number / 10, kernel_ms=ms + number / 100, host_ms=100.0) for number in range(5)])
        for ms in (50.0, 55.0)
    )
    found = judge(elsewhere(now), before)
    kernel = found.change("kernel_ms")
    assert kernel is not None and kernel.outcome == "regression" and found.outcome == "regression"
    step = found.change("step_ms")
    assert step is not None and step.outcome == "noisy"
