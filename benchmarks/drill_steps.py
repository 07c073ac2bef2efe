"""The step builder of the fault drill: a small model under data parallelism that goes wrong on request."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_trainbench import Step

WIDTH, ROWS = 32, 16


def train(mesh: DeviceMesh, *, fault: str = "", culprit: int = 0, at_step: int = 0) -> Step:
    """One linear layer whose gradients are averaged by hand.

    ``fault``: a key of :data:`FAULTS`, which happens on the rank ``culprit``. ``at_step`` 0: while the step is built;
    N: in the Nth call.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, device=mesh.device_type)
    torch.manual_seed(1 + dist.get_rank())
    inputs, targets = torch.randn(2, ROWS, WIDTH, device=mesh.device_type)
    mine = fault if dist.get_rank() == culprit else ""
    calls = 0
    if mine in FAULTS and at_step == 0:
        FAULTS[mine]()

    def run() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if mine in FAULTS and calls == at_step:
            FAULTS[mine]()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            assert parameter.grad is not None
            if fault != "drifting replicas":
                dist.all_reduce(parameter.grad)
            if fault != "frozen":
                parameter.data -= 0.1 / mesh.size() * parameter.grad
        if mine == "slow rank":
            time.sleep(0.01)
        return loss.detach() * (float("nan") if mine == "NaN" else 1.0)

    return Step(run=run, samples=ROWS * mesh.size(), parameters=model.parameters, replicated=True)


def _raise(error: BaseException) -> None:
    raise error


def _flood() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(("x" * 200 + "\n") * 20_000)


def _tear_trace() -> None:
    """Fail, and leave half a trace. A rank writes its trace under another name first, so this needs a fault of ours."""
    log = Path("/proc/self/fd/2").readlink()
    folder = next(folder for folder in log.parents if (folder / "job.json").exists())
    (folder / f"trace-{dist.get_rank()}.json").write_text('{"rank": ')
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[], Any]] = {
    "exception": lambda: _raise(RuntimeError("planted")),
    "os._exit(3)": lambda: os._exit(3),
    "os._exit(0)": lambda: os._exit(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "collective not joined": lambda: time.sleep(1000),
    "out of memory": lambda: torch.ones(10**13),
    "flood of output": _flood,
    "torn trace": _tear_trace,
}
"""What a rank does at the moment of its fault."""
