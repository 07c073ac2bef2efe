"""The step builder of the suite: a model, trained with a strategy."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import torch

from bench_tests.data import token_pool
from bench_tests.models import find_model
from bench_tests.strategies import find_strategy
from bench_tests.strategies.recipe import Recipe
from pytest_trainbench import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def train_step(
    mesh: DeviceMesh,
    *,
    model: str,
    strategy: str,
    precision: str,
    sequence: int,
    micro_batch: int,
    micro_batches: int = 1,
) -> Step:
    """One optimisation step of ``model`` on ``mesh``, whose only axis is ``dp``.

    Each rank takes ``micro_batches`` times ``micro_batch`` samples of ``sequence`` tokens. The result
    depends on their total over all ranks only, not on how they are split. Raises ``ValueError`` for a name
    or a combination that does not exist.
    """
    dp = mesh["dp"]
    if mesh.size() != dp.size():
        raise ValueError(f"strategies of this suite are purely data parallel, and the mesh is {mesh}")
    model_row, strategy_row = find_model(model), find_strategy(strategy)
    if micro_batches > 1 and not strategy_row.accumulates:
        raise ValueError(f"strategy {strategy!r} takes one micro-batch a step, not {micro_batches}")
    if sequence > model_row.positions:
        raise ValueError(f"sequence {sequence} is longer than the {model_row.positions} of model {model!r}")

    # TF32 is a switch of the whole process; the other formats are chosen tensor by tensor.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if mesh.device_type == "cpu":
        # torch's FLOP counter does not know the fused attention kernel of the CPU.
        torch.backends.cuda.enable_flash_sdp(False)
    device = torch.empty(0, device=mesh.device_type).device  # with its index
    recipe = Recipe(precision=precision, learning_rate=model_row.learning_rate, device=device)
    module = model_row.build(device)
    flops_per_sample = module.flops_per_sample(sequence)

    samples = micro_batch * micro_batches * dp.size()
    pool = token_pool(samples=samples, sequence=sequence, vocabulary=module.vocabulary)
    batches = cycle(pool.chunk(dp.size(), dim=1)[dp.get_local_rank()].to(device).unbind())

    options = dict(strategy_row.options)
    if strategy_row.accumulates:
        options["micro_batches"] = micro_batches
    trainee = strategy_row.resolve()(module, dp, recipe, **options)
    return Step(
        run=lambda: trainee.run(next(batches)),
        samples=samples,
        tokens=samples * sequence,
        flops=None if flops_per_sample is None else samples * flops_per_sample,
        dtype=precision,
        parameters=trainee.parameters,
        replicated=trainee.replicated,
    )
