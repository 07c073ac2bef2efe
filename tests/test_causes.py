"""Which conditions may have slowed a launch, by how much, and which were the same for the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from samples import case, launch, near, record

from pytest_trainbench.judge.attribution import (
    Bimodal,
    Cause,
    bimodal,
    explained,
    of_launches,
    of_record,
    slow_rank,
    typical,
    unlike,
)
from pytest_trainbench.schema.conditions import CONDITIONS, LostShare, LostSpeed, Present
from pytest_trainbench.schema.record import Launch, Record

Facts = Mapping[str, list[float]]


def under(facts: Facts, *, step_ms: float = 100.0, mesh: str = "dp4", launches: int = 3, **metrics: Any) -> Record:
    """A record of launches under these conditions."""
    one = launch(step_ms, conditions=facts, **metrics)
    return record(*[one] * launches, of=case(mesh=mesh))


@pytest.mark.parametrize(
    ("now", "before", "words", "longer"),
    [
        (
            {"sm_mhz": [1980.0, 1410.0]},
            {"sm_mhz": [1980.0, 1965.0]},
            "SM clock 1,410 MHz on device 1, baseline 1,965 MHz",
            1965 / 1410,
        ),
        ({"memory_mhz": [2619.0]}, {"memory_mhz": [3201.0]}, "memory clock 2,619 MHz, baseline 3,201 MHz", 3201 / 2619),
        ({"power_limit_w": [500.0]}, {"power_limit_w": [700.0]}, "power limit 500 W, baseline 700 W", 1.4),
        (
            {"hw_thermal": [0.5]},
            {"hw_thermal": [0.0]},
            "thermal slowdown by the hardware in 50% of the window, baseline 0%",
            2.0,
        ),
        (
            {"sw_thermal": [0.0, 0.2, 0.0]},
            {},
            "thermal slowdown by the driver in 20% of the window on device 1, baseline not known",
            1.25,
        ),
        ({"other_processes": [0.0, 0.0, 1.0]}, {}, "other processes: 1 on device 2, baseline not known", math.inf),
        ({"other_cores": [0.4]}, {"other_cores": [0.1]}, "other processes used 40% of the cores, baseline 10%", 1.5),
        (
            {"other_cores": [0.4], "waiting": [0.55]},
            {"other_cores": [0.1], "waiting": [0.1]},
            "other processes used 40% of the cores, baseline 10%",
            2.0,
        ),
        (
            {"stolen": [0.2]},
            {"stolen": [0.0]},
            "the hypervisor withheld 20% of the cores' time, baseline 0%",
            1.25,
        ),
        (
            {"quota": [1.0]},
            {"quota": [0.0]},
            "the container's CPU quota ran out in 100% of its periods, baseline 0%",
            math.inf,
        ),
        (
            {"host_rate": [6.25]},
            {"host_rate": [12.5]},
            "the host reads 6.25 objects/µs, baseline 12.5 objects/µs",
            2**0.65,
        ),
        ({"cpu_mhz": [1200.0]}, {"cpu_mhz": [2400.0]}, "clock of the fastest core 1,200 MHz, baseline 2,400 MHz", 2.0),
    ],
)
def test_a_cause_gives_both_figures_and_the_slowdown_it_may_explain(
    now: Facts, before: Facts, words: str, longer: float
) -> None:
    (cause,) = unlike(now, before)
    assert str(cause) == words
    assert math.exp(cause.slows) == pytest.approx(longer)


def test_busy_cores_cost_nothing_if_no_rank_waited_for_a_core() -> None:
    (cause,) = unlike({"other_cores": [0.4], "waiting": [0.01]}, {"other_cores": [0.0], "waiting": [0.01]})
    assert cause.slows == 0.0


def margins(name: str) -> tuple[float, float, float]:
    """The baseline's figure, a figure worse by less than the margin, and a figure worse by more."""
    match CONDITIONS[name].rule:
        case LostSpeed(margin=margin):
            return 1000.0, 1000.0 * (1 - 0.9 * margin), 1000.0 * (1 - 1.1 * margin)
        case LostShare(margin=margin):
            return 0.3, 0.3 + 0.9 * margin, 0.3 + 1.1 * margin
        case Present():
            return 1.0, 1.0, 2.0
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name, condition in CONDITIONS.items() if condition.rule])
def test_a_condition_within_its_margin_of_the_baseline_is_no_cause(name: str) -> None:
    usual, near, worse = margins(name)
    assert unlike({name: [usual]}, {name: [usual]}) == []
    assert unlike({name: [near]}, {name: [usual]}) == []
    assert len(unlike({name: [worse]}, {name: [usual]})) == 1
    assert unlike({name: [usual]}, {name: [worse]}) == [], "better is no cause"
    assert unlike({}, {name: [usual]}) == [], "what is not known is not guessed"
    assert unlike({name: [worse]}, {"power_w": [1.0]}) == [], "nor for a baseline that knew others"


def test_a_device_at_its_power_cap_is_no_cause() -> None:
    """An H200 always multiplies matrices at 700 W. Only a lower clock than the baseline's shows a loss."""
    capped = {"sw_power_cap": [1.0], "power_w": [699.0], "temperature_c": [70.0], "sm_mhz": [1600.0]}
    assert unlike(capped, capped) == []
    assert unlike(capped, {}) == []
    assert unlike(capped, {"sw_power_cap": [0.0], "power_w": [400.0], "temperature_c": [40.0]}) == []
    assert [cause.what for cause in unlike(capped, {"sm_mhz": [1750.0]})] == ["SM clock 1,600 MHz"]


@pytest.mark.parametrize(
    "name", ["sm_mhz", "power_limit_w", "quota", "host_rate", "cpu_mhz", "waiting", "sw_power_cap"]
)
def test_a_condition_without_a_normal_value_needs_a_baseline(name: str) -> None:
    assert unlike({name: [1.0]}, {}) == []


def test_typical_conditions_are_medians_over_launches_per_device() -> None:
    launches = [launch(conditions={"sm_mhz": [1980.0, each]}) for each in (1500.0, 1980.0, 1410.0)]
    assert typical([*launches, launch()]) == {"sm_mhz": [1980.0, 1500.0]}
    assert typical([]) == {}


@pytest.mark.parametrize(
    ("metrics", "counts"),
    [({}, True), ({"compute_ms": 90.0, "host_ms": 20.0}, False), ({"compute_ms": 90.0, "host_ms": 95.0}, True)],
    ids=["on a CPU", "on a device that its host keeps busy", "host-bound"],
)
def test_host_conditions_count_only_if_the_host_sets_the_step_time(metrics: dict[str, Any], counts: bool) -> None:
    calm, busy = under({"other_cores": [0.0]}, **metrics), under({"other_cores": [0.5]}, **metrics)
    assert bool(of_record(busy, calm)) is counts
    assert [bool(each) for each in of_launches(busy, calm)] == [counts] * 3


# How much a cause explains


def test_a_cause_explains_a_slowdown_if_it_accounts_for_half_of_it() -> None:
    clock = Cause(what="SM clock 1,800 MHz", usual="1,980 MHz", slows=math.log(1.1), of="device")
    assert explained(math.log(1.2), "step_ms", [clock]) == [clock]
    assert explained(math.log(1.22), "step_ms", [clock]) == []
    assert explained(math.nan, "step_ms", [clock]) == []
    assert explained(math.log(1.2), "compute_ms", [clock]) == [clock]


@pytest.mark.parametrize(("of", "blamed"), [("host", False), ("step", False), ("rank", True), ("device", True)])
def test_host_conditions_do_not_explain_compute_time(of: str, blamed: bool) -> None:
    cause = Cause(what="it", usual="not", slows=math.inf, of=of)
    assert bool(explained(0.1, "compute_ms", [cause])) is blamed
    assert explained(0.1, "step_ms", [cause]) == [cause]


# One slow rank


LONGER = "rank 3 computes 10.0% longer than {}, baseline 0.0%"
EVEN = [50.0, 50.2, 49.9, 50.1]


@pytest.mark.parametrize(
    ("mesh", "now", "before", "told"),
    [
        ("dp4", [50.0, 50.2, 49.9, 54.5], EVEN, "rank 3 computes 9.0% longer than {}, baseline 0.4%"),
        ("dp4", [50.0, 50.2, 49.9, 54.5], [], "rank 3 computes 9.0% longer than {}, baseline not known"),
        ("dp4", [50.0, 50.2, 49.9, 54.5], [50.0, 54.4, 50.0, 50.0], None),
        ("dp4", [55.0, 55.2, 54.9, 55.1], EVEN, None),
        ("dp4", [50.0, 50.0, 50.0, 51.0], EVEN, None),
        ("dp2-pp2", [50.0, 50.0, 60.0, 60.0], EVEN, None),
        ("dp2-pp2", [50.0, 50.0, 60.0, 66.0], [50.0, 50.0, 60.0, 60.0], LONGER),
        ("tp4", [50.0, 50.0, 50.0, 66.0], EVEN, None),
        ("dp2", [0.0, 0.0], [0.0, 0.0], None),  # the step only communicates
    ],
)
def test_a_slow_rank_is_named_among_ranks_with_the_same_work(
    mesh: str, now: list[float], before: list[float], told: str | None
) -> None:
    """Pipeline stages may compute for different times, and so may the ranks of a tensor-parallel group."""
    sides = [under({"rank_compute_ms": each} if each else {}, mesh=mesh) for each in (now, before)]
    found = slow_rank(sides[0], sides[1])
    assert (found and str(found)) == (told and told.format("its data-parallel peers"))


def test_a_slow_rank_explains_its_own_extra_compute_time() -> None:
    now, before = (under({"rank_compute_ms": [50.0, each]}, mesh="dp2") for each in (60.0, 50.0))
    cause = slow_rank(now, before)
    assert cause is not None
    assert (math.exp(cause.slows), cause.of) == (near(1.2), "rank")


# Bimodal times


def mixed(fast: int, slow: int, *, fast_ms: float = 100.0, slow_ms: float = 110.0) -> list[float]:
    """Bimodal times: two groups, each within 1 %, in an order without a period."""
    times = [fast_ms * (1 + 0.001 * (at % 10)) for at in range(fast)]
    for at in range(slow):
        times.insert(at * at * 7 % (len(times) + 1), slow_ms * (1 + 0.001 * (at % 10)))
    return times


def test_two_groups_of_times_are_found_with_their_shares() -> None:
    assert bimodal(mixed(30, 10)) == Bimodal(fast_ms=near(100.45), slow_ms=near(110.5, abs=0.1), slow_share=0.25)


@pytest.mark.parametrize(
    "times_ms",
    [
        mixed(40, 0),
        mixed(37, 3),  # a few slow ones are outliers
        mixed(30, 10, slow_ms=103.0),  # the groups are too close
        [100 * 1.01**at for at in range(40)],  # a slope, not two groups
        [100.0, 100.0, 110.0, 110.0, 110.0],  # too few times
        [100.0] * 40,
    ],
)
def test_times_of_one_group_are_not_split(times_ms: list[float]) -> None:
    assert bimodal(times_ms) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_many_steps_is_one_group(seed: int) -> None:
    import numpy as np

    noise = np.random.default_rng(seed)
    assert bimodal((100 * np.exp(0.05 * noise.standard_t(5, size=100))).tolist()) is None
    assert bimodal((100 * np.exp(0.05 * noise.uniform(size=100))).tolist()) is None


def stepping(step_ms: list[float]) -> Record:
    middle_ms = sorted(step_ms)[len(step_ms) // 2]
    return record(*[Launch(step_ms=step_ms, metrics={"step_ms": middle_ms})] * 3)


def test_bimodal_steps_explain_the_time_above_the_fast_group() -> None:
    (cause,) = of_record(stepping(mixed(16, 24)), stepping(mixed(40, 0)))
    assert str(cause) == "bimodal steps: 40% at 100.3 ms, 60% at 110.4 ms, baseline not bimodal"
    assert math.exp(cause.slows) == pytest.approx(1.1, abs=0.005)
    (cause,) = of_record(stepping(mixed(30, 10)), stepping(mixed(40, 0)))
    assert math.exp(cause.slows) == pytest.approx(1.0, abs=0.006), "the median step was a fast one"


def test_bimodal_steps_are_no_cause_if_the_baseline_is_bimodal_too() -> None:
    assert of_record(stepping(mixed(16, 24)), stepping(mixed(30, 10))) == []


def test_a_periodic_slow_step_belongs_to_the_code() -> None:
    assert of_record(stepping([100.0, 100.1, 110.0] * 12), stepping(mixed(40, 0))) == []


def test_bimodal_launches_are_reported() -> None:
    now = record(*map(launch, (100.0, 107.2, 107.0, 100.1, 107.1, 99.9, 107.0)))
    (cause,) = of_record(now, record(*map(launch, (100.0, 100.2, 100.1, 100.0, 99.9))))
    assert str(cause) == "bimodal launches: 43% at 100 ms, 57% at 107 ms, baseline not bimodal"
