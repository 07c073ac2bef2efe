"""Training through ONNX Runtime's own front end for torch, ``ORTModule`` of the package ``onnxruntime-training``.

It exports the module's forward pass as one ONNX model, adds the gradient's nodes to it and runs both halves in one
session. Parameters are inputs of that model, so the optimizer and DDP are torch's own.

Left to itself, ORTModule runs the module in eager torch where it cannot export it, and says so in a log. Here that is
forbidden, and each loss is asked where it came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench_tests.graphs import ortmodule_on_new_torch

# isort: split
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule

# Stronger than the policy that its code can be given.
os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_DISABLE"


def ortmodule() -> Callable[[nn.Module], Callable[..., Tensor]]:
    """What captures a module; raises ``RuntimeError`` where ORTModule's extension was not built."""
    if not ortmodule_on_new_torch.is_built():
        raise RuntimeError(f"ORTModule's extension is not built here: python -m {ortmodule_on_new_torch.__name__}")
    return _capture


def _capture(module: nn.Module) -> Callable[..., Tensor]:
    """``module``'s forward pass, from a batch to its loss, in ONNX Runtime.

    Exported on the first call. A loss that did not come out of ONNX Runtime is a ``RuntimeError``.
    """
    graph = ORTModule(module, DebugOptions(log_level=LogLevel.ERROR))
    training = graph._torch_module._execution_manager(True)
    _share_cores(training)

    def forward(*batch: Tensor) -> Tensor:
        loss: Tensor = graph(*batch)
        # The one function of autograd whose forward and backward are runs of the session.
        if getattr(loss.grad_fn, "_forward_cls", None) is not training._forward_class:
            raise RuntimeError(f"ORTModule fell back to eager torch: the loss is of {loss.grad_fn}")
        return loss

    return forward


def _share_cores(training: Any) -> None:
    """As many threads as torch has, and none that waits for work by spinning: they take turns with torch's."""
    configure = training._get_session_config

    def configured() -> tuple[Any, ...]:
        options, *rest = configure()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options, *rest

    training._get_session_config = configured
