"""Start the ranks of a job, wait for all of them, and return their results.

Each launch has one torch elastic agent in this process, and fresh rank processes. The ranks are forked from a server
that has already imported the heavy libraries. This process touches no device.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_trainbench.launch.device_monitor import sampled
from pytest_trainbench.launch.private import agents_leave_at_once, fork_server_pid
from pytest_trainbench.launch.ranks import LocalRanks, kill, size, state
from pytest_trainbench.launch.result import LaunchResult, NodeResult, collect, short
from pytest_trainbench.launch.watchdog import Watchdog, watching
from pytest_trainbench.rank import host_counters, worker
from pytest_trainbench.schema.job import JOB, SCRATCH, STACKS, Job

LEAST_BYTES = 2**16
"""A disk with less room than this is full. The files of a rank take more."""

NO_SPACE = "no space is left on the disk of {}: free some, or let TMPDIR or --basetemp name a folder on another disk"

SERVER_GONE = 255
"""The exit code that multiprocessing gives a process whose fork server has ended."""

SERVER_KILLED = (
    "the fork server, which starts the ranks, was killed from outside: perhaps by the kernel's out-of-memory killer,"
    " see dmesg; the next launch starts a new one"
)

MEET_S = 60
"""How long the running agents of several nodes may take to meet."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of one node in a launch on several nodes.

    ``node`` counts from 0. ``ranks``: the ranks of this node. ``endpoint``: the host and port where the agents meet.
    ``cut``: whether ranks of another node have failed. The ranks of this node are then ended, because they would wait.
    """

    node: int
    nodes: int
    ranks: range
    endpoint: str
    cut: Callable[[], bool]


def launch(job: Job, *, progress: Callable[[str], None] = lambda _: None) -> LaunchResult:
    """Run ``job`` to its end. Another thread calls ``progress`` with the phase of rank 0.

    Raises ``KeyboardInterrupt`` at Ctrl-C. Another signal is sent to this process again, after the ranks are gone. No
    rank is left behind, whatever this function raises.
    """
    left = run_ranks(job, progress=progress)
    return replace(collect(job, left), by_hand=by_hand(job))


def by_hand(job: Job) -> str:
    """The command that runs ``job`` without pytest, with as many threads a rank: torchrun gives each of several ranks
    one thread unless it is told otherwise."""
    ranks = job.case.mesh.world_size
    threads = os.environ.get("OMP_NUM_THREADS", str(worker.cpu_threads(ranks)))
    environment = [f"OMP_NUM_THREADS={threads}"] if job.device_kind == "cpu" else []
    torchrun = ["torchrun", "--nproc-per-node", str(ranks), "-m", worker.__name__]
    return shlex.join([*environment, *torchrun, str(job.folder / JOB)])


def run_ranks(job: Job, *, progress: Callable[[str], None] = lambda _: None, part: Part | None = None) -> NodeResult:
    """Run all ranks, or one node's ``part`` of them, as :func:`launch` does, but do not read their files."""
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        path = job.write()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return NodeResult(problem=NO_SPACE.format(job.folder))
    ranks = range(job.case.mesh.world_size) if part is None else part.ranks
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(ranks),
        run_id=job.folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # port 0: any free port
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(job.folder / "logs"), redirects=Std.ALL),
    )
    if part is not None:
        # The nodes' ranks are fixed in advance. The c10d rendezvous would assign ranks by the names of the nodes.
        config.min_nodes = config.max_nodes = part.nodes
        config.rdzv_backend, config.rdzv_endpoint = "static", part.endpoint
        config.rdzv_configs = {"rank": part.node, "timeout": math.ceil(min(MEET_S, job.limit_s))}
        config.local_addr = None
    if hasattr(config, "shutdown_timeout"):  # newer torch: seconds between SIGTERM and SIGKILL
        config.shutdown_timeout = 5
    server = fork_server_pid()
    exit_codes: dict[int, int] = {}
    stopped_by: int | None = None
    problem, failed = "", False
    watchdog = Watchdog(
        LocalRanks(job=job, ranks=ranks, progress=progress, cut_off=part.cut if part else None), limit_s=job.limit_s
    )
    seen = watchdog.observed
    killed_before = host_counters.oom_kills()
    devices: dict[str, list[float]] = {}

    def hung() -> bool:
        return any(size(job.folder / STACKS.format(rank)) for rank in ranks)

    try:
        with (
            _signals_kept(),
            _quiet_agent(),
            agents_leave_at_once(),
            watching(watchdog),
            sampled(job, ranks[0]) as devices,
        ):
            elastic_launch(config, worker.main)(str(path))
    except ChildFailedError as error:
        failed = True
        exit_codes = {
            rank: failure.exitcode for rank, failure in error.failures.items() if not seen.ours(rank, failure)
        }
    except SignalException as error:
        stopped_by = None if seen.stopped else int(error.sigval)
    except DistError as error:
        if part is None:
            raise
        problem = f"the nodes did not meet at {part.endpoint}: {short(str(error))}"
    except (EOFError, OSError) as error:
        failed = True
        # The agent raises these if the fork server ends while it starts a rank (the watchdog ends it at the limit), and
        # if a rank cannot write the file in which the agent looks for its error.
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            problem = NO_SPACE.format(job.folder)
        elif not _full_disk(job) and not hung():
            if not _ended(server):
                raise
            problem = SERVER_KILLED
    finally:
        kill(job.folder)
        shutil.rmtree(job.folder / SCRATCH, ignore_errors=True)
    if failed and (full := _full_disk(job)):
        problem = NO_SPACE.format(full)
    elif SERVER_GONE in exit_codes.values() and _ended(server) and not hung():
        problem = SERVER_KILLED
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if stopped_by is not None:
        os.kill(os.getpid(), stopped_by)
    killed = None if killed_before is None else host_counters.oom_kills()
    return NodeResult(
        exit_codes=exit_codes,
        gone=seen.gone,
        out_of_memory=dict.fromkeys(ranks, None if killed_before is None or killed is None else killed > killed_before),
        devices=devices,
        frozen=seen.frozen,
        problem=problem,
    )


def _ended(server: int | None) -> bool:
    """Whether the fork server that ran before the launch has ended."""
    return server is not None and state(server) in "ZX"


def _full_disk(job: Job) -> Path | None:
    """The folder that a launch writes to and whose disk has no room; ``None`` if there is room."""
    for folder in (job.folder, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            if found.f_bavail * found.f_frsize < LEAST_BYTES:
                return folder
    return None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore signal handlers, because the agent replaces them and never restores them."""
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    before: dict[signal.Signals, Any] = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Silence the agent, which logs all events and failing ranks at length. The report shows each failure once."""
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
