"""DeepSpeed's engine, set up alike for ZeRO and for the pipeline: only what they are asked for differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bench_tests.training.recipe import LOSS_SCALE_POWER, Recipe


def load(device: torch.device) -> Any:
    """The package ``deepspeed`` for ``device``, over the processes that torch.distributed has already joined."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read at import
    import deepspeed

    # On a CPU this extension would be compiled on first use. No other device looks for it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def initialize(model: nn.Module, recipe: Recipe, *, micro_batches: int, zero: Mapping[str, Any], **config: Any) -> Any:
    """The engine that trains ``model`` by ``recipe``, with one update every ``micro_batches`` batches.

    ``zero``: its ``zero_optimization``; ``config``: any other entry of its configuration that is not set here.
    """
    engine, *_ = load(recipe.device).initialize(
        model=model,
        optimizer=recipe.adamw(model.parameters()),
        config={
            "gradient_accumulation_steps": micro_batches,
            "zero_optimization": dict(zero),
            # DeepSpeed clips at 1 unless told otherwise; nothing else here clips.
            "gradient_clipping": 0.0,
            # torch's fused AdamW: DeepSpeed's own is compiled on first use.
            "zero_allow_untested_optimizer": True,
            # Its throughput timer waits for the device twice a step, and its reports of the loss do too.
            "timers": {"throughput": {"enabled": False}},
            "steps_per_print": None,
            # As with autocast, an infinite bf16 gradient shows in the loss: looking for one makes the host wait.
            "bf16": {"enabled": recipe.dtype is torch.bfloat16, "check_grad_overflow": False},
            # A loss scale that starts and falls as that of the recipe's scaler does.
            "fp16": {
                "enabled": recipe.dtype is torch.float16,
                "initial_scale_power": LOSS_SCALE_POWER,
                "hysteresis": 1,
            },
            **config,
        },
    )
    return engine
