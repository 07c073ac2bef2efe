"""The replay of two sides that take turns: its order is the runner's, and fewer runs confirm docs/ab.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.detection.pairs import LAUNCHES, SLOWER, WORLDS, in_pairs, made, recorded, stored, table, turns
from benchmarks.detection.traces import read

PAGE = (Path(__file__).parent.parent / "docs" / "ab.md").read_text(encoding="utf-8")


def test_the_replay_uses_the_runners_order_of_turns() -> None:
    assert "".join("AB"[int(now)] for now in turns(10)) == "ABBAABBAAB"


@pytest.mark.parametrize("name", WORLDS)
def test_two_equal_sides_are_hardly_ever_red_on_any_machine(name: str) -> None:
    """One run in 6,000 may be red. Of 2,000 runs, two are red with a chance of 1 in 26, and three with 1 in 200."""
    calls = in_pairs(WORLDS[name](2000, LAUNCHES))
    assert calls.red * calls.runs <= 2
    assert calls.held >= 0.93


def test_a_drift_is_red_against_a_baseline_and_cancels_in_turns() -> None:
    drifting = made(0.005, drift=0.01)(300, LAUNCHES)
    assert (stored(drifting).red, in_pairs(drifting).red, in_pairs(drifting, slower=0.05).red) == (1.0, 0.0, 1.0)


def test_recorded_launches_without_a_change_are_never_red() -> None:
    runs = recorded(read())(0, 16)
    assert len(runs) >= 100
    assert in_pairs(runs).red == 0


def test_pairs_find_a_slowdown_of_5_percent_at_1_percent_noise() -> None:
    assert in_pairs(made(0.01)(500, LAUNCHES), slower=0.05).red >= 0.97


def test_the_page_has_the_lines_and_columns_of_the_printed_table() -> None:
    """The figures differ, because the page's table comes from many more runs."""
    printed = table({name: made(0.01) for name in WORLDS}, launches=LAUNCHES, quiet=3, slow=3).splitlines()
    for line in printed:
        way = " | ".join(cell.strip() for cell in line.split("|")[1:3])
        assert any(" | ".join(cell.strip() for cell in each.split("|")[1:3]) == way for each in PAGE.splitlines()), way
    assert np.all([f"{slower:.0%} slower" in PAGE for slower in SLOWER])
