"""Every strategy trains, step by step, like one unsharded process on the same samples."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from ranks import launched, pretended, start
from torch import Tensor

from bench_tests.models import MODELS, find_model
from bench_tests.models.trainable import Trainable
from bench_tests.steps.train import train_step
from bench_tests.strategies import REFERENCES, ROUNDED, STRATEGIES
from bench_tests.strategies.reference import reference
from bench_tests.strategies.wrapping import sizes, unite
from bench_tests.tolerances import tolerance
from bench_tests.training.recipe import Recipe
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.schema.record import Launch

BUILDER = "bench_tests.steps.train:train_step"

WORK: dict[str, Any] = {"model": "gpt-tiny", "sequence": 16, "micro_batch": 2}

ON_A_CPU = {name: row for name, row in STRATEGIES.items() if not row.missing("cpu", "fp32")}


def train(folder: Path, *, dp: int = 2, **params: Any) -> Launch:
    return launched(ranks.train(folder, BUILDER, mesh=f"dp{dp}", **{**WORK, **params}))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """Losses of the unsharded model in each number format, for each reference of a strategy."""
    folder = tmp_path_factory.mktemp("references")
    return {
        f"{name} {precision}": train(
            folder / name / precision, dp=1, strategy=name, micro_batches=2, precision=precision
        )
        for name in REFERENCES
        for precision in ("fp32", "bf16", "fp16")
    }


@pytest.mark.parametrize("strategy", ON_A_CPU)
def test_in_fp32_every_strategy_has_the_unsharded_models_losses(
    strategy: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    one = train(tmp_path / "job", strategy=strategy, precision="fp32")
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, references["reference fp32"].losses, tolerance=0.001) is None
    assert one.metrics["flops_per_step"] == references["reference fp32"].metrics["flops_per_step"]
    both = {kind: {"calls": 2 * calls, "bytes": 2 * size} for kind, (calls, size) in communication()[strategy].items()}
    assert one.collectives == both
    assert one.metrics["collectives"] == sum(kind["calls"] for kind in both.values())
    assert one.metrics["collective_bytes"] == sum(kind["bytes"] for kind in both.values())


@cache
def communication() -> dict[str, dict[str, tuple[int, float]]]:
    """The theoretical collectives of one of two ranks in an fp32 step: calls of each kind, and bytes handed in.

    All gradients are reduced once. Sharded parameters are gathered from two halves. They are gathered once if they are
    kept. Blocks that are gathered for forward are gathered again for backward.
    """
    model = find_model(str(WORK["model"])).build(torch.device("cpu"), sequence=16)
    parameters = list(model.parameters())
    all_bytes = sum(parameter.nbytes for parameter in parameters)
    blocks = list(model.blocks)
    block_bytes = sum(parameter.nbytes for block in blocks for parameter in block.parameters())
    twice = (block_bytes + all_bytes) / 2  # blocks twice, the rest once

    def fully_sharded(strategy: str) -> dict[str, tuple[int, float]]:
        wrapped = len(sizes(len(blocks), STRATEGIES[strategy].options["blocks_per_unit"]))
        return {"all_gather": (2 * wrapped + 1, twice), "reduce_scatter": (wrapped + 1, all_bytes)}

    reduced: dict[str, tuple[int, float]] = {"all_reduce": (1, all_bytes)}
    from_both: dict[str, tuple[int, float]] = {"broadcast": (2, all_bytes)}
    return {
        "ddp-fp32": reduced,
        "ddp": reduced,
        "oss": {**reduced, **from_both},
        "oss-sdp": {"reduce": (2, all_bytes), **from_both},
        **{strategy: fully_sharded(strategy) for strategy in ("fairscale-fsdp", "fsdp1", "fsdp2")},
        "zero1": {**reduced, "all_gather": (1, all_bytes / 2)},
        "zero2": {**reduced, "all_gather": (1, all_bytes / 2)},
        # Small parameters are gathered after the update, one by one on gloo, and kept. ZeRO-3 also looks for overflow.
        "zero3": {
            "reduce_scatter": (1, all_bytes),
            "all_gather": (len(parameters), all_bytes / 2),
            "all_reduce": (1, 8),
        },
    }


@pytest.mark.parametrize("name", ["gpt-tiny", "bert-tiny", "hf_Bert-tiny"])
def test_united_blocks_compute_the_same_as_single_blocks(name: str) -> None:
    model = replace(MODELS[name], dimensions={**MODELS[name].dimensions, "layers": 6}).build("cpu", sequence=16)
    batch = [pool[0] for pool in model.draw(2)]
    before = model(*batch).item()
    assert [len(list(unit.children())) for unit in unite(model, 3)] == sizes(6, 3) == [4, 2]
    assert model(*batch).item() == before


@pytest.mark.parametrize("name", ["hf_Bart-tiny", "resnet18-tiny"])
def test_blocks_that_a_model_does_not_run_from_its_list_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="does not run them from that list"):
        unite(find_model(name).build("meta"), 3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", [name for name, row in ON_A_CPU.items() if row.amp])
def test_in_16_bits_every_strategy_stays_within_the_suites_tolerance(
    strategy: str, precision: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    one = train(tmp_path / "job", strategy=strategy, precision=precision)
    assert (one.outcome, one.reason) == ("ok", None)
    truth = references[f"{STRATEGIES[strategy].reference} {precision}"]
    assert loss_fault(one.losses, truth.losses, tolerance(strategy).allowed) is None


ACCUMULATED = [("fp32", 0.001, 3), ("bf16", 0.01, 2)]
"""Number format, tolerance, and micro-batches that each of two ranks takes in a step."""


@pytest.fixture(scope="module")
def accumulated(
    references: dict[str, Launch], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Launch]:
    """Losses of ZeRO's unsharded model, by number format and micro-batches per rank.

    Its step takes the micro-batches of two ranks.
    """
    folder = tmp_path_factory.mktemp("accumulated")
    return {
        (precision, on_each): train(
            folder / f"{precision}-{on_each}",
            dp=1,
            strategy=STRATEGIES["zero1"].reference,
            micro_batches=2 * on_each,
            precision=precision,
        )
        for precision, _, on_each in ACCUMULATED
    }


@pytest.mark.parametrize(("precision", "tolerance", "on_each"), ACCUMULATED)
@pytest.mark.parametrize("strategy", [name for name, row in STRATEGIES.items() if row.accumulates])
def test_several_micro_batches_have_the_losses_of_the_whole_batch(
    strategy: str,
    precision: str,
    tolerance: float,
    on_each: int,
    accumulated: dict[tuple[str, int], Launch],
    tmp_path: Path,
) -> None:
    whole = accumulated[precision, on_each]
    one = train(tmp_path / "job", strategy=strategy, precision=precision, micro_batches=on_each)
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, whole.losses, tolerance) is None
    assert one.metrics["flops_per_step"] == whole.metrics["flops_per_step"]


SLOW: dict[str, Any] = {"precision": "bf16", "learning_rate": 1e-5}
"""An update of this rate is below half the distance between two bf16 numbers, so most weights round back at first."""


def test_at_a_low_rate_zero_matches_only_the_reference_with_rounded_weights(tmp_path: Path) -> None:
    zero = train(tmp_path / "zero", strategy="zero2", **SLOW)
    rounded, autocast = (
        train(tmp_path / name, dp=1, strategy=name, micro_batches=2, **SLOW) for name in (ROUNDED, "reference")
    )
    assert loss_fault(zero.losses, rounded.losses, tolerance("zero2").allowed) is None
    assert "it trains wrong" in str(loss_fault(zero.losses, autocast.losses, tolerance("zero2").allowed))


def test_the_reference_rounds_gradients_as_a_rank_does() -> None:
    """Small gradients round to zero in fp16, and cuDNN computes LSTMs in fp16."""

    def encoder() -> Trainable:
        model = find_model("tts_angular-tiny").build(torch.device("cpu"), frames=4)
        for recurrent in model.blocks:
            recurrent.register_forward_hook(lambda _module, _inputs, outputs: outputs[0].register_hook(coarse) and None)
        return model

    recipe = Recipe(precision="fp32", learning_rate=1e-3, device=torch.device("cpu"))
    mine, ranks = encoder(), encoder()
    (pool,) = mine.draw(16)
    no_mesh: Any = None
    reference(mine, no_mesh, recipe, micro_batches=4).run(pool[0])

    optimizer = recipe.adamw(ranks.parameters())
    for part in pool[0].chunk(4):
        ranks(part).backward()
    for parameter in ranks.parameters():
        assert parameter.grad is not None
        parameter.grad /= 4
    optimizer.step()
    assert all(map(torch.equal, mine.parameters(), ranks.parameters()))


def coarse(gradient: Tensor) -> Tensor:
    """Round as fp16 rounds much smaller gradients."""
    return (gradient * 2.0**-12).half().float() * 2.0**12


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"micro_batches": 2}, "strategy 'ddp' takes one micro-batch a step, not 2"),
        ({"warmup_steps": 2}, "strategy 'ddp' has one learning rate, and no warm-up of 2 steps"),
    ],
)
def test_a_strategy_refuses_what_it_does_not_support(asked: dict[str, int], sentence: str) -> None:
    params: dict[str, Any] = {**WORK, "strategy": "ddp", "precision": "fp32", **asked}
    with pretended("dp2") as mesh, pytest.raises(ValueError, match=sentence):
        train_step(mesh, **params)


def test_the_learning_rate_rises_evenly_during_warm_up() -> None:
    recipe = Recipe(precision="fp32", learning_rate=8.0, device=torch.device("cpu"), warmup_steps=4)
    optimizer = recipe.adamw([torch.zeros(1, requires_grad=True)])
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    assert rates == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


def test_learning_rate_warm_up_is_the_same_under_zero(references: dict[str, Launch], tmp_path: Path) -> None:
    rising: dict[str, Any] = {"precision": "fp32", "warmup_steps": 4}
    whole = train(tmp_path / "whole", dp=1, strategy="reference", micro_batches=2, **rising)
    one = train(tmp_path / "job", strategy="zero1", **rising)
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, whole.losses, tolerance=0.001) is None
    assert loss_fault(one.losses, references["reference fp32"].losses, tolerance=0.01) is not None


def test_a_cases_learning_rate_replaces_the_models(references: dict[str, Launch], tmp_path: Path) -> None:
    slow = train(tmp_path / "job", strategy="ddp", precision="fp32", learning_rate=1e-4)
    assert slow.losses[0] == pytest.approx(references["reference fp32"].losses[0], rel=1e-6)
    assert slow.losses[-1] > references["reference fp32"].losses[-1] + 0.1


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_fp8_losses_match_the_unsharded_model_and_are_near_bf16(
    strategy: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    bert: dict[str, Any] = {"model": "bert-tiny", "sequence": 16}
    whole = {
        precision: train(tmp_path / precision, dp=1, strategy="reference", micro_batches=2, precision=precision, **bert)
        for precision in ("bf16", "fp8")
    }
    one = train(tmp_path / "job", strategy=strategy, precision="fp8", **bert)
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, whole["fp8"].losses, tolerance(strategy).allowed) is None
    assert loss_fault(one.losses, whole["bf16"].losses, 0.03) is None
    assert whole["fp8"].losses != whole["bf16"].losses
    assert one.metrics["flops_per_step"] == whole["bf16"].metrics["flops_per_step"]


@pytest.mark.slow
def test_a_compiled_model_has_the_losses_of_the_eager_one(references: dict[str, Launch], tmp_path: Path) -> None:
    one = launched(
        start(tmp_path / "job", BUILDER, mesh="dp2", strategy="ddp", precision="fp32", graph="inductor", **WORK)
    )
    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, references["reference fp32"].losses, tolerance=0.001) is None


def test_stale_gradients_of_sharded_ddp_are_caught(references: dict[str, Launch], tmp_path: Path) -> None:
    """FairScale's ShardedDataParallel keeps gradients in buffers that ``optimizer.zero_grad()`` does not reach. The
    step then runs fast and trains wrong."""
    builder = "wrong_steps:sharded_ddp_with_stale_gradients"
    one = launched(start(tmp_path / "job", builder, mesh="dp2", precision="fp32", **WORK))
    assert (one.outcome, one.reason) == ("ok", None), "no other guard sees it"
    assert "it trains wrong" in str(
        loss_fault(one.losses, references["reference fp32"].losses, tolerance("oss-sdp").allowed)
    )
