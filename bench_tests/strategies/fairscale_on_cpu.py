"""FairScale's FSDP on a machine without a GPU, for smoke tests.

FairScale calls ``torch.cuda`` for its streams on every device. ``torch.cpu`` accepts the same calls and does nothing.
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
    """Make FairScale's FSDP use ``torch.cpu`` in place of ``torch.cuda``, in this process."""
    import fairscale.nn.data_parallel.fully_sharded_data_parallel as module

    module.torch = _TorchWithoutCuda("torch")
    # FairScale records which stream uses a tensor. CPU memory has no streams, and torch would raise.
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]
