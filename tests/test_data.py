"""Synthetic data are the same for any split, and a model can learn from them."""

from __future__ import annotations

import math

import torch

from bench_tests.training.data import POOL, noise_pool, token_pool


def test_every_rank_gets_the_same_samples() -> None:
    one, other = (token_pool(samples=4, sequence=16, vocabulary=100) for _ in range(2))

    assert one.shape == (POOL, 4, 16)
    assert one.dtype == torch.int64
    assert torch.equal(one, other)


def test_batches_differ() -> None:
    pool = token_pool(samples=4, sequence=16, vocabulary=100)

    assert len({tuple(batch.flatten().tolist()) for batch in pool}) == POOL


def test_tokens_are_in_the_vocabulary_and_have_unequal_frequencies() -> None:
    vocabulary = 1000
    tokens = token_pool(samples=32, sequence=128, vocabulary=vocabulary)
    counts = torch.bincount(tokens.flatten(), minlength=vocabulary).double()
    frequency = counts[counts > 0] / counts.sum()

    assert len(counts) == vocabulary
    assert -(frequency * frequency.log()).sum() < 0.85 * math.log(vocabulary)


def test_batches_of_any_size_have_the_same_frequent_tokens() -> None:
    """Otherwise another batch size would train on another language, and losses could not be compared."""
    few, many = (token_pool(samples=samples, sequence=128, vocabulary=1000).flatten() for samples in (4, 32))

    assert few.mode().values == many.mode().values


def test_noise_is_standard_normal_never_zero_and_uncorrelated() -> None:
    pool = noise_pool(samples=3, shape=(3, 16, 20), pool=2)

    assert pool.shape == (2, 3, 3, 16, 20)
    assert torch.equal(pool, noise_pool(samples=3, shape=(3, 16, 20), pool=2))
    assert (pool != 0).all()
    assert abs(pool.mean()) < 0.1 and abs(pool.std() - 1) < 0.1
    windows = pool.flatten(0, 1).flatten(1)
    assert torch.corrcoef(windows).triu(diagonal=1).abs().max() < 0.2


def test_noise_of_1000_samples_needs_the_memory_of_two() -> None:
    pool = noise_pool(samples=1000, shape=(3, 224, 224), pool=2)

    assert pool.untyped_storage().nbytes() < 2 * pool[0, 0].numel() * pool.element_size()


def test_split_noise_equals_the_whole_noise() -> None:
    pool = noise_pool(samples=4, shape=(5, 7), pool=2)
    parts = [part.contiguous() for part in pool.chunk(2, dim=1)]

    assert torch.equal(torch.cat(parts, dim=1), pool)
    assert parts[1][0].is_contiguous()
