"""Access to the private parts of torch and of the standard library that launches need, one function for each.

tests/test_private.py says what breaks if one of these parts disappears.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def fork_server_pid() -> int | None:
    """Process id of the fork server; ``None`` if none runs."""
    import multiprocessing.forkserver as server

    pid: int | None = server._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


@contextlib.contextmanager
def agents_leave_at_once() -> Iterator[None]:
    """Remove the exit barrier of elastic agents.

    An agent whose ranks all succeeded waits up to 300 s for the agents of the other nodes, and ignores signals
    meanwhile. It would also wait for an agent whose ranks failed in their teardown. The barrier only keeps the agents'
    store alive, and :mod:`pytest_trainbench.launch.cluster` does that itself.
    """
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    with _replaced(SimpleElasticAgent, "_exit_barrier", lambda self: None):
        yield


@contextlib.contextmanager
def cuda_closed(refuse: Callable[[], None], capability: Callable[..., tuple[int, int]]) -> Iterator[None]:
    """Call ``refuse`` instead of opening a CUDA device, and ``capability`` for a device's compute capability."""
    import torch

    with (
        _replaced(torch.cuda, "_lazy_init", refuse),
        _replaced(torch.cuda, "get_device_capability", capability),
    ):
        yield


def nvml_index(device: Any) -> int:
    """NVML's index of a CUDA device. ``CUDA_VISIBLE_DEVICES`` does not change NVML's indices."""
    import torch

    return torch.cuda._get_nvml_device_index(device)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of ``owner`` in the block. Raises ``KeyError`` if ``owner`` itself lacks the attribute."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
