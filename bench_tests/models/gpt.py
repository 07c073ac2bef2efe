"""GPT-2 of any size, made of the layers of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from transformers import GPT2Config, GPT2LMHeadModel

from bench_tests.models.loss import next_token_loss
from bench_tests.models.trainable import LanguageModel, transformer_flops


class GPT(LanguageModel):
    """``GPT2LMHeadModel`` with a forward pass of its own.

    The library's forward pass looks for packed sequences with an ``.item()`` in every call. The host would wait for the
    device once a step and could never run ahead.
    """

    def __init__(self, config: GPT2Config, sequence: int) -> None:
        super().__init__(vocabulary=config.vocab_size, sequence=sequence, positions=config.n_positions)
        self.config = config
        self.gpt2 = GPT2LMHeadModel(config)

    @property
    def blocks(self) -> nn.ModuleList:
        blocks: nn.ModuleList = self.gpt2.transformer.h
        return blocks

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        transformer = self.gpt2.transformer
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = transformer.wte(tokens) + transformer.wpe(positions)
        for block in transformer.h:
            hidden = block(hidden)
        return next_token_loss(self.gpt2.lm_head(transformer.ln_f(hidden)), tokens)

    def flops_per_sample(self) -> float:
        return transformer_flops(
            layers=self.config.n_layer,
            hidden=self.config.n_embd,
            vocabulary=self.config.vocab_size,
            sequence=self.tokens_per_sample,
        )


def gpt(*, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None) -> GPT:
    """A GPT-2 with a tied head and fused attention.

    It has no dropout, so its losses are comparable under every split.
    """
    return GPT(
        GPT2Config(
            n_layer=layers,
            n_embd=hidden,
            n_head=heads,
            vocab_size=vocabulary,
            n_positions=positions,
            bos_token_id=None,
            eos_token_id=None,
            # The library's default, "gelu_new", computes the same function in eight kernels.
            activation_function="gelu_pytorch_tanh",
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
            attn_implementation="sdpa",
        ),
        sequence or positions,
    )
