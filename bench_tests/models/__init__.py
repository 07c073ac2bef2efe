"""The models that the suite trains, by name. A model is a builder and its row here.

Neither torch nor a library of models is imported before :meth:`Model.build`, so collecting the suite needs none of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device

    from bench_tests.models.trainable import Trainable


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model and how to train it.

    ``builder`` is the import path ``package.module:function`` of the function that builds the model. It is called with
    ``dimensions``. ``parameters`` is the exact parameter count, with tied weights counted once, or ``None`` if no
    source publishes one.

    ``learning_rate`` is AdamW's rate from step ``warmup_steps`` on; before that step the rate rises linearly. With
    these two values the loss falls steadily over the steps that are compared with the unsharded model. If a loss leaps,
    rounding errors grow with it, and a correct training looks as wrong as a faulty one.
    """

    builder: str
    dimensions: Mapping[str, Any]
    learning_rate: float
    warmup_steps: int = 1
    parameters: int | None = None

    def build(self, device: device | str, **sample: Any) -> Trainable:
        """The model on ``device`` in fp32. Its random weights are the same on every rank.

        ``sample`` defines one sample where the model leaves that open: ``sequence``, the number of tokens, for a
        language model; ``image``, the size of an image, for a vision model. Raises ``ValueError`` if the model cannot
        take such a sample.
        """
        import torch

        builder: Callable[..., Trainable] = resolve_name(self.builder)
        with torch.device(device):
            torch.manual_seed(SEED)
            return builder(**self.dimensions, **sample).train()


SEED = 1234
"""Seed of the initial weights."""

MODELS = {
    "gpt-tiny": Model(
        builder="bench_tests.models.gpt:gpt",
        dimensions={"layers": 4, "hidden": 128, "heads": 4, "vocabulary": 1024, "positions": 128},
        learning_rate=2e-3,
    ),
    "gpt-1.3b": Model(
        builder="bench_tests.models.gpt:gpt",
        dimensions={"layers": 24, "hidden": 2048, "heads": 32, "vocabulary": 50_304, "positions": 1024},
        learning_rate=1e-6,
        parameters=1_313_722_368,
    ),
    "bert-tiny": Model(
        builder="bench_tests.models.bert:bert",
        dimensions={"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1024, "positions": 128},
        learning_rate=2e-3,
    ),
    "bert-base": Model(
        builder="bench_tests.models.bert:bert",
        dimensions={"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512},
        learning_rate=1e-5,
        parameters=110_106_428,
    ),
    "bert-large": Model(
        builder="bench_tests.models.bert:bert",
        dimensions={"layers": 24, "hidden": 1024, "heads": 16, "vocabulary": 30_522, "positions": 512},
        learning_rate=2e-5,
        warmup_steps=12,
        parameters=336_226_108,
    ),
    "bert-1.5b": Model(
        builder="bench_tests.models.bert:bert",
        dimensions={"layers": 48, "hidden": 1600, "heads": 25, "vocabulary": 30_522, "positions": 512},
        learning_rate=2e-5,
        warmup_steps=12,
    ),
    "deberta-tiny": Model(
        builder="bench_tests.models.bert:deberta_v3",
        dimensions={"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1024, "positions": 64},
        learning_rate=2e-3,
    ),
    "deberta-v3-base": Model(
        builder="bench_tests.models.bert:deberta_v3",
        dimensions={"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 128_100, "positions": 512},
        learning_rate=1e-4,
        parameters=184_551_780,
    ),
    # The models below come from TorchBench (pytorch/benchmark) and keep their names there. Each has a small variant.
    "alexnet": Model(
        builder="bench_tests.models.vision:alexnet",
        dimensions={},
        learning_rate=3e-5,
        parameters=61_100_840,
    ),
    "alexnet-tiny": Model(
        builder="bench_tests.models.vision:alexnet",
        dimensions={"channels": (16, 24, 32, 32, 32), "hidden": 64, "classes": 100},
        learning_rate=5e-4,
    ),
    "resnet18": Model(
        builder="bench_tests.models.vision:resnet",
        dimensions={"block": "BasicBlock", "layers": (2, 2, 2, 2)},
        learning_rate=1e-4,
        parameters=11_689_512,
    ),
    "resnet18-tiny": Model(
        builder="bench_tests.models.vision:resnet",
        dimensions={"block": "BasicBlock", "layers": (1, 1, 1, 1), "classes": 100},
        learning_rate=3e-4,
    ),
    "resnet50": Model(
        builder="bench_tests.models.vision:resnet",
        dimensions={"block": "Bottleneck", "layers": (3, 4, 6, 3)},
        learning_rate=3e-4,
        parameters=25_557_032,
    ),
    "resnet50-tiny": Model(
        builder="bench_tests.models.vision:resnet",
        dimensions={"block": "Bottleneck", "layers": (1, 1, 1, 1), "classes": 100},
        learning_rate=1e-4,
    ),
    "vgg16": Model(
        builder="bench_tests.models.vision:vgg16",
        dimensions={},
        learning_rate=1e-5,
        parameters=138_357_544,
    ),
    "vgg16-tiny": Model(
        builder="bench_tests.models.vision:vgg16",
        dimensions={"narrower": 8, "hidden": 64, "classes": 100},
        learning_rate=3e-4,
    ),
    "timm_vovnet": Model(
        builder="bench_tests.models.vision:vovnet39a",
        dimensions={},
        learning_rate=3e-4,
        parameters=22_600_296,
    ),
    "timm_vovnet-tiny": Model(
        builder="bench_tests.models.vision:vovnet39a",
        dimensions={
            "stem_chs": (16, 16, 32),
            "stage_conv_chs": (16, 24, 32, 40),
            "stage_out_chs": (32, 48, 64, 80),
            "layer_per_block": 2,
            "block_per_stage": (1, 1, 1, 1),
            "classes": 100,
        },
        learning_rate=1e-3,
    ),
    "timm_vision_transformer": Model(
        builder="bench_tests.models.vision:vision_transformer",
        dimensions={"layers": 12, "hidden": 384, "heads": 6},
        learning_rate=1e-4,
        parameters=22_050_664,
    ),
    "timm_vision_transformer-tiny": Model(
        builder="bench_tests.models.vision:vision_transformer",
        dimensions={"layers": 2, "hidden": 64, "heads": 4, "classes": 100},
        learning_rate=1e-3,
    ),
    "pytorch_unet": Model(
        builder="bench_tests.models.unet:unet",
        dimensions={},
        learning_rate=1e-3,
        parameters=17_267_458,
    ),
    "pytorch_unet-tiny": Model(
        builder="bench_tests.models.unet:unet",
        dimensions={"channels": (8, 16, 32, 32)},
        learning_rate=3e-3,
    ),
    "hf_Bart": Model(
        builder="bench_tests.models.bart:bart",
        dimensions={"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50_265, "positions": 1024},
        learning_rate=1e-4,
        parameters=139_420_416,
    ),
    "hf_Bart-tiny": Model(
        builder="bench_tests.models.bart:bart",
        dimensions={"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 512, "positions": 64},
        learning_rate=2e-3,
    ),
    "hf_Bert": Model(
        builder="bench_tests.models.bert:masked_bert",
        dimensions={"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512},
        learning_rate=5e-5,
        parameters=109_514_298,
    ),
    "hf_Bert-tiny": Model(
        builder="bench_tests.models.bert:masked_bert",
        dimensions={"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 512, "positions": 64},
        learning_rate=2e-3,
    ),
    "speech_transformer": Model(
        builder="bench_tests.models.speech:speech_transformer",
        dimensions={
            "layers": 12,
            "hidden": 512,
            "feed_forward": 2048,
            "heads": 8,
            "features": 320,
            "vocabulary": 4233,
        },
        learning_rate=1e-4,
        parameters=46_471_168,
    ),
    "speech_transformer-tiny": Model(
        builder="bench_tests.models.speech:speech_transformer",
        dimensions={
            "layers": 4,
            "hidden": 64,
            "feed_forward": 256,
            "heads": 4,
            "features": 40,
            "vocabulary": 256,
        },
        learning_rate=1e-3,
    ),
    "tts_angular": Model(
        builder="bench_tests.models.speech:speaker_encoder",
        dimensions={"layers": 3, "hidden": 768, "embedding": 256, "features": 40},
        learning_rate=3e-4,
        parameters=9_381_888,
    ),
    "tts_angular-tiny": Model(
        builder="bench_tests.models.speech:speaker_encoder",
        dimensions={"layers": 3, "hidden": 64, "embedding": 32, "features": 40},
        learning_rate=1e-3,
    ),
}


def find_model(name: str) -> Model:
    """The row called ``name``. Raises ``ValueError`` with the known names for any other name."""
    if name not in MODELS:
        raise ValueError(f"model {name!r} is unknown; known: {', '.join(MODELS)}")
    return MODELS[name]
