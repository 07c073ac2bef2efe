"""Find out how a launch ended from the files of its ranks: their traces, or which rank failed first and why."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, field, replace

from pytest_trainbench.launch.ranks import phase, size
from pytest_trainbench.project.sources import union
from pytest_trainbench.schema.job import CODE, FAILURE, STACKS, STOPPED, TRACE, Failure, Job
from pytest_trainbench.schema.record import Trace

LOG = "stderr-{}.log"
"""The end of the log of a rank on another node. For local ranks the agent keeps whole logs, by local rank."""

LOG_LINES = 25

OOM_KILLER = {
    True: ": out of host memory, as the count of the kernel's out-of-memory killer shows",
    False: "; not by the kernel's out-of-memory killer, which counted no kill",
    None: "; usually the kernel's out-of-memory killer does this: look at dmesg",
}
"""Who may have sent SIGKILL, by whether the kernel's out-of-memory killer counted a kill during the launch."""

NCCL_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout(?:.*\bOpType=(\w+))?")
"""torch's log line for a collective that timed out. torch then aborts the waiting rank."""


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How a launch ended: the traces of all ranks in rank order, or the outcome and reason of its failure.

    ``detail``: the traceback of the rank that failed first, or the stacks of a hang, and the end of the rank's log.
    ``by_hand``: the command that starts the same ranks again.
    ``devices``: conditions of the devices while rank 0 timed its steps
    (:class:`pytest_trainbench.launch.device_monitor.DeviceMonitor`).
    ``code``: fingerprints of the project's files that the ranks imported, by path.
    """

    traces: tuple[Trace, ...] = ()
    outcome: str = "ok"
    reason: str | None = None
    detail: str = ""
    by_hand: str = ""
    devices: dict[str, list[float]] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """The results of one node's ranks besides their files.

    ``exit_codes``: the exit code of each failed rank.
    ``gone``: the ranks that ended first and left no file.
    ``out_of_memory``: for each rank, whether the kernel's out-of-memory killer counted a kill on its node; ``None`` if
    unknown.
    ``devices``: see :class:`LaunchResult`.
    ``frozen``: the ranks that a signal had stopped when the first rank ended.
    ``problem``: why no rank was started.
    """

    exit_codes: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    out_of_memory: dict[int, bool | None] = field(default_factory=dict)
    devices: dict[str, list[float]] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    problem: str = ""


def read_traces(job: Job) -> tuple[Trace, ...]:
    """The traces of all ranks of a successful launch, in rank order."""
    paths = (job.folder / TRACE.format(rank) for rank in range(job.case.mesh.world_size))
    return tuple(Trace.from_json(json.loads(path.read_text())) for path in paths)


def _trace(job: Job, rank: int) -> Trace | None:
    """The trace of a rank; ``None`` if there is none, or if it is damaged."""
    try:
        return Trace.from_json(json.loads((job.folder / TRACE.format(rank)).read_text()))
    except (OSError, TypeError, ValueError):
        return None


def collect(job: Job, left: NodeResult) -> LaunchResult:
    """How a launch ended, from the files of all its ranks and from the other results in ``left``."""
    paths = (job.folder / CODE.format(rank) for rank in range(job.case.mesh.world_size))
    code = union(json.loads(path.read_text(encoding="utf-8")) for path in paths if size(path))
    return replace(_collected(job, left), code=code)


def _collected(job: Job, left: NodeResult) -> LaunchResult:
    if left.problem:
        return LaunchResult(outcome="crash", reason=left.problem)
    exit_codes, gone = left.exit_codes, left.gone
    ranks = range(job.case.mesh.world_size)
    failures = [Failure(**json.loads(path.read_text())) for path in sorted(job.folder.glob(FAILURE.format("*")))]
    hung = [rank for rank in ranks if size(job.folder / STACKS.format(rank))]
    traces = [_trace(job, rank) for rank in ranks]
    if not failures and not hung and None not in traces:
        return LaunchResult(traces=tuple(trace for trace in traces if trace), devices=left.devices)

    # The rank that failed first is the cause; the others fail because they lost it. A rank out of memory is the cause
    # even if a peer wrote its own failure earlier, because clocks differ between nodes. A rank that wrote nothing, or
    # only the stacks of a hang, failed before a rank that lost its connection.
    failures.sort(key=lambda failure: (failure.kind != "oom", failure.lost_peer, failure.at))
    told = {failure.rank for failure in failures} | set(hung)
    silent = [rank for rank in ranks if rank not in told and traces[rank] is None]
    # The agent stopped the other silent ranks itself. For the agent, exit code 0 is no failure.
    vanished = [rank for rank in silent if rank in exit_codes] or [rank for rank in silent if rank in gone]
    if failures and not ((vanished or hung) and failures[0].lost_peer):
        first = failures[0]
        reason = f"rank {first.rank} failed while {first.phase}: {short(first.message)}"
        stopped = ""
        if first.kind == "timeout" and (frozen := sorted(left.frozen)):
            which = ", ".join(map(str, frozen))
            reason = f"rank {which} was stopped by a signal (SIGSTOP) while {phase(job.folder, frozen[0])}"
            reason += f", and rank {first.rank} waited for it: {short(first.message)}"
        elif first.kind == "timeout":
            reason += _others(job, first.rank)
            stopped = _stopped(job, first.rank)
        if first.kind == "crash" and left.out_of_memory.get(first.rank):
            reason += "; the kernel's out-of-memory killer ended a process meanwhile, perhaps a worker of this rank"
        return LaunchResult(
            outcome=first.kind, reason=reason, detail=_sections(job, first.rank, first.traceback) + stopped
        )
    if hung:
        stacks = (job.folder / STACKS.format(hung[0])).read_text()
        reason = f"rank {', '.join(map(str, hung))} did not finish"
        if job.step_limit_s is None:
            reason += f" within {job.limit_s:g} s: it was {phase(job.folder, hung[0])}"
        else:
            reason += f": it was {phase(job.folder, hung[0])}; one rank trains the whole reference,"
            reason += f" and each of its steps may take {job.step_limit_s:g} s (--launch-timeout)"
        return LaunchResult(
            outcome="timeout",
            reason=reason,
            detail=_sections(job, hung[0], stacks),
        )
    died = (vanished or silent)[0]
    code = exit_codes.get(died, 0 if died in gone else None)
    how = "ended without a message"
    if code is not None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    reason = f"rank {died} {how} while {phase(job.folder, died)}"
    waited = next(filter(None, map(NCCL_TIMEOUT.search, log_of(job, died))), None)
    if waited and code == -signal.SIGABRT:
        reason = f"rank {died} waited {job.collective_limit_s:g} s for other ranks in {waited[1] or 'a collective'}"
        reason += f" while {phase(job.folder, died)}{_others(job, died)}"
        return LaunchResult(outcome="timeout", reason=reason, detail=_sections(job, died, "") + _stopped(job, died))
    killed, out_of_memory = code == -signal.SIGKILL, left.out_of_memory.get(died)
    return LaunchResult(
        outcome="oom" if killed and out_of_memory else "crash",
        reason=f"{reason}{OOM_KILLER[out_of_memory]}" if killed else reason,
        detail=_sections(job, died, ""),
    )


def _others(job: Job, rank: int) -> str:
    """The phases of the other ranks, because the rank that waited is seldom the rank that hung."""
    others = [each for each in range(job.case.mesh.world_size) if each != rank]
    return "".join(f"{', ' if at else '; '}rank {each} was {phase(job.folder, each)}" for at, each in enumerate(others))


def _stopped(job: Job, rank: int) -> str:
    """The stacks of the other ranks when they were stopped. One of these ranks hung."""
    stacks = ((each, job.folder / STOPPED.format(each)) for each in range(job.case.mesh.world_size))
    return "".join(
        f"\n--- rank {each}, where it was stopped ---\n{path.read_text().strip()}"
        for each, path in stacks
        if each != rank and size(path)
    )


def log_of(job: Job, rank: int) -> list[str]:
    logs = [job.folder / LOG.format(rank), *(job.folder / "logs").glob(f"**/{rank}/stderr.log")]
    found = next((path for path in logs if path.exists()), None)
    return found.read_text(errors="replace").splitlines() if found else []


def _sections(job: Job, rank: int, cause: str) -> str:
    """The cause, and the end of the rank's log. A cause that the rank also wrote into its log is shown once."""
    cause = cause.strip()
    whole = "\n".join(log_of(job, rank))
    if cause and cause in whole:
        before, _, after = whole.rpartition(cause)
        whole = "\n".join(filter(None, (before.rstrip(), after.strip())))
    tail = "\n".join(whole.splitlines()[-LOG_LINES:])
    parts = [cause]
    if tail:
        parts.append(f"--- end of the log of rank {rank} ---\n{tail}")
    return "\n".join(part for part in parts if part)


def short(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= 300 else line[:297] + "..."
