"""Planted mistakes that train without an error message."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from bench_tests.engines import torch_native
from bench_tests.models.trainable import Trainable
from bench_tests.steps.parallel import parallel_step
from bench_tests.steps.train import train_step
from bench_tests.strategies import fairscale, zero
from bench_tests.training.recipe import Trainee
from pytest_trainbench import Step


def sharded_ddp_with_stale_gradients(mesh: DeviceMesh, **params: Any) -> Step:
    """FairScale's ShardedDataParallel with the optimizer's own ``zero_grad``."""
    right = fairscale.step
    fairscale.step = lambda *args, zero_grad, **options: right(*args, **options)
    return train_step(mesh, strategy="oss-sdp", **params)


def zero_that_loses_a_rank(mesh: DeviceMesh, **params: Any) -> Step:
    """On all ranks the weights follow only the first rank's gradients."""
    right = zero.zero
    weight = float(mesh.size()) if mesh.get_rank() == 0 else 0.0

    def wrong(model: Trainable, *args: Any, **options: Any) -> Trainee:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]
        return right(model, *args, **options)

    zero.zero = wrong  # type: ignore[assignment]
    return train_step(mesh, **params)


def pipeline_with_loose_ends(mesh: DeviceMesh, **params: Any) -> Step:
    """Embedding and head share one weight, but their gradients are not summed."""
    torch_native.join_ends = lambda mesh: None
    return parallel_step(mesh, **params)


def pipeline_without_gradient_sums(mesh: DeviceMesh, **params: Any) -> Step:
    torch_native.sum_over = lambda group, tensors: None
    return parallel_step(mesh, **params)


def tensor_parallel_with_mixed_heads(mesh: DeviceMesh, **params: Any) -> Step:
    """Columns keep the order of GPT-2, so the first of two ranks gets all queries and half of the keys."""
    right = torch_native.linear
    torch_native.linear = lambda layer, **_: right(layer)
    return parallel_step(mesh, **params)
