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
"""One token in seven is masked, close to BERT's 15 %. A fixed pattern needs no random numbers in the step."""

MASK_TOKEN = 103
"""[MASK] of BERT's vocabulary; any token that is always the same does."""


class MaskedBert(LanguageModel):
    """BERT, masked tokens only, with a forward pass of its own.

    The library's may hand attention a mask that masks nothing where a graph is traced or captured (transformers 5.17
    does): no fused kernel takes it, and a compiled or recorded row would have another attention than the eager one.
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
        """Samples × sequence tokens to samples × sequence × hidden."""
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
        return encoder + 6.0 * hidden**2 * self.tokens_per_sample  # the layer before the head


class Bert(MaskedBert):
    """BERT pre-training: masked tokens and next-sentence prediction."""

    library = BertForPreTraining

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        masked, labels = mask(tokens)
        follows = tokens[:, 0] % 2  # a label that the sample decides and that can be learned
        hidden = self.encode(masked)
        scores, follows_scores = self.bert.cls(hidden, self.bert.bert.pooler(hidden))
        return token_loss(scores, labels) + cross_entropy(follows_scores.float(), follows)

    def flops_per_sample(self) -> float:
        hidden: int = self.config.hidden_size
        pooler = hidden**2 + 2 * hidden  # on the first token only, with the next-sentence head
        return super().flops_per_sample() + 6.0 * pooler


class Deberta(LanguageModel):
    """DeBERTa, masked tokens only."""

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
        # Without it the model looks for padding, and waits for the device.
        attention = torch.ones_like(masked)
        loss: Tensor = self.deberta(input_ids=masked, attention_mask=attention, labels=labels).loss
        return loss

    def flops_per_sample(self) -> float:
        """A transformer's, the layer before the head, and disentangled attention (He et al., DeBERTa, arXiv 2006.03654,
        section 3.1).

        To the scores of content against content, sequence × sequence, each layer adds those of content against position
        (``c2p``: queries by the keys of the relative positions) and of position against content (``p2c``: keys by the
        queries of those), each a product of sequence × hidden by hidden × positions, of which the pairs at hand are
        then looked up. Positions are all that have an embedding, at most ``2 · position_buckets``, however short the
        sequence.
        """
        layers: int = self.config.num_hidden_layers
        hidden: int = self.config.hidden_size
        sequence = self.tokens_per_sample
        encoder = transformer_flops(layers=layers, hidden=hidden, vocabulary=self.vocabulary, sequence=sequence)
        scores = 6.0 * layers * self._relative * hidden * self._positions * sequence
        return encoder + scores + 6.0 * hidden**2 * sequence  # the layer before the head

    def flops_per_pass(self) -> float:
        """The relative positions' keys and queries: a product of positions × hidden by hidden × hidden for each, in
        each layer. It is the same for all samples, and as large where the weights are those of content
        (``share_att_key``)."""
        layers: int = self.config.num_hidden_layers
        hidden: int = self.config.hidden_size
        return 6.0 * layers * self._relative * self._positions * hidden**2

    @property
    def _relative(self) -> int:
        """Scores that relative positions have part in: ``c2p``, ``p2c`` or both."""
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
    """Without dropout, so that losses can be compared whatever the split."""
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
    """The settings of ``microsoft/deberta-v3-base``, without its dropout."""
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
    """The model's input, and its labels with every token that stayed visible left out (-100)."""
    hidden = torch.arange(tokens.shape[1], device=tokens.device) % MASKED_EVERY == MASKED_EVERY - 1
    return tokens.masked_fill(hidden, MASK_TOKEN), tokens.masked_fill(~hidden, -100)
