"""Models are the ones that the published figures were measured with, and their FLOPs are counted right."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench_tests.models import MODELS, find_model


@pytest.fixture(autouse=True)
def attention_that_the_counter_knows(monkeypatch):
    """The counter knows no fused attention of the CPU or the meta device; the plain products it does."""
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(before)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base", 110_106_428),
        ("bert-large", 336_226_108),
        ("gpt-1.3b", 1_313_722_368),
        ("deberta-v3-base", 184_551_780),
    ],
)
def test_parameter_count_is_the_published_one(name, parameters):
    model = find_model(name).build("meta")

    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_the_layers(name):
    assert len(find_model(name).build("meta").blocks) == MODELS[name].dimensions["layers"]


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-1.3b", "bert-base", "bert-1.5b"])
def test_flops_by_formula_are_those_that_torch_counts(name):
    model = find_model(name).build("meta")
    samples = 2

    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(samples, model.tokens_per_sample, dtype=torch.long, device="meta")).backward()

    assert counter.get_total_flops() == samples * model.flops_per_sample()


@pytest.mark.parametrize(
    ("name", "sequence", "tflops"),
    [("gpt-1.3b", 1024, 8.673), ("bert-base", 512, 0.3637)],
)
def test_flops_of_a_sample_are_the_published_ones(name, sequence, tflops):
    flops = find_model(name).build("meta", sequence=sequence).flops_per_sample()

    assert flops / 1e12 == pytest.approx(tflops, abs=5e-5 if tflops < 1 else 5e-4)


def test_the_loss_of_16_bit_weights_is_not_rounded_to_16_bits():
    """A loss near 8 would move in steps of 1/32."""
    model = find_model("bert-tiny").build("cpu", sequence=16).to(torch.bfloat16)
    (pool,) = model.draw(2)

    loss = model(pool[0])

    assert loss.dtype == torch.float32 and loss.bfloat16() != loss


def test_weights_are_the_same_on_every_rank():
    one, other = (find_model("gpt-tiny").build("cpu").state_dict() for _ in range(2))

    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_unknown_model_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"model 'gpt' is unknown; known: gpt-tiny, gpt-1\.3b"):
        find_model("gpt")


def test_a_sequence_longer_than_the_positions_is_refused():
    with pytest.raises(ValueError, match=r"^sequence 129 is longer than the 128 positions of this model$"):
        find_model("gpt-tiny").build("meta", sequence=129)
