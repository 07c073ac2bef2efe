"""The step builder of 3D parallelism: an engine splits one GPT along all three axes."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import torch

from bench_tests.engines import axis, find_engine
from bench_tests.models import find_model
from bench_tests.strategies import REFERENCES
from bench_tests.training.recipe import PRECISIONS, Recipe
from pytest_trainbench import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def parallel_step(
    mesh: DeviceMesh,
    *,
    model: str,
    engine: str,
    precision: str,
    sequence: int,
    global_batch: int,
    micro_batch: int,
    schedule: str | None = None,
) -> Step:
    """One optimisation step of ``model`` over ``global_batch`` samples of ``sequence`` tokens, on any mesh.

    Each data-parallel position takes an equal part of the samples, ``micro_batch`` samples at a time. A pipeline runs
    the micro-batches in the order of ``schedule``. The engines of
    :data:`bench_tests.strategies.REFERENCES` are one rank with nothing split. Raises
    ``ValueError`` for an unknown name or an impossible combination.
    """
    dp = axis(mesh, "dp")
    replicas, position = (1, 0) if dp is None else (dp.size(), dp.get_local_rank())
    micro_batches, rest = divmod(global_batch, micro_batch * replicas)
    if rest or not micro_batches:
        raise ValueError(f"{global_batch} samples cannot be split over {replicas} replicas, {micro_batch} at a time")
    engine_row = None if engine in REFERENCES else find_engine(engine)
    if engine_row is not None:
        pp, tp = axis(mesh, "pp"), axis(mesh, "tp")
        if tp is not None and not engine_row.tensor_parallel:
            raise ValueError(f"engine {engine!r} has no tensor parallelism")
        if pp is not None and not engine_row.schedules:
            raise ValueError(f"engine {engine!r} has no pipeline")
        known = (None,) if pp is None else engine_row.schedules
        if schedule not in known:
            names = "none without a pipeline" if pp is None else ", ".join(engine_row.schedules)
            raise ValueError(f"engine {engine!r} has no schedule {schedule!r} on this mesh; known: {names}")

    if precision not in PRECISIONS:  # fp8, which only strategies support: an engine would measure bf16 under its name
        raise ValueError(f"precision {precision!r} is unknown to the engines; known: {', '.join(PRECISIONS)}")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")  # a switch of the whole process
    device = torch.empty(0, device=mesh.device_type).device  # the device with its index
    model_row = find_model(model)
    recipe = Recipe(precision=precision, learning_rate=model_row.learning_rate, device=device)
    module = model_row.build(device, sequence=sequence)
    flops_per_sample = module.flops_per_sample()
    (pool,) = module.draw(global_batch)
    batches = cycle(pool.chunk(replicas, dim=1)[position].to(device).unbind())

    if engine_row is None:
        row = REFERENCES[engine]
        trainee = row.resolve()(module, mesh, recipe, micro_batches=micro_batches, **row.options)
    else:
        trainee = engine_row.resolve()(
            module,
            mesh,
            recipe,
            micro_batches=micro_batches,
            micro_batch=micro_batch,
            schedule=schedule,
            **engine_row.options,
        )
    return Step(
        run=lambda: trainee.run(next(batches)),
        samples=global_batch,
        tokens=global_batch * sequence,
        flops=global_batch * flops_per_sample,
        counts_flops=trainee.counts_flops,
        dtype=precision,
        parameters=trainee.parameters,
        replicated=trainee.replicated,
        eager_steps=trainee.eager_steps,
        peak_bytes=trainee.peak_bytes,
    )
