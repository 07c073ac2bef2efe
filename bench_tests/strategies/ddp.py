"""Plain data parallelism: every rank holds the whole model, and DDP averages gradients."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from bench_tests.models.trainable import Trainable
from bench_tests.training.recipe import Recipe, Trainee, step


def ddp(model: Trainable, dp: DeviceMesh, recipe: Recipe, **options: Any) -> Trainee:
    """DDP with ``options`` of :class:`DistributedDataParallel`, or with its defaults.

    ``gradient_as_bucket_view=True`` saves a copy of all gradients. A static graph avoids the search for unused
    parameters. A broadcast of buffers is not needed: training writes the buffers of batch norm but does not read them.
    """
    parallel = DistributedDataParallel(model, process_group=dp.get_group(), **options)
    optimizer = recipe.adamw(model.parameters())
    return Trainee(
        run=step(parallel, optimizer, scaler=recipe.scaler(), autocast=recipe.autocast()),
        parameters=model.parameters,
        replicated=True,
    )
