"""Transformer layers with the settings of their library, but without dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from transformers import BertConfig, GPT2Config, T5Config
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.t5.modeling_t5 import T5Block


class TransformerLayer(nn.Module):
    """A layer with fixed arguments except its states.

    ``sources`` is the number of state tensors (samples × sequence × hidden) that it takes: its own states and, if it
    attends to an encoder, the encoder's states.
    """

    mask: Tensor | None

    def __init__(self, layer: nn.Module, *, sources: int = 1, mask: Tensor | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.sources = sources
        self.register_buffer("mask", mask)

    def forward(self, states: Tensor, encoder_states: Tensor | None = None) -> Tensor:
        """New states in the shape of ``states``."""
        options: dict[str, Any] = {} if encoder_states is None else {"encoder_hidden_states": encoder_states}
        output = self.layer(states, attention_mask=self.mask, **options)
        new: Tensor = output[0] if isinstance(output, tuple) else output
        return new


def bert(*, hidden: int, heads: int, ffn: int, sequence: int, attention: str) -> TransformerLayer:
    """A BERT layer. It does not depend on ``sequence``."""
    config = BertConfig(
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=ffn,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    return TransformerLayer(BertLayer(config, layer_idx=0))


def gpt2(*, hidden: int, heads: int, ffn: int, sequence: int, attention: str) -> TransformerLayer:
    """A GPT-2 layer with GPT-2's own activation, as in the published figures. Without fusion that activation is eight
    kernels."""
    config = GPT2Config(
        n_embd=hidden,
        n_head=heads,
        n_inner=ffn,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
        attn_implementation=attention,
    )
    return TransformerLayer(GPT2Block(config, layer_idx=0), mask=causal_mask(sequence, attention))


def t5_encoder(*, hidden: int, heads: int, ffn: int, sequence: int, attention: str) -> TransformerLayer:
    """A later layer of T5's encoder.

    In the model, later layers get the position bias of the first layer. On its own, this layer creates a bias of zeros.
    """
    return TransformerLayer(T5Block(_t5(hidden, heads, ffn, attention, is_decoder=False), layer_idx=0))


def t5_decoder(*, hidden: int, heads: int, ffn: int, sequence: int, attention: str) -> TransformerLayer:
    """A later layer of T5's decoder. It attends to itself and to an encoder's states; see :func:`t5_encoder`."""
    block = T5Block(_t5(hidden, heads, ffn, attention, is_decoder=True), layer_idx=0)
    return TransformerLayer(block, sources=2, mask=causal_mask(sequence, attention))


def causal_mask(sequence: int, attention: str) -> Tensor | None:
    """The additive mask (1 × 1 × sequence × sequence) that a model passes to eager attention, which masks nothing by
    itself.

    ``None`` for fused attention, which knows that the layer is causal.
    """
    if attention != "eager":
        return None
    lowest = torch.finfo(torch.float16).min  # finite in every number format that the layer may be converted to
    return torch.full((1, 1, sequence, sequence), lowest).triu(1)


def _t5(hidden: int, heads: int, ffn: int, attention: str, *, is_decoder: bool) -> T5Config:
    return T5Config(
        d_model=hidden,
        d_kv=hidden // heads,
        num_heads=heads,
        d_ff=ffn,
        dropout_rate=0.0,
        is_decoder=is_decoder,
        use_cache=False,
        attn_implementation=attention,
    )
