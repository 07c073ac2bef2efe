"""BART, from transformers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from transformers import BartConfig, BartForConditionalGeneration

from bench_tests.models.bert import mask
from bench_tests.models.loss import token_loss
from bench_tests.models.trainable import LanguageModel


class Bart(LanguageModel):
    """Denoising: the decoder writes the whole text whose masked version the encoder reads.

    The library's forward pass makes a mask of ones for the decoder, and asks the device whether they are all ones: the
    host waits for it once a step. This one gives no mask, from which attention knows what is causal.
    """

    def __init__(self, config: BartConfig, sequence: int) -> None:
        super().__init__(vocabulary=config.vocab_size, sequence=sequence, positions=config.max_position_embeddings)
        self.config = config
        self.bart = BartForConditionalGeneration(config)

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList([*self.bart.model.encoder.layers, *self.bart.model.decoder.layers])

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        encoder, decoder = self.bart.model.encoder, self.bart.model.decoder
        masked, _ = mask(tokens)
        read = encoder.layernorm_embedding(encoder.embed_tokens(masked) + encoder.embed_positions(masked))
        for layer in encoder.layers:
            read = layer(read, None)
        before = pad(tokens[:, :-1], (1, 0), value=self.config.decoder_start_token_id)
        written = decoder.layernorm_embedding(decoder.embed_tokens(before) + decoder.embed_positions(before))
        for layer in decoder.layers:
            written = layer(written, None, read)
        scores = self.bart.lm_head(written) + self.bart.final_logits_bias
        return token_loss(scores, tokens)

    def flops_per_sample(self) -> float:
        """Per token 12·hidden² weights in an encoder layer; 16·hidden² in a decoder layer, whose second attention takes
        keys and values from the encoder. Scores over the full square, masked or not: once in an encoder layer, twice in
        a decoder layer. Encoder and decoder read equally many tokens."""
        hidden: int = self.config.d_model
        encoder: int = self.config.encoder_layers
        decoder: int = self.config.decoder_layers
        sequence = self.tokens_per_sample
        weights = (12 * encoder + 16 * decoder) * hidden**2 + hidden * self.vocabulary
        return 6.0 * weights * sequence + 12.0 * (encoder + 2 * decoder) * hidden * sequence**2


def bart(*, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None) -> Bart:
    """``layers`` in the encoder and in the decoder together. Without dropout, so that losses can be compared whatever
    the split."""
    return Bart(
        BartConfig(
            encoder_layers=layers // 2,
            decoder_layers=layers // 2,
            d_model=hidden,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * hidden,
            decoder_ffn_dim=4 * hidden,
            vocab_size=vocabulary,
            max_position_embeddings=positions,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            attn_implementation="sdpa",
        ),
        sequence or positions,
    )
