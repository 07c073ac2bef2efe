"""Training in one process, to compare the others with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models.trainable import Trainable
from bench_tests.strategies.recipe import Recipe, Trainee


def reference(model: Trainable, dp: DeviceMesh, recipe: Recipe, *, micro_batches: int) -> Trainee:
    """Takes the samples in ``micro_batches`` equal parts, one after another: the memory of a single part."""
    optimizer, scaler, autocast = recipe.adamw(model.parameters()), recipe.scaler(), recipe.autocast()

    def run(*batch: Tensor) -> Tensor:
        total = batch[0].new_zeros((), dtype=torch.float32)
        for part in zip(*(tensor.chunk(micro_batches) for tensor in batch), strict=True):
            with autocast:
                loss = model(*part) / micro_batches
            torch.autograd.backward(scaler.scale(loss))
            total += loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total

    return Trainee(run=run, parameters=model.parameters, replicated=False)
