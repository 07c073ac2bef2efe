"""Synthetic samples: random enough to burn real power, regular enough to be learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

POOL = 8
"""Distinct global batches that steps cycle through."""

SEED = 4321

SHIFT = 61
"""Numbers by which one window of :func:`noise_pool` starts after the one before: a prime, so that few images of any
width are each other's rows moved by some."""


def token_pool(*, samples: int, sequence: int, vocabulary: int, pool: int = POOL) -> Tensor:
    """Tokens of ``pool`` global batches, int64 of shape pool × samples × sequence, on the CPU.

    Token frequencies follow Zipf's law, as those of words do, over a shuffled vocabulary: the loss of a
    fresh model falls from ln(vocabulary) at once. Which tokens are frequent does not depend on the samples: batches of
    any size are of one language, and what is learned from them can be compared. Drawn on the CPU whatever the device,
    so that runs on any hardware, and under any split of the samples over ranks, see the same data.
    """
    generator = torch.Generator().manual_seed(SEED)
    shuffled = torch.randperm(vocabulary, generator=generator)
    frequency = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    cumulative = frequency.cumsum(0) / frequency.sum()
    draws = torch.rand(pool, samples, sequence, dtype=torch.float64, generator=generator)
    # The last sum may round to just below 1, and a draw may fall above it.
    rank = torch.searchsorted(cumulative, draws).clamp_(max=vocabulary - 1)
    return shuffled[rank]


def noise_pool(*, samples: int, shape: Sequence[int], pool: int = POOL) -> Tensor:
    """Normal noise of ``pool`` global batches, fp32 of shape pool × samples × ``shape``, on the CPU.

    Every sample is a window of one long strip, and what is returned is a view of that strip: it costs the memory of
    about one sample, where the images of all ranks would take tens of GB in each of them and a minute to draw. A rank
    copies out the windows that are its own.
    """
    size = math.prod(shape)
    generator = torch.Generator().manual_seed(SEED)
    strip = torch.randn(size + SHIFT * (pool * samples - 1), generator=generator)
    inner = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return strip.as_strided((pool, samples, *shape), (SHIFT * samples, SHIFT, *inner))
