"""Real ranks and real failures: every end of a launch is reported correctly and leaves no process behind."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import TURN, launched, preload, start

from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.launch import launcher, result, watchdog
from pytest_trainbench.launch.launcher import launch
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.rank import host_counters
from pytest_trainbench.rank.worker import cpu_threads, failure_kind
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import STARTING
from pytest_trainbench.schema.plan import Plan

HERE = str(Path(__file__).parent)
QUICK = Plan(warmup=4, min_steps=10, max_steps=10)


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> None:
    preload()


def job(
    folder: Path,
    *,
    ranks: int = 2,
    limit_s: float = 120,
    cap_gb: float | None = None,
    delay_ms: float = 0.0,
    reference: tuple[int, float] | None = None,
    **params: object,
) -> Job:
    case = Case(builder="steps:linear", mesh=MeshShape(dp=ranks), params=params, memory_cap_gb=cap_gb)
    return Job(
        case=case,
        device_kind="cpu",
        folder=folder / "job",
        limit_s=limit_s,
        collective_limit_s=limit_s / 2,
        plan=QUICK,
        import_path=(HERE,),
        delay_ms=delay_ms,
        reference_steps=reference and reference[0],
        step_limit_s=reference and reference[1],
    )


def run(folder: Path, **how: Any) -> LaunchResult:
    """Launch a :func:`job`."""
    with TURN:
        return launch(job(folder, **how))


def alive(folder: Path) -> list[int]:
    """The rank processes of a launch that still run. Zombies have ended and do not count."""
    pids = [int(path.read_text()) for path in folder.glob("**/pid-*")]
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, stat in states.items() if stat.exists() and stat.read_text().rsplit(")")[-1].split()[0] != "Z"]


def wait_until_gone(folder: Path, *, within_s: float = 10) -> list[int]:
    until = time.monotonic() + within_s
    while alive(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return alive(folder)


def test_every_rank_returns_a_trace(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert (ended.outcome, ended.reason, [trace.rank for trace in ended.traces]) == ("ok", None, [0, 1])
    first, second = ended.traces
    assert len(first.step_ms) == 10 and len(first.losses) == 15
    assert first.digest_before == second.digest_before != first.digest_after == second.digest_after
    assert first.coordinates == {"dp": 0} and second.coordinates == {"dp": 1}
    assert first.memory["process_bytes"] > 10_000_000
    one = reduce(ended.traces, peak_tflops=None)
    assert (one.outcome, one.reason) == ("ok", None)
    assert one.metrics["flops_per_step"] == first.flops
    assert list(one.phases_s) == [*STARTING, "counting", "warming", "timing", "profiling"]
    assert one.metrics["start_s"] == max(sum(trace.phases_s[name] for name in STARTING) for trace in ended.traces)
    assert not alive(tmp_path)


def test_a_figure_of_the_step_may_be_a_tensor(tmp_path: Path) -> None:
    assert [trace.figures for trace in run(tmp_path, fault="tensor figure").traces] == [{}, {"loss": 2.5}]


def test_a_planted_delay_is_in_every_step(tmp_path: Path) -> None:
    assert min(ms for trace in run(tmp_path, delay_ms=30.0).traces for ms in trace.step_ms) >= 30


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("raise", "crash", "rank 1 failed while building the step: RuntimeError: planted"),
        ("exit", "crash", "rank 1 exited with code 3 while building the step"),
        ("segfault", "crash", "rank 1 was killed by SIGSEGV while building the step"),
    ],
)
def test_the_rank_that_failed_is_named_and_not_its_peers(tmp_path: Path, fault: str, outcome: str, reason: str) -> None:
    ended = run(tmp_path, fault=fault)
    assert (ended.outcome, ended.reason) == (outcome, reason)
    assert not alive(tmp_path)


@pytest.mark.parametrize(
    ("out_of_memory", "outcome", "told"),
    [
        (True, "oom", ": out of host memory, as the count of the kernel's out-of-memory killer shows"),
        (False, "crash", "; not by the kernel's out-of-memory killer, which counted no kill"),
        (None, "crash", "; usually the kernel's out-of-memory killer does this: look at dmesg"),
    ],
)
def test_a_killed_rank_says_who_may_have_killed_it(
    tmp_path: Path, out_of_memory: bool | None, outcome: str, told: str
) -> None:
    (tmp_path / "progress-1").write_text("building the step")
    case = Case(builder="steps:linear", mesh=MeshShape(dp=2), params={})
    job = Job(case=case, device_kind="cpu", folder=tmp_path, limit_s=60, collective_limit_s=30)
    left = result.NodeResult(exit_codes={1: -signal.SIGKILL}, out_of_memory={0: None, 1: out_of_memory})
    ended = result.collect(job, left)
    assert (ended.outcome, ended.reason) == (outcome, f"rank 1 was killed by SIGKILL while building the step{told}")


def test_an_out_of_memory_kill_of_a_helper_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = iter([4, 5])
    monkeypatch.setattr(host_counters, "oom_kills", lambda: next(killed))
    ended = run(tmp_path, fault="raise")
    assert ended.outcome == "crash" and "planted; the kernel's out-of-memory killer ended" in str(ended.reason)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_exits_early_with_code_0_ends_its_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """The elastic agent does not see a failure here: it only waits for the result."""
    monkeypatch.setattr(watchdog, "GRACE_S", 2.0)
    before = signal.getsignal(signal.SIGTERM)
    ended = run(tmp_path, ranks=ranks, fault="exit 0")
    died = f"rank {ranks - 1} exited with code 0 while building the step"
    assert (ended.outcome, ended.reason, alive(tmp_path)) == ("crash", died, [])
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_that_reads_like_a_lost_peer_is_blamed_on_its_own_rank(tmp_path: Path) -> None:
    """For example, a server refuses a download on one rank while the other ranks wait."""
    ended = run(tmp_path, fault="refused")
    assert ended.reason == "rank 1 failed while building the step: ConnectionRefusedError: Connection refused"
    assert "steps.py" in ended.detail


def test_child_processes_end_with_their_rank(tmp_path: Path) -> None:
    assert run(tmp_path, fault="child").outcome == "ok"
    child = int((tmp_path / "job" / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("fault", ["thread", "process"])
def test_a_thread_or_process_left_by_a_step_does_not_keep_its_rank_alive(tmp_path: Path, fault: str) -> None:
    """Without help, the interpreter would wait for the thread or process until the launch's limit."""
    with TURN:  # before the clock starts, because another worker's launch may take minutes
        began = time.monotonic()
        ended = run(tmp_path, fault=fault, limit_s=300)
    assert (ended.outcome, len(ended.traces), alive(tmp_path)) == ("ok", 2, [])
    assert time.monotonic() - began < 150


@pytest.mark.parametrize("fault", ["no teardown", "stuck teardown", "bad teardown"])
def test_a_failing_teardown_of_the_process_group_spoils_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """NCCL's teardown may hang if a step captured a collective in a CUDA graph, and may block the process's exit."""
    monkeypatch.setattr(watchdog, "GRACE_S", 2.0)
    with TURN:
        began = time.monotonic()
        ended = run(tmp_path, fault=fault, limit_s=120)
    assert (ended.outcome, ended.reason, len(ended.traces), alive(tmp_path)) == ("ok", None, 2, [])
    assert time.monotonic() - began < 90


def test_a_failing_rank_shows_the_end_of_its_log(tmp_path: Path) -> None:
    ended = run(tmp_path, fault="raise")
    assert "raise error" in ended.detail and "RuntimeError: planted" in ended.detail


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "oom"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "oom"),
        (RuntimeError("std::bad_alloc"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("Timed out waiting 5000ms for recv operation to complete"), "timeout"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "crash"),
    ],
)
def test_the_outcome_of_an_error_follows_from_its_text(error: Exception, kind: str) -> None:
    assert failure_kind(error) == kind


def test_out_of_memory_during_a_cuda_graph_capture_is_oom() -> None:
    """The end of the capture fails too, and its error hides the first error."""
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert failure_kind(error) == "oom"


def test_a_real_allocation_above_the_memory_cap_is_oom(tmp_path: Path) -> None:
    ended = run(tmp_path, fault="oom", cap_gb=1.0)
    assert ended.outcome == "oom"
    assert ended.reason is not None and "can't allocate memory" in ended.reason


def test_a_rank_that_hangs_ends_the_launch_within_its_limit_and_says_where(tmp_path: Path) -> None:
    ended = run(tmp_path, fault="hang", limit_s=8)
    assert ended.outcome == "timeout"
    assert ended.reason is not None and "rank 1 was building the step" in ended.reason
    _, _, culprit = ended.detail.partition("--- rank 1, where it was stopped ---\n")
    assert re.search(r'steps\.py", line \d+ in _end', culprit), "of the rank that hung, not only of the one that waited"
    assert not alive(tmp_path)


def test_a_hang_is_the_cause_although_it_cut_off_a_peer(tmp_path: Path) -> None:
    """If a hang starts in the second half of the limit, its rank is ended before a peer's collective times out."""
    ended = run(tmp_path, fault="hang late", limit_s=12)
    assert (ended.outcome, ended.reason) == ("timeout", "rank 1 did not finish within 12 s: it was building the step")
    assert "in _hang_late" in ended.detail


def test_an_nccl_timeout_is_a_timeout_and_tells_of_the_other_ranks(tmp_path: Path) -> None:
    """Torch aborts the rank that waited. Its log has many C++ lines after the line with the reason."""
    ended = run(tmp_path, fault="nccl timeout")
    waited = "rank 1 waited 60 s for other ranks in ALLREDUCE while building the step; rank 0 was "
    assert ended.outcome == "timeout" and str(ended.reason).startswith(waited)


def test_the_launch_limit_ends_hanging_ranks_and_shows_their_stacks(tmp_path: Path) -> None:
    ended = run(tmp_path, ranks=1, fault="hang", limit_s=4)
    assert (ended.outcome, ended.reason) == ("timeout", "rank 0 did not finish within 4 s: it was building the step")
    assert "steps.py" in ended.detail
    assert not alive(tmp_path)


def test_the_launch_limit_applies_to_each_step_of_a_reference(tmp_path: Path) -> None:
    """Six steps of 1.5 s pass a limit of 6 s per step. A step of 12 s does not."""
    ended = run(tmp_path / "a", ranks=1, replicas=2, slow_ms=1500.0, reference=(6, 6.0))
    assert (ended.outcome, [len(trace.losses) for trace in ended.traces]) == ("ok", [6])
    hung = run(tmp_path / "b", ranks=1, replicas=2, slow_ms=12_000.0, reference=(6, 6.0))
    assert (hung.outcome, hung.reason) == (
        "timeout",
        "rank 0 did not finish: it was training step 1 of 6 of the reference; one rank trains the whole reference,"
        " and each of its steps may take 6 s (--launch-timeout)",
    )
    assert "steps.py" in hung.detail


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "the loss of step 1 is nan"),
        ("frozen", "nothing was learned"),
        ("no gradient sync", "data-parallel replicas differ: ranks 0 and 1 hold other parameters"),
        ("too fast", "of the device's peak is impossible"),
        ("wrong formula", "(-50.0%): the step leaves something out, or one of them is wrong"),
    ],
)
def test_a_planted_fault_makes_the_launch_invalid(tmp_path: Path, fault: str, reason: str) -> None:
    ended = run(tmp_path, fault=fault)
    one = reduce(ended.traces, peak_tflops=1.0)
    assert one.outcome == "invalid"
    assert one.reason is not None and reason in one.reason


def test_only_a_correct_step_has_the_losses_of_the_unsharded_model(
    tmp_path: Path,
) -> None:
    reference = reduce(run(tmp_path / "a", ranks=1, replicas=2).traces, peak_tflops=None).losses
    right = reduce(run(tmp_path / "b").traces, peak_tflops=None).losses
    wrong = reduce(run(tmp_path / "c", fault="wrong gradient").traces, peak_tflops=None).losses
    assert loss_fault(right, reference, tolerance=0.001) is None
    assert "it trains wrong" in str(loss_fault(wrong, reference, tolerance=0.05))


def test_torchrun_runs_a_case_from_its_job_file(tmp_path: Path) -> None:
    assert run(tmp_path).outcome == "ok"
    (tmp_path / "job" / "trace-1.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "-m", "pytest_trainbench.rank.worker", str(tmp_path / "job" / "job.json")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "job" / "trace-1.json").exists()
    assert re.fullmatch(r"step time: [\d.]+ ms \(median of \d+ steps of rank 0\)\n", done.stdout)


def test_ranks_have_the_threads_that_the_environment_asks_for_and_so_has_the_command_by_hand(tmp_path: Path) -> None:
    ended = start(tmp_path / "job", "steps:threads", mesh="dp1")
    assert cpu_threads(1) > 1 or os.cpu_count() == 1, "a rank alone would take all cores"
    assert launched(ended).figures["threads"] == int(os.environ["OMP_NUM_THREADS"]) == 1
    assert ended.by_hand.startswith("OMP_NUM_THREADS=1 torchrun --nproc-per-node 1 ")


def test_a_rank_under_torchrun_ends_although_its_teardown_hangs(tmp_path: Path) -> None:
    """Under torchrun no watchdog ends the rank, and its interpreter is blocked."""
    path = job(tmp_path, fault="stuck teardown", limit_s=300)
    path.folder.mkdir()
    with TURN:
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
             "-m", "pytest_trainbench.rank.worker", str(path.write())],
            capture_output=True, timeout=150, check=False,
        )  # fmt: skip
    assert sorted(each.name for each in path.folder.glob("trace-*")) == ["trace-0.json", "trace-1.json"]


def test_a_stopped_rank_is_named_and_no_stack_is_shown_twice(tmp_path: Path) -> None:
    ended = run(tmp_path, fault="stop", limit_s=20)
    assert ended.outcome == "timeout"
    said = "rank 1 was stopped by a signal (SIGSTOP) while building the step, and rank 0 waited for it: "
    assert str(ended.reason).startswith(said), ended.reason
    assert ended.detail.count("Traceback (most recent call last)") == 1
    assert not alive(tmp_path)


def test_a_cause_that_is_also_in_the_log_is_shown_once(tmp_path: Path) -> None:
    cause = "Traceback (most recent call last):\n" + "\n".join(f"  line {line}" for line in range(40)) + "\nError: x"
    one = job(tmp_path)
    one.folder.mkdir()
    (one.folder / "stderr-0.log").write_text(f"a warning before\n{cause}\nsaid after\n")
    shown = result._sections(one, 0, cause)
    assert shown == f"{cause}\n--- end of the log of rank 0 ---\na warning before\nsaid after"


def test_a_killed_rank_leaves_no_file_of_its_profiler(tmp_path: Path) -> None:
    ended = run(tmp_path, fault="kill counting", limit_s=60)
    assert "was killed by SIGKILL while counting collectives" in str(ended.reason)
    assert list(tmp_path.rglob("trace.json")) == []


FORK_SERVER = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {here!r})
if __name__ == "__main__":
    from multiprocessing.util import get_temp_dir
    from pytest_trainbench.launch import fork_server, launcher
    from pytest_trainbench.launch.private import fork_server_pid
    from test_launch import job
    fork_server.start_fork_server({modules!r})
    print(get_temp_dir(), flush=True)
    {body}
"""


def session_of(folder: Path, body: str, *, modules: str = "torch.utils.flop_counter") -> subprocess.Popen[str]:
    """A process with its own fork server."""
    script = folder / "session.py"
    script.write_text(FORK_SERVER.format(here=HERE, modules=modules, body=body))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)


def test_a_killed_fork_server_is_reported_as_such_and_the_next_launch_works(tmp_path: Path) -> None:
    body = f"""
    def end():
        while not Path({str(tmp_path / "a/job/progress-1")!r}).exists():
            time.sleep(0.05)
        os.kill(fork_server_pid(), signal.SIGKILL)
    threading.Thread(target=end).start()
    print(launcher.launch(job(Path({str(tmp_path)!r}) / "a", slow_ms=300.0)).reason)
    print(launcher.launch(job(Path({str(tmp_path)!r}) / "b")).outcome)"""
    with TURN:
        _, first, second = session_of(tmp_path, body).communicate(timeout=200)[0].splitlines()
    assert first.startswith("the fork server, which starts the ranks, was killed from outside: ")
    assert second == "ok"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_killed_session_leaves_no_folder_of_its_fork_server(tmp_path: Path, name: str) -> None:
    session = session_of(tmp_path, "time.sleep(1000)", modules="")
    assert session.stdout is not None
    folder = Path(session.stdout.readline().strip())
    assert folder.is_dir()
    time.sleep(1)  # in this time the server begins to import, in vain
    session.send_signal(getattr(signal, name))
    session.wait()
    until = time.monotonic() + 60
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not folder.exists()


@pytest.mark.parametrize("how", ["job", "agent"])
def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_: Any, **__: Any) -> Any:
        raise full if how == "job" else EOFError("Ran out of input")

    if how == "job":
        monkeypatch.setattr(Job, "write", fail)
    else:
        monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: fail)
        monkeypatch.setattr(launcher, "LEAST_BYTES", 2**70)
    ended = run(tmp_path)
    assert (ended.outcome, ended.detail) == ("crash", "")
    assert ended.reason == (
        f"no space is left on the disk of {tmp_path / 'job'}: free some, or let TMPDIR or --basetemp name a folder on"
        " another disk"
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_rank_outlives_its_parent(tmp_path: Path, name: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {HERE!r})\n"
        "if __name__ == '__main__':\n"
        "    from test_launch import job, launch\n"
        f"    launch(job(Path({str(tmp_path)!r}), fault='hang', limit_s=200))\n"
    )
    with TURN:
        parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 60
            started = tmp_path / "job" / "progress-1"
            while not (started.exists() and "building" in started.read_text()) and time.monotonic() < until:
                time.sleep(0.05)
            assert len(alive(tmp_path)) == 2
            os.kill(parent.pid, getattr(signal, name))
            parent.wait(timeout=60)
        finally:
            parent.kill()
    assert wait_until_gone(tmp_path) == []
    assert parent.returncode != 0


def test_a_collective_limit_above_the_launch_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a collective's limit \(9 s\) must be below the launch's \(5 s\)"):
        Job(case=Case(builder="steps:linear", mesh=MeshShape()), device_kind="cpu", folder=tmp_path,
            limit_s=5, collective_limit_s=9)  # fmt: skip


def test_a_hanging_preload_ends_one_launch_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses a process with its own fork server. The launch after the failed one succeeds."""
    (tmp_path / "hangs_on_import.py").write_text("import time; time.sleep(1000)")
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {HERE!r})\n"
        "if __name__ == '__main__':\n"
        "    from pytest_trainbench.launch import fork_server, launcher, watchdog\n"
        "    from test_launch import job\n"
        "    watchdog.GRACE_S = 1\n"
        "    fork_server.start_fork_server('hangs_on_import')\n"
        f"    ended = launcher.launch(job(Path({str(tmp_path)!r}) / 'a', limit_s=2))\n"
        "    print(ended.outcome, ended.reason, ended.detail, sep='|')\n"
        f"    print(launcher.launch(job(Path({str(tmp_path)!r}) / 'b')).outcome)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with TURN:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    first, second, third = done.stdout.splitlines()
    assert first.startswith(
        "timeout|rank 0, 1 did not finish within 2 s: it was starting|it was never started: the fork server"
    ), first
    assert (second.startswith("a module of trainbench_preload"), third) == (True, "ok")


def test_a_rank_on_a_full_disk_prints_no_traceback() -> None:
    """Its messages would go to the session's terminal, because its log has no room for them."""
    program = """
import errno, os
from pytest_trainbench.rank import worker
def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
worker._main = full
worker.main("job.json")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
