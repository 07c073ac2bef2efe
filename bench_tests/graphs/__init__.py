"""Ways to capture a model's computation as a graph and run that instead, by name: backends of ``torch.compile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Graph:
    """``backend`` is a name that ``torch.compile`` knows."""

    title: str
    backend: str

    def compile(self, module: nn.Module) -> None:
        """Make ``module`` run as one graph from its next call on, in place: its type, its parameters and its submodules
        stay what they are, so any strategy takes it.

        Nothing falls back to eager: what cannot be part of the graph raises on the first call. Shapes are fixed.
        Under DDP torch splits the graph where a bucket of gradients ends, so that reducing one overlaps with computing
        the next.
        """
        module.compile(backend=self.backend, fullgraph=True, dynamic=False)


GRAPHS = {"inductor": Graph(title="torch.compile (Inductor)", backend="inductor")}


def find_graph(name: str) -> Graph:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r} is unknown; known: {', '.join(GRAPHS)}")
    return GRAPHS[name]
