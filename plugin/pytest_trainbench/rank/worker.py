"""One rank of one launch. It reads a job as JSON and writes a trace as JSON. It knows nothing of pytest.

To run a case by hand: ``torchrun --nproc-per-node N -m pytest_trainbench.rank.worker job.json``.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_trainbench.rank import imported_from, measure
from pytest_trainbench.rank.imported_from import check_modules
from pytest_trainbench.rank.slowdown import slowed
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import (
    BUILDING,
    CODE,
    FAILURE,
    LEAVING,
    PROGRESS,
    SCRATCH,
    STACKS,
    STOPPED,
    TRACE,
    Failure,
    Job,
)
from pytest_trainbench.schema.record import Trace
from pytest_trainbench.schema.step import Step

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

ALONE_S = 15.0
"""How long a rank may take to end by itself after it has written its trace, in seconds."""

LOST_PEER = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|remote process (has )?exited|ncclRemoteError",
    re.IGNORECASE,
)
"""Error texts of gloo and NCCL on a rank whose peer is gone."""


NO_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|out of memory|not enough memory|std::bad_alloc|STATUS_ALLOC_FAILED", re.IGNORECASE
)
"""Error texts for too little memory: of torch's allocators, the C library, C++, cuBLAS and cuDNN."""


class Phases:
    """The current phase of the rank, written to the file ``shown_in``, and the seconds of each phase so far."""

    def __init__(self, shown_in: Path) -> None:
        self.shown_in = shown_in
        self.current = "starting"
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        key = self.current.split(" ")[0]
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self.current, self._since = name, now
        self.shown_in.write_text(name)


def main(job_path: str) -> None:
    """Run this rank's part of a job. Write a trace into the job's folder, or a failure if an exception is raised."""
    try:
        _main(job_path)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The launcher sees the full disk. Any exception would be printed three times, to the session's terminal.
        os._exit(1)


def _main(job_path: str) -> None:
    rank = int(os.environ["RANK"])
    job = Job.read(Path(job_path))
    _die_with_parent()
    # Inherited handlers belong to the agent's process. A rank that hangs in a collective must die at the first signal.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    (job.folder / f"pid-{rank}").write_text(str(os.getpid()))
    phases = Phases(job.folder / PROGRESS.format(rank))
    with (
        (job.folder / STACKS.format(rank)).open("w") as stacks,
        (job.folder / STOPPED.format(rank)).open("w") as stopped,
    ):
        # A rank that waits too long in a collective fails first. The agent then stops the other ranks. Their stacks
        # show what it waited for.
        faulthandler.register(signal.SIGTERM, file=stopped, chain=True)
        ends_at = time.monotonic() + job.limit_s

        def restart_limit() -> None:
            """Start the time limit again for the next step of a reference. It never exceeds the rank's own limit."""
            left_s = max(0.001, ends_at - time.monotonic())
            limit_s = left_s if job.step_limit_s is None else min(left_s, job.step_limit_s)
            faulthandler.dump_traceback_later(limit_s, exit=True, file=stacks)  # replaces the previous limit

        restart_limit()
        try:
            for entry in reversed(job.import_path):
                if entry not in sys.path:
                    sys.path.insert(0, entry)
            if job.root is not None:
                imported_from.hide(job.root)
            _work(job, rank, phases, restart_limit=restart_limit)
        except BaseException as error:
            text = traceback.format_exc()
            with suppress(OSError):  # a full disk
                print(text, file=sys.stderr, flush=True)
            with suppress(OSError):
                _note_code(job, rank)  # a record of an out-of-memory launch stores the files too
            failure = Failure(
                rank=rank,
                kind=failure_kind(error),
                lost_peer=bool(LOST_PEER.search(str(error))),
                message=f"{type(error).__name__}: {error}".rstrip(": "),
                phase=phases.current,
                at=time.time(),
                traceback=text,
            )
            with suppress(OSError):
                _write(job.folder / FAILURE.format(rank), asdict(failure))
            if failure.lost_peer:
                # The agent reports the first rank that ends. Wait, so that the rank at fault ends first.
                time.sleep(1)
            with suppress(OSError):
                sys.stdout.flush()
            # A normal exit would run destructors of process groups, which wait for peers that may never answer.
            os._exit(1)
        faulthandler.unregister(signal.SIGTERM)  # must happen before its file is closed


def _note_code(job: Job, rank: int) -> None:
    if job.root is not None:
        _write(job.folder / CODE.format(rank), imported_from.noted(job.root))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the whole file or nothing, because the rank may be stopped at any time."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(data), encoding="utf-8")
    whole.replace(path)


def failure_kind(error: BaseException) -> str:
    """``oom``, ``timeout`` or ``crash``."""
    import torch

    text = str(error)
    during: BaseException | None = error
    while during is not None:  # after too little memory in a recording, its end fails too and hides the first error
        if isinstance(during, (torch.OutOfMemoryError, MemoryError)) or NO_MEMORY.search(str(during)):
            return "oom"
        during = during.__context__
    if re.search(r"[Tt]imed ?out", text):
        return "timeout"
    return "crash"


def _work(job: Job, rank: int, phases: Phases, *, restart_limit: Callable[[], None]) -> None:
    """Open the device, join the process group, build the step, measure it, write the trace."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    shape = job.case.mesh
    if int(os.environ["WORLD_SIZE"]) != shape.world_size:
        raise ValueError(f"{shape} needs {shape.world_size} ranks, but {os.environ['WORLD_SIZE']} were started")
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

    phases("opening the device")
    if job.device_kind == "cpu":
        device = torch.device("cpu")
        if "OMP_NUM_THREADS" not in os.environ:  # torch honours this variable by itself
            torch.set_num_threads(cpu_threads(local_size))
    else:
        # One thread per rank, as with torchrun. The work is on the device, and idle threads would disturb other ranks.
        torch.set_num_threads(1)
        device = torch.device(job.device_kind, local_rank)
        torch.accelerator.set_device_index(local_rank)

    phases("joining the process group")
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timedelta(seconds=job.collective_limit_s),
        device_id=None if device.type == "cpu" else device,
    )
    mesh = init_device_mesh(device.type, tuple(shape.axes.values()), mesh_dim_names=tuple(shape.axes))
    if job.case.memory_cap_gb is not None:
        # The cap comes after the process group, whose threads need memory on a CPU. With too little, they would crash
        # without a message.
        _cap_memory(device, job.case.memory_cap_gb)

    phases(BUILDING)
    step = build_step(job.case, mesh)
    if job.delay_ms:
        step = replace(step, run=slowed(step.run, job.delay_ms, device))
    trace = Trace(
        rank=rank,
        coordinates=shape.coordinates(rank),
        node=int(os.environ.get("GROUP_RANK", "0")),
        samples=step.samples,
        tokens=step.tokens,
        flops=step.flops,
        dtype=step.dtype,
        replicated=step.replicated,
        trains=step.trains,
        devices=step.devices,
        digest_before=measure.digest(step.parameters()),
    )
    if job.reference_steps is None:
        scratch = job.folder / SCRATCH
        scratch.mkdir(exist_ok=True)
        trace = measure.run(
            step, job.plan, device, trace=trace, slowest=_slowest(device), phase=phases, scratch=scratch
        )
    else:

        def begin(number: int) -> None:
            phases(f"training step {number} of {job.reference_steps} of the reference")
            restart_limit()

        trace = replace(trace, losses=measure.losses(step, job.reference_steps, begin=begin))
    phases("checking")
    if job.moved is not None:
        files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        check_modules(files, *map(Path, job.moved))
    trace = replace(
        trace,
        digest_after=measure.digest(step.parameters()),
        figures=_figures(step) if job.reference_steps is None else {},
        phases_s=dict(phases.seconds),
    )
    _note_code(job, rank)
    _write(job.folder / TRACE.format(rank), trace.to_json())
    if rank == 0 and trace.step_ms and multiprocessing.parent_process() is None:  # under torchrun, somebody reads it
        print(f"step time: {median(trace.step_ms):.4g} ms (median of {len(trace.step_ms)} steps of rank 0)", flush=True)
    dist.barrier()
    with suppress(RuntimeError):  # under a memory cap, its thread may not start
        # This limit ends a rank that is run by hand; no agent does. It is in C, because a hanging rank may hold the
        # interpreter's lock.
        faulthandler.dump_traceback_later(ALONE_S, exit=True, file=sys.stderr)
    phases(LEAVING)
    if step.eager_steps:
        # NCCL does not destroy a communicator while a CUDA graph uses it. Other steps need no collection, which would
        # visit half a million objects that the fork server imported.
        del step
        gc.collect()
    try:
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()  # into the rank's log


def cpu_threads(local_size: int) -> int:
    """Number of threads for each of ``local_size`` ranks: an equal share of the cores, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // local_size)


def build_step(case: Case, mesh: DeviceMesh) -> Step:
    """Import and call the case's step builder. Raises ``TypeError`` if it does not return a ``Step``."""
    module, _, name = case.builder.partition(":")
    step = getattr(importlib.import_module(module), name)(mesh, **case.params)
    if not isinstance(step, Step):
        raise TypeError(
            f"{case.builder} returned {type(step).__name__}; a step builder returns a pytest_trainbench.Step"
        )
    return step


def _figures(step: Step) -> dict[str, float]:
    """The step's own figures as floats. The step may return any numbers, such as tensors of one element."""
    return {} if step.figures is None else {name: float(value) for name, value in step.figures().items()}


def _slowest(device: torch.device) -> Callable[[float], float]:
    import torch
    import torch.distributed as dist

    def slowest(value: float) -> float:
        shared = torch.tensor(value, dtype=torch.float32, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared)

    return slowest


def _cap_memory(device: torch.device, cap_gb: float) -> None:
    """Make allocations beyond ``cap_gb`` (10⁹ bytes) fail: in torch's allocator on CUDA, by a resource limit on a CPU.
    Raises ``ValueError`` for other devices."""
    import torch

    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_gb * 1e9 / total), device)
    elif device.type == "cpu":
        import resource

        held = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert held is not None
        limit = int(held[1]) * 1024 + int(cap_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    else:
        raise ValueError(f"the memory of a {device.type} device cannot be capped: only cuda and cpu support it")


def _die_with_parent() -> None:
    """End this rank when the agent's process ends for any reason."""
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    os.setpgid(0, 0)  # a process group of its own, to end this rank's children with it

    def watch() -> None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
