"""torch's fully sharded data parallelism: FSDP1 and FSDP2."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from bench_tests.models.trainable import Trainable
from bench_tests.strategies.wrapping import unite
from bench_tests.training.recipe import Recipe, Trainee, step


def fsdp1(
    model: Trainable,
    dp: DeviceMesh,
    recipe: Recipe,
    *,
    forward_prefetch: bool,
    limit_all_gathers: bool,
    use_orig_params: bool,
    blocks_per_unit: int,
) -> Trainee:
    """FSDP1. Without ``use_orig_params`` the optimizer updates one flat parameter a unit instead of twelve parameters a
    block."""
    units = unite(model, blocks_per_unit)
    mixed_precision = MixedPrecision(param_dtype=recipe.dtype, reduce_dtype=torch.float32) if recipe.mixed else None
    parallel = FullyShardedDataParallel(
        model,
        process_group=dp.get_group(),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({type(units[0])}),
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
    model: Trainable, dp: DeviceMesh, recipe: Recipe, *, reshard_after_forward: bool, blocks_per_unit: int
) -> Trainee:
    """FSDP2 with its own prefetching: while a unit runs, FSDP2 gathers the parameters of the next unit.

    Prefetching more units (``set_modules_to_forward_prefetch``) made the step slower on 4 H200s, because the host has
    to issue the prefetches.
    """
    policy = MixedPrecisionPolicy(param_dtype=recipe.dtype, reduce_dtype=torch.float32)
    for unit in unite(model, blocks_per_unit):
        fully_shard(unit, mesh=dp, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    # The remaining parameters, embeddings and head, are last in the forward pass and first in the backward pass. They
    # stay gathered.
    fully_shard(model, mesh=dp, mp_policy=policy, reshard_after_forward=False)

    def shards() -> Iterable[Tensor]:
        return (parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor))

    optimizer = recipe.adamw(model.parameters())
    return Trainee(run=step(model, optimizer, scaler=recipe.scaler()), parameters=shards, replicated=False)
