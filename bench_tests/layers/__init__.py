"""Single layers whose speed is measured, by name. A layer is a builder and its row here.

Neither torch nor transformers is imported until :meth:`Layer.build`, so that collecting the suite needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_tests.layers.transformer import TransformerLayer


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The import path ``package.module:function`` of what builds a layer, and the grid it is published over.

    ``attentions`` is how many attention blocks it has: two where it attends to an encoder as well.
    """

    builder: str
    title: str
    sequences: tuple[int, ...]
    batches: tuple[int, ...]
    attentions: int = 1

    def build(self, *, hidden: int, heads: int, ffn: int, sequence: int, attention: str) -> TransformerLayer:
        """The layer in fp32 on torch's default device, in training mode, with random weights."""
        build: Callable[..., TransformerLayer] = resolve_name(self.builder)
        return build(hidden=hidden, heads=heads, ffn=ffn, sequence=sequence, attention=attention).train()

    def forward_flops(self, *, samples: int, sequence: int, hidden: int, ffn: int) -> float:
        """Floating-point operations of one forward pass, a multiply-add counting as two.

        Per token each attention has 4·hidden² weights and the feed-forward network 2·hidden·ffn; per sample each
        attention's two products over the full square, masked or not, are 2·hidden·sequence² multiply-adds.
        Element-wise work counts as nothing. A backward pass is twice this where every input has a gradient.
        """
        weights = self.attentions * 4 * hidden**2 + 2 * hidden * ffn
        squares = self.attentions * 2 * hidden * sequence**2
        return 2.0 * samples * (weights * sequence + squares)


LAYERS = {
    "bert": Layer(
        builder="bench_tests.layers.transformer:bert",
        title="BERT layer",
        sequences=(128, 512),
        batches=(2, 4, 8, 16, 32, 64, 128),
    ),
    "gpt2": Layer(
        builder="bench_tests.layers.transformer:gpt2",
        title="GPT-2 layer",
        sequences=(512, 1024),
        batches=(2, 4, 8, 16, 32, 64),
    ),
    "t5-encoder": Layer(
        builder="bench_tests.layers.transformer:t5_encoder",
        title="T5 encoder layer",
        sequences=(512,),
        batches=(2, 4, 8, 16, 32, 64),
    ),
    "t5-decoder": Layer(
        builder="bench_tests.layers.transformer:t5_decoder",
        title="T5 decoder layer",
        sequences=(512,),
        batches=(2, 4, 8, 16, 32, 64),
        attentions=2,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How a layer is run: transformers' name of its attention, and what, if anything, runs it instead of Python."""

    attention: str = "sdpa"
    compiled: bool = False
    graphed: bool = False


MODES: Mapping[str, Mode] = {
    "eager": Mode(attention="eager"),
    "sdpa": Mode(),
    "compiled": Mode(compiled=True),
    "graphed": Mode(graphed=True),
}
"""eager: products and softmax of attention one by one. sdpa: fused attention. compiled: sdpa under ``torch.compile``.
graphed: sdpa recorded once as a CUDA graph and replayed, for shapes that the host cannot launch fast enough."""

DIRECTIONS = ("fwd", "fwd_bwd")
"""The forward pass alone, without a graph for gradients; forward and backward."""

COUNTINGS = ("exact", "published")
"""exact: inputs have a gradient, as those of a layer inside a model do, so backward really is twice forward.
published: they have none, so products that only they need are left out, yet are counted all the same. So came the
published figures about: for BERT 8 to 9 % too high, for T5's decoder 4 %. The others begin with a norm, whose weights
need those products anyway."""


def find_layer(name: str) -> Layer:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in LAYERS:
        raise ValueError(f"layer {name!r} is unknown; known: {', '.join(LAYERS)}")
    return LAYERS[name]


def find_mode(name: str) -> Mode:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in MODES:
        raise ValueError(f"mode {name!r} is unknown; known: {', '.join(MODES)}")
    return MODES[name]
