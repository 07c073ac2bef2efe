"""Start the ranks of a job, wait for all of them, and hand back what they wrote.

One torch elastic agent a launch, in this process; fresh rank processes every time, forked from a server that has the
heavy libraries imported already. No device is touched in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import multiprocessing
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_trainbench.launch import device_monitor
from pytest_trainbench.project.sources import union
from pytest_trainbench.rank import host_counters, worker
from pytest_trainbench.schema.job import CODE, FAILURE, JOB, LEAVING, PROGRESS, STACKS, STOPPED, TRACE, Failure, Job
from pytest_trainbench.schema.record import Trace

GRACE_S = 10.0
"""How long after its limit a launch may still take to report what hung before its ranks are killed from outside."""

LINGER_S = 5.0
"""How long the ranks, once all have written their traces, may take to end by themselves: a process group that cannot be
taken down would keep them for good, and so would a thread or a process that a step left running."""

DRIVER_S = 10.0
"""How long a launch waits for NVIDIA's driver to say who uses the devices already."""

MEET_S = 60
"""How long the agents of several nodes, all of them up, may take to meet."""

LOG = "stderr-{}.log"
"""The end of the log of a rank of another node; of those here the agent keeps all, by their number on the node."""

LOG_LINES = 25

UNBORN = """\
it was never started: the fork server was not ready and has been killed
a module of trainbench_preload may hang when it is imported
"""

OOM_KILLER = {
    True: ": out of the host's memory, as the kernel's out-of-memory killer counts",
    False: "; not by the kernel's out-of-memory killer, which counts none",
    None: "; by the kernel's out-of-memory killer, usually: dmesg tells",
}
"""Who may have sent SIGKILL, by whether that killer ended processes of ours meanwhile."""

NCCL_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout(?:.*\bOpType=(\w+))?")
"""What torch logs of a collective that did not end in time, before it aborts the rank that waited for it."""

PRELOAD_VARIABLE = "TRAINBENCH_PRELOAD"
"""Tells the fork server what to import: its only way to know."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a launch ended: with the traces of all ranks in rank order, or with the outcome and reason of its failure.

    ``detail`` is what a person wants to read next: the culprit's traceback or the stacks of what hung, and the tail
    of its log. ``by_hand`` is the command that starts the same ranks again. ``devices``: what the devices ran under
    while rank 0 timed its steps (:class:`pytest_trainbench.launch.device_monitor.DeviceMonitor`). ``code``:
    fingerprints of the project's files that its ranks imported, by path.
    """

    traces: tuple[Trace, ...] = ()
    outcome: str = "ok"
    reason: str | None = None
    detail: str = ""
    by_hand: str = ""
    devices: dict[str, list[float]] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one node does of a launch on several.

    ``node`` counts from 0, ``ranks`` are its own, and its agent meets the others' at ``endpoint`` (host and port).
    ``cut`` says whether ranks of another node have failed: those here, which would wait for them, are ended then.
    """

    node: int
    nodes: int
    ranks: range
    endpoint: str
    cut: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Left:
    """What the ranks of one node left besides their files.

    ``exit_codes``: of those that failed. ``gone``: those that ended first, without a word. ``out_of_memory``: of each
    rank whether the kernel ended processes of its node for that meanwhile; ``None`` where it does not say.
    ``devices``: see :class:`Ended`. ``problem``: why no rank was started.
    """

    exit_codes: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    out_of_memory: dict[int, bool | None] = field(default_factory=dict)
    devices: dict[str, list[float]] = field(default_factory=dict)
    problem: str = ""


def start_fork_server(modules: str) -> None:
    """Start importing ``modules`` (space-separated) in the fork server now, so that the first launch need not wait."""
    import multiprocessing.forkserver as server

    multiprocessing.set_forkserver_preload(["pytest_trainbench.launch.preload"])
    os.environ[PRELOAD_VARIABLE] = modules
    try:
        server.ensure_running()
    finally:
        del os.environ[PRELOAD_VARIABLE]


def end_fork_server() -> None:
    """With what it started. The next launch starts another, which imports nothing ahead of time."""
    import multiprocessing.forkserver as server

    pid = server._forkserver._forkserver_pid  # type: ignore[attr-defined]
    for one in reversed(host_counters.family(Path("/"), pid)) if pid is not None else ():
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)


def launch(job: Job, *, progress: Callable[[str], None] = lambda _: None) -> Ended:
    """Run ``job`` to its end. ``progress`` is told, from another thread, what rank 0 is doing.

    Whatever it raises (``KeyboardInterrupt`` at Ctrl-C; a signal sent to this process is sent on), the ranks are gone.
    """
    left = run_ranks(job, progress=progress)
    torchrun = ["torchrun", "--nproc-per-node", str(job.case.mesh.world_size), "-m", worker.__name__]
    by_hand = shlex.join([*torchrun, str(job.folder / JOB)])
    return replace(collect(job, left), by_hand=by_hand)


def run_ranks(job: Job, *, progress: Callable[[str], None] = lambda _: None, part: Part | None = None) -> Left:
    """As :func:`launch`, for all ranks or one node's ``part`` of them, without a look at what they wrote."""
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.write()
    ranks = range(job.case.mesh.world_size) if part is None else part.ranks
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(ranks),
        run_id=job.folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # port 0: any that is free
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(job.folder / "logs"), redirects=Std.ALL),
    )
    if part is not None:
        # Who has which ranks is said beforehand: c10d's rendezvous would give them out by the nodes' names.
        config.min_nodes = config.max_nodes = part.nodes
        config.rdzv_backend, config.rdzv_endpoint = "static", part.endpoint
        config.rdzv_configs = {"rank": part.node, "timeout": math.ceil(min(MEET_S, job.limit_s))}
        config.local_addr = None
    if hasattr(config, "shutdown_timeout"):  # newer torch: seconds between asking ranks to stop and killing them
        config.shutdown_timeout = 5
    exit_codes: dict[int, int] = {}
    stopped_by: int | None = None
    problem = ""
    seen = Seen()
    killed_before = host_counters.oom_kills()
    devices: dict[str, list[float]] = {}
    try:
        with (
            _signals_kept(),
            _quiet_agent(),
            _leaving_at_once(),
            _watched(job, ranks, progress, seen, cut=part.cut if part else None),
            _sampled(job, ranks[0]) as devices,
        ):
            elastic_launch(config, worker.main)(str(path))
    except ChildFailedError as error:
        exit_codes = {
            rank: failure.exitcode for rank, failure in error.failures.items() if not seen.ours(rank, failure)
        }
    except SignalException as error:
        stopped_by = None if seen.stopped else int(error.sigval)
    except DistError as error:
        if part is None:
            raise
        problem = f"the nodes did not meet at {part.endpoint}: {_short(str(error))}"
    except (EOFError, OSError):
        # The agent's words where the fork server goes away while it starts a rank: at its limit we ended it.
        if not any(_size(job.folder / STACKS.format(rank)) for rank in ranks):
            raise
    finally:
        _kill_ranks(job.folder)
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if stopped_by is not None:
        os.kill(os.getpid(), stopped_by)
    killed = None if killed_before is None else host_counters.oom_kills()
    return Left(
        exit_codes=exit_codes,
        gone=seen.gone,
        out_of_memory=dict.fromkeys(ranks, None if killed_before is None or killed is None else killed > killed_before),
        devices=devices,
        problem=problem,
    )


def read_traces(job: Job) -> tuple[Trace, ...]:
    """Of all ranks of a launch that went well, in rank order."""
    paths = (job.folder / TRACE.format(rank) for rank in range(job.case.mesh.world_size))
    return tuple(Trace.from_json(json.loads(path.read_text())) for path in paths)


def collect(job: Job, left: Left) -> Ended:
    """How a launch ended, from the files of all its ranks and what else they ``left``."""
    paths = (job.folder / CODE.format(rank) for rank in range(job.case.mesh.world_size))
    code = union(json.loads(path.read_text(encoding="utf-8")) for path in paths if _size(path))
    return replace(_collected(job, left), code=code)


def _collected(job: Job, left: Left) -> Ended:
    if left.problem:
        return Ended(outcome="crash", reason=left.problem)
    exit_codes, gone = left.exit_codes, left.gone
    ranks = range(job.case.mesh.world_size)
    failures = [Failure(**json.loads(path.read_text())) for path in sorted(job.folder.glob(FAILURE.format("*")))]
    hung = [rank for rank in ranks if _size(job.folder / STACKS.format(rank))]
    traces = [job.folder / TRACE.format(rank) for rank in ranks]
    if not failures and not hung and all(map(_size, traces)):
        return Ended(traces=read_traces(job), devices=left.devices)

    # The first to fail is the culprit; the others fail because it left them. Running out of memory on one rank is
    # the cause even where a peer, cut off, wrote down its own failure first: on another node, by another clock. A rank
    # that wrote nothing at all, or where it hung, went down before one that lost its connection.
    failures.sort(key=lambda failure: (failure.kind != "oom", failure.lost_peer, failure.at))
    told = {failure.rank for failure in failures} | set(hung)
    silent = [rank for rank in ranks if rank not in told and not _size(traces[rank])]
    # The agent stopped the other silent ones itself. To it, an exit code of 0 is no failure.
    vanished = [rank for rank in silent if rank in exit_codes] or [rank for rank in silent if rank in gone]
    if failures and not ((vanished or hung) and failures[0].lost_peer):
        first = failures[0]
        reason = f"rank {first.rank} failed while {first.phase}: {_short(first.message)}"
        stopped = ""
        if first.kind == "timeout":
            reason += _others(job, first.rank)
            stopped = _stopped(job, first.rank)
        if first.kind == "crash" and left.out_of_memory.get(first.rank):
            reason += "; the kernel's out-of-memory killer ended a process meanwhile: a worker that the rank started?"
        return Ended(outcome=first.kind, reason=reason, detail=_sections(job, first.rank, first.traceback) + stopped)
    if hung:
        stacks = (job.folder / STACKS.format(hung[0])).read_text()
        reason = f"rank {', '.join(map(str, hung))} did not finish"
        if job.step_limit_s is None:
            reason += f" within {job.limit_s:g} s: it was {_phase(job.folder, hung[0])}"
        else:
            reason += f": it was {_phase(job.folder, hung[0])}; one rank does the work of all there,"
            reason += f" and each step may take {job.step_limit_s:g} s (--launch-timeout)"
        return Ended(
            outcome="timeout",
            reason=reason,
            detail=_sections(job, hung[0], stacks),
        )
    died = (vanished or silent)[0]
    code = exit_codes.get(died, 0 if died in gone else None)
    how = "ended without a word"
    if code is not None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    reason = f"rank {died} {how} while {_phase(job.folder, died)}"
    waited = next(filter(None, map(NCCL_TIMEOUT.search, log_of(job, died))), None)
    if waited and code == -signal.SIGABRT:
        reason = f"rank {died} waited {job.collective_limit_s:g} s for others in {waited[1] or 'a collective'}"
        reason += f" while {_phase(job.folder, died)}{_others(job, died)}"
        return Ended(outcome="timeout", reason=reason, detail=_sections(job, died, "") + _stopped(job, died))
    killed, out_of_memory = code == -signal.SIGKILL, left.out_of_memory.get(died)
    return Ended(
        outcome="oom" if killed and out_of_memory else "crash",
        reason=f"{reason}{OOM_KILLER[out_of_memory]}" if killed else reason,
        detail=_sections(job, died, ""),
    )


def _others(job: Job, rank: int) -> str:
    """What the others did, since the one that waited is seldom the one that hung."""
    others = [each for each in range(job.case.mesh.world_size) if each != rank]
    return "".join(
        f"{', ' if at else '; '}rank {each} was {_phase(job.folder, each)}" for at, each in enumerate(others)
    )


def _stopped(job: Job, rank: int) -> str:
    """Where the others were when they were stopped: one of them hung."""
    stacks = ((each, job.folder / STOPPED.format(each)) for each in range(job.case.mesh.world_size))
    return "".join(
        f"\n--- rank {each}, where it was stopped ---\n{path.read_text().strip()}"
        for each, path in stacks
        if each != rank and _size(path)
    )


def log_of(job: Job, rank: int) -> list[str]:
    logs = [job.folder / LOG.format(rank), *(job.folder / "logs").glob(f"**/{rank}/stderr.log")]
    found = next((path for path in logs if path.exists()), None)
    return found.read_text(errors="replace").splitlines() if found else []


def _sections(job: Job, rank: int, cause: str) -> str:
    tail = "\n".join(log_of(job, rank)[-LOG_LINES:])
    parts = [cause.strip()]
    if tail and cause.strip() not in tail:
        parts.append(f"--- end of the log of rank {rank} ---\n{tail}")
    elif tail:
        parts = [tail]
    return "\n".join(part for part in parts if part)


def _short(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= 300 else line[:297] + "..."


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _phase(folder: Path, rank: int) -> str:
    path = folder / PROGRESS.format(rank)
    return path.read_text() if _size(path) else "starting"


def _kill_ranks(folder: Path) -> None:
    """The last word: whatever the agent could not stop, and whatever a rank had started."""
    for group in _ranks(folder):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def _ranks(folder: Path) -> set[int]:
    """Process ids of the ranks, each of which leads a process group of its own."""
    found = set()
    for path in folder.glob("pid-*"):
        with contextlib.suppress(OSError, ValueError):
            found.add(int(path.read_text()))
    return found


@dataclass(kw_only=True)
class Seen:
    """``gone``: the ranks that ended first, before anybody could stop them, if they left nothing. ``stopped``: whether
    the agent had to be. ``cut``: whether the ranks were, for those of another node; ``ended`` are those that had ended
    before."""

    gone: set[int] = field(default_factory=set)
    stopped: bool = False
    cut: bool = False
    ended: set[int] = field(default_factory=set)

    def ours(self, rank: int, failure: Any) -> bool:
        """Whether a rank failed because it was killed for those of another node."""
        return self.cut and rank not in self.ended and failure.exitcode == -signal.SIGKILL


@contextlib.contextmanager
def _watched(
    job: Job,
    ranks: range,
    progress: Callable[[str], None],
    seen: Seen,
    *,
    cut: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """Tell ``progress`` of each new phase; kill the ``ranks`` if the launch outlives its limit or is ``cut``, or if
    they are done and do not end; end it if a rank ended with 0 in the middle of its work: for what that rank was to
    return, the agent waits without a limit."""
    done = threading.Event()
    deadline = time.monotonic() + job.limit_s + GRACE_S

    def watch() -> None:
        shown, first_end, stop_at, leave_by = "", True, math.inf, math.inf
        for look in itertools.count():
            if done.wait(0.1):
                return
            phase = _phase(job.folder, ranks[0])
            if phase != shown:
                shown = phase
                with contextlib.suppress(Exception):  # a terminal that is gone must not take the limit along
                    progress(phase)
            # Twice a second: it costs 0.3 ms of a core that may be busy, and a rank that lost a peer waits for 1 s.
            ended = set() if look % 5 else _ended(job.folder)
            if ended and first_end and not seen.cut:
                first_end = False
                # Where one of them failed, the agent may have stopped the others meanwhile.
                seen.gone |= set() if any(_told(job.folder, rank) for rank in ended) else ended
            if cut is not None and not seen.cut and look % 5 == 0 and cut():
                seen.cut, seen.ended = True, ended
            if seen.cut:
                _kill_ranks(job.folder)  # again and again: some may not have been born yet
            # From outside: what holds a rank up may hold its interpreter, too.
            if leave_by == math.inf and look % 5 == 0 and _leaving(job.folder, ranks):
                leave_by = time.monotonic() + LINGER_S
            if time.monotonic() > leave_by:
                _kill_ranks(job.folder)
            if stop_at == math.inf and (seen.gone or len(ended) == len(ranks)):
                stop_at = time.monotonic() + GRACE_S
            if time.monotonic() > stop_at:
                _kill_ranks(job.folder)
                seen.stopped = True
                os.kill(os.getpid(), signal.SIGTERM)  # where there were ranks, the agent's handler is installed
                return
            if time.monotonic() > deadline:
                for rank in ranks:
                    stacks = job.folder / STACKS.format(rank)
                    if not _size(stacks) and not _size(job.folder / TRACE.format(rank)):
                        began = (job.folder / f"pid-{rank}").exists()
                        with contextlib.suppress(OSError):  # of a full disk, say
                            stacks.write_text("killed from outside: it did not stop by itself\n" if began else UNBORN)
                if len(_ranks(job.folder)) < len(ranks):
                    # For a rank that it has not started yet, the agent waits without a limit, and one that has not said
                    # who it is cannot be ended alone.
                    end_fork_server()
                _kill_ranks(job.folder)

    thread = threading.Thread(target=watch, name="trainbench-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def _leaving_at_once() -> Iterator[None]:
    """An agent whose ranks all ended well waits for the other nodes' agents for up to 300 s, and hears no signal
    meanwhile: it would for one whose ranks failed in their teardown. What it waits for, that its store is not taken
    away from them, is :mod:`pytest_trainbench.launch.cluster`' care."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    with mock.patch.object(SimpleElasticAgent, "_exit_barrier", lambda self: None):
        yield


def _ended(folder: Path) -> set[int]:
    """Ranks that were there and are no more."""
    found = set()
    for path in folder.glob("pid-*"):
        try:
            stat = Path(f"/proc/{int(path.read_text())}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            stat = ") Z"
        except (OSError, ValueError):  # it is just being written, say
            continue
        if stat.rpartition(")")[2].split()[0] in ("Z", "X"):
            found.add(int(path.name.removeprefix("pid-")))
    return found


def _leaving(folder: Path, ranks: range) -> bool:
    return all(_phase(folder, rank) == LEAVING for rank in ranks)


def _told(folder: Path, rank: int) -> bool:
    """Whether a rank left anything: what it measured, or why it could not."""
    return any(_size(folder / name.format(rank)) for name in (TRACE, FAILURE, STACKS))


@contextlib.contextmanager
def _sampled(job: Job, rank: int) -> Iterator[dict[str, list[float]]]:
    """Filled at the end with what NVIDIA's devices ran under while ``rank``, which is here, was timing; empty without
    such devices.

    All by a thread of its own: a driver that does not answer must hold up no launch. One that has not answered when the
    ranks start is not asked again, since it would take them for processes that were there before.
    """
    found: dict[str, list[float]] = {}
    watches: list[device_monitor.DeviceMonitor] = []
    ready, done = threading.Event(), threading.Event()

    def timing() -> bool:
        return _phase(job.folder, rank).startswith("timing")

    def sample() -> None:
        try:
            watch = _watch(job)
        finally:
            ready.set()
        if watch is None or done.is_set():
            return
        watches.append(watch)
        while not done.wait(device_monitor.SAMPLE_EVERY_S):
            if timing():
                watch.sample(ours=_ranks(job.folder))
                if not timing():  # it may have been over before its clocks were read
                    watch.samples.pop()

    thread = threading.Thread(target=sample, name="trainbench-sample", daemon=True)
    thread.start()
    if not ready.wait(DRIVER_S):
        done.set()
    try:
        yield found
    finally:
        done.set()
        thread.join(timeout=device_monitor.SAMPLE_EVERY_S)
        if watches and not thread.is_alive():
            found |= watches[0].conditions()


def _watch(job: Job) -> device_monitor.DeviceMonitor | None:
    if not job.device_uuids or job.reference_steps is not None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return device_monitor.DeviceMonitor.of(job.device_uuids, nvml=pynvml)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """The agent installs signal handlers and never puts the old ones back."""
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    before: dict[signal.Signals, Any] = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """The agent logs every event and each failing rank at length; a failure is reported once, by us."""
    names = (
        "torch.distributed.elastic",
        "torch.distributed.elastic.agent.server.api",
        "torch.multiprocessing.spawn",
        "torchelastic-events-null",
    )
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
