"""Ranks of the suite's step builders on this CPU, started as a benchmark run starts them."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.launch.launcher import Ended, launch, start_fork_server
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Launch

ROOT = Path(__file__).parents[1]

MODULES = ""
"""What the ranks of a benchmark run find imported: ``trainbench_preload``, which conftest.py reads."""

TURN = FileLock(Path(tempfile.gettempdir()) / "pytest-trainbench-ranks.lock", poll_interval=0.005)
"""Ranks of one launch fill the cores: where tests run on several processes, two launches would slow each other. Looked
at often enough to be had between two tests of another process, which would otherwise keep it for minutes."""

NO_FP16 = "Type fp16 is not supported on your device."
"""DeepSpeed's word on CPUs without fp16 instructions."""


@cache
def preload() -> None:
    """Start the fork server that all ranks of this process come from, and wait for it: some have a short limit.

    There is one a process, whoever asks first: had a test asked for fewer modules, every rank of every test after it
    would import the others itself, which took a third of the time of all tests.
    """
    start_fork_server(MODULES)
    ready = multiprocessing.get_context("forkserver").Process(target=time.time)
    ready.start()
    ready.join()


def start(
    folder: Path,
    builder: str,
    *,
    mesh: str = "dp1",
    warmup: int = 6,
    steps: int = 6,
    limit_s: float = 300.0,
    reference_steps: int | None = None,
    **params: Any,
) -> Ended:
    """Ends of the ranks that train for so many steps of warm-up and so many timed ones."""
    job = Job(
        case=Case(builder=builder, mesh=MeshShape.parse(mesh), params=params),
        device_kind="cpu",
        folder=folder,
        limit_s=limit_s,
        collective_limit_s=limit_s / 2,
        plan=Plan(warmup=warmup, min_steps=steps, max_steps=steps),
        reference_steps=reference_steps,
        import_path=(str(ROOT), str(ROOT / "tests")),
    )
    preload()
    with TURN:
        return launch(job)


def launched(ended: Ended) -> Launch:
    """The launch of ranks that came to their end; skips where this CPU lacks fp16."""
    if NO_FP16 in str(ended.reason):
        pytest.skip(NO_FP16)
    assert ended.outcome == "ok", f"{ended.reason}\n{ended.detail}"
    return reduce(ended.traces, peak_tflops=None)
