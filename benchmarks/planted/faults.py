"""Slows down the ranks that import this module. The environment variable :data:`VARIABLE` names the fault.

The fork server of a run imports this module (``trainbench_preload``), so every rank has the fault and no file changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from bench_tests.models import Model
from bench_tests.models.trainable import Trainable
from bench_tests.steps import train as training
from bench_tests.strategies import DDP_OPTIONS
from pytest_trainbench import Step

VARIABLE = "PLANTED_FAULT"


def synchronised() -> None:
    """The host reads the loss after every step, like code that prints the loss."""

    def read(step: Step) -> Step:
        def run() -> Tensor | None:
            loss = step.run()
            if loss is not None:
                loss.item()
            return loss

        return replace(step, run=run)

    _change_steps(read)


def full_precision() -> None:
    """Products of fp32 tensors no longer use the TF32 units."""

    def slow(step: Step) -> Step:
        torch.set_float32_matmul_precision("highest")
        return step

    _change_steps(slow)


def small_buckets() -> None:
    """DDP reduces gradients in buckets of 1 MB."""
    DDP_OPTIONS["bucket_cap_mb"] = 1


def eager_attention() -> None:
    """Attention stores its scores: no fused kernel is allowed."""
    for enable in (
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.backends.cuda.enable_cudnn_sdp,
    ):
        enable(False)


def recomputed() -> None:
    """Backward computes every block's activations again."""
    build = Model.build

    def slow(self: Model, *args: Any, **sample: Any) -> Trainable:
        module = build(self, *args, **sample)
        for block in module.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return module

    Model.build = slow  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault for fault in (synchronised, full_precision, small_buckets, eager_attention, recomputed)
}


def _change_steps(change: Callable[[Step], Step]) -> None:
    build = training.train_step

    def slow(mesh: DeviceMesh, **params: Any) -> Step:
        return change(build(mesh, **params))

    training.train_step = slow


if VARIABLE in os.environ:
    FAULTS[os.environ[VARIABLE]]()
