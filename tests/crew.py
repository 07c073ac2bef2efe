"""Ranks that run one job after another in one process group. A test that needs fresh processes starts a launch.

Each job has a model, an optimizer and a trace of its own, as in a launch. Jobs with the same mesh share its
``DeviceMesh``: torch's DTensor caches facts about a mesh, including its groups, for all equal meshes. All other
process groups end with their job. Each gloo group has a thread that wakes up a hundred times a second, and with the
groups of a hundred jobs the idle ranks kept both cores of a machine busy.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from pytest_trainbench.launch.result import LaunchResult, NodeResult, collect
from pytest_trainbench.rank import worker
from pytest_trainbench.schema.job import Job

DESTROY = dist.destroy_process_group
"""torch's function. Jobs of a crew get a mock in its place."""

GRACE_S = 3.0
"""How long the other ranks may take to write their errors after one failed. A rank that lost a peer waits for 1 s."""


class Crew:
    """``size`` ranks from the fork server of this process. They end when a job fails, or when this process ends."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, size, self._store.port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    @property
    def ended(self) -> bool:
        return any(process.exitcode is not None for process, _ in self._ranks)

    def run(self, job: Job) -> LaunchResult:
        """Like :func:`pytest_trainbench.launch.launcher.launch`, but ranks that hang in C are not watched."""
        job.folder.mkdir(parents=True, exist_ok=True)
        path = str(job.write())
        for _, jobs in self._ranks:
            jobs.send(path)
        until = time.monotonic() + job.limit_s + GRACE_S
        busy = dict(enumerate(self._ranks))
        while busy and wait([jobs for _, jobs in busy.values()], timeout=max(0.0, until - time.monotonic())):
            for rank, (_, jobs) in list(busy.items()):
                if not jobs.poll():
                    continue
                try:
                    jobs.recv()
                    del busy[rank]
                except EOFError:
                    return self._failed(job)
        return self._failed(job) if busy else collect(job, NodeResult())

    def _failed(self, job: Job) -> LaunchResult:
        until = time.monotonic() + GRACE_S
        for process, _ in self._ranks:
            process.join(max(0.0, until - time.monotonic()))
        codes = {rank: process.exitcode for rank, (process, _) in enumerate(self._ranks)}
        self.end()
        return collect(job, NodeResult(exit_codes={rank: code for rank, code in codes.items() if code}))

    def end(self) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()


def serve(rank: int, size: int, port: int, jobs: Connection) -> None:
    """One rank: receives the path of a job, runs the job, and answers when its trace is written."""
    os.environ.update(
        RANK=f"{rank}",
        LOCAL_RANK=f"{rank}",
        WORLD_SIZE=f"{size}",
        LOCAL_WORLD_SIZE=f"{size}",
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=f"{port}",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    worker._die_with_parent()
    seed = torch.initial_seed()
    # The garbage collector ignores the half a million objects that the fork server imported, for good. The timed loop
    # would unfreeze them after each job.
    gc.freeze()
    meshes: list[DeviceMesh] = []

    @cache
    def mesh_once(
        *how: Any, make: Callable[..., DeviceMesh] = device_mesh.init_device_mesh, **options: Any
    ) -> DeviceMesh:
        meshes.append(make(*how, **options))
        return meshes[-1]

    with (
        mock.patch.object(worker, "_die_with_parent"),
        mock.patch.object(gc, "freeze"),
        mock.patch.object(gc, "unfreeze"),
        mock.patch.object(dist, "init_process_group", _once(dist.init_process_group)),
        mock.patch.object(dist, "destroy_process_group"),
        mock.patch.object(device_mesh, "init_device_mesh", mesh_once),
    ):
        while True:
            try:
                path = jobs.recv()
            except EOFError:
                os._exit(0)  # skips the destructors of process groups, which wait for peers
            torch.manual_seed(seed)
            _log_to(Path(path).parent / "logs" / f"{rank}" / "stderr.log")
            worker.main(path)
            faulthandler.cancel_dump_traceback_later()  # the job set it for a rank that does not end; this rank stays
            forget()
            end_groups(kept=[group for mesh in meshes for group in mesh.get_all_groups()])
            jobs.send("done")


def _once(join: Callable[..., None]) -> Callable[..., None]:
    return lambda *how, **options: None if dist.is_initialized() else join(*how, **options)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def run_program(program: str, to: Path) -> None:
    """Run a Python program. All its output goes to the file ``to``."""
    _log_to(to)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def forget() -> None:
    """Reset the global state of libraries, which the next job would otherwise find."""
    if groups := sys.modules.get("deepspeed.utils.groups"):
        groups._release_process_group_references(group=None)
    if groups := sys.modules.get("megatron.core.parallel_state"):
        groups.destroy_model_parallel()
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    if groups := sys.modules.get("fairscale.internal.parallel"):
        vars(groups.get_process_group_cached).pop("_global_group_cache", None)
    gc.collect()


def end_groups(kept: Iterable[dist.ProcessGroup]) -> None:
    """End all process groups except the group of all ranks and those in ``kept``."""
    whole = dist.group.WORLD
    assert whole is not None
    names = {group.group_name for group in (whole, *kept)}
    for group in list(dist.distributed_c10d._world.pg_map):
        if group.group_name not in names:
            DESTROY(group)
