"""Ways to capture a model's computation as a graph and run that instead, by name. A row is a ``torch.compile`` backend.

Nothing is imported until :meth:`Graph.compile`, so that collecting the suite needs neither torch nor ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Graph:
    """``backend`` is a name that ``torch.compile`` knows, or the import path ``package.module:function`` of a function
    that is called with ``options`` and gives back a backend."""

    title: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def compile(self, module: nn.Module) -> None:
        """Make ``module`` run as one graph from its next call on, in place: its type, its parameters and its submodules
        stay what they are, so any strategy takes it.

        Nothing falls back to eager: what cannot be part of the graph raises on the first call. Shapes are fixed.
        """
        backend = resolve_name(self.backend)(**self.options) if ":" in self.backend else self.backend
        module.compile(backend=backend, fullgraph=True, dynamic=False)


GRAPHS = {
    "inductor": Graph(title="torch.compile (Inductor)", backend="inductor"),
}


def find_graph(name: str) -> Graph:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r} is unknown; known: {', '.join(GRAPHS)}")
    return GRAPHS[name]
