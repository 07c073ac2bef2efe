"""Training through ``ORTModule``, ONNX Runtime's own front end for torch, from the package ``onnxruntime-training``.

ORTModule exports the module's forward pass as one ONNX model and adds the nodes of the gradient. It runs both halves in
one session. Parameters are inputs of the model, so the optimizer and DDP are torch's own.

By default ORTModule runs a module in eager torch if it cannot export the module, and only logs that. This module
forbids the fallback and checks the origin of each loss.
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

# This variable overrides the policy that code can set.
os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_DISABLE"


def ortmodule() -> Callable[[nn.Module], Callable[..., Tensor]]:
    """A function that captures a module. Raises ``RuntimeError`` if ORTModule's extension is not built."""
    if not ortmodule_on_new_torch.is_built():
        raise RuntimeError(f"ORTModule's extension is not built here: python -m {ortmodule_on_new_torch.__name__}")
    return _capture


def _capture(module: nn.Module) -> Callable[..., Tensor]:
    """``module``'s forward pass in ONNX Runtime, from a batch to its loss.

    The first call exports the module. Each call raises ``RuntimeError`` if its loss does not come from ONNX Runtime.
    """
    graph = ORTModule(module, DebugOptions(log_level=LogLevel.ERROR))
    training = graph._torch_module._execution_manager(True)
    _share_cores(training)

    def forward(*batch: Tensor) -> Tensor:
        loss: Tensor = graph(*batch)
        # Only this autograd function runs the session in its forward and backward passes.
        if getattr(loss.grad_fn, "_forward_cls", None) is not training._forward_class:
            raise RuntimeError(f"ORTModule fell back to eager torch: the loss is of {loss.grad_fn}")
        return loss

    return forward


def _share_cores(training: Any) -> None:
    """Give the session as many threads as torch has and forbid spinning, because its threads and torch's take turns."""
    configure = training._get_session_config

    def configured() -> tuple[Any, ...]:
        options, *rest = configure()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options, *rest

    training._get_session_config = configured
