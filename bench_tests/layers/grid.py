"""Which layers are run how, over which batches and sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bench_tests.layers import DIRECTIONS, LAYERS

HEADLINE_BATCH = 16
"""Besides each layer's largest batch: as large as training takes, yet small enough to show what the host costs."""


class Run(NamedTuple):
    """One row: parameters of :func:`bench_tests.steps.layer.layer_pass`. Its text is the row's name."""

    layer: str
    direction: str
    mode: str
    batch: int
    sequence: int
    counting: str = "exact"

    def __str__(self) -> str:
        name = f"{self.layer}-{self.direction}-{self.mode}-b{self.batch}-s{self.sequence}"
        return name if self.counting == "exact" else f"{name}-{self.counting}"


def headline(modes: Iterable[str]) -> list[Run]:
    """Each layer's largest batch and :data:`HEADLINE_BATCH`."""
    return [run for run in full(modes) if run.batch in (HEADLINE_BATCH, max(LAYERS[run.layer].batches))]


def full(modes: Iterable[str]) -> list[Run]:
    """The whole published grid."""
    return [
        Run(layer, direction, mode, batch, sequence)
        for layer, row in LAYERS.items()
        for direction in DIRECTIONS
        for mode in modes
        for sequence in row.sequences
        for batch in row.batches
    ]


def published() -> list[Run]:
    """The whole published grid as it was run and counted: eager attention, and inputs without a gradient."""
    runs = full(["eager"])
    return [run if run.direction == "fwd" else run._replace(counting="published") for run in runs]


def smoke() -> list[Run]:
    """One tiny shape of every layer and direction, and one row of the other attention and the other counting."""
    runs = [Run(layer, direction, "sdpa", 2, 16) for layer in LAYERS for direction in DIRECTIONS]
    return [*runs, Run("bert", "fwd_bwd", "eager", 2, 16, "published")]
