"""The rows of the layer suite: which layers run in which mode, over which batches and sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bench_tests.layers import DIRECTIONS, LAYERS

HEADLINE_BATCH = 16
"""The batch that runs besides each layer's largest one: a usual training batch, yet small enough to show the host's
cost."""


class LayerPass(NamedTuple):
    """One row: parameters of :func:`bench_tests.steps.layer.layer_pass`. ``str`` of it is the row's name."""

    layer: str
    direction: str
    mode: str
    batch: int
    sequence: int
    counting: str = "exact"

    def __str__(self) -> str:
        name = f"{self.layer}-{self.direction}-{self.mode}-b{self.batch}-s{self.sequence}"
        return name if self.counting == "exact" else f"{name}-{self.counting}"


def headline(modes: Iterable[str]) -> list[LayerPass]:
    """Each layer's largest batch, and :data:`HEADLINE_BATCH`."""
    return [run for run in full(modes) if run.batch in (HEADLINE_BATCH, max(LAYERS[run.layer].batches))]


def full(modes: Iterable[str]) -> list[LayerPass]:
    """The whole published grid."""
    return [
        LayerPass(layer, direction, mode, batch, sequence)
        for layer, row in LAYERS.items()
        for direction in DIRECTIONS
        for mode in modes
        for sequence in row.sequences
        for batch in row.batches
    ]


def published() -> list[LayerPass]:
    """The whole published grid with the published set-up: eager attention, and inputs without a gradient."""
    runs = full(["eager"])
    return [run if run.direction == "fwd" else run._replace(counting="published") for run in runs]


def smoke() -> list[LayerPass]:
    """One tiny shape for every layer and direction, and one row with the other attention and the other counting."""
    runs = [LayerPass(layer, direction, "sdpa", 2, 16) for layer in LAYERS for direction in DIRECTIONS]
    return [*runs, LayerPass("bert", "fwd_bwd", "eager", 2, 16, "published")]
