"""The replay of nights: the traces are real, each rule does what its name says, and the goals are met."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from samples import failed, launch, record

from benchmarks.detection import histories, traces
from benchmarks.detection.histories import WATCHERS
from benchmarks.detection.judges import JUDGES, METRIC_ERROR, limit, ours
from benchmarks.detection.nights import FIRST, MORE, fleet, nights, real, tailed

ROOT = Path(__file__).parent.parent

STORED = traces.read()


def test_the_stored_traces_cover_many_launches_on_several_machines() -> None:
    steps = [trace for trace in STORED if trace.metric == "step_ms"]
    launches = Counter[str]()
    for trace in steps:
        launches[trace.hardware] += len(trace.values)
    assert launches["h200-sxm-141gb"] >= 200 and launches["cpu-amd-epyc-2c"] >= 500
    assert len({trace.machine for trace in steps if trace.hardware == "h200-sxm-141gb"}) >= 3
    assert {trace.host_bound for trace in steps} == {False, True}
    assert all(value > 0 for trace in STORED for value in trace.values)


def test_records_become_a_trace_that_can_be_read_back(tmp_path: Path) -> None:
    one = record(*(launch(ms, compute_ms=ms / 2, host_ms=ms) for ms in (100.0, 101.0, 99.0)), label="mine")
    single = record(launch(), label="single")
    with (tmp_path / "some.csv").open("w", encoding="utf-8") as file:
        traces.write([one, single], file)
    assert traces.read(tmp_path) == [
        traces.Trace(hardware="some", machine="0123abcd", case="mine", host_bound=True, metric=metric, values=values)
        for metric, values in [("step_ms", (100.0, 101.0, 99.0)), ("compute_ms", (50.0, 50.5, 49.5))]
    ], "one launch has nothing to be compared with"


def test_a_failed_record_leaves_no_trace() -> None:
    file = io.StringIO()
    traces.write([record(launch(), failed("crash"))], file)
    assert file.getvalue().splitlines() == [",".join(traces.COLUMNS)]


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_finds_a_slowdown_of_half_and_passes_an_unchanged_step(name: str) -> None:
    judge = JUDGES[name]
    assert judge(nights(200, tailed(0.002), slower=0.5)).red.mean() > (0.9 if name == "Otava" else 0.999)
    assert judge(nights(200, tailed(0.0005))).red.mean() < 0.1


@pytest.mark.parametrize(
    ("name", "just_under", "just_over"),
    [
        ("fixed 5 %", 0.045, 0.055),
        ("pytest-benchmark mean:5%", 0.045, 0.055),
        ("pytest-benchmark min:5%", 0.04, 0.06),
        ("TorchBench 7 %", 0.065, 0.075),
        ("asv", 0.095, 0.105),
    ],
)
def test_a_fixed_gate_is_red_just_above_its_limit(name: str, just_under: float, just_over: float) -> None:
    found = [JUDGES[name](nights(200, tailed(0.0001), slower=slower)).red.mean() for slower in (just_under, just_over)]
    assert found == [0.0, 1.0]


def test_our_judge_ignores_changes_under_the_floor_within_ten_launches() -> None:
    calls = ours(nights(500, tailed(0.003), slower=0.005))
    assert calls.red.mean() <= 0.01
    assert calls.spent.min() >= FIRST and calls.spent.max() <= FIRST + MORE
    assert ours(nights(500, tailed(0.003), slower=0.04)).spent.min() >= FIRST + 2, "none is red by its first launches"


def test_a_real_night_uses_no_launch_twice() -> None:
    dealt = real(50, STORED)
    rows = np.concatenate([dealt.before, dealt.now], axis=1)
    assert rows.shape == (50, 10)
    for row in rows.round(6).tolist():
        # The median of each record is 100, because its launches are scaled to their median.
        others = [value for value in row if value != 100.0]
        assert len(set(others)) >= len(others) - 1, "but for launches that took equally long"


def test_generated_suites_are_as_noisy_as_real_rows() -> None:
    def spread(rows: Iterable[Sequence[float]]) -> float:
        return float(np.median([np.log(row).std(ddof=1) for row in rows]))

    made = fleet(4000, STORED, outliers=0.0)
    true = [trace.values for trace in STORED if trace.metric == "step_ms"]
    assert spread(made.before.tolist()) == pytest.approx(spread(true), rel=0.5)


# Histories


@pytest.mark.parametrize("name", WATCHERS)
def test_every_watcher_finds_a_jump_of_a_tenth_and_passes_unchanged_nights(name: str) -> None:
    quiet = histories.histories(50, tailed(0.003), length=40)
    jumped = histories.changed(quiet, after=30, jump=0.1)
    assert sum(map(WATCHERS[name], jumped)) >= 45
    assert sum(map(WATCHERS[name], quiet)) <= 5


def test_our_watcher_reports_no_drift_after_a_change_of_machine() -> None:
    moved = histories.replaced(histories.histories(50, tailed(0.003), length=60), nights_ago=20, slower=0.05)
    assert not any(map(WATCHERS["ours"], moved))


def test_nights_to_detection_are_counted_from_the_change() -> None:
    jumped = histories.changed(histories.histories(3, tailed(0.001), length=40), after=30, jump=0.1)
    assert histories.found_after(WATCHERS["ours"], jumped, after=30).tolist() == [4.0, 4.0, 4.0]


def test_unchanged_suites_hardly_ever_drift() -> None:
    assert sum(map(WATCHERS["ours"], histories.suites(3000, STORED))) <= 3, "of 3,000 half a one is allowed"


# The goals, on fewer nights than in docs/detection.md, so with wider limits


def test_unchanged_suites_are_hardly_ever_red() -> None:
    red = int(ours(fleet(6000, STORED, seed=11)).red.sum())
    assert red <= 4, "of 6,000 nights one is allowed; five have a chance of 1 in 270"


@pytest.mark.parametrize(
    ("sd", "slower", "found"), [(0.01, 0.05, 0.99), (0.01, 0.03, 0.90), (0.005, 0.02, 0.95), (0.025, 0.10, 0.98)]
)
def test_promised_slowdowns_are_found_with_five_stored_launches(sd: float, slower: float, found: float) -> None:
    rows = 1500
    share = ours(nights(rows, tailed(sd), slower=slower, seed=12)).red.mean()
    assert share >= found - 2 * np.sqrt(found * (1 - found) / rows)
    assert share <= limit(sd, slower, stored=5, launches=FIRST + MORE) + 0.01


def test_a_quiet_night_needs_few_extra_launches() -> None:
    assert ours(nights(3000, tailed(0.005))).spent.mean() <= 1.05 * FIRST
    assert ours(nights(3000, tailed(0.01))).spent.mean() <= 1.25 * FIRST


def test_the_metric_error_gives_one_false_alarm_a_month_for_200_metrics() -> None:
    assert pytest.approx(METRIC_ERROR * 200 * 30) == 1


def test_the_command_prints_the_stored_page() -> None:
    command = [sys.executable, "-m", "benchmarks.detection", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    stored = (ROOT / "docs" / "detection.md").read_text(encoding="utf-8")
    headings = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert headings == [line for line in stored.splitlines() if line.startswith("#")]
    assert "| FAIL |" in stored, "what is out of reach is shown, not left out"
    assert "Otava" in stored and "ruptures" in stored, "they were installed when it was printed"
