"""Accelerated variants of data parallelism. Each variant changes one thing about :class:`DistributedDataParallel` with
its default options."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from bench_tests.models.trainable import Trainable
from bench_tests.training.recipe import Recipe, Trainee, step

ONE_BUCKET_MB = 100_000
"""Larger than any model of the suite. DDP allocates only what it needs."""


def compressed_gradients(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, dtype: str) -> Trainee:
    """DDP that sends and sums gradients in ``dtype``: ``bf16`` or ``fp16``."""
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}

    # A wrapper instead of the hook itself: DDP recognises torch's hooks by name and refuses the bf16 hook without NCCL.
    parallel.register_comm_hook(dp.get_group(), lambda group, bucket: hooks[dtype](group, bucket))
    return _trainee(model, parallel, recipe)


def power_sgd(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, rank: int, start: int) -> Trainee:
    """DDP that sends each gradient as two matrices of rank ``rank``. The approximation error is added to the next
    step's gradient.

    Compression begins at step ``start``, counted from 0. ``start`` is at least 2, because DDP arranges its buckets in
    the first step. Source: T. Vogels et al., arXiv 1905.13727.

    All gradients are in one bucket, so no communication overlaps with the backward pass. torch's hook needs this. It
    does three reductions a bucket and starts the second and the third when the previous one is done. With gloo that
    happens in threads, and the reductions of several buckets would get mixed up between ranks. On a GPU the hook waits
    for the device after each reduction.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), bucket_cap_mb=ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        dp.get_group(),
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start,
        orthogonalization_epsilon=1e-8,  # prevents a division by zero for a vanishing gradient
    )
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _trainee(model, parallel, recipe)


def local_sgd(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, start: int, period: int) -> Trainee:
    """Plain DDP for ``start`` steps. Then each rank trains alone, and the ranks average their parameters after every
    ``period`` steps.

    Source: T. Lin et al., "Don't use large mini-batches, use local SGD", arXiv 1808.07217. The result differs from
    DDP's, and between two averages the replicas differ. torch's own averager is not used, because it waits for the
    device each time.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    synchronous = _trainee(model, parallel, recipe).run
    parameters = list(model.parameters())
    done = 0

    def run(*batch: Tensor) -> Tensor | None:
        nonlocal done
        done += 1
        if done <= start:
            return synchronous(*batch)
        with parallel.no_sync():
            loss = synchronous(*batch)
        if (done - start) % period == 0:
            average(parameters, dp.get_group())
        return loss

    return Trainee(run=run, parameters=model.parameters, replicated=False, period=period)


def compiled(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, backward: bool = False) -> Trainee:
    """``torch.compile`` around DDP. The compiler splits the graph where a bucket is full, so communication still
    overlaps.

    With ``backward`` the whole backward pass, reductions included, is one graph (compiled autograd with DDP's reducer
    in Python, https://docs.pytorch.org/tutorials/intermediate/compiled_autograd_tutorial.html). That graph is not
    split, and the compiler decides what overlaps. Shapes never change, so one compilation is enough.
    """
    if backward:  # switches of the whole process, which runs only this training
        torch._dynamo.config.compiled_autograd = True
        torch._dynamo.config.optimize_ddp = "python_reducer"
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    whole = torch.compile(parallel, dynamic=False)
    optimizer = recipe.adamw(model.parameters())
    return Trainee(
        run=step(whole, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
        counts_flops=False,
    )


@torch.no_grad()
def average(parameters: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Set ``parameters`` to their mean over the ranks of ``group``, with one message."""
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    torch._foreach_copy_(
        list(parameters), [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
    )


def _trainee(model: Trainable, parallel: DistributedDataParallel, recipe: Recipe) -> Trainee:
    optimizer = recipe.adamw(model.parameters())
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
    )
