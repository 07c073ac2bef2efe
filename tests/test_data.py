"""Synthetic data are the same for any split, and there is something to learn in them."""

from __future__ import annotations

import math

import torch

from bench_tests.data import POOL, token_pool


def test_same_samples_whoever_asks():
    one, other = (token_pool(samples=4, sequence=16, vocabulary=100) for _ in range(2))

    assert one.shape == (POOL, 4, 16)
    assert one.dtype == torch.int64
    assert torch.equal(one, other)


def test_batches_differ():
    pool = token_pool(samples=4, sequence=16, vocabulary=100)

    assert len({tuple(batch.flatten().tolist()) for batch in pool}) == POOL


def test_tokens_are_in_the_vocabulary_and_their_frequencies_can_be_learned():
    vocabulary = 1000
    tokens = token_pool(samples=32, sequence=128, vocabulary=vocabulary)
    counts = torch.bincount(tokens.flatten(), minlength=vocabulary).double()
    frequency = counts[counts > 0] / counts.sum()

    assert len(counts) == vocabulary
    assert -(frequency * frequency.log()).sum() < 0.85 * math.log(vocabulary)
