"""A layer does the work that its formula counts, and does the same work in every mode."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import launched, start
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bench_tests.layers import DIRECTIONS, LAYERS, find_layer
from bench_tests.layers.grid import LayerPass, full, headline, published, smoke
from bench_tests.steps.layer import LEAST_BYTES, LEAST_FLOPS, layer_pass, matrix_product, repeats, vector_product
from pytest_trainbench import Step
from pytest_trainbench.rank import flops

LARGE = {"hidden": 1024, "heads": 16, "ffn": 4096}
SMALL: dict[str, Any] = {"hidden": 32, "heads": 2, "ffn": 96, "batch": 2, "sequence": 16, "precision": "fp32"}


@pytest.fixture(scope="module")
def one_device() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    dist.destroy_process_group()


def layer_step(mesh: DeviceMesh, **params: Any) -> Step:
    return layer_pass(mesh, **{"layer": "bert", "direction": "fwd_bwd", "mode": "sdpa", **SMALL, **params})


def written(step: Step) -> list[torch.Tensor]:
    """The tensors that one run of the step writes."""
    step.run()
    return [tensor.detach().clone() for tensor in step.parameters()]


def counted(step: Step) -> float:
    with flops.counter() as counter:
        step.run()
    return float(counter.get_total_flops())


@pytest.mark.parametrize(
    ("model", "parameters", "layers", "besides"),
    [
        # Token, position and segment embeddings with their norm; pooler.
        ("BERT-large", 335_141_888, {"bert": 24}, (30_522 + 512 + 2 + 2) * 1024 + 1024 * 1024 + 1024),
        # Token and position embeddings; last norm.
        ("GPT-2-medium", 354_823_168, {"gpt2": 24}, (50_257 + 1024 + 2) * 1024),
        # Token embedding; position biases of the first layers; last norms.
        ("T5-large", 737_668_096, {"t5-encoder": 24, "t5-decoder": 24}, (32_128 + 2) * 1024 + 2 * 32 * 16),
    ],
)
def test_layers_add_up_to_the_published_model(
    model: str, parameters: int, layers: dict[str, int], besides: int
) -> None:
    with torch.device("meta"):
        for name, count in layers.items():
            layer = find_layer(name).build(**LARGE, sequence=8, attention="sdpa")
            besides += count * sum(parameter.numel() for parameter in layer.parameters())
    assert besides == parameters, model


@pytest.mark.parametrize("mode", ["eager", "sdpa"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_flop_formula_matches_what_runs(one_device: DeviceMesh, layer: str, direction: str, mode: str) -> None:
    step = layer_step(one_device, layer=layer, direction=direction, mode=mode)
    assert step.counts_flops
    assert counted(step) == step.flops


@pytest.mark.parametrize(
    ("layer", "sequence", "too_high"),
    [("bert", 128, 0.089), ("bert", 512, 0.083), ("gpt2", 512, 0), ("t5-encoder", 512, 0), ("t5-decoder", 512, 0.038)],
)
def test_published_counting_exceeds_ours_by_the_products_for_inputs(
    one_device: DeviceMesh, layer: str, sequence: int, too_high: float
) -> None:
    """For BERT the layer omits the gradient of its input through three projections, for T5's decoder the gradient of
    the encoder's states through two. The other layers begin with a norm, whose weights need those gradients anyway."""
    shape = {"layer": layer, "batch": 1, "sequence": sequence, **LARGE}
    step = layer_step(one_device, counting="published", **shape)
    exact = layer_step(one_device, **shape)
    assert (step.flops, step.counts_flops) == (exact.flops, False)
    assert step.flops is not None
    assert step.flops / counted(step) - 1 == pytest.approx(too_high, abs=0.001)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_eager_and_fused_attention_write_the_same_tensors(one_device: DeviceMesh, layer: str, direction: str) -> None:
    """Outputs, and gradients of all weights and inputs, are equal, so eager attention masks what fused attention
    masks."""
    eager, fused = (
        written(layer_step(one_device, layer=layer, direction=direction, mode=mode)) for mode in ("eager", "sdpa")
    )
    assert len(eager) == len(fused) > 0
    torch.testing.assert_close(eager, fused)


@pytest.mark.skipif(not shutil.which("g++"), reason="on a CPU torch.compile calls g++")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_compiled_layer_writes_the_same_tensors(one_device: DeviceMesh, direction: str) -> None:
    """With torch's default compiler. T5's decoder contains every part of the other layers."""
    compiled, fused = (
        layer_step(one_device, layer="t5-decoder", direction=direction, mode=mode) for mode in ("compiled", "sdpa")
    )
    assert not compiled.counts_flops
    torch.testing.assert_close(written(compiled), written(fused))


@pytest.mark.parametrize("layer", ["gpt2", "t5-decoder"])
@pytest.mark.parametrize("mode", ["eager", "sdpa"])
def test_no_position_of_a_causal_layer_depends_on_a_later_position(layer: str, mode: str) -> None:
    attention = "eager" if mode == "eager" else "sdpa"
    module = find_layer(layer).build(hidden=32, heads=2, ffn=64, sequence=8, attention=attention)
    states = torch.randn(module.sources, 1, 8, 32)
    changed = states.clone()
    changed[0, :, 5:] = torch.randn(1, 3, 32)
    before, after = module(*states), module(*changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_pass_in_any_format_writes_finite_numbers_into_every_tensor(
    one_device: DeviceMesh, layer: str, direction: str, precision: str
) -> None:
    step = layer_step(one_device, layer=layer, direction=direction, precision=precision, batch=4)
    before = list(step.parameters())
    assert all(not tensor.any() for tensor in before)
    after = written(step)
    assert [tensor.shape for tensor in after] == [tensor.shape for tensor in before]
    assert all(tensor.any() for tensor in after)
    assert step.figures is not None
    assert step.figures() == {"passes_per_step": 1}


def test_a_second_run_writes_the_same_gradients(one_device: DeviceMesh) -> None:
    """A run replaces the gradients and does not add to them."""
    step = layer_step(one_device)
    torch.testing.assert_close(written(step), written(step), rtol=0, atol=0)


def test_a_step_of_a_small_layer_is_many_passes(one_device: DeviceMesh) -> None:
    step = layer_step(one_device, direction="fwd", batch=2, sequence=4)
    one_pass = 2 * 2 * 4 * (4 * 32 * 32 + 2 * 32 * 96) + 2 * 2 * 2 * 32 * 4 * 4  # of 2 samples of 4 tokens
    passes = 1_000_000 // one_pass + 1
    assert (step.samples, step.tokens, step.flops) == (2 * passes, 8 * passes, one_pass * passes)
    assert step.figures is not None
    assert (counted(step), step.figures()) == (step.flops, {"passes_per_step": passes})


@pytest.mark.parametrize(
    ("amount", "device_type", "least", "passes"),
    [
        (2 * 2048**3, "cuda", LEAST_FLOPS, 583),
        (2 * 8192**3, "cuda", LEAST_FLOPS, 10),
        (2 * 2**45, "cuda", LEAST_FLOPS, 1),
        (3 * 2 * 2**26, "cuda", LEAST_BYTES, 125),
        (3 * 4 * 2**33, "cuda", LEAST_BYTES, 1),
        (2 * 64**3, "cpu", LEAST_FLOPS, 2),
    ],
)
def test_a_step_repeats_its_pass_until_it_is_long(amount: float, device_type: str, least: float, passes: int) -> None:
    assert repeats(amount, device_type, least=least) == passes


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp8"])
def test_a_matrix_product_is_computed_and_counted(one_device: DeviceMesh, precision: str) -> None:
    step = matrix_product(one_device, precision=precision, size=128)
    assert counted(step) == step.flops == 2 * 128**3
    (product,) = step.parameters()
    assert product.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}.get(
        precision, torch.float32
    )
    spread = float(product.float().std())
    assert spread == pytest.approx(128**0.5, rel=0.05), "of sums of 128 products of normal numbers"


def test_a_vector_product_is_computed_and_reports_the_bytes_it_moves(one_device: DeviceMesh) -> None:
    step = vector_product(one_device, precision="bf16", size=1000)
    (product,) = written(step)
    assert float(product.float().std()) == pytest.approx(1, rel=0.2)
    assert step.figures is not None
    assert (step.flops, step.samples) == (167 * 1000, 167)
    assert step.figures() == {"passes_per_step": 167, "bytes_per_step": 167 * 3 * 2 * 1000}


def test_an_overflow_raises(one_device: DeviceMesh) -> None:
    step = vector_product(one_device, precision="fp32", size=1000)
    (product,) = step.parameters()
    product.fill_(float("inf"))
    assert step.figures is not None
    with pytest.raises(FloatingPointError, match="not finite"):
        step.figures()


def test_a_layer_is_measured_without_a_check_that_it_learns(tmp_path: Path) -> None:
    """The test uses fresh processes, as a benchmark run does."""
    ended = start(
        tmp_path / "job",
        "bench_tests.steps.layer:layer_pass",
        warmup=4,
        steps=4,
        **{**SMALL, "layer": "t5-decoder", "direction": "fwd_bwd", "mode": "sdpa", "batch": 4},
    )
    one = launched(ended)
    assert (one.outcome, one.reason) == ("ok", None)
    assert one.figures == {"passes_per_step": 1}
    assert one.metrics["flops_per_step"] == ended.traces[0].flops == ended.traces[0].flops_counted


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"layer": "gpt"}, "layer 'gpt' is unknown; known: bert, gpt2, t5-encoder, t5-decoder"),
        ({"mode": "fast"}, "mode 'fast' is unknown; known: eager, sdpa, compiled, graphed"),
        ({"direction": "bwd"}, "direction 'bwd' is unknown; known: fwd, fwd_bwd"),
        ({"counting": "none"}, "counting 'none' is unknown; known: exact, published"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown; known: fp32, tf32, bf16, fp16"),
        ({"mode": "graphed"}, "mode 'graphed' needs a CUDA device, and this one is a cpu"),
        (
            {"direction": "fwd", "counting": "published"},
            "counting 'published' needs a backward pass, and direction 'fwd' has none: use 'fwd_bwd'",
        ),
    ],
)
def test_unknown_names_and_impossible_combinations_raise(
    one_device: DeviceMesh, params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError) as refused:
        layer_step(one_device, **params)
    assert str(refused.value) == sentence


def test_the_whole_grid_is_the_published_grid() -> None:
    shapes = {(run.layer, run.batch, run.sequence) for run in full(["sdpa"])}
    assert len(shapes) == 7 * 2 + 6 * 2 + 6 + 6
    assert {shapes for shapes in shapes if shapes[0] == "gpt2"} == {
        ("gpt2", batch, sequence) for batch in (2, 4, 8, 16, 32, 64) for sequence in (512, 1024)
    }
    assert len(full(["sdpa"])) == 2 * len(shapes)


def test_the_headline_grid_is_part_of_the_whole_grid() -> None:
    runs = headline(["sdpa"])
    assert set(runs) < set(full(["sdpa"]))
    assert {(run.batch, run.sequence) for run in runs if run.layer == "bert"} == {
        (16, 128), (16, 512), (128, 128), (128, 512)
    }  # fmt: skip
    assert len(runs) == 2 * (4 + 4 + 2 + 2)


def test_only_backward_passes_are_counted_as_published() -> None:
    assert {(run.direction, run.counting) for run in published()} == {("fwd", "exact"), ("fwd_bwd", "published")}


def test_the_smoke_grid_has_every_layer_in_both_directions() -> None:
    assert {(run.layer, run.direction) for run in smoke()} == {(name, way) for name in LAYERS for way in DIRECTIONS}


def test_a_row_is_named_by_its_parameters() -> None:
    assert str(LayerPass("bert", "fwd_bwd", "sdpa", 64, 512)) == "bert-fwd_bwd-sdpa-b64-s512"
    assert str(LayerPass("bert", "fwd_bwd", "eager", 64, 512, "published")) == "bert-fwd_bwd-eager-b64-s512-published"
