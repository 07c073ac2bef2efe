"""The run since which a row is red, and the changes at that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import cycle
from pathlib import Path

import pytest
from samples import case, launch, record

from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.judge.red_since import Turned, turned
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.report import terminal
from pytest_trainbench.report.rows import Row
from pytest_trainbench.store.history import Entry, Run

START = datetime(2026, 9, 1, 2, 17, tzinfo=timezone.utc)
CASE = case()
HERE, ELSEWHERE = "0123abcd", "fedcba98"


def environment(commit: str) -> Environment:
    return Environment(must_match={}, suspects={"commit": commit}, machine=HERE)


def runs(
    outcomes: Sequence[str], machines: Sequence[str] = (HERE,), fails: Sequence[bool | None] = (None,)
) -> list[Run]:
    """One run a night, each with its own commit. ``""`` is a night without the case. The ``machines`` take turns, and
    so do the values of ``fails``."""
    return [
        Run(
            path=Path(f"{night}.jsonl"),
            started=START + timedelta(days=night),
            hardware="h200",
            environment=environment(f"c{night}"),
            entries={
                CASE.id: Entry(
                    id=CASE.id, label="a", outcome=outcome, baseline="", launches=(), machine=machine, fails=failed
                )
            }
            if outcome
            else {},
        )
        for night, (outcome, machine, failed) in enumerate(zip(outcomes, cycle(machines), cycle(fails)))
    ]


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ([], None),
        (["", ""], None),
        (["ok", "ok"], (1, None, 1, ("c1", "now"))),
        (["saved", "regression", "regression"], (3, 1, 0, ("c0", "c1"))),
        (["ok", "regression", "timeout", "no-baseline", "crash", "regression"], (3, 1, 0, ("c0", "c1"))),
        (["ok", "timeout", "incomparable"], (1, None, 0, ("c0", "now"))),
        (["improvement", "noisy", "regression", "", "noisy", "oom"], (2, 2, 0, ("c0", "c2"))),
        (["regression", "ok", "regression"], (2, 2, 1, ("c1", "c2"))),
        (["regression", "regression"], (3, 0, None, None)),
        (["environment", "invalid"], None),
        (["no-baseline", "skipped"], None),
    ],
    ids=[
        "first",
        "not in it",
        "tonight",
        "nights",
        "other failures between",
        "other failures alone",
        "passed over",
        "again",
        "never green",
        "never this outcome",
        "never judged",
    ],
)
def test_a_row_turned_red_between_its_last_green_and_first_red_run(
    earlier: list[str], expected: tuple[int, int | None, int | None, tuple[str, str] | None] | None
) -> None:
    def started(night: int | None) -> datetime | None:
        return None if night is None else START + timedelta(days=night)

    found = turned(runs(earlier), CASE.id, environment("now"), outcome="regression", machine=HERE)
    if expected is None:
        assert found is None
        return
    count, first, green, commits = expected
    differs = (("commit", *commits),) if commits else ()
    assert found == Turned(runs=count, first=started(first), green=started(green), differs=differs)


@pytest.mark.parametrize(
    ("codes", "now", "differs"),
    [
        (("1a", "2b"), "2b", (("your code", "1a", "2b"),)),
        (("1a",), "2b", (("your code", "1a", "2b"),)),
        (("1a", "1a"), "2b", ()),
        (("", "2b"), "2b", ()),
    ],
    ids=["before", "now", "not there", "not known"],
)
def test_two_nights_of_one_dirty_commit_may_have_different_code(
    codes: tuple[str, ...], now: str, differs: tuple[tuple[str, str, str], ...]
) -> None:
    outcomes = ["ok", "regression"][: len(codes)]
    dirty = environment("c0+dirty")
    earlier = [
        replace(run, environment=dirty, entries={CASE.id: replace(run.entries[CASE.id], code=code)})
        for run, code in zip(runs(outcomes), codes, strict=True)
    ]
    found = turned(earlier, CASE.id, dirty, outcome="regression", machine=HERE, code=now)
    assert found is not None and found.differs == differs


@pytest.mark.parametrize(
    ("machines", "count", "green"),
    [((HERE, ELSEWHERE), 3, 0), ((ELSEWHERE, HERE), 1, 5), ((ELSEWHERE,), 1, 5)],
    ids=["the red one", "the green one", "none of this machine"],
)
def test_in_a_shared_history_only_this_machines_nights_count(machines: tuple[str, ...], count: int, green: int) -> None:
    """The machines take turns, and the row is red on one of them. The other one's green nights have another level."""
    earlier = runs(["ok", "ok", "regression", "ok", "regression", "ok"], machines)
    found = turned(earlier, CASE.id, environment("now"), outcome="regression", machine=HERE)
    assert found is not None
    assert (found.runs, found.green) == (count, START + timedelta(days=green))


def test_machines_without_an_id_are_not_one_machine() -> None:
    """Nights of all machines count then, as where this machine has none."""
    earlier = runs(["regression", "ok"], ("", ELSEWHERE))
    earlier = [replace(run, environment=replace(run.environment, machine="")) for run in earlier]
    found = turned(earlier, CASE.id, environment("now"), outcome="regression", machine="")
    assert found is not None and (found.runs, found.green) == (1, START + timedelta(days=1))


@pytest.mark.parametrize(
    ("earlier", "fails", "outcome", "count"),
    [
        (["ok", "improvement", "improvement"], (False, True, True), "improvement", 3),
        (["ok", "no-baseline", "no-baseline"], (False, True, True), "no-baseline", 3),
        (["ok", "improvement", "improvement"], (False, True, False), "improvement", 1),
        (["ok", "no-baseline", "regression"], (False, False, True), "regression", 2),
        (["ok", "improvement", "regression"], (False, True, True), "regression", 2),
    ],
    ids=["--fail-on-improvement", "CI", "an improvement that passed", "at a desk", "another failure"],
)
def test_a_row_counts_as_red_if_it_failed_in_its_own_run(
    earlier: list[str], fails: tuple[bool, ...], outcome: str, count: int
) -> None:
    found = turned(runs(earlier, fails=fails), CASE.id, environment("now"), outcome=outcome, machine=HERE)
    assert found is not None and found.green is not None
    assert found.runs == count


@pytest.mark.parametrize(
    ("since", "lines"),
    [
        (
            Turned(
                runs=3,
                first=START + timedelta(days=1),
                green=START,
                differs=(("torch", "2.11.0", "2.13.0"), ("commit", "a1", "b2")),
            ),
            [
                "since     2026-09-02 02:17 UTC, 3 runs in a row; green at 2026-09-01 02:17 UTC; between them:",
                "          torch: 2.11.0 → 2.13.0",
                "          commit: a1 → b2",
            ],
        ),
        (
            Turned(runs=1, first=None, green=START),
            [
                "since     this run; green at 2026-09-01 02:17 UTC; between them:",
                "          nothing in the recorded environment",
            ],
        ),
        (
            Turned(runs=2, first=START, green=None),
            ["since     2026-09-01 02:17 UTC, 2 runs in a row; the history has no green run"],
        ),
    ],
)
def test_a_red_report_says_since_when_the_row_is_red(since: Turned, lines: list[str]) -> None:
    now, before = record(*[launch(150.0)] * 3), record(*[launch(100.0)] * 3)
    text = terminal.failure(Row(label="a", verdict=judge(now, before), record=now, baseline=before, turned=since))
    assert "\n".join(f"  {line}" for line in lines) in text
