"""Plain data parallelism: every rank holds everything and gradients are averaged."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from bench_tests.models.trainable import Trainable
from bench_tests.training.recipe import Recipe, Trainee, step


def ddp(model: Trainable, dp: DeviceMesh, recipe: Recipe, **options: Any) -> Trainee:
    """``options`` are those of :class:`DistributedDataParallel`; without any, its defaults.

    Gradients that are views of the buckets save a copy of all of them; a static graph drops the search for
    unused parameters. Buffers need no broadcast: those of batch norm are written while training, not read.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), **options)
    optimizer = recipe.adamw(model.parameters())
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
    )
