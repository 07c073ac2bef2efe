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
    """Denoising: the encoder reads a masked text, and the decoder writes the whole text.

    The forward pass replaces the library's. The library creates a decoder mask of ones and asks the device whether all
    entries are ones, so the host waits for the device once a step. This forward pass has no mask; attention itself is
    causal.
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
        """FLOPs of one training step on one sample.

        Per token, an encoder layer has 12·hidden² weights. A decoder layer has 16·hidden², because its second attention
        takes keys and values from the encoder. Attention scores count over the full square, masked or not: once in an
        encoder layer, twice in a decoder layer. Encoder and decoder read the same number of tokens.
        """
        hidden: int = self.config.d_model
        encoder: int = self.config.encoder_layers
        decoder: int = self.config.decoder_layers
        sequence = self.tokens_per_sample
        weights = (12 * encoder + 16 * decoder) * hidden**2 + hidden * self.vocabulary
        return 6.0 * weights * sequence + 12.0 * (encoder + 2 * decoder) * hidden * sequence**2


def bart(*, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, sequence: int | None = None) -> Bart:
    """A BART with ``layers`` layers, half of them in the encoder.

    It has no dropout, so its losses are comparable under every split.
    """
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
