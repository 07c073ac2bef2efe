"""Step builders for tests: a small model that really trains, and one that goes wrong on request."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from pytest_trainbench import Step

WIDTH, ROWS = 64, 32


def linear(
    mesh: DeviceMesh,
    *,
    replicas: int | None = None,
    slow_ms: float = 0.0,
    fault: str | None = None,
    culprit: int | None = None,
) -> Step:
    """A linear model under DDP. With ``replicas``, one rank trains on the data of that many ranks.

    ``fault`` plants a fault in the last rank, or in the rank ``culprit``.
    """
    ranks = replicas or mesh.size()
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(WIDTH, WIDTH, device=mesh.device_type)
    inputs, targets = torch.randn(2, ranks, ROWS, WIDTH)
    if replicas is None:
        model = DistributedDataParallel(model) if fault != "no gradient sync" else model
        inputs, targets = inputs[dist.get_rank()], targets[dist.get_rank()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if fault == "frozen" else 0.5)
    flops_per_row = 2 * 2 * WIDTH * WIDTH  # forward, and the gradient of the weight; the input needs none
    if fault is not None and dist.get_rank() == (mesh.size() - 1 if culprit is None else culprit):
        _end(fault)

    def run() -> torch.Tensor:
        if fault == "kill counting" and list((_folder() / "tmp").iterdir()) and dist.get_rank():
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if fault == "wrong gradient":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
        optimizer.step()
        time.sleep(slow_ms / 1000)
        return loss.detach() * (float("nan") if fault == "nan" else 1)

    return Step(
        run=run,
        samples=ROWS * ranks,
        flops=ROWS * ranks * flops_per_row * (1e9 if fault == "too fast" else 2 if fault == "wrong formula" else 1),
        counts_flops=fault != "too fast",
        parameters=model.parameters,
        replicated=True,
        figures=_tensor_figure if fault == "tensor figure" and dist.get_rank() else None,
    )


def threads(mesh: DeviceMesh) -> Step:
    """:func:`linear`, which also says how many threads its rank has."""
    return replace(linear(mesh), figures=lambda: {"threads": torch.get_num_threads()})


def _tensor_figure() -> dict[str, float]:
    return {"loss": torch.tensor(2.5)}  # type: ignore[dict-item]


def _end(fault: str) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "raise": lambda: _raise(RuntimeError("planted")),
        "exit": lambda: os._exit(3),
        "exit 0": lambda: os._exit(0),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "hang": lambda: time.sleep(1000),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "hang late": _hang_late,
        "oom": lambda: torch.ones(10**10),
        "nccl timeout": _wait_as_nccl_does,
        "no teardown": lambda: setattr(dist, "destroy_process_group", lambda: time.sleep(1000)),
        "stuck teardown": lambda: setattr(dist, "destroy_process_group", lambda: ctypes.PyDLL(None).sleep(1000)),
        "bad teardown": lambda: setattr(dist, "destroy_process_group", lambda: _raise(RuntimeError("planted"))),
        "fallen teardown": lambda: setattr(dist, "destroy_process_group", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        "refused": lambda: _raise(ConnectionRefusedError("Connection refused")),
        "child": _leave_a_child,
        "thread": lambda: threading.Thread(target=time.sleep, args=(1000,)).start(),
        "process": lambda: multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,)).start(),
    }
    if fault in ways:
        ways[fault]()


def _hang_late() -> None:
    """Exit as at the launch limit, before the peer's limit. Real ranks start apart, and so do their limits."""
    with (_folder() / f"hang-{dist.get_rank()}.txt").open("w") as stacks:
        faulthandler.dump_traceback_later(2, exit=True, file=stacks)
        time.sleep(1000)


def _wait_as_nccl_does() -> None:
    what = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=5000) ran for 5004 milliseconds"
    print(f"[rank1]:[E] Watchdog caught collective operation timeout: {what} before timing out.", file=sys.stderr)
    print("frame #0: what():  ...\n" * 50, file=sys.stderr, flush=True)
    os.abort()


def _raise(error: Exception) -> None:
    raise error


def _leave_a_child() -> None:
    """Start a process that outlives its rank, like a careless data loader. Its pid goes beside the rank's files."""
    child = subprocess.Popen(["sleep", "1000"])
    (_folder() / "child").write_text(str(child.pid))


def _folder() -> Path:
    """The folder of this rank's job. The search begins at the rank's log and goes up."""
    log = Path("/proc/self/fd/2").readlink()
    return next(folder for folder in log.parents if (folder / "job.json").exists())
