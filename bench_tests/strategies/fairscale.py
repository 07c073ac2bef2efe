"""FairScale: sharded optimizer states (OSS), also sharded gradients (SDP), also sharded parameters (FSDP)."""

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
    """DDP with FairScale's sharded optimizer. ``options`` are those of :class:`DistributedDataParallel`.

    OSS broadcasts parameters in fp32. It could send fp16, but that would round the master weights.
    """
    optimizer = _sharded_adamw(model, dp, recipe)
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), **options)
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
    )


def oss_sdp(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, reduce_buffer_size: int) -> Trainee:
    """FairScale's sharded optimizer and sharded gradients.

    ``reduce_buffer_size`` is in elements a rank. Gradients that do not fit into the buffer are reduced one by one.
    """
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
        auto_refresh_trainable=False,  # no parameter is frozen later, so no forward pass has to check
    )
    return Trainee(
        run=step(
            parallel,
            optimizer,
            scaler=recipe.sharded_scaler(group),
            autocast=recipe.autocast(),
            # The gradients are in the reduce buffers, which only the wrapper resets. optimizer.zero_grad() would set
            # the gradients to None, and the buffers would keep the last step's sum. The model would then train wrong
            # without any error.
            zero_grad=lambda: parallel.zero_grad(set_to_none=True),
        ),
        parameters=model.parameters,
        replicated=True,
    )


def fsdp(
    model: Trainable, dp: DeviceMesh, recipe: Recipe, *, reshard_after_forward: bool, blocks_per_unit: int
) -> Trainee:
    """FairScale's FSDP. Each unit is one flat parameter. The parameters outside units form another one, which stays
    gathered from forward to backward."""
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
        # Buckets collect small gradients, and a flat parameter is far larger than any bucket.
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
