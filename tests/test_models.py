"""The models are the published models, and their FLOP formulas are correct."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
import timm
import torchvision
from transformers import DebertaV2Config

from bench_tests import test_ddp_scaling, test_mixed_precision, test_sharding, test_trainer
from bench_tests.models import MODELS, find_model
from bench_tests.models.bert import Deberta, mask
from bench_tests.models.loss import token_loss
from bench_tests.strategies.reference import reference
from bench_tests.tolerances import LEAP, leap
from bench_tests.training.recipe import Recipe
from pytest_trainbench.judge.validity import LOSS_STEPS
from pytest_trainbench.rank import flops


@pytest.fixture(autouse=True)
def attention_that_the_counter_knows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turns fused attention off: the counter does not count it on the CPU or the meta device, but counts plain
    products."""
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(before)


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.parameters is not None])
def test_a_models_parameter_count_is_the_count_of_its_row(name: str) -> None:
    model = find_model(name).build("meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == find_model(name).parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base", 110_106_428),
        ("bert-large", 336_226_108),
        ("gpt-1.3b", 1_313_722_368),
        ("deberta-v3-base", 184_551_780),
        # torchvision's own counts: meta["num_params"] of its weights.
        ("alexnet", 61_100_840),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
        # timm's own: 22.60 M and 22.05 M in its results.
        ("timm_vovnet", 22_600_296),
        ("timm_vision_transformer", 22_050_664),
        ("pytorch_unet", 17_267_458),
        # Of facebook/bart-base and google-bert/bert-base-uncased with its masked-language head, tied weights once.
        ("hf_Bart", 139_420_416),
        ("hf_Bert", 109_514_298),
        # Published as about 46.5 M. The exact count follows from the dimensions in the paper's implementation.
        ("speech_transformer", 46_471_168),
        ("tts_angular", 9_381_888),
    ],
)
def test_a_models_parameter_count_is_the_published_count(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "resnet50", "vgg16"])
def test_a_vision_model_has_the_same_tensors_as_torchvisions(name: str) -> None:
    """Both models have the same tensors in the same order. Ours has a builder of its own if torchvision's model has no
    size option."""
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name).state_dict()

    ours = find_model(name).build("meta").get_submodule("net").state_dict()
    assert [tensor.shape for tensor in ours.values()] == [tensor.shape for tensor in theirs.values()]


@pytest.mark.parametrize("name", ["alexnet", "vgg16"])
def test_a_vision_model_computes_the_same_as_torchvisions(name: str) -> None:
    theirs = torchvision.models.get_model(name).eval()
    ours = find_model(name).build("cpu").get_submodule("net").eval()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(1, 3, 224, 224)

    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


def test_vovnet_has_the_same_tensors_as_timms_model() -> None:
    with torch.device("meta"):
        theirs = timm.create_model("vovnet39a").state_dict()

    ours = find_model("timm_vovnet").build("meta").get_submodule("net").state_dict()
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.items()
    }


def test_bart_without_a_mask_computes_the_same_as_the_library_with_a_mask() -> None:
    model = find_model("hf_Bart-tiny").build("cpu")
    (tokens,) = (pool[0] for pool in model.draw(2))
    masked, _ = mask(tokens)

    theirs = model.get_submodule("bart")(input_ids=masked, labels=tokens, use_cache=False).loss
    torch.testing.assert_close(model(tokens), theirs)


def test_bert_without_a_mask_computes_the_same_as_the_library() -> None:
    model = find_model("hf_Bert-tiny").build("cpu")
    (tokens,) = (pool[0] for pool in model.draw(2))
    masked, labels = mask(tokens)

    theirs = model.get_submodule("bert")(input_ids=masked, labels=labels).loss
    torch.testing.assert_close(model(tokens), theirs)


@pytest.mark.parametrize("name", ["bert-tiny", "hf_Bert-tiny", "hf_Bart-tiny", "gpt-tiny"])
def test_attention_gets_no_mask_while_a_graph_is_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.17 creates a mask while a graph is traced or captured, and later versions while it is exported. No
    fused kernel accepts that mask."""
    for seen in ("is_tracing", "is_torchdynamo_exporting"):
        monkeypatch.setattr(f"transformers.masking_utils.{seen}", lambda *_: True)
    masks = []

    def attention(*args: Any, **options: Any) -> Tensor:
        masks.append(options.get("attn_mask"))
        return fused(*args, **options)

    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    model = find_model(name).build("cpu")
    model(*(pool[0] for pool in model.draw(2)))

    assert len(masks) >= len(model.blocks) and set(masks) == {None}


WITH_LAYERS = [name for name, row in MODELS.items() if isinstance(row.dimensions.get("layers"), int)]


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_a_model_has_one_block_for_each_layer(name: str) -> None:
    assert len(find_model(name).build("meta").blocks) == MODELS[name].dimensions["layers"]


@pytest.mark.parametrize("name", MODELS)
def test_the_flop_formula_matches_torchs_counter(name: str) -> None:
    """On the meta device. It raises if a model reads a value, so this test also shows that no step waits for the
    device."""
    model = find_model(name).build("meta")
    samples = 4

    with FlopCounterMode(display=False) as counter:
        model(*(torch.empty_like(pool[0], device="meta") for pool in model.draw(samples))).backward()

    # The meta device splits an LSTM into products. Its first hidden state needs no gradient there, but a real kernel
    # computes that gradient.
    agreement = 0.006 if name.startswith("tts_angular") else 0
    assert counter.get_total_flops() == pytest.approx(model.flops(samples=samples, passes=1), rel=agreement)


@pytest.mark.parametrize(
    "relative",
    [
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"], "max_relative_positions": 40},
        {"pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
        {"pos_att_type": ["p2c", "c2p"], "position_buckets": 16, "share_att_key": True},
    ],
    ids=str,
)
def test_flops_of_disentangled_attention_follow_its_settings(relative: dict[str, Any]) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.device("meta"):
        model = Deberta(DebertaV2Config(**sizes, vocab_size=1024, relative_attention=True, **relative), sequence=48)
        tokens = torch.zeros(4, 48, dtype=torch.int64)

    with FlopCounterMode(display=False) as counter:
        for _ in range(3):
            model(tokens).backward()

    assert counter.get_total_flops() == model.flops(samples=12, passes=3)


def test_the_flop_formula_of_an_lstm_matches_its_cells() -> None:
    """The counter does not see the kernels of an LSTM. It sees the products of LSTM cells with the same weights and
    results."""
    model = find_model("tts_angular-tiny").build("cpu")
    (frames,) = (pool[0] for pool in model.draw(4))
    by_cells = find_model("tts_angular-tiny").build("cpu")
    by_cells.recurrent = torch.nn.ModuleList(_Cells(lstm) for lstm in model.get_submodule("recurrent").children())

    with flops.counter() as unseen:
        loss = model(frames)
        loss.backward()
    with flops.counter() as counted:
        loss_by_cells = by_cells(frames)
        loss_by_cells.backward()

    torch.testing.assert_close(loss_by_cells, loss)
    assert counted.get_total_flops() == pytest.approx(4 * model.flops_per_sample(), rel=0.006)
    assert unseen.get_total_flops() < 0.9 * counted.get_total_flops()
    assert not model.counts_flops


class _Cells(torch.nn.Module):
    def __init__(self, lstm: torch.nn.Module) -> None:
        assert isinstance(lstm, torch.nn.LSTM)
        super().__init__()
        self.cell = torch.nn.LSTMCell(lstm.input_size, lstm.hidden_size)
        self.cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in lstm.state_dict().items()})

    def forward(self, frames: Tensor) -> tuple[Tensor, Any]:
        state, outputs = None, []
        for frame in frames.unbind(1):
            state = self.cell(frame, state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("-tiny")])
def test_a_model_that_trains_gives_the_same_loss_for_the_same_batch(name: str) -> None:
    """There is no dropout, so losses are comparable under every split."""
    sample = {"image": 64} if name.startswith(("alexnet", "resnet", "vgg", "timm_vovnet")) else {}
    model = find_model(name).build("cpu", **sample)
    batch = [pool[0] for pool in model.draw(4)]
    if name.startswith("pytorch_unet"):
        batch = [tensor[..., :32, :47] for tensor in batch]

    assert model.training
    torch.testing.assert_close(model(*batch), model(*batch), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "sequence", "tflops"),
    [("gpt-1.3b", 1024, 8.673), ("bert-base", 512, 0.3637)],
)
def test_flops_per_sample_are_the_published_figures(name: str, sequence: int, tflops: float) -> None:
    flops = find_model(name).build("meta", sequence=sequence).flops_per_sample()

    assert flops / 1e12 == pytest.approx(tflops, abs=5e-5 if tflops < 1 else 5e-4)


def test_the_loss_of_16_bit_weights_is_not_rounded_to_16_bits() -> None:
    """A 16-bit loss near 8 moves in steps of 1/32."""
    model = find_model("bert-tiny").build("cpu", sequence=16).to(torch.bfloat16)
    (pool,) = model.draw(2)

    loss = model(pool[0])

    assert loss.dtype == torch.float32 and loss.bfloat16() != loss


def test_weights_are_the_same_on_every_rank() -> None:
    one, other = (find_model("gpt-tiny").build("cpu").state_dict() for _ in range(2))

    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_unknown_model_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"model 'gpt' is unknown; known: gpt-tiny, gpt-1\.3b"):
        find_model("gpt")


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^sequence 129 is longer than the 128 positions of this model$"):
        find_model("gpt-tiny").build("meta", sequence=129)


SMOKE: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"{name}-tiny": work for name, work in test_ddp_scaling.SMOKE.items()},
    **{
        str(work["smoke"]["model"]): (4, {"sequence": work["smoke"]["sequence"]})
        for work in (test_mixed_precision.WORK, test_sharding.WORK, test_trainer.WORK)
    },
}
"""Model -> samples a rank and the definition of a sample, as in the smoke profile."""


@pytest.mark.parametrize("name", SMOKE)
def test_the_loss_of_a_model_falls_steadily(name: str) -> None:
    """If a loss leaps, rounding errors grow with it, and a correct training looks as wrong as a faulty one."""
    samples, sample = SMOKE[name]
    row, device = find_model(name), torch.device("cpu")
    model = row.build(device, **sample)
    recipe = Recipe(precision="bf16", learning_rate=row.learning_rate, warmup_steps=row.warmup_steps, device=device)
    trainee = reference(model, None, recipe, micro_batches=2)  # type: ignore[arg-type]  # the reference uses no mesh
    batches = cycle(zip(*model.draw(2 * samples), strict=True))

    _, last = LOSS_STEPS
    losses = [float(trainee.run(*next(batches)) or 0.0) for _ in range(last)]
    assert leap(losses) < LEAP, losses


@pytest.mark.parametrize("autocast", [True, False])
def test_a_language_models_loss_is_in_fp32(autocast: bool) -> None:
    scores, labels = torch.randn(2, 3, 50).bfloat16(), torch.tensor([[1, -100, 3], [4, 5, -100]])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = token_loss(scores, labels)

    truth = torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, truth, rtol=5e-3, atol=0.0)
