"""FairScale's FSDP on a machine without a GPU, for smoke tests.

It calls ``torch.cuda`` for its streams whatever the device. ``torch.cpu`` answers the same calls and does
nothing.
"""

from __future__ import annotations

import types
from typing import Any

import torch


class _TorchWithoutCuda(types.ModuleType):
    cuda = torch.cpu

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def enable() -> None:
    """Make FairScale's FSDP take ``torch.cpu`` for ``torch.cuda`` in this process."""
    import fairscale.nn.data_parallel.fully_sharded_data_parallel as module

    module.torch = _TorchWithoutCuda("torch")
    # FairScale tells the allocator which stream uses a tensor. CPU memory has no streams, and torch refuses.
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]
