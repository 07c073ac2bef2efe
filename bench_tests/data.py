"""Synthetic tokens: random enough to burn real power, regular enough to be learned."""

from __future__ import annotations

import torch
from torch import Tensor

POOL = 8
"""Distinct global batches that steps cycle through."""

SEED = 4321


def token_pool(*, samples: int, sequence: int, vocabulary: int) -> Tensor:
    """Tokens of :data:`POOL` global batches, int64 of shape pool × samples × sequence, on the CPU.

    Token frequencies follow Zipf's law, as those of words do, over a shuffled vocabulary: the loss of a
    fresh model falls from ln(vocabulary) at once. Drawn on the CPU whatever the device, so that runs on any
    hardware, and under any split of the samples over ranks, see the same data.
    """
    generator = torch.Generator().manual_seed(SEED)
    frequency = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    cumulative = frequency.cumsum(0) / frequency.sum()
    draws = torch.rand(POOL, samples, sequence, dtype=torch.float64, generator=generator)
    # The last sum may round to just below 1, and a draw may fall above it.
    rank = torch.searchsorted(cumulative, draws).clamp_(max=vocabulary - 1)
    return torch.randperm(vocabulary, generator=generator)[rank]
