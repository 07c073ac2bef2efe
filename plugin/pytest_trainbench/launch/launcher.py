"""Start the ranks of a job, wait for all of them, and hand back what they wrote.

One torch elastic agent a launch, in this process; fresh rank processes every time, forked from a server that has the
heavy libraries imported already. No device is touched in this process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pytest_trainbench.launch.device_monitor import sampled
from pytest_trainbench.launch.private import agents_leave_at_once
from pytest_trainbench.launch.ranks import LocalRanks, kill, size
from pytest_trainbench.launch.result import LaunchResult, NodeResult, collect, short
from pytest_trainbench.launch.watchdog import Watchdog, watching
from pytest_trainbench.rank import host_counters, worker
from pytest_trainbench.schema.job import JOB, STACKS, Job

MEET_S = 60
"""How long the agents of several nodes, all of them up, may take to meet."""


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


def launch(job: Job, *, progress: Callable[[str], None] = lambda _: None) -> LaunchResult:
    """Run ``job`` to its end. ``progress`` is told, from another thread, what rank 0 is doing.

    Whatever it raises (``KeyboardInterrupt`` at Ctrl-C; a signal sent to this process is sent on), the ranks are gone.
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
    watchdog = Watchdog(
        LocalRanks(job=job, ranks=ranks, progress=progress, cut_off=part.cut if part else None), limit_s=job.limit_s
    )
    seen = watchdog.observed
    killed_before = host_counters.oom_kills()
    devices: dict[str, list[float]] = {}
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
        exit_codes = {
            rank: failure.exitcode for rank, failure in error.failures.items() if not seen.ours(rank, failure)
        }
    except SignalException as error:
        stopped_by = None if seen.stopped else int(error.sigval)
    except DistError as error:
        if part is None:
            raise
        problem = f"the nodes did not meet at {part.endpoint}: {short(str(error))}"
    except (EOFError, OSError):
        # The agent's words where the fork server goes away while it starts a rank: at its limit we ended it.
        if not any(size(job.folder / STACKS.format(rank)) for rank in ranks):
            raise
    finally:
        kill(job.folder)
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
        problem=problem,
    )


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
