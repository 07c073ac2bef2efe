"""The models that are trained, by name. A model is a builder and its row here.

Neither torch nor any library of models is imported until :meth:`Model.build`, so that collecting the suite needs none.
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
    """The import path ``package.module:function`` of what builds a model, and the dimensions that it is called with.

    ``parameters`` is the exact count, tied weights once, or ``None`` where no source publishes one.
    ``learning_rate`` makes the loss fall clearly within ten steps of AdamW without warm-up, in bf16 too.
    """

    builder: str
    dimensions: Mapping[str, Any]
    learning_rate: float
    parameters: int | None = None

    def build(self, device: device | str, **sample: Any) -> Trainable:
        """The model on ``device``, fp32; its random weights are the same on every rank.

        ``sample`` says what one sample is where the model leaves that open: ``sequence``, the number of tokens, for a
        language model. Raises ``ValueError`` for one that the model cannot take.
        """
        import torch

        builder: Callable[..., Trainable] = resolve_name(self.builder)
        with torch.device(device):
            torch.manual_seed(SEED)
            return builder(**self.dimensions, **sample).train()


SEED = 1234
"""Of the initial weights."""

MODELS = {
    "gpt-tiny": Model(
        builder="bench_tests.models.gpt:gpt",
        dimensions={"layers": 4, "hidden": 128, "heads": 4, "vocabulary": 1024, "positions": 128},
        learning_rate=2e-3,
    ),
    "gpt-1.3b": Model(
        builder="bench_tests.models.gpt:gpt",
        dimensions={"layers": 24, "hidden": 2048, "heads": 32, "vocabulary": 50_304, "positions": 1024},
        learning_rate=1e-4,
        parameters=1_313_722_368,
    ),
    "bert-base": Model(
        builder="bench_tests.models.bert:bert",
        dimensions={"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512},
        learning_rate=1e-4,
        parameters=110_106_428,
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
}


def find_model(name: str) -> Model:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in MODELS:
        raise ValueError(f"model {name!r} is unknown; known: {', '.join(MODELS)}")
    return MODELS[name]
