"""Step builders that communicate and compile a known number of times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from pytest_trainbench import Step


def every_kind(mesh: DeviceMesh) -> Step:
    """A step on two ranks with every kind of collective that gloo has, from Python, C++ and another thread."""
    rank, whole, world = dist.get_rank(), torch.ones(12), dist.group.WORLD
    assert world is not None
    model = DistributedDataParallel(torch.nn.Linear(3, 1))  # three weights and a bias: 16 bytes

    def in_a_thread() -> None:
        model(torch.ones(2, 3)).sum().backward()  # DDP's reducer, in C++
        with dist._coalescing_manager(async_ops=False):  # two tensors, one message
            dist.all_reduce(whole)
            dist.all_reduce(whole)
        torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(whole, "sum", world.group_name))

    def work() -> None:
        dist.all_reduce(whole)
        dist.all_reduce(whole[:6])  # a view counts with its own bytes only
        dist.all_gather([torch.empty(12), torch.empty(12)], whole)
        dist.all_gather_into_tensor(torch.empty(24), whole)
        dist.reduce_scatter(torch.empty(12), [whole, whole])
        dist.reduce_scatter_tensor(torch.empty(12), torch.ones(24))
        dist.all_to_all_single(torch.empty(12), whole)
        dist.broadcast(whole, src=0)
        dist.barrier()
        sends = dist.P2POp(dist.isend, whole, 1 - rank), dist.P2POp(dist.irecv, torch.empty(12), 1 - rank)
        for done in dist.batch_isend_irecv(list(sends)):
            done.wait()
        whole.fill_(1)
        other = threading.Thread(target=in_a_thread)
        other.start()
        other.join()

    return _step(work)


def every_third(mesh: DeviceMesh) -> Step:
    """An all_reduce of 12 bytes in every third step."""
    done, value = count(), torch.ones(3)

    def work() -> None:
        if next(done) % 3 == 0:
            dist.all_reduce(value)

    return _step(work, period=3)


def compiled(mesh: DeviceMesh) -> Step:
    """One graph break, so two graphs. A second shape compiles both graphs again and meets the break again."""

    def broken(value: torch.Tensor) -> torch.Tensor:
        value = value + 1
        torch._dynamo.graph_break()
        return value * 2

    fast = torch.compile(broken, backend="eager", dynamic=False)

    def work() -> None:
        for size in (3, 4):
            fast(torch.ones(size))

    return _step(work)


def _step(work: Callable[[], None], *, period: int = 1) -> Step:
    """A step that trains nothing and writes one tensor."""
    written = torch.zeros(1)

    def run() -> None:
        work()
        written.add_(1)

    return Step(run=run, samples=1, parameters=lambda: [written], trains=False, period=period)
