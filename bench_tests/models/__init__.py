"""The models that are trained, by name. A model is a builder and its row here.

Neither torch nor transformers is imported until :meth:`Model.build`, so that collecting the suite needs
neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import device

    from bench_tests.models.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Model:
    """Dimensions of a transformer and the import path ``package.module:function`` of what builds it.

    ``parameters`` is the exact count, tied weights once, or ``None`` where no source publishes one.
    ``learning_rate`` makes the loss fall clearly within ten steps of AdamW without warm-up, in bf16 too.
    """

    builder: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    positions: int
    learning_rate: float
    parameters: int | None = None

    def build(self, device: device | str) -> LanguageModel:
        """The model on ``device``, fp32; its random weights are the same on every rank."""
        import torch

        builder: Callable[..., LanguageModel] = resolve_name(self.builder)
        with torch.device(device):
            torch.manual_seed(SEED)
            return builder(
                layers=self.layers,
                hidden=self.hidden,
                heads=self.heads,
                vocabulary=self.vocabulary,
                positions=self.positions,
            ).train()


SEED = 1234
"""Of the initial weights."""

MODELS = {
    "gpt-tiny": Model(
        builder="bench_tests.models.gpt:gpt",
        layers=4,
        hidden=128,
        heads=4,
        vocabulary=1024,
        positions=128,
        learning_rate=2e-3,
    ),
    "gpt-1.3b": Model(
        builder="bench_tests.models.gpt:gpt",
        layers=24,
        hidden=2048,
        heads=32,
        vocabulary=50_304,
        positions=1024,
        learning_rate=1e-4,
        parameters=1_313_722_368,
    ),
    "bert-base": Model(
        builder="bench_tests.models.bert:bert",
        layers=12,
        hidden=768,
        heads=12,
        vocabulary=30_522,
        positions=512,
        learning_rate=1e-4,
        parameters=110_106_428,
    ),
    "deberta-v3-base": Model(
        builder="bench_tests.models.bert:deberta_v3",
        layers=12,
        hidden=768,
        heads=12,
        vocabulary=128_100,
        positions=512,
        learning_rate=1e-4,
        parameters=184_551_780,
    ),
}


def find_model(name: str) -> Model:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in MODELS:
        raise ValueError(f"model {name!r} is unknown; known: {', '.join(MODELS)}")
    return MODELS[name]
