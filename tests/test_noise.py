"""The comparison of two sets of launches, checked against theory, other libraries and simulated launches."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from samples import near
from scipy import stats

from pytest_trainbench.judge.noise import DEFAULT, PRIOR_DF_MOST, Prior, Spread, compare, learned, paired

QUIET = [100.0, 100.2, 99.9, 100.1, 99.8]


@pytest.mark.parametrize("launches", [(2, 2), (3, 3), (5, 3), (5, 10), (10, 10)])
def test_without_outliers_the_noise_estimate_is_right_on_average(launches: tuple[int, int]) -> None:
    """The test takes the root mean square over 4,000 pairs of sets. It allows 3 % for the clip and 2 % for the draw."""
    none = Prior(noise=1.0, prior_df=0)
    rows = [[100 * math.exp(x) for x in row] for row in np.random.default_rng(5).normal(0, 0.01, (4000, sum(launches)))]
    found = [compare([row[: launches[0]]], row[launches[0] :], prior=none).noise for row in rows]
    assert math.sqrt(np.mean(np.square(found))) == pytest.approx(0.01, rel=0.05)


def test_equal_launches_show_no_change() -> None:
    found = compare([QUIET], QUIET)
    assert found.change == 0
    assert found.before == pytest.approx(100.0, rel=1e-3)


def test_units_do_not_matter_and_swapping_the_sets_flips_the_sign() -> None:
    now = [104.0, 103.0, 104.5]
    one, other = compare([QUIET], now), compare([[ms / 1000 for ms in QUIET]], [ms / 1000 for ms in now])
    assert (one.change, one.error) == pytest.approx((other.change, other.error), rel=1e-6)
    back = compare([now], QUIET)
    assert (back.change, back.error) == pytest.approx((-one.change, one.error), rel=1e-6)


def test_without_outliers_the_comparison_is_close_to_students_test() -> None:
    """With a prior of no weight, the result is close to scipy's pooled t-test on the logarithms."""
    draw = np.random.default_rng(7)
    before, now = np.exp(draw.normal(4.6, 0.02, 400)), np.exp(draw.normal(4.61, 0.02, 400))
    found = compare([list(before)], list(now), prior=Prior(noise=0.02, prior_df=0))
    theirs = stats.ttest_ind(np.log(now), np.log(before))
    assert found.change / found.error == pytest.approx(theirs.statistic, rel=0.05)
    assert found.freedom == theirs.df == 798
    assert found.noise == pytest.approx(np.std(np.log([*before / before.mean(), *now / now.mean()])), rel=0.06)


def test_an_outlier_has_little_weight_at_any_distance() -> None:
    without = compare([QUIET[:4]], QUIET)
    slow, slower = compare([[*QUIET[:4], 114.0]], QUIET), compare([[*QUIET[:4], 1140.0]], QUIET)
    assert abs(slow.change - without.change) < 0.004, "a mean would move by 2.6 %"
    assert slower.change == pytest.approx(slow.change, abs=1e-3)
    assert slow.counted_before < 4.5 and slow.counted_now == pytest.approx(5, abs=0.3)


def test_equal_launches_do_not_prove_zero_noise() -> None:
    same = compare([[100.0] * 3], [100.0] * 3)
    assert same.noise == pytest.approx(DEFAULT.noise * math.sqrt(DEFAULT.prior_df / (DEFAULT.prior_df + 4)))
    assert compare([[100.0] * 3], [100.0] * 3, prior=Prior(noise=0.02, prior_df=10)).error > 3 * same.error


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.2])
def test_the_default_prior_adds_no_degrees_of_freedom(noise: float) -> None:
    """With three launches a side, 95 of 100 intervals hold the true change, and more if the prior's noise is larger."""
    rng = np.random.default_rng(3)
    found = [compare([before], now) for before, now in np.exp(noise * rng.standard_normal((2000, 2, 3))).tolist()]
    held = [abs(one.change) <= one.reach(0.025) for one in found]
    assert np.mean(held) > 0.94
    assert {one.freedom for one in found} == {4}


def test_machine_variance_is_added_and_more_launches_do_not_reduce_it() -> None:
    there = compare([QUIET], QUIET, spread=Spread(sd=0.01))
    assert there.error == pytest.approx(math.hypot(compare([QUIET], QUIET).error, math.sqrt(2) * 0.01))
    assert there.after(10**6).error > math.sqrt(2) * 0.01
    visits = compare([QUIET], QUIET, spread=Spread(of_noise=0.5))
    assert visits.error == compare([QUIET], QUIET, spread=Spread(sd=0.5 * visits.noise)).error


def test_after_predicts_the_comparison_with_more_launches() -> None:
    now = compare([QUIET], QUIET[:3])
    later = now.after(10)
    assert (later.freedom, later.counted_now, later.launches_now) == (now.freedom + 7, near(10, abs=0.6), 10)
    assert later.reach(0.001) < now.reach(0.001)
    assert now.drift(3, 0.01) == 0 < now.drift(10, 0.01)


def test_an_error_chance_of_zero_needs_an_infinite_change() -> None:
    assert compare([QUIET], QUIET).reach(0) == math.inf


def test_nan_stays_nan_and_a_time_of_zero_is_refused() -> None:
    assert math.isnan(compare([QUIET], [math.nan]).change)
    with pytest.raises(ValueError):
        compare([QUIET], [0.0])


# Launches in pairs


def drifting(rows: int, pairs: int, noise: float, *, drift: float = 0.0, seed: int = 3) -> list[list[list[float]]]:
    """Draw rows of two equal sides that take turns (A B B A …), with this noise and drift."""
    x = np.random.default_rng(seed).normal(0, noise, (rows, 2 * pairs)) + drift * np.arange(2 * pairs)
    mine = np.arange(2 * pairs) % 4 % 3 > 0
    return [np.exp([row[~mine], row[mine]]).tolist() for row in x]


def test_without_outliers_pairs_are_close_to_students_paired_test() -> None:
    draw = np.random.default_rng(7)
    before, now = np.exp(draw.normal(4.6, 0.02, 400)), np.exp(draw.normal(4.61, 0.02, 400))
    found = paired(list(before), list(now))
    theirs = stats.ttest_rel(np.log(now), np.log(before))
    assert found.change / found.error == pytest.approx(theirs.statistic, rel=0.05)
    assert found.freedom == theirs.df == 399
    assert found.before * found.now == pytest.approx(np.exp(np.log([before, now]).mean()) ** 2)


def test_a_change_common_to_both_launches_of_a_pair_is_not_noise() -> None:
    before = [100.0, 140.0, 90.0, 250.0, 100.0]
    found = paired(before, [ms * 1.05 for ms in before])
    assert found.change == pytest.approx(math.log(1.05))
    assert found.noise < DEFAULT.noise


@pytest.mark.parametrize("pairs", [4, 10])
@pytest.mark.parametrize("drift", [0.01, -0.03])
def test_a_steady_drift_cancels_over_two_pairs(pairs: int, drift: float) -> None:
    ((before, now),) = drifting(1, pairs, 0.0, drift=drift)
    assert paired(before, now).change == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("pairs", [3, 5, 10])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_intervals_of_pairs_hold_the_true_change_whatever_the_prior(pairs: int, noise: float) -> None:
    """The prior may expect much less noise. Still the intervals of 93.5 to 97 % of 3,000 rows hold the true change."""
    found = [paired(*sides, prior=Prior(noise=0.002, prior_df=10)) for sides in drifting(3000, pairs, noise)]
    assert 0.935 <= np.mean([abs(each.change) <= each.reach(0.025) for each in found]) <= 0.97


def test_equal_pairs_get_the_noise_of_similar_rows() -> None:
    same = paired([100.0] * 3, [100.0] * 3, prior=Prior(noise=0.02, prior_df=8))
    assert same.noise == pytest.approx(0.02 * math.sqrt(8 / 10))
    assert same.freedom == 2, "nor for better known"


def test_an_outlier_pair_has_little_weight() -> None:
    found = paired([100.0] * 10, [*QUIET, *QUIET[1:], 114.0])
    assert abs(found.change) < 0.003, "a mean moves by 1.3 %"
    assert found.counted_now == found.counted_before < 9.5


def test_after_adds_launches_to_both_sides_of_pairs() -> None:
    now = paired(QUIET, QUIET[::-1])
    later = now.after(20)
    assert (later.freedom, later.launches_now) == (19, 20)
    assert later.error == pytest.approx(now.error / 2)
    assert now.drift(5, 0.01) == 0 < now.drift(10, 0.01)


def drawn(rows: int, launches: int, noise: float, worth: float, seed: int = 1) -> list[list[float]]:
    """Draw rows with scaled inverse χ² variances, as the prior assumes."""
    draw = random.Random(seed)
    spreads = [noise * math.sqrt(worth / (2 * draw.gammavariate(worth / 2, 1))) for _ in range(rows)]
    return [[100 * math.exp(draw.gauss(0, spread)) for _ in range(launches)] for spread in spreads]


@pytest.mark.parametrize(("noise", "worth"), [(0.003, 2.0), (0.02, 6.0)])
def test_learning_recovers_the_prior_that_rows_were_drawn_from(noise: float, worth: float) -> None:
    found = learned(drawn(3000, 5, noise, worth))
    assert found is not None
    assert (found.noise, found.prior_df) == (near(noise, rel=0.1), near(worth, rel=0.25))


def test_similar_rows_give_a_strong_prior_and_few_rows_a_weak_one() -> None:
    alike = [learned(drawn(rows, 5, 0.003, 1000)) for rows in (4, 1000)]
    assert [prior and prior.prior_df for prior in alike] == [4, PRIOR_DF_MOST]


def test_too_few_rows_or_single_launches_give_no_prior() -> None:
    assert learned([QUIET, QUIET]) is None
    assert learned([[100.0]] * 50) is None


def test_a_noisy_row_is_not_shrunk_towards_quiet_rows() -> None:
    """One row of a hundred is five times as noisy. With the prior of the others, it would be red in one of a hundred
    nights without a change. The error budget allows one of six thousand."""
    draw = np.random.default_rng(11)
    quiet = [[100 * math.exp(x) for x in row] for row in draw.normal(0, 0.002, (99, 5))]
    prior = learned(quiet)
    assert prior is not None and prior.prior_df > 10
    odd = [[100 * math.exp(x) for x in row] for row in draw.normal(0, 0.01, (2000, 10))]
    chance = 1 / 6000

    def red(rows: Sequence[Sequence[float]]) -> float:
        found = [compare([row[:5]], row[5:], prior=prior) for row in rows]
        return float(np.mean([one.change > one.reach(chance) for one in found]))

    assert red(odd) < 0.002
    kept = compare([odd[0][:5]], odd[0][5:], prior=prior)
    assert kept.freedom == 8 and kept.noise > 0.005, "as its own launches have it"
    alike = [[100 * math.exp(x) for x in row] for row in draw.normal(0, 0.002, (500, 10))]
    heeded = [compare([row[:5]], row[5:], prior=prior).freedom > 8 for row in alike]
    assert np.mean(heeded) > 0.97, "and those that are like the others learn from them"


def test_a_prior_from_identical_launches_has_noise_above_zero() -> None:
    found = learned([[100.0] * 3] * 5)
    assert found is not None and found.noise > 0


@pytest.mark.parametrize("launches", [(3, 3), (5, 3), (5, 10)])
def test_the_95_percent_interval_holds_the_true_change_in_95_percent(launches: tuple[int, int]) -> None:
    """Of 4,000 intervals, 93 to 97 % must hold it. Four standard errors of the draw are 1.4 %."""
    prior = Prior(noise=0.01, prior_df=3.0)
    held = 0
    rows = drawn(4000, sum(launches), prior.noise, prior.prior_df)
    for row in rows:
        found = compare([row[: launches[0]]], row[launches[0] :], prior=prior)
        held += abs(found.change) <= found.reach(0.025)
    assert 0.93 <= held / len(rows) <= 0.97
