"""DeepSpeed ZeRO: it shards optimizer states (stage 1), also gradients (stage 2), also parameters (stage 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models.trainable import Trainable
from bench_tests.strategies.wrapping import unite
from bench_tests.training import deepspeed_engine
from bench_tests.training.recipe import Recipe, Trainee


def zero(
    model: Trainable,
    dp: DeviceMesh,
    recipe: Recipe,
    *,
    stage: int,
    micro_batches: int = 1,
    blocks_per_unit: int | None = None,
    **options: Any,
) -> Trainee:
    """DeepSpeed ZeRO. ``options`` are entries of DeepSpeed's ``zero_optimization``.

    A step takes its samples in ``micro_batches`` equal parts. DeepSpeed sums their gradients in the type of its weights
    and recognises the last part. On the other parts it does no update and, below stage 2, no reduction.

    With ``blocks_per_unit`` stage 3 gathers and releases that many blocks at once. Without it, stage 3 gathers each
    layer inside the blocks, and the host runs DeepSpeed's hooks and bookkeeping many times as often.
    """
    if blocks_per_unit is not None:
        units = unite(model, blocks_per_unit)
        deepspeed_engine.load(recipe.device).utils.set_z3_leaf_modules(model, [type(units[0])])
    zero_optimization = {"stage": stage, **options}
    if stage < 3:
        # No gradient is clipped, so the norm is not needed. Stage 3 has no such switch.
        zero_optimization["compute_grad_norm"] = False
    engine = deepspeed_engine.initialize(
        model,
        recipe,
        micro_batches=micro_batches,
        zero=zero_optimization,
        train_micro_batch_size_per_gpu=1,  # DeepSpeed only reports it; the caller determines the batch
    )

    def run(*batch: Tensor) -> Tensor:
        total = batch[0].new_zeros((), dtype=torch.float32)
        for part in zip(*(tensor.chunk(micro_batches) for tensor in batch), strict=True):
            loss: Tensor = engine(*part)
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        return total / micro_batches

    def parameters() -> list[Tensor]:
        return [getattr(parameter, "ds_tensor", parameter) for parameter in model.parameters()]

    return Trainee(run=run, parameters=parameters, replicated=stage < 3)
