"""Two sides in one run, as whole pytest sessions and below: real processes, real commits, nothing left behind."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_project import STEP, TEST, pytest_run, stored
from repositories import git
from test_launch import HERE, QUICK

from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.launch.checkout import find
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.launch.side_process import THIS_SIDE, Message, SideProcess, _listen, sides
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape


@pytest.fixture
def commits(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The project in a repository whose last commit made the step several times slower."""
    monkeypatch.setenv("PROJECT_UNDER_TEST", str(project.path))
    (project.path / ".gitignore").write_text("__pycache__\n.pytest_cache\n*.md\nranks\nrunpytest-*\nstd*\n")
    git(project.path, "init")
    for slow in ("", " * 8"):
        project.makepyfile(my_steps=STEP.format(slow=slow))
        git(project.path, "add", ".")
        git(project.path, "commit", "-m", "one more")
    return project


def left(project: pytest.Pytester) -> list[str]:
    """Ids of processes that inherited the project's mark, and checkouts of the project."""
    mark = f"PROJECT_UNDER_TEST={project.path}".encode()
    processes = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has just ended
            processes += [environ.parent.name] if mark in environ.read_bytes().split(b"\0") else []
    return sorted({*processes} - {str(os.getpid())}) + git(project.path, "worktree", "list").splitlines()[1:]


def left_in_the_end(project: pytest.Pytester) -> list[str]:
    """The same, after ending processes have ended."""
    until = time.monotonic() + 60
    while left(project) and time.monotonic() < until:
        time.sleep(0.05)
    return left(project)


def test_a_slower_commit_is_red_against_its_parent_and_stores_nothing(commits: pytest.Pytester) -> None:
    writes = ["--report-md", "summary.md", "--history", "kept"]
    result = pytest_run(commits, "--against", "HEAD~1", "--launches", "2", *writes)
    assert result.ret == 1
    before, now = (git(commits.path, "rev-parse", "--short=12", name) for name in ("HEAD~1", "HEAD"))
    result.stdout.fnmatch_lines(
        [
            f"trainbench: *; against HEAD~1 ({before}), measured in turns; launches of each case: 2",
            "regression: mine: step time *% worse (sees ≥ *%)",
            f"  against   HEAD~1 ({before}), measured in turns with this side",
            "  launches  * against *",
            f"  differs   commit: {before} → {now}",
            "  again     python -m pytest test_it.py::test_mine *--hw cpu --against 'HEAD~1' *",
            "  accept    nothing to store: after the merge, runs are compared with the merged code",
            "  by hand   OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m pytest_trainbench.rank.worker */job.json",
        ]
    )
    assert f"against HEAD~1 ({before})" in (commits.path / "summary.md").read_text()
    assert stored(commits) == [] and left_in_the_end(commits) == []
    assert not (commits.path / "kept").exists()


def test_a_commit_equals_itself_and_untracked_modules_are_missing(commits: pytest.Pytester) -> None:
    once = ["--against=HEAD", "--launches", "2", "--confirm", "0", "--night-error", "1/1000000"]
    assert pytest_run(commits, *once).ret == 0
    commits.makepyfile(unknown="", my_steps="import unknown\n" + STEP.format(slow=""))
    git(commits.path, "commit", "-am", "a module that was never added")
    result = pytest_run(commits, *once)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["crash: mine: nothing to compare with: HEAD (*): rank * ModuleNotFoundError: No module named 'unknown'"]
    )


def test_a_case_that_the_commit_does_not_have_is_new_and_passes(commits: pytest.Pytester) -> None:
    added = "\n\ndef new_step(mesh, *, width):\n    return my_step(mesh, width=width)\n"
    test = TEST.replace("import my_step", "import new_step").replace("bench(my_step", "bench(new_step")
    commits.makepyfile(my_steps=STEP.format(slow="") + added, test_it=test)
    result = pytest_run(commits, "--against=HEAD", "--launches", "2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*trainbench: 1 new*", "new: mine: HEAD (*) does not have this case, *: AttributeError: *'new_step'"]
    )


def test_an_unusable_value_of_against_ends_with_code_4(project: pytest.Pytester) -> None:
    result = pytest_run(project, "--against", "nonsense")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --against=nonsense cannot be used: it is not a Python interpreter *"])


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_an_interrupted_or_killed_session_leaves_nothing_behind(commits: pytest.Pytester, name: str) -> None:
    commits.makepyfile(my_steps="import time\n\ndef my_step(mesh, *, width):\n    time.sleep(1000)\n")
    git(commits.path, "commit", "-am", "one that hangs")
    # A background process of a shell ignores SIGINT, and so would pytest here.
    pytest_main = "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(pytest.main())"
    command = [sys.executable, "-c", f"import pytest, signal, sys; {pytest_main}", "--hw", "cpu", "--against=HEAD"]
    command += [f"--basetemp={commits.path}/ranks"]
    session = subprocess.Popen(command, cwd=commits.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not list(commits.path.glob("ranks/*/*/pid-1")) and time.monotonic() < until:
            time.sleep(0.05)
        assert len(left(commits)) >= 6, "pytest, two sides, a fork server and two ranks, and the checkout"
        session.send_signal(getattr(signal, name))
        session.wait(timeout=60)
    finally:
        session.kill()
    assert left_in_the_end(commits) == []


# One side


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[SideProcess, SideProcess]]:
    """Two sides that both use this interpreter."""
    with sides(
        find(sys.executable, tmp_path),
        hardware=Hardware(id="cpu-1c", kind="cpu", device_name="a CPU", count=1),
        root=tmp_path,
        preload="torch.distributed.device_mesh",
        limit_s=120,
    ) as both:
        yield both


def run(side: SideProcess, folder: Path, **params: object) -> LaunchResult:
    return side.launch(
        Job(
            case=Case(builder="steps:linear", mesh=MeshShape(dp=2), params=params),
            device_kind="cpu",
            folder=folder,
            limit_s=60,
            collective_limit_s=30,
            plan=QUICK,
            import_path=(HERE,),
        )
    )


def test_both_sides_start_their_own_ranks_and_restart_after_a_kill(
    two: tuple[SideProcess, SideProcess], tmp_path: Path
) -> None:
    other, this = two
    assert (other.name, this.name) == (sys.executable, THIS_SIDE)
    assert other.environment == this.environment
    ended = [run(side, tmp_path / side.name.replace("/", "-")) for side in two]
    assert [[trace.rank for trace in each.traces] for each in ended] == [[0, 1], [0, 1]]
    assert [bool(each.by_hand) for each in ended] == [False, True], "whoever types it is in this environment"

    assert run(other, tmp_path / "raises", fault="raise").reason == (
        "rank 1 failed while building the step: RuntimeError: planted"
    )
    os.kill(other._process.pid, signal.SIGKILL)
    other._process.wait()
    assert run(other, tmp_path / "again").outcome == "ok"


def test_a_side_that_dies_during_a_launch_is_a_crash(two: tuple[SideProcess, SideProcess], tmp_path: Path) -> None:
    side = two[0]
    side.log.write_text("")
    assert side.environment

    def kill(phase: str) -> None:
        os.kill(side._process.pid, signal.SIGKILL)

    job = Job(
        case=Case(builder="steps:linear", mesh=MeshShape(dp=2), params={"fault": "hang"}),
        device_kind="cpu", folder=tmp_path / "job", limit_s=60, collective_limit_s=30, import_path=(HERE,),
    )  # fmt: skip
    ended = side.launch(job, progress=kill)
    assert (ended.outcome, ended.reason) == (
        "crash",
        "the process that starts its ranks gave no answer: its log is empty",
    )


def test_output_that_is_not_a_message_is_ignored() -> None:
    heard: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    _listen(io.StringIO('hello\n1\n\n{"phase": "timing"}\n'), heard)
    assert [heard.get(timeout=1) for _ in range(2)] == [{"phase": "timing"}, None]


def test_a_truncated_answer_counts_as_no_answer() -> None:
    heard: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    _listen(io.StringIO('{"phase": "timing"}\n{"outco'), heard)
    assert [heard.get(timeout=1) for _ in range(2)] == [{"phase": "timing"}, None]
