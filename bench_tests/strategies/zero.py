"""DeepSpeed ZeRO: optimizer states (stage 1), gradients (2) and parameters (3) are sharded."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models.trainable import Trainable
from bench_tests.strategies.recipe import LOSS_SCALE_POWER, Recipe, Trainee


def zero(
    model: Trainable,
    dp: DeviceMesh,
    recipe: Recipe,
    *,
    stage: int,
    leaf_blocks: bool = False,
    **options: Any,
) -> Trainee:
    """``options`` are those of DeepSpeed's ``zero_optimization``.

    With ``leaf_blocks`` stage 3 gathers and releases a block at once; otherwise each layer inside it, for
    which the host runs its hooks and its bookkeeping many times as often.
    """
    if recipe.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read at import
    import deepspeed

    # On a CPU this extension would be compiled on first use. No other device looks for it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    if leaf_blocks:
        deepspeed.utils.set_z3_leaf_modules(model, [type(model.blocks[0])])
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # only reported: what a batch holds is our business
        "zero_optimization": {"stage": stage, **options},
        # DeepSpeed clips at 1 unless told otherwise; nothing else here clips.
        "gradient_clipping": 0.0,
        # torch's fused AdamW: DeepSpeed's own is compiled on first use.
        "zero_allow_untested_optimizer": True,
        # Its throughput timer waits for the device twice a step.
        "timers": {"throughput": {"enabled": False}},
        # As with autocast, an infinite bf16 gradient shows in the loss: looking for one makes the host wait.
        "bf16": {"enabled": recipe.precision == "bf16", "check_grad_overflow": False},
        # A loss scale that starts and falls as torch's GradScaler's does.
        "fp16": {"enabled": recipe.precision == "fp16", "initial_scale_power": LOSS_SCALE_POWER, "hysteresis": 1},
    }
    if stage < 3:
        # Nothing is clipped, so nobody needs the norm. Stage 3 has no such switch.
        config["zero_optimization"]["compute_grad_norm"] = False
    engine, *_ = deepspeed.initialize(model=model, optimizer=recipe.adamw(model.parameters()), config=config)

    def run(*batch: Tensor) -> Tensor:
        loss: Tensor = engine(*batch)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    def parameters() -> list[Tensor]:
        return [getattr(parameter, "ds_tensor", parameter) for parameter in model.parameters()]

    return Trainee(run=run, parameters=parameters, replicated=stage < 3)
