"""DeepSpeed's engine with one set-up for ZeRO and for pipelines. Callers pass only what differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bench_tests.training.recipe import LOSS_SCALE_POWER, Recipe


def load(device: torch.device) -> Any:
    """The package ``deepspeed`` for ``device``, on top of the process group that torch.distributed has joined."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it at import
    import deepspeed

    # DeepSpeed would compile this extension on first use on a CPU. Other devices do not look for it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def initialize(model: nn.Module, recipe: Recipe, *, micro_batches: int, zero: Mapping[str, Any], **config: Any) -> Any:
    """The engine that trains ``model`` by ``recipe``, with one update every ``micro_batches`` batches.

    ``zero`` is DeepSpeed's ``zero_optimization``. ``config`` holds other entries of DeepSpeed's configuration.
    """
    engine, *_ = load(recipe.device).initialize(
        model=model,
        optimizer=recipe.adamw(model.parameters()),
        config={
            "gradient_accumulation_steps": micro_batches,
            "zero_optimization": dict(zero),
            # DeepSpeed clips gradients at 1 by default. No other row clips.
            "gradient_clipping": 0.0,
            # Allows torch's fused AdamW. DeepSpeed's own AdamW is compiled on first use.
            "zero_allow_untested_optimizer": True,
            # The throughput timer waits for the device twice a step, and reports of the loss wait too.
            "timers": {"throughput": {"enabled": False}},
            "steps_per_print": None,
            # As with autocast, an infinite bf16 gradient shows up in the loss. Checking for it would make the host
            # wait.
            "bf16": {"enabled": recipe.dtype is torch.bfloat16, "check_grad_overflow": False},
            # The loss scale starts and falls like the scale of the recipe's scaler.
            "fp16": {
                "enabled": recipe.dtype is torch.float16,
                "initial_scale_power": LOSS_SCALE_POWER,
                "hysteresis": 1,
            },
            **config,
        },
    )
    return engine
