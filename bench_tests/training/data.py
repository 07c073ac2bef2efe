"""Synthetic samples: random enough to draw realistic power, regular enough to be learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

POOL = 8
"""Distinct global batches. Steps cycle through them."""

SEED = 4321

SHIFT = 61
"""Offset, in numbers, between the starts of consecutive windows of :func:`noise_pool`. It is prime, so that for any
image width few images contain shifted rows of another image."""


def token_pool(*, samples: int, sequence: int, vocabulary: int, pool: int = POOL) -> Tensor:
    """Tokens of ``pool`` global batches: int64 of shape pool × samples × sequence, on the CPU.

    Token frequencies follow Zipf's law over a shuffled vocabulary, like word frequencies. The loss of a fresh model
    therefore falls from ln(vocabulary) at once. The frequent tokens do not depend on the number of samples, so batches
    of any size have one language and their losses are comparable. Tokens are always drawn on the CPU, so all hardware
    and all splits over ranks see the same data.
    """
    generator = torch.Generator().manual_seed(SEED)
    shuffled = torch.randperm(vocabulary, generator=generator)
    frequency = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    cumulative = frequency.cumsum(0) / frequency.sum()
    draws = torch.rand(pool, samples, sequence, dtype=torch.float64, generator=generator)
    # The last sum may round to just below 1, so a draw may be above it.
    rank = torch.searchsorted(cumulative, draws).clamp_(max=vocabulary - 1)
    return shuffled[rank]


def noise_pool(*, samples: int, shape: Sequence[int], pool: int = POOL) -> Tensor:
    """Normal noise of ``pool`` global batches: fp32 of shape pool × samples × ``shape``, on the CPU.

    Every sample is a window of one long strip, and the result is a view of the strip. It needs little more memory than
    one sample. Separate images of all ranks would take tens of GB in each rank and a minute to draw. Each rank copies
    its own windows out of the view.
    """
    size = math.prod(shape)
    generator = torch.Generator().manual_seed(SEED)
    strip = torch.randn(size + SHIFT * (pool * samples - 1), generator=generator)
    inner = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return strip.as_strided((pool, samples, *shape), (SHIFT * samples, SHIFT, *inner))
