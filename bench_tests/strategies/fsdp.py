"""torch's fully sharded data parallelism, both generations."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from bench_tests.models.language_model import LanguageModel
from bench_tests.strategies.recipe import Recipe, Trainee, step


def fsdp1(
    model: LanguageModel,
    dp: DeviceMesh,
    recipe: Recipe,
    *,
    forward_prefetch: bool,
    limit_all_gathers: bool,
    use_orig_params: bool,
) -> Trainee:
    """Without ``use_orig_params`` the optimizer sees one flat parameter a block instead of twelve."""
    mixed_precision = (
        MixedPrecision(param_dtype=recipe.dtype, reduce_dtype=torch.float32) if recipe.mixed else None
    )
    parallel = FullyShardedDataParallel(
        model,
        process_group=dp.get_group(),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({type(model.blocks[0])}),
        mixed_precision=mixed_precision,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=forward_prefetch,
        limit_all_gathers=limit_all_gathers,
        use_orig_params=use_orig_params,
        device_id=recipe.device,
    )
    optimizer = recipe.adamw(parallel.parameters())
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.sharded_scaler(dp.get_group())),
        parameters=parallel.parameters,
        replicated=False,
    )


def fsdp2(
    model: LanguageModel,
    dp: DeviceMesh,
    recipe: Recipe,
    *,
    reshard_after_forward: bool,
    prefetch_blocks: int,
    local_optimizer: bool,
) -> Trainee:
    """``prefetch_blocks`` is how many blocks ahead parameters are gathered, forward and backward.

    With ``local_optimizer`` AdamW works on the plain tensors that a DTensor keeps of each parameter: an
    element-wise update needs no placement rules, and working them out for every parameter costs the host
    more than the update.
    """
    policy = MixedPrecisionPolicy(param_dtype=recipe.dtype, reduce_dtype=torch.float32)
    blocks = [
        fully_shard(block, mesh=dp, mp_policy=policy, reshard_after_forward=reshard_after_forward)
        for block in model.blocks
    ]
    # What is left, embeddings and head, is the last thing forward and the first thing backward: keep it
    # gathered.
    fully_shard(model, mesh=dp, mp_policy=policy, reshard_after_forward=False)
    _prefetch(blocks, ahead=prefetch_blocks)

    parameters = list(model.parameters())
    if local_optimizer:
        shards = [nn.Parameter(shard) for shard in _local(parameters)]
        run = step(
            model,
            recipe.adamw(shards),
            scaler=recipe.sharded_scaler(dp.get_group()),
            before_update=lambda: _hand_over_gradients(parameters, shards),
        )
    else:
        run = step(model, recipe.adamw(parameters), scaler=recipe.scaler())
    return Trainee(run=run, parameters=lambda: _local(parameters), replicated=False)


def _prefetch(blocks: list[FSDPModule], *, ahead: int) -> None:
    """Have each block start to gather those that run after it, before the host gets there."""
    for index, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[index + 1 : index + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(index - ahead, 0) : index][::-1])


@torch.no_grad()
def _local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's part of each DTensor, sharing its memory."""
    return [tensor.to_local() for tensor in tensors if isinstance(tensor, DTensor)]


@torch.no_grad()
def _hand_over_gradients(parameters: list[nn.Parameter], shards: list[nn.Parameter]) -> None:
    for parameter, shard in zip(parameters, shards, strict=True):
        assert isinstance(parameter.grad, DTensor)
        shard.grad, parameter.grad = parameter.grad.to_local(), None
