"""Masked language models of the BERT family, from transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, DebertaV2Config, DebertaV2ForMaskedLM

from bench_tests.models.loss import token_loss
from bench_tests.models.trainable import LanguageModel, transformer_flops

MASKED_EVERY = 7
"""Every seventh token is masked, close to BERT's 15 %. A fixed pattern needs no random numbers in the step."""

MASK_TOKEN = 103
"""[MASK] in BERT's vocabulary. Any fixed token would do."""


class MaskedBert(LanguageModel):
    """BERT with masked tokens as its only objective, and with a forward pass of its own.

    While a graph is traced or captured, the library's forward pass may give attention a mask that masks nothing
    (transformers 5.17 does). No fused kernel accepts that mask, so a compiled or recorded row would run another
    attention than the eager row.
    """

    library: ClassVar[type[nn.Module]] = BertForMaskedLM

    def __init__(self, config: BertConfig, sequence: int) -> None:
        super().__init__(vocabulary=config.vocab_size, sequence=sequence, positions=config.max_position_embeddings)
        self.config = config
        self.bert: Any = self.library(config)

    @property
    def blocks(self) -> nn.ModuleList:
        blocks: nn.ModuleList = self.bert.bert.encoder.layer
        return blocks

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        masked, labels = mask(tokens)
        return token_loss(self.bert.cls(self.encode(masked)), labels)

    def encode(self, masked: Tensor) -> Tensor:
        """From masked tokens (samples × sequence) to hidden states (samples × sequence × hidden)."""
        hidden: Tensor = self.bert.bert.embeddings(masked)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def flops_per_sample(self) -> float:
        hidden: int = self.config.hidden_size
        encoder = transformer_flops(
            layers=self.config.num_hidden_layers,
            hidden=hidden,
            vocabulary=self.config.vocab_size,
            sequence=self.tokens_per_sample,
        )
        return encoder + 6.0 * hidden**2 * self.tokens_per_sample  # the dense layer before the head


class Bert(MaskedBert):
    """BERT pre-training: masked tokens and next-sentence prediction."""

    library = BertForPreTraining

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        masked, labels = mask(tokens)
        follows = tokens[:, 0] % 2  # a label that follows from the sample and can be learned
        hidden = self.encode(masked)
        scores, follows_scores = self.bert.cls(hidden, self.bert.bert.pooler(hidden))
        return token_loss(scores, labels) + cross_entropy(follows_scores.float(), follows)

    def flops_per_sample(self) -> float:
        hidden: int = self.config.hidden_size
        pooler = hidden**2 + 2 * hidden  # pooler and next-sentence head, on the first token only
        return super().flops_per_sample() + 6.0 * pooler


class Deberta(LanguageModel):
    """DeBERTa with masked tokens as its only objective."""

    def __init__(self, config: DebertaV2Config, sequence: int) -> None:
        super().__init__(vocabulary=config.vocab_size, sequence=sequence, positions=config.max_position_embeddings)
        self.config = config
        self.deberta = DebertaV2ForMaskedLM(config)

    @property
    def blocks(self) -> nn.ModuleList:
        blocks: nn.ModuleList = self.deberta.deberta.encoder.layer
        return blocks

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        masked, labels = mask(tokens)
        # Without a mask the model looks for padding, and the host waits for the device.
        attention = torch.ones_like(masked)
        loss: Tensor = self.deberta(input_ids=masked, attention_mask=attention, labels=labels).loss
        return loss

    def flops_per_sample(self) -> float:
        """FLOPs of a transformer, of the dense layer before the head, and of disentangled attention, per sample.

        Disentangled attention: He et al., DeBERTa, arXiv 2006.03654, section 3.1. Each layer adds two kinds of scores
        to the content-to-content scores (sequence × sequence). ``c2p`` (content to position) multiplies queries by the
        keys of the relative positions. ``p2c`` (position to content) multiplies keys by the queries of the relative
        positions. Each kind is a product of sequence × hidden by hidden × positions; the model then looks up the pairs
        that it needs. ``positions`` is the number of relative positions with an embedding, ``2 · position_buckets`` at
        most, and does not depend on the sequence.
        """
        layers: int = self.config.num_hidden_layers
        hidden: int = self.config.hidden_size
        sequence = self.tokens_per_sample
        encoder = transformer_flops(layers=layers, hidden=hidden, vocabulary=self.vocabulary, sequence=sequence)
        scores = 6.0 * layers * self._relative * hidden * self._positions * sequence
        return encoder + scores + 6.0 * hidden**2 * sequence  # the dense layer before the head

    def flops_per_pass(self) -> float:
        """FLOPs of the keys and queries of the relative positions: a product of positions × hidden by hidden × hidden
        for each kind of score in each layer.

        They are computed once for all samples. Sharing the weights of the content (``share_att_key``) does not reduce
        them.
        """
        layers: int = self.config.num_hidden_layers
        hidden: int = self.config.hidden_size
        return 6.0 * layers * self._relative * self._positions * hidden**2

    @property
    def _relative(self) -> int:
        """Kinds of scores with relative positions: ``c2p``, ``p2c`` or both."""
        return len(self.config.pos_att_type)

    @property
    def _positions(self) -> int:
        """Relative positions that have an embedding."""
        positions: int = self.deberta.deberta.encoder.rel_embeddings.num_embeddings
        return positions


def bert(*, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None) -> Bert:
    return Bert(_bert_config(layers, hidden, heads, vocabulary, positions), sequence or positions)


def masked_bert(
    *, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None
) -> MaskedBert:
    return MaskedBert(_bert_config(layers, hidden, heads, vocabulary, positions), sequence or positions)


def _bert_config(layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> BertConfig:
    """A configuration without dropout, so losses are comparable under every split."""
    return BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )


def deberta_v3(
    *, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None
) -> Deberta:
    """The settings of ``microsoft/deberta-v3-base`` without its dropout."""
    return Deberta(
        DebertaV2Config(
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            vocab_size=vocabulary,
            max_position_embeddings=positions,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            type_vocab_size=0,
            relative_attention=True,
            max_relative_positions=-1,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            layer_norm_eps=1e-7,
        ),
        sequence or positions,
    )


def mask(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The model's input, and its labels. The label of every visible token is -100, which the loss ignores."""
    hidden = torch.arange(tokens.shape[1], device=tokens.device) % MASKED_EVERY == MASKED_EVERY - 1
    return tokens.masked_fill(hidden, MASK_TOKEN), tokens.masked_fill(~hidden, -100)
