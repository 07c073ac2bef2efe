"""What two sets of launches say of their difference, held against theory, other libraries and drawn launches."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from pytest_trainbench.noise import DEFAULT, WORTH_MOST, Prior, compare, learned

QUIET = [100.0, 100.2, 99.9, 100.1, 99.8]


@pytest.mark.parametrize("launches", [(2, 2), (3, 3), (5, 3), (5, 10), (10, 10)])
def test_without_outliers_the_noise_is_right_on_average(launches: tuple[int, int]) -> None:
    """Root mean square over 4,000 pairs of sets: within 3 % for the clip, and 2 % for what was drawn."""
    none = Prior(noise=1.0, worth=0)
    rows = [[100 * math.exp(x) for x in row] for row in np.random.default_rng(5).normal(0, 0.01, (4000, sum(launches)))]
    found = [compare(row[: launches[0]], row[launches[0] :], prior=none).noise for row in rows]
    assert math.sqrt(np.mean(np.square(found))) == pytest.approx(0.01, rel=0.05)


def test_the_same_launches_do_not_differ() -> None:
    found = compare(QUIET, QUIET)
    assert found.change == 0
    assert found.before == pytest.approx(100.0, rel=1e-3)


def test_a_change_of_unit_changes_nothing_and_swapping_turns_it_round() -> None:
    now = [104.0, 103.0, 104.5]
    one, other = compare(QUIET, now), compare([ms / 1000 for ms in QUIET], [ms / 1000 for ms in now])
    assert (one.change, one.error) == pytest.approx((other.change, other.error), rel=1e-6)
    back = compare(now, QUIET)
    assert (back.change, back.error) == pytest.approx((-one.change, one.error), rel=1e-6)


def test_without_outliers_it_is_nearly_students_test() -> None:
    """With a prior that is worth nothing, close to scipy's pooled t-test on the logarithms."""
    draw = np.random.default_rng(7)
    before, now = np.exp(draw.normal(4.6, 0.02, 400)), np.exp(draw.normal(4.61, 0.02, 400))
    found = compare(list(before), list(now), prior=Prior(noise=0.02, worth=0))
    theirs = stats.ttest_ind(np.log(now), np.log(before))
    assert found.change / found.error == pytest.approx(theirs.statistic, rel=0.05)
    assert found.freedom == theirs.df == 798
    assert found.noise == pytest.approx(np.std(np.log([*before / before.mean(), *now / now.mean()])), rel=0.06)


def test_an_outlier_counts_for_little_however_far_it_is() -> None:
    without = compare(QUIET[:4], QUIET)
    slow, slower = compare([*QUIET[:4], 114.0], QUIET), compare([*QUIET[:4], 1140.0], QUIET)
    assert abs(slow.change - without.change) < 0.004, "a mean would move by 2.6 %"
    assert slower.change == pytest.approx(slow.change, abs=1e-3)
    assert slow.counted_before < 4.5 and slow.counted_now == pytest.approx(5, abs=0.3)


def test_launches_that_agree_are_not_taken_for_no_noise() -> None:
    same = compare([100.0] * 3, [100.0] * 3)
    assert same.noise == pytest.approx(DEFAULT.noise * math.sqrt(DEFAULT.worth / (DEFAULT.worth + 4)))
    assert compare([100.0] * 3, [100.0] * 3, prior=Prior(noise=0.02, worth=10)).error > 3 * same.error


def test_the_variance_between_machines_is_added_and_no_launch_reduces_it() -> None:
    there = compare(QUIET, QUIET, apart=0.01)
    assert there.error == pytest.approx(math.hypot(compare(QUIET, QUIET).error, 0.01))
    assert there.after(10**6).error > 0.01


def test_more_launches_are_foreseen() -> None:
    now = compare(QUIET, QUIET[:3])
    later = now.after(10)
    assert (later.freedom, later.counted_now, later.launches_now) == (now.freedom + 7, pytest.approx(10, abs=0.6), 10)
    assert later.reach(0.001) < now.reach(0.001)
    assert now.drift(3, 0.01) == 0 < now.drift(10, 0.01)


def test_a_chance_of_none_is_out_of_reach() -> None:
    assert compare(QUIET, QUIET).reach(0) == math.inf


def test_nan_stays_nan_and_what_is_no_time_is_refused() -> None:
    assert math.isnan(compare(QUIET, [math.nan]).change)
    with pytest.raises(ValueError):
        compare(QUIET, [0.0])


def drawn(rows: int, launches: int, noise: float, worth: float, seed: int = 1) -> list[list[float]]:
    """Rows whose variances are scaled inverse χ², as the prior has it."""
    draw = random.Random(seed)
    spreads = [noise * math.sqrt(worth / (2 * draw.gammavariate(worth / 2, 1))) for _ in range(rows)]
    return [[100 * math.exp(draw.gauss(0, spread)) for _ in range(launches)] for spread in spreads]


@pytest.mark.parametrize(("noise", "worth"), [(0.003, 2.0), (0.02, 6.0)])
def test_a_prior_is_found_again_in_rows_drawn_from_it(noise: float, worth: float) -> None:
    found = learned(drawn(3000, 5, noise, worth))
    assert found is not None
    assert (found.noise, found.worth) == (pytest.approx(noise, rel=0.1), pytest.approx(worth, rel=0.25))


def test_rows_that_are_all_alike_are_worth_much_and_few_rows_are_worth_few_launches() -> None:
    alike = [learned(drawn(rows, 5, 0.003, 1000)) for rows in (4, 1000)]
    assert [prior and prior.worth for prior in alike] == [4, WORTH_MOST]


def test_too_few_rows_and_single_launches_teach_nothing() -> None:
    assert learned([QUIET, QUIET]) is None
    assert learned([[100.0]] * 50) is None


def test_rows_whose_launches_are_equal_to_the_last_digit_do_not_end_in_nought() -> None:
    found = learned([[100.0] * 3] * 5)
    assert found is not None and found.noise > 0


@pytest.mark.parametrize("launches", [(3, 3), (5, 3), (5, 10)])
def test_the_95_percent_interval_holds_the_truth_95_times_in_100(launches: tuple[int, int]) -> None:
    """Of 4,000 pairs of rows drawn from the prior, 93 to 97 % (four standard errors of what was drawn: 1.4 %)."""
    prior = Prior(noise=0.01, worth=3.0)
    held = 0
    rows = drawn(4000, sum(launches), prior.noise, prior.worth)
    for row in rows:
        found = compare(row[: launches[0]], row[launches[0] :], prior=prior)
        held += abs(found.change) <= found.reach(0.025)
    assert 0.93 <= held / len(rows) <= 0.97
