"""DeepSpeed ZeRO: optimizer states (stage 1), gradients (2) and parameters (3) are sharded."""

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
    """``options`` are those of DeepSpeed's ``zero_optimization``.

    The samples of a step are taken in ``micro_batches`` equal parts. DeepSpeed adds their gradients up, in the type of
    its weights, and knows the last of them: what it does on the others is no update and, below stage 2, no reduction.

    With ``blocks_per_unit`` stage 3 gathers and releases so many blocks at once; otherwise each layer inside them, for
    which the host runs its hooks and its bookkeeping many times as often.
    """
    if blocks_per_unit is not None:
        units = unite(model, blocks_per_unit)
        deepspeed_engine.load(recipe.device).utils.set_z3_leaf_modules(model, [type(units[0])])
    zero_optimization = {"stage": stage, **options}
    if stage < 3:
        # Nothing is clipped, so nobody needs the norm. Stage 3 has no such switch.
        zero_optimization["compute_grad_norm"] = False
    engine = deepspeed_engine.initialize(
        model,
        recipe,
        micro_batches=micro_batches,
        zero=zero_optimization,
        train_micro_batch_size_per_gpu=1,  # only reported: what a batch holds is our business
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
