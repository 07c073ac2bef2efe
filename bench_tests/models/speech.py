"""Speech models: a transformer that recognises speech, and a recurrent network that recognises speakers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize, pad

from bench_tests.models.trainable import Trainable
from bench_tests.training.data import SEED, noise_pool, token_pool


class SpeechTransformer(Trainable):
    """L. Dong et al., "Speech-Transformer", ICASSP 2018, with the dimensions of kaituoxu/Speech-Transformer.

    The model reads ``frames`` frames of ``features`` numbers. It writes ``symbols`` symbols of a ``vocabulary``, and
    the end of the sentence. Layers are post-norm: they normalise after the residual sum. The head shares its weight
    with the embedding.
    """

    START, END = 0, 1

    positions: Tensor
    future: Tensor

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        feed_forward: int,
        heads: int,
        features: int,
        vocabulary: int,
        frames: int,
        symbols: int,
    ) -> None:
        """``layers`` is the total of encoder and decoder layers."""
        super().__init__()
        self.hidden, self.feed_forward, self.features, self.vocabulary = hidden, feed_forward, features, vocabulary
        self.frames, self.symbols = frames, symbols
        how: dict[str, Any] = {
            "d_model": hidden,
            "nhead": heads,
            "dim_feedforward": feed_forward,
            "dropout": 0.0,  # so that losses are comparable under every split
            "batch_first": True,
        }
        self.project = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**how) for _ in range(layers // 2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**how) for _ in range(layers // 2))
        self.embedding = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
        self.register_buffer("positions", sinusoids(max(frames, symbols + 1), hidden), persistent=False)
        self.register_buffer("future", nn.Transformer.generate_square_subsequent_mask(symbols + 1), persistent=False)

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList([*self.encoder, *self.decoder])

    def draw(self, samples: int) -> tuple[Tensor, Tensor]:
        symbols = token_pool(samples=samples, sequence=self.symbols, vocabulary=self.vocabulary)
        return noise_pool(samples=samples, shape=(self.frames, self.features)), symbols

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:  # type: ignore[override]
        heard = self.norm(self.project(frames)) + self.positions[: self.frames]
        for layer in self.encoder:
            heard = layer(heard)
        before, after = pad(symbols, (1, 0), value=self.START), pad(symbols, (0, 1), value=self.END)
        written = self.embedding(before) * math.sqrt(self.hidden) + self.positions[: self.symbols + 1]
        for layer in self.decoder:
            # The flag tells attention that it is causal. Attention then does not read the mask.
            written = layer(written, heard, tgt_mask=self.future, tgt_is_causal=True)
        scores = linear(written, self.embedding.weight)
        return cross_entropy(scores.float().flatten(0, 1), after.flatten(), label_smoothing=0.1)

    def flops_per_sample(self) -> float:
        """FLOPs of one training step on one sample.

        Each weight counts one multiply-add forward and two backward for each frame or symbol that it meets. Only the
        first layer counts one backward, because the frames need no gradient. Attention scores count over the full
        square, masked or not.
        """
        frames, symbols = self.frames, self.symbols + 1  # the symbols and the end of the sentence
        layer = 4 * self.hidden**2 + 2 * self.hidden * self.feed_forward
        weights = len(self.encoder) * layer * frames
        # Queries and output of the second attention.
        weights += len(self.decoder) * (layer + 2 * self.hidden**2) * symbols
        weights += len(self.decoder) * 2 * self.hidden**2 * frames  # keys and values of the second attention
        weights += self.hidden * self.vocabulary * symbols
        pairs = len(self.encoder) * frames**2 + len(self.decoder) * (symbols**2 + symbols * frames)
        return 6.0 * weights + 4.0 * self.features * self.hidden * frames + 12.0 * self.hidden * pairs


def speech_transformer(
    *,
    layers: int,
    hidden: int,
    feed_forward: int,
    heads: int,
    features: int,
    vocabulary: int,
    frames: int = 160,
    symbols: int = 15,
) -> SpeechTransformer:
    return SpeechTransformer(
        layers=layers,
        hidden=hidden,
        feed_forward=feed_forward,
        heads=heads,
        features=features,
        vocabulary=vocabulary,
        frames=frames,
        symbols=symbols,
    )


class SpeakerEncoder(Trainable):
    """L. Wan et al., "Generalized end-to-end loss for speaker verification", ICASSP 2018, in the version of
    coqui-ai/TTS.

    The loss is the angular prototypical loss of J. S. Chung et al., "In defence of metric learning for speaker
    recognition", Interspeech 2020. Each speaker's first utterance must be nearest to the mean of the same speaker's
    other utterances. Each speaker has :data:`UTTERANCES` neighbouring samples, so every rank gets whole speakers.
    """

    counts_flops = False
    """The FLOP counter does not count the fused kernels of an LSTM."""

    UTTERANCES = 2

    SCALE = 10.0
    """Scale of the cosines: the initial value of the published loss. It is a constant here and is not trained."""

    def __init__(self, *, layers: int, hidden: int, embedding: int, features: int, frames: int) -> None:
        super().__init__()
        self.features, self.frames, self.hidden = features, frames, hidden
        widths = [features, *[embedding] * (layers - 1)]
        self.recurrent = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for width in widths)
        self.project = nn.ModuleList(nn.Linear(hidden, embedding, bias=False) for _ in widths)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.recurrent

    def draw(self, samples: int) -> tuple[Tensor]:
        """Noise around each speaker's mean spectrum. Raises ``ValueError`` if ``samples`` is not a whole number of
        speakers."""
        if samples % self.UTTERANCES:
            raise ValueError(f"{samples} samples cannot be grouped into speakers of {self.UTTERANCES} utterances")
        noise = noise_pool(samples=samples, shape=(self.frames, self.features), pool=SPEAKER_POOL)
        generator = torch.Generator().manual_seed(SEED)
        speakers = torch.randn(SPEAKER_POOL, samples // self.UTTERANCES, 1, self.features, generator=generator)
        return (noise + speakers.repeat_interleave(self.UTTERANCES, dim=1),)

    def embed(self, frames: Tensor) -> Tensor:
        """Unit vectors (samples × embedding) of utterances (samples × frames × features)."""
        x = frames
        for recurrent, project in zip(self.recurrent, self.project, strict=True):
            x = project(recurrent(x)[0])
        return normalize(x[:, -1].float(), dim=1)

    def forward(self, frames: Tensor) -> Tensor:  # type: ignore[override]
        embedded = self.embed(frames)
        by_speaker = embedded.view(-1, self.UTTERANCES, embedded.shape[1])
        first, others = by_speaker[:, 0], by_speaker[:, 1:].mean(1)
        cosines = normalize(first, dim=1) @ normalize(others, dim=1).T
        return cross_entropy(self.SCALE * cosines, torch.arange(len(first), device=first.device))

    def flops_per_sample(self) -> float:
        """FLOPs of one training step on one sample.

        Per frame, a layer multiplies the weights of its four gates, for input and for hidden state, and the weights of
        the projection. Each weight counts one multiply-add forward and two backward. The weights that multiply the data
        count one backward. The last projection has a gradient only at the last frame, but it is computed and
        differentiated at all frames. The loss's products are quadratic in a rank's samples. They count as nothing: they
        are under 0.1 % at any batch of the suite.
        """
        weights = sum(parameter.numel() for parameter in self.parameters() if parameter.dim() == 2)
        data = 4 * self.hidden * self.features
        return (6.0 * weights - 2.0 * data) * self.frames


SPEAKER_POOL = 2
"""Distinct global batches. The number is small, because a saturating batch holds tens of thousands of utterances."""


def speaker_encoder(*, layers: int, hidden: int, embedding: int, features: int, frames: int = 50) -> SpeakerEncoder:
    return SpeakerEncoder(layers=layers, hidden=hidden, embedding=embedding, features=features, frames=frames)


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Position encodings (positions × hidden), sines and cosines by turns.

    Source: A. Vaswani et al., arXiv 1706.03762, section 3.5.
    """
    angles = torch.arange(positions).unsqueeze(1) * torch.exp(torch.arange(0, hidden, 2) * (-math.log(1e4) / hidden))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
