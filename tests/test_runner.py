"""The runner's choice of baseline and reference, its launches and what it saves. No rank is started."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from samples import case, failed, launch, record, steps, trace

from pytest_trainbench import runner, settings
from pytest_trainbench.archive import Archive
from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.judge.compare import learn
from pytest_trainbench.judge.middle import both_judged, stored_judged
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.report import rows, terminal
from pytest_trainbench.report.rows import Row
from pytest_trainbench.runner import Here, Reference, Request, Runner
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store import baseline

HARDWARE = Hardware(id="h200-sxm", kind="cuda", device_name="NVIDIA H200", count=4)
ENVIRONMENT = Environment(must_match={"device": "NVIDIA H200"}, suspects={}, machine="0123abcd")
RAN = LaunchResult(traces=(trace(0), trace(1)))
FAILURES = {outcome: LaunchResult(outcome=outcome, reason="because") for outcome in ("oom", "timeout", "crash")}
CURE = "make sure that nothing else uses the device's memory, and save it again"

Run = Callable[..., Row]


class Machine:
    """A stand-in for the launcher. Every launch ends as the test says."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.ended = RAN
        self.endings: Iterator[LaunchResult] = iter(())
        """Results of the first launches."""
        self.step_ms: Iterator[float] = iter(())
        """Step times of the next launches. After the last one, launches end as ``ended``."""
        self.seen: dict[str, Any] = {}
        """Other fields of their traces."""
        self.devices: Iterator[dict[str, list[float]]] = itertools.repeat({})
        """Conditions of their devices."""

    def __call__(self, job: Job, **_: Any) -> LaunchResult:
        self.jobs.append(job)
        for ended in self.endings:
            return ended
        for ms in self.step_ms:
            seen = {"step_ms": [ms] * 4, **self.seen}
            return LaunchResult(traces=(trace(0, **seen), trace(1, **seen)), devices=next(self.devices))
        return self.ended


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(runner, "launch", machine)
    return machine


def made(folder: Path, **options: str) -> Runner:
    return Runner(
        settings=settings.read({"launches": "1", **options}, {}, {"baseline_dir": str(folder)}, folder),
        hardware=HARDWARE,
        now=Here(environment=ENVIRONMENT, import_path=(), root=folder),
        folder=folder / "ranks",
        progress=lambda _: contextlib.nullcontext(lambda _: None),
    )


def row(of: Runner, what: Case, reference: Reference | None = None) -> Row:
    return of.row(Request(case=what, label="mine", plan=Plan(), reference=reference), accept="pytest --save-baseline")


def save(folder: Path, stored: Record) -> Path:
    (saved,) = baseline.merge(folder, {stored.case.id: stored})
    return saved.path


# One name, one builder


def test_two_builders_with_one_case_id_are_refused_before_any_launch(tmp_path: Path, machine: Machine) -> None:
    first, second = case(builder="mine.a:step"), case(builder="mine.b:step")
    of = made(tmp_path)
    row(of, first)
    started = len(machine.jobs)
    words = (
        f"mine and mine would share the baseline of {first.id}, and differ in their builder's module, their plan,"
        " their reference or their gates: give one of them another name or another version"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        row(of, second)
    assert len(machine.jobs) == started == 1
    assert row(of, first).verdict.outcome == "no-baseline", "the first one may run again"


def test_builders_of_one_name_with_different_parameters_are_two_cases(tmp_path: Path, machine: Machine) -> None:
    of = made(tmp_path)
    for one in (case(builder="mine.a:step", width=1), case(builder="mine.b:step", width=2)):
        assert row(of, one).record is not None
    assert len(machine.jobs) == 2


def test_a_missing_baseline_names_the_changed_parameter(tmp_path: Path, machine: Machine) -> None:
    stored = dataclasses.replace(record(of=case(width=64)), label="mine", hardware=HARDWARE.id)
    save(tmp_path, stored)
    reason = str(row(made(tmp_path), case(width=65)).verdict.reason)
    assert reason.endswith("--save-baseline stores one; the stored mine is another case: width 64 → 65")


def test_only_cases_of_one_builder_share_a_reference(tmp_path: Path, machine: Machine) -> None:
    of = made(tmp_path)
    reference = Reference(params={"sharded": False}, loss_tolerance=0.05)
    for builder, mesh in (("mine.a:step", "dp2"), ("mine.a:step", "dp4"), ("mine.b:step", "tp2")):
        assert row(of, case(builder=builder, mesh=mesh), reference).verdict.outcome == "no-baseline"
    assert [(job.case.builder, str(job.case.mesh)) for job in machine.jobs if job.reference_steps] == [
        ("mine.a:step", "dp1"),
        ("mine.b:step", "dp1"),
    ]


def test_a_reference_trains_as_many_steps_as_are_compared(tmp_path: Path, machine: Machine) -> None:
    """A case that compares more steps does not share the shorter reference."""
    of = made(tmp_path)
    for width, last in ((1, 12), (1, 16), (2, 12)):
        one = case(width=width, last=last)
        reference = Reference(params={"width": None, "last": None}, loss_tolerance=0.05, loss_steps=(1, last))
        assert row(of, one, reference).verdict.outcome == "no-baseline"
    assert [job.reference_steps for job in machine.jobs if job.reference_steps] == [12, 16]


@pytest.mark.parametrize("steps", [(0, 12), (5, 5), (6, 5)])
def test_an_impossible_range_of_compared_steps_is_refused(steps: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"^losses are compared from one step to a later one, the first being 1, not "):
        Reference(params={}, loss_tolerance=0.05, loss_steps=steps)


def test_a_reference_leaves_out_parameters_that_it_sets_to_none(tmp_path: Path, machine: Machine) -> None:
    """Cases that differ only in such a parameter, or do not have it, share one reference."""
    of, reference = made(tmp_path), Reference(params={"graph": None}, loss_tolerance=0.05)
    for one in (case(width=1), case(width=1, graph="a"), case(width=1, graph="b")):
        assert row(of, one, reference).verdict.outcome == "no-baseline"
    assert [job.case.params for job in machine.jobs if job.reference_steps] == [{"width": 1}]


# A stored file that cannot be used


def test_a_broken_baseline_is_refused_before_any_launch(tmp_path: Path, machine: Machine) -> None:
    save(tmp_path, record()).write_text("<<<<<<< HEAD\n")
    with pytest.raises(ValueError, match=r"cannot be read as a record.*; --save-baseline writes a new one$"):
        row(made(tmp_path), case())
    assert machine.jobs == []


def test_saving_ignores_a_broken_baseline(tmp_path: Path, machine: Machine) -> None:
    save(tmp_path, record()).write_text("<<<<<<< HEAD\n")
    found = row(made(tmp_path, save_baseline="true"), case())
    assert (found.verdict.outcome, found.verdict.reason, found.baseline) == ("saved", None, None)
    assert len(machine.jobs) == 1


# How a row ends


@pytest.mark.parametrize("stored", [None, record(), record(failed("oom"))], ids=["none", "ok", "oom"])
@pytest.mark.parametrize(("ended", "outcome"), [(RAN, "saved"), (FAILURES["oom"], "oom")], ids=["ran", "oom"])
def test_a_saved_row_passes_in_ci_too(
    ended: LaunchResult, outcome: str, stored: Record | None, tmp_path: Path, machine: Machine
) -> None:
    if stored is not None:
        save(tmp_path, stored)
    machine.ended = ended
    found = row(made(tmp_path, save_baseline="true"), case())
    assert (found.verdict.outcome, found.verdict.reason, found.accept) == (outcome, ended.reason, "")
    assert not found.verdict.fails(ci=True)


def test_an_oom_after_launches_that_fitted_is_not_saved(tmp_path: Path, machine: Machine) -> None:
    path = save(tmp_path, record())
    before = path.read_text()
    machine.step_ms, machine.ended = iter([10.0, 10.0]), FAILURES["oom"]
    found = row(made(tmp_path, save_baseline="true", launches="3"), case()).verdict
    reason = f"nothing is stored: memory ran out in launch 3, and 2 fitted; {CURE}: because"
    assert (found.outcome, found.reason, found.fails(ci=False)) == ("invalid", reason, True)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("then", "stored", "launches", "reason"),
    [
        (RAN, record(), 2, f"nothing is stored: memory ran out in launch 1, and 1 fitted; {CURE}: because"),
        (
            FAILURES["crash"],
            record(),
            2,
            f"nothing is stored: memory ran out in one launch alone, and the baseline fitted; {CURE}: because",
        ),
        (FAILURES["oom"], record(), 2, None),
        (FAILURES["oom"], record(failed("oom")), 1, None),
        (FAILURES["oom"], None, 1, None),
    ],
    ids=["by chance", "then a crash", "it does not fit", "as before", "new"],
)
def test_an_oom_replaces_a_fitting_baseline_only_after_two_launches(
    then: LaunchResult, stored: Record | None, launches: int, reason: str | None, tmp_path: Path, machine: Machine
) -> None:
    """Another process may have taken the memory. With an oom stored, later nights are better and never slower."""
    if stored is not None:
        save(tmp_path, stored)
    machine.endings, machine.ended = iter([FAILURES["oom"]]), then
    found = row(made(tmp_path, save_baseline="true", launches="5"), case()).verdict
    assert (found.outcome, len(machine.jobs)) == ("invalid" if reason else "oom", launches)
    assert found.reason == (reason or "because")


def test_one_oom_without_time_for_a_second_launch_stores_nothing(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, record())
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 60.0 * len(machine.jobs)))
    machine.ended = FAILURES["oom"]
    found = row(made(tmp_path, save_baseline="true", run_timeout="100"), case()).verdict
    assert (found.outcome, len(machine.jobs)) == ("invalid", 1)


def test_a_red_row_names_a_builder_whose_module_changed(tmp_path: Path, machine: Machine) -> None:
    """The builder was moved, or it is another builder with the same name and parameters."""
    elsewhere = dataclasses.replace(case(), builder="elsewhere:" + case().builder.partition(":")[2])
    save(tmp_path, record(*[launch(10.0)] * 3, of=elsewhere))
    found = row(made(tmp_path), case()).verdict
    assert found.outcome == "regression"
    assert found.suspects[0] == ("builder", elsewhere.builder, case().builder)


def test_a_timeout_near_the_end_of_the_run_blames_the_run_limit(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ended = FAILURES["timeout"]
    assert row(made(tmp_path, run_timeout="10000"), case()).verdict.reason == "because"
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 45.0 * (len(machine.jobs) - 1)))
    machine.step_ms = iter([10.0, 10.0])
    found = row(made(tmp_path, run_timeout="100", launches="3"), case()).verdict
    assert (found.outcome, found.reason) == (
        "timeout",
        "10 s of the run's 100 s (--run-timeout) were left for it: because",
    )
    assert [round(job.limit_s) for job in machine.jobs[-2:]] == [55, 10]


def test_a_step_of_a_reference_may_take_as_long_as_a_launch(tmp_path: Path, machine: Machine) -> None:
    """One rank of the reference does the work of all ranks. Its steps together may take as long as the run."""
    reference = Reference(params={}, loss_tolerance=0.1)
    assert row(made(tmp_path), case(), reference).verdict.outcome == "no-baseline"
    row(made(tmp_path, run_timeout="1000"), case(), reference)
    row(made(tmp_path, run_timeout="100"), case(), reference)
    limits = [(job.limit_s, job.step_limit_s, job.collective_limit_s) for job in machine.jobs if job.reference_steps]
    assert [[round(limit) for limit in each if limit] for each in limits] == [
        [13 * 600, 600, 300],
        [1000, 600, 300],
        [100, 100, 50],
    ]
    assert [job.step_limit_s for job in machine.jobs if not job.reference_steps] == [None] * 3
    machine.ended = FAILURES["timeout"]
    found = row(made(tmp_path, run_timeout="1000"), case(), reference).verdict
    assert found.reason == "the unsharded reference failed: because", "the run has time left"


def test_a_timeout_under_a_short_run_limit_states_the_time_that_was_left(tmp_path: Path, machine: Machine) -> None:
    """Under a run limit below the launch limit, a launch gets the time that is left, and a collective half of it."""
    machine.ended = FAILURES["timeout"]
    said = row(made(tmp_path, run_timeout="100"), case()).verdict.reason
    assert said == "100 s of the run's 100 s (--run-timeout) were left for it: because"


@pytest.mark.parametrize("outcome", ["timeout", "crash"])
def test_a_failed_launch_is_not_saved(outcome: str, tmp_path: Path, machine: Machine) -> None:
    machine.ended = FAILURES[outcome]
    found = row(made(tmp_path, save_baseline="true"), case())
    assert (found.verdict.outcome, found.verdict.reason) == (outcome, "because")
    assert found.verdict.fails(ci=False)


@pytest.mark.parametrize(
    ("ended", "stored", "outcome", "offered"),
    [
        (RAN, None, "no-baseline", True),
        (FAILURES["oom"], None, "oom", True),
        (FAILURES["oom"], record(failed("oom")), "oom", False),
        (FAILURES["oom"], record(), "regression", True),
        (RAN, record(*[launch(10.0)] * 3), "regression", True),
        (RAN, record(*[launch(flops_per_step=7)] * 3), "incomparable", True),
        (RAN, record(*[launch(1000.0)] * 3), "improvement", True),
        (FAILURES["crash"], None, "crash", False),
    ],
)
def test_the_accept_command_is_offered_only_if_saving_would_help(
    ended: LaunchResult, stored: Record | None, outcome: str, offered: bool, tmp_path: Path, machine: Machine
) -> None:
    if stored is not None:
        save(tmp_path, stored)
    machine.ended = ended
    found = row(made(tmp_path), case())
    assert (found.verdict.outcome, found.accept) == (outcome, "pytest --save-baseline" if offered else "")


def test_a_reference_out_of_memory_makes_the_row_invalid_and_saves_nothing(tmp_path: Path, machine: Machine) -> None:
    """Otherwise every row of a small card would be a green "oom" without having run."""
    machine.ended = FAILURES["oom"]
    found = row(made(tmp_path, save_baseline="true"), case(), Reference(params={}, loss_tolerance=0.1))
    assert (found.verdict.outcome, found.verdict.reason) == ("invalid", "the unsharded reference failed: because")
    assert found.verdict.fails(ci=False) and len(machine.jobs) == 1


def test_an_invalid_first_launch_is_the_last(tmp_path: Path, machine: Machine) -> None:
    """Its ranks ended normally, but its figures are wrong. Neither side starts another launch."""
    wrong = LaunchResult(traces=(trace(0), trace(1, digest_after="other")))
    machine.ended = wrong
    alone = row(made(tmp_path, launches="3"), case())
    assert (alone.verdict.outcome, len(machine.jobs)) == ("invalid", 1)
    for machine.ended, theirs in ((wrong, RAN), (RAN, wrong)):
        found, order = compared(tmp_path, machine, before=(), ended=theirs)
        assert (found.verdict.outcome, order) == ("invalid", "AB")


def test_two_tests_of_one_case_share_one_measurement(tmp_path: Path, machine: Machine) -> None:
    of = made(tmp_path)
    first = row(of, case())
    second = of.row(Request(case=case(), label="other", plan=Plan()), accept="")
    assert len(machine.jobs) == 1
    assert (second.label, second.same_as, second.verdict) == ("other", "mine", first.verdict)
    assert second.record is first.record


def test_one_case_with_and_without_a_reference_is_refused(tmp_path: Path, machine: Machine) -> None:
    """Otherwise a test with a reference could take over a measurement that was never compared with one."""
    of = made(tmp_path)
    row(of, case())
    with pytest.raises(ValueError, match=r"^mine and mine would share the baseline of .*, and differ in"):
        row(of, case(), Reference(params={"sharded": False}, loss_tolerance=0.05))
    assert len(machine.jobs) == 1


# Two sides


class Elsewhere:
    """The other side. Its launches take ``step_ms``, and ``order`` records the turns."""

    name = "main (0123456789ab)"
    import_path = ("/checkout",)
    root = Path("/checkout")
    environment = dataclasses.replace(ENVIRONMENT, suspects={"commit": "0123456789ab"})

    def __init__(self, order: list[str], *step_ms: float, ended: LaunchResult = RAN) -> None:
        self.machine = Machine()
        self.machine.step_ms, self.machine.ended = iter(step_ms), ended
        self.order = order

    def environment_of(self, case: Case) -> Environment:
        return self.environment

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
        assert job.import_path == self.import_path
        self.order.append("A")
        return self.machine(job)


class HereNoted(Here):
    """This side, which records its turns in a list."""

    order: ClassVar[list[str]] = []

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
        self.order.append("B")
        return super().launch(job, progress=progress)


def compared(
    folder: Path,
    machine: Machine,
    *step_ms: float,
    before: tuple[float, ...],
    ended: LaunchResult = RAN,
    reference: Reference | None = None,
    **options: str,
) -> tuple[Row, str]:
    """A row compared with another side, and the turns: ``A`` is the other side, ``B`` is this side."""
    machine.step_ms = iter(step_ms)
    HereNoted.order.clear()
    of = Runner(
        settings=settings.read({"against": "main", **options}, {}, {"baseline_dir": str(folder)}, folder),
        hardware=HARDWARE,
        now=HereNoted(environment=ENVIRONMENT, import_path=(), root=folder),
        before=Elsewhere(HereNoted.order, *before, ended=ended),
        folder=folder / "ranks",
        progress=lambda _: contextlib.nullcontext(lambda _: None),
    )
    return row(of, case(), reference), "".join(HereNoted.order)


def test_two_sides_take_turns_and_are_judged_in_pairs(tmp_path: Path, machine: Machine) -> None:
    """Every launch is 10 % slower than the one before, and the sides are equal. A baseline could not show that."""
    ms = [100 * 1.1**launch for launch in range(12)]
    found, order = compared(
        tmp_path, machine, ms[1], ms[2], ms[5], ms[6], ms[9], ms[10], before=(ms[0], ms[3], ms[4], ms[7], ms[8], ms[11])
    )
    assert order[:6] == "ABBAAB"
    assert found.verdict.outcome in ("ok", "noisy")
    assert found.record is not None and found.baseline is not None
    assert found.record.values("step_ms")[:3] == [ms[1], ms[2], ms[5]]
    assert found.baseline.values("step_ms")[:3] == [ms[0], ms[3], ms[4]]


def test_a_slower_side_is_red_after_two_confirming_pairs(tmp_path: Path, machine: Machine) -> None:
    found, order = compared(tmp_path, machine, *[130.0] * 5, before=(100.0,) * 5)
    assert (found.verdict.outcome, order) == ("regression", "ABBAABBAAB")
    assert found.verdict.suspects == (("commit", "0123456789ab", None),)
    assert (found.against, found.again, found.accept) == ("main (0123456789ab)", "pytest --save-baseline", "")
    assert (found.baseline_path, found.stale) == (None, "")


@pytest.mark.parametrize("broken", ["<<<<<<< HEAD", None])
def test_against_neither_reads_nor_writes_stored_baselines(
    broken: str | None, tmp_path: Path, machine: Machine
) -> None:
    path = save(tmp_path, record(*[launch(1.0)] * 3))
    path.write_text(broken or path.read_text())
    stored = path.read_text()
    found, _ = compared(tmp_path, machine, *[100.0] * 3, before=(100.0,) * 3)
    assert found.verdict.outcome == "ok"
    assert [(each, each.read_text()) for each in tmp_path.rglob("*.json")] == [(path, stored)]


def test_the_other_sides_baseline_locates_a_builder_that_moved(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "checkout"
    asked: list[str] = []
    monkeypatch.setattr(Elsewhere, "root", there)

    def run(self: Elsewhere, job: Job, **_: Any) -> LaunchResult:
        asked.append(job.case.builder)
        return RAN

    monkeypatch.setattr(Elsewhere, "launch", run)
    old = "suite.steps:train_step"
    moved = dataclasses.replace(record(launch(1.0)), case=dataclasses.replace(case(), builder=old))
    save(there, moved)
    found, _ = compared(tmp_path, machine, before=())
    assert set(asked) == {old}
    assert found.verdict.suspects == (
        ("builder", old, case().builder),
        ("commit", "0123456789ab", None),
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "outcome", "reason"),
    [
        ("crash", "ok", "crash", "this side, not main (0123456789ab): because"),
        ("ok", "crash", "crash", "nothing to compare with: main (0123456789ab): because"),
        ("ok", "timeout", "timeout", "nothing to compare with: main (0123456789ab): because"),
        ("crash", "crash", "crash", "this side, and main (0123456789ab) too: because"),
        ("oom", "ok", "regression", "out of memory where main (0123456789ab) fitted: because"),
        ("ok", "oom", "improvement", "fits in memory where main (0123456789ab) did not"),
        ("oom", "oom", "oom", "out of memory, as in main (0123456789ab)"),
    ],
)
def test_the_reason_names_the_side_that_failed(
    mine: str, theirs: str, outcome: str, reason: str, tmp_path: Path, machine: Machine
) -> None:
    ends = {**FAILURES, "ok": RAN}
    machine.ended = ends[mine]
    found, order = compared(tmp_path, machine, before=(), ended=ends[theirs])
    assert (found.verdict.outcome, found.verdict.reason) == (outcome, reason)
    assert order == "AB", "the other side of a failure is still seen"


BUILDER = case().builder.partition(":")[0]


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("KeyError: 'zero4'", "new"),
        ("ValueError: strategy 'zero4' is unknown", "new"),
        ("TypeError: train_step() got an unexpected keyword argument 'strategy'", "new"),
        (f"AttributeError: module '{BUILDER}' has no attribute 'train_step'", "new"),
        (f"ModuleNotFoundError: No module named '{BUILDER}'", "new"),
        (f"ModuleNotFoundError: No module named '{BUILDER.partition('.')[0]}'", "new"),
        ("ModuleNotFoundError: No module named 'never_added'", "crash"),
        ("RuntimeError: NCCL error", "crash"),
    ],
)
def test_a_case_that_the_other_commit_does_not_have_is_new_and_passes(
    message: str, outcome: str, tmp_path: Path, machine: Machine
) -> None:
    reason = f"rank 0 failed while building the step: {message}"
    found, _ = compared(tmp_path, machine, 100.0, before=(), ended=LaunchResult(outcome="crash", reason=reason))
    assert found.verdict.outcome == outcome
    assert found.verdict.fails(ci=True) is (outcome == "crash")
    if outcome == "new":
        assert found.verdict.reason == (
            f"main (0123456789ab) does not have this case, so it is compared with nothing: {reason}"
        )
        assert found.baseline is None and found.record is not None


def test_a_case_that_another_environment_cannot_build_is_a_crash(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, "root", tmp_path)
    refused = LaunchResult(outcome="crash", reason="rank 0 failed while building the step: KeyError: 'zero4'")
    found, _ = compared(tmp_path, machine, 100.0, before=(), ended=refused)
    assert found.verdict.outcome == "crash"


@pytest.mark.parametrize(
    ("mine", "theirs", "ends", "reason", "expected"),
    [
        ([130.0] * 3, [100.0] * 4, "crash", "this side, not main (0123456789ab): because", "ABBAABB"),
        ([130.0] * 4, [100.0] * 4, "noisy", runner.UNSETTLED, "ABBAABB"),
    ],
    ids=["failed", "measured"],
)
def test_a_launch_without_a_partner_counts_only_if_it_failed(
    mine: list[float],
    theirs: list[float],
    ends: str,
    reason: str,
    expected: str,
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each launch takes 10 s of the run's 75 s. After three pairs there is time for one more launch."""
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(HereNoted.order)))
    machine.ended = FAILURES["crash"]
    found, order = compared(tmp_path, machine, *mine, before=tuple(theirs), run_timeout="75", launches="3")
    assert (found.verdict.outcome, found.verdict.reason, order) == (ends, reason, expected)


def test_a_failure_of_the_other_side_counts_without_time_for_our_launch(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(HereNoted.order)))
    crash = FAILURES["crash"]
    found, order = compared(
        tmp_path, machine, 130.0, 130.0, before=(100.0, 100.0), ended=crash, run_timeout="55", launches="2"
    )
    reason = "nothing to compare with: main (0123456789ab): because"
    assert (found.verdict.outcome, found.verdict.reason, order) == ("crash", reason, "ABBAA")


def test_no_side_starts_a_launch_if_its_partner_has_no_time(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch of the other side takes 30 s, and ours 10 s. After two pairs, 25 s of the run's 105 s are left."""
    took = {"A": 30.0, "B": 10.0}
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: sum(took[side] for side in HereNoted.order)))
    found, order = compared(tmp_path, machine, *[130.0] * 5, before=(100.0,) * 5, run_timeout="105", launches="2")
    assert (found.verdict.outcome, order) == ("noisy", "ABBA")


def test_each_side_is_compared_with_its_own_reference(tmp_path: Path, machine: Machine) -> None:
    _, order = compared(
        tmp_path, machine, *[100.0] * 4, before=(100.0,) * 4, reference=Reference(params={}, loss_tolerance=0.1)
    )
    assert order == "AABBBAAB", "the first of each side is its reference"


# A row in doubt


BASELINE = record(*[launch(100.0)] * 5)


def nightly(tmp_path: Path, machine: Machine, *step_ms: float, **options: str) -> Row:
    save(tmp_path, BASELINE)
    machine.step_ms = iter(step_ms)
    return row(made(tmp_path, **{"launches": "3", "night_error": "1/100", **options}), case())


@pytest.mark.parametrize(
    ("step_ms", "launches", "outcome"),
    [
        ([100.0, 100.2, 99.9], 3, "ok"),
        ([110.0, 110.1, 109.9, 110.0, 110.1], 5, "regression"),
        ([102.0, 102.0, 102.0, 100.0, 100.0, 100.0], 6, "ok"),
        ([100.0, 114.0, 114.0, 100.0, 100.1, 99.9, 100.0, 100.0, 100.0], 9, "ok"),
        ([90.0, 90.0, 90.0], 3, "improvement"),
    ],
    ids=["quiet", "slower", "cleared", "two outliers", "faster"],
)
def test_a_row_in_doubt_gets_fresh_launches_until_it_is_clear(
    step_ms: list[float], launches: int, outcome: str, tmp_path: Path, machine: Machine
) -> None:
    found = nightly(tmp_path, machine, *step_ms)
    assert found.verdict.outcome == outcome
    assert found.record is not None
    assert [one.metrics["step_ms"] for one in found.record.launches] == step_ms
    assert len(machine.jobs) == launches


def test_a_row_gets_seven_fresh_launches_at_most(tmp_path: Path, machine: Machine) -> None:
    found = nightly(tmp_path, machine, *[100.2, 104.2, 102.2] * 10)
    assert len(machine.jobs) == 10
    assert found.verdict.outcome == "ok" and not found.verdict.doubtful


def test_the_number_of_fresh_launches_is_an_option(tmp_path: Path, machine: Machine) -> None:
    assert nightly(tmp_path, machine, *[110.0] * 10, confirm="0").verdict.outcome == "regression"
    assert len(machine.jobs) == 3


@pytest.mark.parametrize(("confirm", "launches", "said"), [("0", "1", True), ("0", "3", True), ("2", "3", False)])
def test_a_red_row_says_that_no_launch_confirmed_it(
    confirm: str, launches: str, said: bool, tmp_path: Path, machine: Machine
) -> None:
    found = nightly(tmp_path, machine, *[130.0] * 10, confirm=confirm, launches=launches).verdict
    assert (found.outcome, str(found.reason).endswith("; not confirmed: --confirm 0")) == ("regression", said)


def test_a_red_count_needs_no_confirmation(tmp_path: Path, machine: Machine) -> None:
    save(tmp_path, record(*[launch(100.0, graph_breaks=0.0)] * 5))
    machine.step_ms, machine.seen = iter([100.0] * 3), {"compilations": {"graph_breaks": 1.0}}
    found = row(made(tmp_path, launches="3", confirm="0"), case()).verdict
    assert (found.outcome, runner.UNCONFIRMED in str(found.reason)) == ("regression", False)


def test_a_crash_while_confirming_is_reported_as_a_crash(tmp_path: Path, machine: Machine) -> None:
    machine.ended = FAILURES["crash"]
    found = nightly(tmp_path, machine, 110.0, 110.0, 110.0)
    assert (found.verdict.outcome, found.verdict.reason, len(machine.jobs)) == ("crash", "because", 4)


def test_a_row_in_doubt_without_time_for_more_launches_is_noisy(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch takes 30 s of the run's 100 s. A fourth launch could not end in time."""
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 30.0 * len(machine.jobs)))
    found = nightly(tmp_path, machine, *[110.0] * 10, run_timeout="100")
    assert (found.verdict.outcome, found.verdict.reason, len(machine.jobs)) == ("noisy", runner.UNSETTLED, 3)


@pytest.mark.parametrize(("last_s", "outcome"), [(41.0, "noisy"), (20.0, "timeout")], ids=["cut off", "hung"])
def test_a_confirming_launch_cut_off_by_the_run_limit_is_not_a_hang(
    last_s: float, outcome: str, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches take 30 s, so the fourth starts with 40 s of 130 s left. A collective may wait for half of that."""
    ends = [0.0, 30.0, 60.0, 90.0, 90.0 + last_s]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: ends[len(machine.jobs)]))
    machine.ended = FAILURES["timeout"]
    found = nightly(tmp_path, machine, *[110.0] * 3, run_timeout="130")
    assert (found.verdict.outcome, len(machine.jobs)) == (outcome, 4)
    hung = "40 s of the run's 130 s (--run-timeout) were left for it: because"
    assert found.verdict.reason == (runner.UNSETTLED if outcome == "noisy" else hung)


@pytest.mark.parametrize(
    ("left", "launches", "words"),
    [
        ({}, 5, "step time 10.0% worse"),
        ({"run_timeout": "100"}, 3, "graph breaks: 0 → 1; the step time may be 10.0% worse"),
    ],
    ids=["time to tell", "no time left"],
)
def test_a_row_red_by_a_count_also_reports_its_step_time(
    left: dict[str, str],
    launches: int,
    words: str,
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(tmp_path, record(*[launch(100.0, graph_breaks=0.0)] * 5))
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 30.0 * len(machine.jobs)))
    machine.step_ms, machine.seen = iter([110.0] * 10), {"compilations": {"graph_breaks": 1.0}}
    found = row(made(tmp_path, launches="3", night_error="1/100", **left), case())
    assert (found.verdict.outcome, len(machine.jobs)) == ("regression", launches)
    assert str(found.verdict.reason).startswith(words)


def test_saving_runs_the_requested_launches_however_slow_they_are(tmp_path: Path, machine: Machine) -> None:
    assert nightly(tmp_path, machine, *[110.0] * 10, save_baseline="true").verdict.outcome == "saved"
    assert len(machine.jobs) == 3


@pytest.mark.parametrize(
    ("step_ms", "options", "launches", "reason"),
    [
        ([100.0, 100.2, 99.9], {}, 5, None),
        ([100.0, 104.0, 98.5, 101.0, 102.5], {}, 10, None),
        (
            [100.0, 105.6, 97.9, 101.4, 103.5],
            {},
            5,
            "the launches are so far apart that the next run sees ≥ 11.3% of step time, not 5.0%;"
            " --launches 30 would be enough",
        ),
        (
            [100.0, 140.0, 70.0, 120.0, 90.0],
            {},
            5,
            "the launches are so far apart that the next run sees ≥ 164.4% of step time, not 5.0%;"
            " more launches do not help: save it again on a calmer machine, or on another visit",
        ),
    ],
    ids=["agree", "apart", "far apart", "hopeless"],
)
def test_saving_adds_launches_if_they_make_later_nights_sensitive(
    step_ms: list[float],
    options: dict[str, str],
    launches: int,
    reason: str | None,
    tmp_path: Path,
    machine: Machine,
) -> None:
    machine.step_ms = cycle(step_ms)
    found = row(made(tmp_path, save_baseline="true", launches="5", **options), case())
    assert (found.verdict.outcome, found.verdict.reason, len(machine.jobs)) == ("saved", reason, launches)


def test_more_launches_are_not_advised_to_a_row_whose_host_changes_between_visits(
    tmp_path: Path, machine: Machine
) -> None:
    machine.step_ms = cycle([100.0, 108.0, 95.0, 103.0, 106.0])
    machine.seen = {"parts": {"host_ms": 100.0, "compute_ms": 50.0}}
    said = str(row(made(tmp_path, save_baseline="true", launches="5"), case()).verdict.reason)
    assert said.endswith(
        "of step time, not 5.0%; more launches do not help, because its host changes between visits: use a calmer host,"
        " or let the device set the pace (a larger batch, a CUDA graph)"
    )


def test_advised_launches_are_enough(tmp_path: Path, machine: Machine) -> None:
    """The number in the advice was tried: a baseline of so many launches gets no warning."""
    machine.step_ms = cycle([100.0, 105.6, 97.9, 101.4, 103.5])
    said = str(row(made(tmp_path, save_baseline="true", launches="5"), case()).verdict.reason)
    advised = re.findall("--launches ([0-9]+) would", said)[0]
    assert row(made(tmp_path, save_baseline="true", launches=advised), case()).verdict.reason is None


def test_an_improvement_gets_confirming_launches_if_it_would_fail(tmp_path: Path, machine: Machine) -> None:
    assert nightly(tmp_path, machine, *[90.0] * 5, fail_on_improvement="true").verdict.outcome == "improvement"
    assert len(machine.jobs) == 5


def test_more_rows_share_the_error_budget_of_the_night(tmp_path: Path) -> None:
    options = settings.read({}, {}, {"baseline_dir": str(tmp_path)}, tmp_path)
    policies = [
        Runner(
            settings=options,
            hardware=HARDWARE,
            now=Here(environment=ENVIRONMENT, import_path=(), root=tmp_path),
            folder=tmp_path,
            progress=lambda _: contextlib.nullcontext(lambda _: None),
            cases=cases,
        ).policy
        for cases in (1, 100)
    ]
    assert [policy.error for policy in policies] == pytest.approx([1 / 30, 1 / 3000])
    assert (policies[0].first, policies[0].last, policies[0].floor) == (3, 10, None)


def test_noise_is_learned_from_baselines_and_broken_ones_are_left_out(
    tmp_path: Path,
) -> None:
    for width in range(4):
        save(tmp_path, record(launch(98.0), launch(100.0), launch(102.0 + width), of=case(width=width)))
    save(tmp_path, record(of=case(width=9))).write_text("<<<<<<< HEAD\n")
    of = made(tmp_path)
    priors = of.priors(record())
    assert set(priors.noise) == {("step_ms", False), ("step_ms", True)}
    assert 0.01 < priors.noise["step_ms", False].noise < 0.04


@pytest.mark.parametrize(
    ("step_ms", "created", "stale"),
    [
        (100.0, "now", ""),
        (100.0, "2020-01-02T03:04:05+00:00", "it is more than 90 days old"),
        (90.0, "now", "it is beaten"),
    ],
)
def test_the_row_says_why_its_baseline_is_stale(
    step_ms: float, created: str, stale: str, tmp_path: Path, machine: Machine
) -> None:
    if created == "now":
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    save(tmp_path, dataclasses.replace(BASELINE, created=created))
    machine.step_ms = iter([step_ms] * 3)
    assert row(made(tmp_path, launches="3"), case()).stale == stale


def test_a_baseline_without_a_newer_count_is_stale(tmp_path: Path, machine: Machine) -> None:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    save(tmp_path, dataclasses.replace(BASELINE, created=now))
    machine.step_ms = iter([100.0] * 3)
    machine.seen = {"collectives": {"all_reduce": {"calls": 1.0, "bytes": 8.0}}}
    assert row(made(tmp_path, launches="3"), case()).stale == (
        "it lacks what is counted now, so that a change of that stays silent: collectives a step, all ranks,"
        " bytes into collectives a step, all ranks"
    )


def test_all_reports_show_the_figure_that_is_judged(tmp_path: Path, machine: Machine) -> None:
    """With outliers, the median and the judged middle are far apart: 43.7 % here, 30.5 % there."""
    old = [launch(ms, samples_per_s=8000 / ms) for ms in (60.0, 64.0, 100.0, 61.0, 66.0)]
    save(tmp_path, record(*old))
    machine.step_ms = iter([70.0, 92.0, 93.0, 91.0, 71.0])
    of = made(tmp_path, save_baseline="true", launches="5", confirm="0")
    found = row(of, case())
    assert found.record is not None
    change = found.verdict.change("step_ms")
    assert change is not None and abs(change.now - 91.0) > 1, "not the median"
    archive = Archive(of.settings)
    archive.keep(found, found.record, took_s=1.0)
    shown = rows.table([found])
    said = terminal.saved(archive.saves, wanted=5)
    assert f": {change.before:,.2f} → {shown['step ms'][0]} ms a step ({-change.change:.1%} slower) → " in said
    assert (shown["step ms"], shown["change"]) == ([f"{change.now:,.2f}"], [rows.signed(change.change)])
    assert found.record.figure("samples_per_s") == pytest.approx(8000 / change.now, rel=0.01)
    assert "judged" not in baseline.path_of(tmp_path, "h200-sxm", case()).read_text(), "figures are not stored"


def test_pages_show_stored_rows_with_the_figures_that_a_run_judges_them_by(tmp_path: Path) -> None:
    quiet = [steps(100.0, 100.2, 99.9, 100.1, 100.0 + width / 100) for width in range(6)]
    odd = steps(100.0, 114.0, 100.1)
    *_, shown = stored_judged([*quiet, odd])
    change = judge(steps(100.0, 100.0, 100.1), odd, priors=learn([*quiet, odd])).change("step_ms")
    assert change is not None
    assert shown.figure("step_ms") == pytest.approx(change.before, rel=2e-4)
    assert shown.figure("step_ms") != odd.median("step_ms")


def test_rates_that_follow_samples_per_s_agree_with_it() -> None:
    now = record(
        *(launch(100.0, samples_per_s=rate, tokens_per_s=1024 * rate, mfu=rate / 100) for rate in (40, 41, 49))
    )
    shown, _ = both_judged(judge(now, now), now, None)
    rate, tokens, mfu = (shown.figure(name) for name in ("samples_per_s", "tokens_per_s", "mfu"))
    assert rate is not None and rate != 41
    assert tokens == pytest.approx(1024 * rate) and mfu == pytest.approx(rate / 100)


# The machine, not the code


CALM, SHARED = {"other_processes": [0.0, 0.0]}, {"other_processes": [0.0, 1.0]}


def test_fresh_launches_replace_disturbed_ones(tmp_path: Path, machine: Machine) -> None:
    """Two of the first three launches run beside another process and are slow. Four more make five calm ones."""
    machine.devices = iter([SHARED, CALM, SHARED, *[CALM] * 10])
    found = nightly(tmp_path, machine, 130.0, 100.0, 130.0, *[100.0] * 10)
    words = "2 of 7 launches left out for what they ran under: other processes: 1 on device 1, baseline not known"
    assert (found.verdict.outcome, found.verdict.reason) == ("ok", words)
    assert len(machine.jobs) == 7
    assert found.record is not None and len(found.record.launches) == 7, "the record keeps them all"


def test_a_constantly_disturbed_machine_is_blamed_and_not_stored(tmp_path: Path, machine: Machine) -> None:
    machine.devices = itertools.repeat(SHARED)
    found = nightly(tmp_path, machine, *[130.0] * 10)
    assert (found.verdict.outcome, found.accept, len(machine.jobs)) == ("environment", "", 10)
    assert found.verdict.fails(ci=False)


def test_a_busy_neighbour_who_leaves_does_not_hide_slower_code(tmp_path: Path, machine: Machine) -> None:
    """Five launches run beside another process, which would be enough to blame the machine. Then it leaves."""
    machine.devices = iter([*[SHARED] * 5, *[CALM] * 10])
    found = nightly(tmp_path, machine, *[150.0] * 10)
    assert (found.verdict.outcome, len(machine.jobs)) == ("regression", 10)
    assert "5 of 10 launches left out" in str(found.verdict.reason)


def test_a_baseline_of_a_disturbed_machine_is_flagged_when_saved_and_used(tmp_path: Path, machine: Machine) -> None:
    machine.devices, machine.step_ms = itertools.repeat(SHARED), itertools.repeat(100.0)
    saved = row(made(tmp_path, save_baseline="true"), case())
    assert saved.record is not None
    assert (saved.verdict.outcome, saved.verdict.reason) == (
        "saved",
        "stored all the same, though other processes: 1 on device 1: the next run sees ≥ 8.8%;"
        " save it again when that is over",
    )
    save(tmp_path, saved.record)
    assert row(made(tmp_path), case()).stale == "it was measured on a disturbed machine"


def test_a_baseline_measured_under_worse_conditions_is_stale(tmp_path: Path, machine: Machine) -> None:
    for clock_mhz, stale in (
        (
            1410.0,
            "it was measured under worse conditions, which may hide slower code: SM clock 1,410 MHz, now 1,980 MHz",
        ),
        (1980.0, ""),
    ):
        slower = record(*[launch(100.0, conditions={"sm_mhz": [clock_mhz]})] * 3)
        save(tmp_path, dataclasses.replace(slower, created=datetime.now(timezone.utc).isoformat(timespec="seconds")))
        machine.step_ms, machine.devices = iter([100.0] * 3), itertools.repeat({"sm_mhz": [1980.0, 1980.0]})
        found = row(made(tmp_path, launches="3"), case())
        assert (found.verdict.outcome, found.stale) == ("ok", stale)


def test_a_job_names_the_devices_of_its_ranks(tmp_path: Path, machine: Machine) -> None:
    of = made(tmp_path)
    of.hardware = dataclasses.replace(HARDWARE, uuids=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    row(of, case())
    assert [job.device_uuids for job in machine.jobs] == [("GPU-a", "GPU-b", "GPU-c", "GPU-d")]
