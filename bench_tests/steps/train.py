"""The step builder of most suites: a model, trained with a data-parallel strategy."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from bench_tests.graphs import find_graph
from bench_tests.models import find_model, float8
from bench_tests.strategies import find_strategy
from bench_tests.training.recipe import Recipe
from pytest_trainbench import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def train_step(
    mesh: DeviceMesh,
    *,
    model: str,
    strategy: str,
    precision: str,
    micro_batch: int,
    micro_batches: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    graph: str | None = None,
    **sample: Any,
) -> Step:
    """One optimisation step of ``model`` on ``mesh``, whose only axis is ``dp``.

    Each rank takes ``micro_batches`` micro-batches of ``micro_batch`` samples. ``sample`` defines one sample where the
    model leaves that open (``sequence`` in tokens, ``image`` in pixels). ``learning_rate`` and ``warmup_steps`` replace
    the values of the model's row. With ``graph`` the model is compiled first, and the strategy wraps the compiled
    model. With ``fp8`` only the linear layers of the blocks use 8-bit numbers, but the MFU relates all FLOPs to the fp8
    peak.

    The result depends only on the total number of samples, not on their split over ranks and micro-batches. There are
    two exceptions: batch norm, which sees one micro-batch of one rank, and losses that compare the samples of one
    micro-batch with each other.

    Raises ``ValueError`` for an unknown name or an impossible combination.
    """
    dp = mesh["dp"]
    if mesh.size() != dp.size():
        raise ValueError(f"strategies need a mesh with the axis dp alone, and the mesh is {mesh}")
    model_row, strategy_row = find_model(model), find_strategy(strategy)
    warmup = warmup_steps or model_row.warmup_steps
    if not strategy_row.accumulates:
        if micro_batches > 1:
            raise ValueError(f"strategy {strategy!r} takes one micro-batch a step, not {micro_batches}")
        if warmup > 1:
            raise ValueError(f"strategy {strategy!r} has one learning rate, and no warm-up of {warmup} steps")

    # TF32 is a switch of the whole process. The type of each tensor decides about the other formats.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    device = torch.empty(0, device=mesh.device_type).device  # the device with its index
    rate = learning_rate or model_row.learning_rate
    recipe = Recipe(precision=precision, learning_rate=rate, warmup_steps=warmup, device=device)
    module = model_row.build(device, **sample)
    samples = micro_batch * micro_batches * dp.size()
    # Read these before a strategy takes the module apart.
    flops, tokens_per_sample = module.flops(samples=samples, passes=micro_batches * dp.size()), module.tokens_per_sample
    counts_flops = module.counts_flops and graph is None
    if precision == "fp8":
        float8.convert(module, device)
    if graph is not None:
        find_graph(graph).compile(module)

    pools = module.draw(samples)
    # Contiguous first, because a view of shared memory would keep its strides on the device.
    mine = [pool.chunk(dp.size(), dim=1)[dp.get_local_rank()].contiguous().to(device) for pool in pools]
    batches = cycle(list(zip(*mine, strict=True)))

    options = dict(strategy_row.options)
    if strategy_row.accumulates:
        options["micro_batches"] = micro_batches
    trainee = strategy_row.resolve()(module, dp, recipe, **options)
    return Step(
        run=lambda: trainee.run(*next(batches)),
        samples=samples,
        tokens=None if tokens_per_sample is None else samples * tokens_per_sample,
        flops=flops,
        counts_flops=counts_flops and trainee.counts_flops,
        dtype=precision,
        parameters=trainee.parameters,
        replicated=trainee.replicated,
        period=trainee.period,
        eager_steps=trainee.eager_steps,
        peak_bytes=trainee.peak_bytes,
    )
