"""FairScale: sharded optimizer states (OSS), gradients as well (SDP), parameters as well (FSDP)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from bench_tests.models.trainable import Trainable
from bench_tests.strategies import fairscale_on_cpu
from bench_tests.strategies.wrapping import unite
from bench_tests.training.recipe import Recipe, Trainee, step

if TYPE_CHECKING:
    from fairscale.optim import OSS


def oss(model: Trainable, dp: DeviceMesh, recipe: Recipe, **options: Any) -> Trainee:
    """``options`` are those of :class:`DistributedDataParallel`.

    Parameters are broadcast in fp32: OSS could send fp16, which would round the master weights.
    """
    optimizer = _sharded_adamw(model, dp, recipe)
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), **options)
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
    )


def oss_sdp(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, reduce_buffer_size: int) -> Trainee:
    """``reduce_buffer_size`` is in elements a rank; gradients that do not fit are reduced one by one."""
    from fairscale.nn.data_parallel import ShardedDataParallel

    group = dp.get_group()
    optimizer = _sharded_adamw(model, dp, recipe)
    parallel = ShardedDataParallel(
        model,
        optimizer,
        process_group=group,
        broadcast_buffers=False,  # the model has none
        sync_models_at_startup=False,  # the ranks' seeds are equal
        reduce_buffer_size=reduce_buffer_size,
        auto_refresh_trainable=False,  # nothing is frozen later: no need to look on every forward
    )
    return Trainee(
        run=step(
            parallel,
            optimizer,
            scaler=recipe.sharded_scaler(group),
            autocast=recipe.autocast(),
            # Gradients live in the reduce buffers, and only the wrapper knows: optimizer.zero_grad() sets
            # them to None, the buffers keep the last step's sum, and the model trains wrong without a word.
            zero_grad=lambda: parallel.zero_grad(set_to_none=True),
        ),
        parameters=model.parameters,
        replicated=True,
    )


def fsdp(
    model: Trainable, dp: DeviceMesh, recipe: Recipe, *, reshard_after_forward: bool, blocks_per_unit: int
) -> Trainee:
    """Each unit is one flat parameter, and so is the rest, which stays gathered from forward to backward."""
    from fairscale.nn.data_parallel import FullyShardedDataParallel

    if recipe.device.type == "cpu":
        fairscale_on_cpu.enable()
    options = {
        "process_group": dp.get_group(),
        "compute_device": recipe.device,
        "reshard_after_forward": reshard_after_forward,
        "mixed_precision": recipe.mixed,
        "compute_dtype": recipe.dtype,
        "fp32_reduce_scatter": recipe.mixed,
        # Buckets gather small gradients; a flat parameter is far above any bucket's size.
        "bucket_cap_mb": 0,
    }
    units = unite(model, blocks_per_unit)
    for index, unit in enumerate(units):
        units[index] = FullyShardedDataParallel(unit, **options)
    parallel = FullyShardedDataParallel(model, **options)
    optimizer = recipe.adamw(parallel.parameters())
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.sharded_scaler(dp.get_group())),
        parameters=parallel.parameters,
        replicated=False,
    )


def _sharded_adamw(model: Trainable, dp: DeviceMesh, recipe: Recipe) -> OSS:
    from fairscale.optim import OSS

    return OSS(model.parameters(), optim=AdamW, group=dp.get_group(), **recipe.adamw_options)
