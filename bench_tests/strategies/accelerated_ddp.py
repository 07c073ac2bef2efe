"""Ways to make data parallelism faster. Each changes one thing of :class:`DistributedDataParallel` with its defaults."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from bench_tests.models.trainable import Trainable
from bench_tests.strategies.recipe import Recipe, Trainee, step


def compressed_gradients(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, dtype: str) -> Trainee:
    """Gradients travel, and are added up, in ``dtype``: ``bf16`` or ``fp16``."""
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}

    # Registered under a name of ours: DDP refuses bf16 by the name of torch's hook where there is no NCCL.
    def compress(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hooks[dtype](group, bucket)

    parallel.register_comm_hook(dp.get_group(), compress)
    return _trainee(model, parallel, recipe)


def power_sgd(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, rank: int, start: int) -> Trainee:
    """Each gradient travels as two matrices of rank ``rank``; what that loses is added to the next step's.

    From step ``start`` on (from 0; at least 2, since DDP arranges its buckets in the first step). T. Vogels et al.,
    arXiv 1905.13727.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    state = powerSGD_hook.PowerSGDState(dp.get_group(), matrix_approximation_rank=rank, start_powerSGD_iter=start)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _trainee(model, parallel, recipe)


def local_sgd(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, start: int, period: int) -> Trainee:
    """Plain DDP for ``start`` steps; from then on ranks train on their own, and average their parameters after every
    ``period`` steps. T. Lin et al., "Don't use large mini-batches, use local SGD", arXiv 1808.07217.

    What it computes is not what DDP computes, and between averages replicas differ. torch's own averager waits for the
    device each time.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    synchronous = _trainee(model, parallel, recipe).run
    parameters = list(model.parameters())
    done = 0

    def run(*batch: Tensor) -> Tensor:
        nonlocal done
        done += 1
        if done <= start:
            return synchronous(*batch)
        with parallel.no_sync():
            loss = synchronous(*batch)
        if (done - start) % period == 0:
            average(parameters, dp.get_group())
        return loss

    return Trainee(run=run, parameters=model.parameters, replicated=False)


def compiled(model: Trainable, dp: DeviceMesh, recipe: Recipe) -> Trainee:
    """``torch.compile`` around DDP, which cuts the graph where a bucket is full, so that communication still overlaps.

    Shapes never change here: one compilation, for these.
    """
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
    """Set ``parameters`` to their mean over the ranks of ``group``, in one message."""
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    parts = flat.split([parameter.numel() for parameter in parameters])
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
