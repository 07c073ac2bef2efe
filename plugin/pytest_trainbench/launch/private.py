"""What starting ranks uses of private parts of torch and of the standard library: one function each.

tests/test_private.py says what breaks when one of them goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def fork_server_pid() -> int | None:
    """Process id of the fork server; ``None`` where none runs."""
    import multiprocessing.forkserver as server

    pid: int | None = server._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


@contextlib.contextmanager
def agents_leave_at_once() -> Iterator[None]:
    """An agent whose ranks all ended well waits up to 300 s for the agents of the other nodes, and hears no signal
    meanwhile. It would wait so for an agent whose ranks failed in their teardown. The wait keeps the agents' store
    alive, which :mod:`pytest_trainbench.launch.cluster` does itself."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    with _replaced(SimpleElasticAgent, "_exit_barrier", lambda self: None):
        yield


@contextlib.contextmanager
def cuda_closed(refuse: Callable[[], None], capability: Callable[..., tuple[int, int]]) -> Iterator[None]:
    """Whatever would open a CUDA device calls ``refuse``, and ``capability`` says what a device can do."""
    import torch

    with (
        _replaced(torch.cuda, "_lazy_init", refuse),
        _replaced(torch.cuda, "get_device_capability", capability),
    ):
        yield


def nvml_index(device: Any) -> int:
    """NVML's number of a CUDA device, which ``CUDA_VISIBLE_DEVICES`` does not change."""
    import torch

    return torch.cuda._get_nvml_device_index(device)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Raises ``KeyError`` where ``owner`` itself has no such attribute: nothing would ever look at a new one."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
