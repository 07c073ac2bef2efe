"""A pytest plugin for tests of a run's texts. It starts no rank, and each launch succeeds.

Each step of a launch takes ``REPLAYED_STEP_MS``, the time planted by ``--calibrate`` included.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from samples import trace

from pytest_trainbench import runner
from pytest_trainbench.launch import fork_server
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.schema.job import Job

BY_HAND = "torchrun --nproc-per-node {} -m pytest_trainbench.rank.worker {}/job.json"


def launch(job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
    """The result of ``own_project``'s step on an idle machine."""
    ranks = job.case.mesh.world_size
    step_ms = [float(os.environ["REPLAYED_STEP_MS"]) + job.delay_ms] * 20
    traces = tuple(
        trace(rank, step_ms=step_ms, samples=32 * ranks, tokens=None, flops=None, flops_counted=None, dtype="fp32")
        for rank in range(ranks)
    )
    return LaunchResult(traces=traces, by_hand=BY_HAND.format(ranks, job.folder))


runner.launch = launch  # type: ignore[attr-defined, assignment]
fork_server.start_fork_server = lambda modules: None
