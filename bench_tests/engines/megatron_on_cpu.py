"""Megatron-Core on a machine without a GPU, for smoke tests.

Megatron asks ``torch.cuda`` for its device and creates tensors on ``"cuda"``, wherever its model is. This module
replaces the name ``torch`` in Megatron's modules by a torch whose only device is the CPU.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

MAKE_TENSORS = ("empty", "ones", "tensor", "zeros")


class _CpuAsCuda(types.ModuleType):
    current_device = staticmethod(lambda: torch.device("cpu"))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu if hasattr(torch.cpu, name) else torch.cuda, name)


class _TorchWithoutCuda(types.ModuleType):
    cuda = _CpuAsCuda("torch.cuda")

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        return _on_cpu(found) if name in MAKE_TENSORS else found


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*args: Any, **options: Any) -> torch.Tensor:
        return make(*args, **{**options, "device": "cpu"} if options.get("device") == "cuda" else options)

    return made


_type: Any = torch.Tensor.type


def _type_on_cuda(tensor: torch.Tensor, *to: Any, **options: Any) -> Any:
    found = _type(tensor, *to, **options)
    return found if to or options else found.replace("torch.", "torch.cuda.", 1)


def enable() -> None:
    """Make the modules of Megatron-Core that training imports use the CPU as their GPU, in this process."""
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401

    cpu = _TorchWithoutCuda("torch")
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core.") and getattr(module, "torch", None) is torch:
            module.torch = cpu  # type: ignore[attr-defined]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]
    # Megatron's optimizer recognises parameters by type names such as torch.cuda.BFloat16Tensor.
    torch.Tensor.type = _type_on_cuda  # type: ignore[method-assign, assignment]
