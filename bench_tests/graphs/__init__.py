"""Ways to capture a model's computation as a graph and run the graph instead, by name.

A row is a ``torch.compile`` backend, or a library's own way to capture a module. Nothing large is imported before
:meth:`Graph.compile`, so collecting the suite needs neither torch nor ONNX Runtime.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A way to run a model as a graph.

    ``backend`` is a name that ``torch.compile`` knows, or the import path ``package.module:function``. The function is
    called with ``options`` and returns a backend. With ``captures`` the row does not use ``torch.compile``: the
    function returns a callable that takes a module and returns the module's forward pass.

    ``packages`` lists the packages that the row needs on each supported kind of device; ``None`` means torch is enough
    on every device. ``writes_cpp`` says whether the backend generates and compiles C++ for a CPU. ``in_torchs_memory``
    says whether torch's figures of allocated memory include all memory that the backend uses. ``headline`` says whether
    every run measures the row; other rows need ``--grid full``.
    """

    title: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    captures: bool = False
    packages: Mapping[str, tuple[str, ...]] | None = None
    writes_cpp: bool = False
    in_torchs_memory: bool = True
    headline: bool = True

    def missing(self, device_kind: str) -> str | None:
        """Why the row cannot run here on this kind of device; ``None`` if it can."""
        if self.writes_cpp and device_kind == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
            return f"{self.title} needs a C++ compiler on a CPU: install g++"
        if self.packages is None:
            return None
        if device_kind not in self.packages:
            return f"{self.title} works on {' and '.join(self.packages)}, not on {device_kind}"
        absent = " ".join(package for package in self.packages[device_kind] if not _is_installed(package))
        return f"{self.title} needs packages that are not installed here: pip install {absent}" if absent else None

    def compile(self, module: nn.Module) -> None:
        """Make ``module`` run as one graph from its next call on, in place.

        Its type, its parameters and its submodules stay the same, so any strategy accepts it. Shapes are fixed. Nothing
        falls back to eager torch: the first call raises if a part of the module cannot be in the graph.

        Under DDP, torch splits the graph where a bucket of gradients ends, so that reducing one bucket overlaps with
        computing the next. A row that ``captures`` keeps the graph whole and needs whole parameters, so it cannot run
        under FSDP or ZeRO-3.
        """
        backend: Any = resolve_name(self.backend)(**self.options) if ":" in self.backend else self.backend
        if self.captures:
            # The backend gets a shallow copy. Its forward pass stays the model's own, and it shares the parameters.
            module.forward = backend(copy.copy(module))  # type: ignore[method-assign]
        else:
            module.compile(backend=backend, fullgraph=True, dynamic=False)


def _onnx_runtime(title: str, level: str, *, headline: bool = False) -> Graph:
    return Graph(
        title=title,
        backend="bench_tests.graphs.onnx_runtime:onnx_runtime",
        options={"level": level},
        packages={
            "cpu": ("onnx", "onnxscript", "onnxruntime"),
            "cuda": ("onnx", "onnxscript", "onnxruntime-gpu"),
        },
        in_torchs_memory=False,
        headline=headline,
    )


GRAPHS = {
    "inductor": Graph(title="torch.compile (Inductor)", backend="inductor", writes_cpp=True),
    "ort-disable": _onnx_runtime("ONNX Runtime, graph as exported", "disable"),
    "ort-basic": _onnx_runtime("ONNX Runtime, basic graph optimisation", "basic"),
    "ort-extended": _onnx_runtime("ONNX Runtime, extended graph optimisation", "extended"),
    "ort-all": _onnx_runtime("ONNX Runtime graph optimisation", "all", headline=True),
    "ortmodule": Graph(
        title="ONNX Runtime's ORTModule",
        backend="bench_tests.graphs.ortmodule:ortmodule",
        captures=True,
        packages={"cpu": ("onnxruntime-training",)},
        in_torchs_memory=False,
        headline=False,  # it needs an environment of its own, so most runs would skip it
    ),
}


def find_graph(name: str) -> Graph:
    """The row called ``name``. Raises ``ValueError`` with the known names for any other name."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r} is unknown; known: {', '.join(GRAPHS)}")
    return GRAPHS[name]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
