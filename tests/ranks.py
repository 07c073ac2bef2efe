"""Ranks of the suite's step builders on this CPU, started as a benchmark run starts them."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from crew import Crew, run_program
from filelock import FileLock
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.launch.fork_server import start_fork_server
from pytest_trainbench.launch.launcher import launch
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Launch

ROOT = Path(__file__).parents[1]

MODULES = ""
"""The modules that the ranks of a benchmark run start with: ``trainbench_preload``, which conftest.py reads."""

TURN = FileLock(Path(tempfile.gettempdir()) / "pytest-trainbench-ranks.lock", poll_interval=0.005)
"""The ranks of one launch fill the cores. If tests run in several processes, two launches would slow each other. The
short poll interval gets the lock between two tests of another process, which would otherwise keep it for minutes."""

NO_FP16 = "Type fp16 is not supported on your device."
"""DeepSpeed's message on CPUs without fp16 instructions."""


@cache
def preload() -> None:
    """Start the fork server of all ranks of this process, and wait for it, because some launches have a short limit.

    A process has one fork server, and the first caller starts it. If that caller named fewer modules, every rank of
    every later test would import the others itself. That took a third of the time of all tests.
    """
    start_fork_server(MODULES)
    ready = multiprocessing.get_context("forkserver").Process(target=time.time)
    ready.start()
    ready.join()


def job(
    folder: Path,
    builder: str,
    *,
    mesh: str = "dp1",
    warmup: int = 4,
    steps: int = 4,
    limit_s: float = 300.0,
    reference_steps: int | None = None,
    **params: Any,
) -> Job:
    """A job with ``warmup`` warm-up steps and ``steps`` timed steps."""
    return Job(
        case=Case(builder=builder, mesh=MeshShape.parse(mesh), params=params),
        device_kind="cpu",
        folder=folder,
        limit_s=limit_s,
        collective_limit_s=limit_s / 2,
        plan=Plan(warmup=warmup, min_steps=steps, max_steps=steps),
        reference_steps=reference_steps,
        import_path=(str(ROOT), str(ROOT / "tests")),
    )


def start(folder: Path, builder: str, **how: Any) -> LaunchResult:
    """The result of a launch with fresh processes as ranks. ``how`` goes to :func:`job`."""
    preload()
    with TURN:
        return launch(job(folder, builder, **how))


CREWS: dict[tuple[int, str], Crew] = {}


def train(folder: Path, builder: str, *, apart: str = "", **how: Any) -> LaunchResult:
    """The same with ranks that have trained other cases before, which takes a fraction of the time.

    Cases that leave something behind in their process run ``apart``: only cases with the same name share their ranks.
    """
    one = job(folder, builder, **how)
    key = one.case.mesh.world_size, apart
    preload()
    if key not in CREWS or CREWS[key].ended:
        CREWS[key] = Crew(one.case.mesh.world_size)
    return CREWS[key].run(one)


def dismiss() -> None:
    """End the ranks that wait for another case, because threads of their process groups keep waking up."""
    while CREWS:
        CREWS.popitem()[1].end()


def printed(program: str, to: Path) -> str:
    """The output of a program in its own process, with the modules of ranks imported. It may import the suite."""
    preload()
    process = multiprocessing.get_context("forkserver").Process(target=run_program, args=(program, to))
    process.start()
    process.join()
    assert process.exitcode == 0, to.read_text()
    return to.read_text()


@contextmanager
def pretended(mesh: str, *, rank: int = 0) -> Iterator[DeviceMesh]:
    """The mesh as one of its ranks gets it, for code that needs no other rank, such as refusals."""
    shape = MeshShape.parse(mesh)
    dist.init_process_group("fake", rank=rank, world_size=shape.world_size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", tuple(shape.axes.values()), mesh_dim_names=tuple(shape.axes))
    finally:
        dist.destroy_process_group()


def launched(ended: LaunchResult) -> Launch:
    """The launch of ranks that ended normally. Skips the test if this CPU lacks fp16."""
    if NO_FP16 in str(ended.reason):
        pytest.skip(NO_FP16)
    assert ended.outcome == "ok", f"{ended.reason}\n{ended.detail}"
    return reduce(ended.traces, peak_tflops=None)
