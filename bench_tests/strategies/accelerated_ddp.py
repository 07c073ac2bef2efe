"""Ways to make data parallelism faster. Each changes one thing of :class:`DistributedDataParallel` as it is by
default."""

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
"""More than any model here has; DDP takes what it needs."""


def compressed_gradients(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, dtype: str) -> Trainee:
    """Gradients travel, and are added up, in ``dtype``: ``bf16`` or ``fp16``."""
    parallel = DistributedDataParallel(model, process_group=dp.get_group())
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}

    # Not the hook itself: DDP knows torch's by name, and refuses that of bf16 wherever there is no NCCL.
    parallel.register_comm_hook(dp.get_group(), lambda group, bucket: hooks[dtype](group, bucket))
    return _trainee(model, parallel, recipe)


def power_sgd(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, rank: int, start: int) -> Trainee:
    """Each gradient travels as two matrices of rank ``rank``; what that loses is added to the next step's.

    From step ``start`` on (from 0; at least 2, since DDP arranges its buckets in the first step). T. Vogels et al.,
    arXiv 1905.13727.

    torch's hook reduces three times a bucket and starts the second and third when the one before is done: where that is
    in threads (gloo), those of several buckets get mixed up between ranks. On a GPU it waits for the device after each.
    So everything goes into one bucket, and no communication is hidden behind the backward pass.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), bucket_cap_mb=ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        dp.get_group(),
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start,
        orthogonalization_epsilon=1e-8,  # a gradient that vanishes is no reason to divide by zero
    )
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
    """``torch.compile`` around DDP, which cuts the graph where a bucket is full, so that communication still overlaps.

    With ``backward`` the whole backward pass is one graph, the reductions in it (compiled autograd with DDP's reducer
    in Python, https://docs.pytorch.org/tutorials/intermediate/compiled_autograd_tutorial.html): nothing is cut, and
    what overlaps is the compiler's choice. Shapes never change here: one compilation, for these.
    """
    if backward:  # switches of the whole process, which trains nothing else
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
    """Set ``parameters`` to their mean over the ranks of ``group``, in one message."""
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
