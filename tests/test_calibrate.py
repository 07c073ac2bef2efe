"""``--calibrate`` measures which slowdowns a machine detects: with nothing changed, and with planted slowdowns."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from own_project import replay
from samples import case, trace

from pytest_trainbench import runner, settings
from pytest_trainbench.calibrate import PLANTED, calibrate
from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.rank.slowdown import slowed
from pytest_trainbench.report import calibration
from pytest_trainbench.report.calibration import Calibration, Trial
from pytest_trainbench.report.rows import Row
from pytest_trainbench.runner import Here, Request, Runner
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.metrics import Gates
from pytest_trainbench.schema.plan import Plan

Step = Callable[[int], float]
"""Step time of the launch with this number, in ms, before any delay."""


def calibrated(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_ms: Step,
    *,
    seen: Callable[[int], dict[str, Any]] = lambda launch: {},
    gates: Gates = MappingProxyType({}),
    **options: str,
) -> tuple[Row, list[Job]]:
    """Calibrate a row whose launches take ``step_ms`` plus the planted delay. ``seen``: more fields of their traces."""
    jobs: list[Job] = []

    def launch(job: Job, **_: Any) -> LaunchResult:
        jobs.append(job)
        found = {"step_ms": [step_ms(len(jobs) - 1) + job.delay_ms] * 4, **seen(len(jobs) - 1)}
        return LaunchResult(traces=(trace(0, **found), trace(1, **found)))

    monkeypatch.setattr(runner, "launch", launch)
    of = Runner(
        settings=settings.read({"calibrate": "true", **options}, {}, {"baseline_dir": str(folder / "none")}, folder),
        hardware=Hardware(id="h200-sxm", kind="cuda", device_name="NVIDIA H200", count=4),
        now=Here(
            environment=Environment(must_match={"device": "NVIDIA H200"}, suspects={}, machine="0123abcd"),
            import_path=(),
            root=folder,
        ),
        folder=folder / "ranks",
        progress=lambda _: contextlib.nullcontext(lambda _: None),
    )
    return calibrate(of, Request(case=case(), label="mine", plan=Plan(), gates=gates)), jobs


def test_a_quiet_machine_detects_every_slowdown_and_has_no_false_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, jobs = calibrated(tmp_path, monkeypatch, lambda launch: 100 + 0.1 * (launch % 3), launches="3")
    assert row.verdict.outcome == "calibrated"
    found = row.calibration
    assert found is not None and not found.red
    assert [(trial.planted, trial.found) for trial in found.trials] == [(planted, True) for planted in PLANTED]
    assert {job.delay_ms for job in jobs} == {0.0, *(planted * 100.1 for planted in PLANTED)}
    assert [job.delay_ms for job in jobs[:6]] == [0.0] * 6, "a baseline of three, and three with nothing changed"
    assert 0.01 < found.sees[10] < found.sees[5] < found.sees[3] < 0.05
    step = row.verdict.change("step_ms")
    assert step is not None and found.sees[3] == pytest.approx(step.sees), "what three launches on either side saw"


@pytest.mark.parametrize(
    ("step_ms", "stored"),
    [([100.0, 100.1, 100.2], 5), ([100.0, 104.0, 98.5, 101.0, 102.5], 10)],
    ids=["agree", "apart"],
)
def test_slowdowns_are_compared_with_as_many_launches_as_a_baseline_has(
    step_ms: list[float], stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So calibration finds the same slowdowns as a nightly run."""
    row, jobs = calibrated(tmp_path, monkeypatch, lambda launch: step_ms[launch % len(step_ms)])
    assert row.baseline is not None and row.record is not None
    assert len(row.baseline.launches) == stored
    same = stored + len(row.record.launches)
    assert [job.delay_ms > 0 for job in jobs[: same + 1]] == [False] * same + [True]


def test_calibration_applies_the_cases_own_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"step_ms": {"floor": 0.04, "tolerance": 0.2}}
    row, _ = calibrated(tmp_path, monkeypatch, lambda launch: 100 + 0.1 * (launch % 3), gates=limits, launches="3")
    found, step = row.calibration, row.verdict.change("step_ms")
    assert found is not None and step is not None
    assert [trial.found for trial in found.trials] == [False, True, True]
    assert found.sees[3] == pytest.approx(step.sees) and found.sees[10] > 0.04


def test_a_noisy_machine_reports_the_slowdowns_that_it_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = calibrated(tmp_path, monkeypatch, lambda launch: (100, 112, 88, 94, 106)[launch % 5])
    found = row.calibration
    assert found is not None and not found.red
    assert [trial.found for trial in found.trials[:2]] == [False, False]
    assert found.sees[3] > 0.1


def test_a_false_alarm_with_nothing_changed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example on a machine that slows down over time."""
    row, _ = calibrated(tmp_path, monkeypatch, lambda launch: 100 if launch < 5 else 120)
    assert row.verdict.outcome == "regression" and row.verdict.fails(ci=False)
    assert str(row.verdict.reason).startswith("nothing changed, but the row is red: step time")
    assert row.calibration is not None and row.calibration.red


def test_a_row_that_is_incomparable_with_itself_stays_incomparable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(launch: int) -> dict[str, Any]:
        return {"compilations": {"recompiles": 0.0}} if launch < 5 else {}

    row, jobs = calibrated(tmp_path, monkeypatch, lambda launch: 100.0, seen=seen)
    assert (row.verdict.outcome, row.calibration, len(jobs)) == ("incomparable", None, 8)


def test_an_invalid_slowed_launch_is_not_a_missed_slowdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(launch: int) -> dict[str, Any]:
        return {"digest_after": "before"} if launch == 8 else {}

    row, jobs = calibrated(tmp_path, monkeypatch, lambda launch: 100.0, seen=seen)
    assert (row.verdict.outcome, row.calibration, len(jobs)) == ("invalid", None, 9)


def test_the_table_and_its_sentences() -> None:
    rows = [
        Calibration(
            label=label,
            noise=0.004,
            sees={3: 0.021, 5: 0.016},
            red=red,
            trials=(Trial(planted=0.02, found=found, launches=10), Trial(planted=0.05, found=True, launches=5)),
        )
        for label, red, found in (("a", False, True), ("b", True, False))
    ]
    assert calibration.table(rows).to_dict("records") == [
        {
            "case": "a",
            "noise of a launch": "0.40%",
            "sees with 3": "≥2.1%",
            "sees with 5": "≥1.6%",
            "nothing changed": "ok",
            "2% slower": "found (10)",
            "5% slower": "found (5)",
        },
        {
            "case": "b",
            "noise of a launch": "0.40%",
            "sees with 3": "≥2.1%",
            "sees with 5": "≥1.6%",
            "nothing changed": "RED",
            "2% slower": "missed (10)",
            "5% slower": "found (5)",
        },
    ]
    assert calibration.sentences(rows) == [
        "nothing changed: 1 of 2 rows red: b",
        "2% slower: found in 1 of 2 rows: not in b",
        "5% slower: found in 2 of 2 rows",
    ]


def test_calibrate_refuses_to_save_baselines(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        settings.read({"calibrate": "true", "save_baseline": "true"}, {}, {}, tmp_path)
    assert str(error.value) == "--calibrate plants slowdowns and cannot store baselines: leave out --save-baseline"


def test_a_delay_keeps_a_cpu_busy_and_returns_the_loss() -> None:
    losses = itertools.count(1.0)
    run = slowed(lambda: torch.tensor(next(losses)), 20.0, torch.device("cpu"))
    began, busy = time.perf_counter(), time.process_time()
    assert [float(loss) for loss in (run(), run()) if loss is not None] == [1.0, 2.0]
    assert time.perf_counter() - began >= 0.04
    assert time.process_time() - busy > 0.01, "it slept"


def test_a_delay_that_cannot_be_planted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no delay can be planted on a meta device: only on cuda and cpu$"):
        slowed(lambda: None, 1.0, torch.device("meta"))


def test_a_run_that_calibrates_counts_no_baselines(replayed: pytest.Pytester) -> None:
    run = replay(replayed, "--calibrate", "--launches", "2", "--confirm", "0")
    run.stdout.fnmatch_lines(["trainbench: *; calibrating, so compared with launches of this run alone; *"])
