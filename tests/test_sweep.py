"""A sweep names each row that is wrong, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from samples import case, launch, record

from benchmarks.sweep import Ended, deal, deviations, outcomes, unsteady, wrong

JUNIT = """<testsuites><testsuite>
<testcase name="test_sharding[zero1-dp2]"><properties><property name="trainbench_outcome" value="invalid"/></properties>
<failure message="Failed: invalid: it trains wrong&#10;more">text</failure></testcase>
<testcase name="test_sharding[ddp-dp2]"><properties>
<property name="trainbench_outcome" value="ok"/></properties></testcase>
<testcase name="test_sharding[ddp-dp4]"><skipped message="needs 4 devices, has 2"/></testcase>
<testcase><error message="interrupted"/></testcase>
</testsuite></testsuites>"""


def test_every_row_goes_to_one_session_and_neighbours_stay_together() -> None:
    rows = [f"row{number}" for number in range(10)]
    assert deal(rows, 2) == [[*rows[:4], *rows[8:]], rows[4:8]]
    assert deal(rows[:3], 2) == [rows[:3]]


def test_outcomes_are_read_from_the_junit_file_of_a_session(tmp_path: Path) -> None:
    (tmp_path / "0.xml").write_text(JUNIT)
    assert outcomes(tmp_path / "0.xml") == [
        Ended(label="sharding[zero1-dp2]", outcome="invalid", said="Failed: invalid: it trains wrong"),
        Ended(label="sharding[ddp-dp2]", outcome="ok"),
        Ended(label="sharding[ddp-dp4]", outcome="skipped"),
    ]


def test_slow_rows_are_not_wrong() -> None:
    ended = [
        Ended(label="a", outcome="ok"),
        Ended(label="b", outcome="environment", said="step time 300% worse"),
        Ended(label="c", outcome="crash", said="rank 0 failed"),
    ]
    assert wrong(ended, 3) == ["crash: c: rank 0 failed"]
    assert wrong(ended[:2], 3) == ["1 of 3 rows have no result: their session ended early"]


def test_the_largest_deviation_is_shown_with_the_allowed_one() -> None:
    rows = [
        record(launch(loss_deviation=by), of=case(strategy=strategy), label=f"{strategy}-{by}")
        for strategy, by in (("zero1", 0.001), ("ddp", 0.0002), ("megatron", 0.004))
    ]
    assert deviations(rows) == [
        {"allowed": "0.5%", "largest seen": "0.10%", "row": "zero1-0.001"},
        {"allowed": "1.0%", "largest seen": "0.40%", "row": "megatron-0.004"},
    ]


def test_leaping_losses_are_reported() -> None:
    leaping, steady = (
        record(replace(launch(loss_deviation=0.0), losses=losses), label=label)
        for label, losses in (("leaps", [11.0, 18.6, 10.0]), ("falls", [11.0, 10.5, 10.0]))
    )
    (line,) = unsteady([leaping, steady])
    assert line.startswith("leaps: its loss leaps by 760% of its fall")
