"""The single layers that are measured, by name. A layer is a builder and its row here.

Neither torch nor transformers is imported before :meth:`Layer.build`, so collecting the suite needs neither.
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
    """A layer and its published grid.

    ``builder`` is the import path ``package.module:function`` of the function that builds the layer. ``sequences`` and
    ``batches`` are the published grid. ``attentions`` is the number of attention blocks: two if the layer also attends
    to an encoder.
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
        """Floating-point operations of one forward pass. A multiply-add counts as two.

        Per token, each attention has 4·hidden² weights and the feed-forward network has 2·hidden·ffn. Per sample, the
        two products of each attention are 2·hidden·sequence² multiply-adds over the full square, masked or not.
        Element-wise work counts as nothing. A backward pass has twice as many operations if every input has a gradient.
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
    """How a layer runs: the name of its attention in transformers, and what replaces Python, if anything."""

    attention: str = "sdpa"
    compiled: bool = False
    graphed: bool = False


MODES: Mapping[str, Mode] = {
    "eager": Mode(attention="eager"),
    "sdpa": Mode(),
    "compiled": Mode(compiled=True),
    "graphed": Mode(graphed=True),
}
"""``eager`` runs the products and the softmax of attention one by one. ``sdpa`` uses fused attention. ``compiled`` is
sdpa under ``torch.compile``. ``graphed`` is sdpa recorded once as a CUDA graph and replayed, for shapes that are
host-bound."""

DIRECTIONS = ("fwd", "fwd_bwd")
"""``fwd`` is the forward pass alone, without a graph for gradients. ``fwd_bwd`` is forward and backward."""

COUNTINGS = ("exact", "published")
"""How FLOPs of a backward pass are counted.

``exact``: the inputs have a gradient, like the inputs of a layer inside a model, so backward is exactly twice forward.
``published``: the inputs have no gradient, so the backward pass omits the products that only inputs need, but counts
them. The published figures were counted this way. They are 8 to 9 % too high for BERT and 4 % for T5's decoder. The
other layers begin with a norm, whose weights need those products anyway.
"""


def find_layer(name: str) -> Layer:
    """The row called ``name``. Raises ``ValueError`` with the known names for any other name."""
    if name not in LAYERS:
        raise ValueError(f"layer {name!r} is unknown; known: {', '.join(LAYERS)}")
    return LAYERS[name]


def find_mode(name: str) -> Mode:
    """The row called ``name``. Raises ``ValueError`` with the known names for any other name."""
    if name not in MODES:
        raise ValueError(f"mode {name!r} is unknown; known: {', '.join(MODES)}")
    return MODES[name]
