"""Ways to capture a model's computation as a graph and run that instead, by name.

A row is a ``torch.compile`` backend, or a library's own way to capture a module.

Nothing is imported until :meth:`Graph.compile`, so that collecting the suite needs neither torch nor ONNX Runtime.
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
    """``backend`` is a name that ``torch.compile`` knows, or the import path ``package.module:function`` of a function
    that is called with ``options`` and gives back a backend. A row that ``captures`` modules itself has no need of
    ``torch.compile``: what its function gives back is called with a module, and gives back the module's forward pass.

    ``packages`` are what it needs on each kind of device that it works on; ``None`` where torch is enough, anywhere.
    ``writes_cpp`` is whether it compiles what it writes for a CPU.
    ``in_torchs_memory`` is whether torch's figures of allocated memory see all of what it uses. ``headline`` is whether
    every run measures it; the others take ``--grid full``.
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
        """Why it cannot run on devices of this kind here; ``None`` where it can."""
        if self.writes_cpp and device_kind == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
            return f"{self.title} needs a C++ compiler on a CPU: install g++"
        if self.packages is None:
            return None
        if device_kind not in self.packages:
            return f"{self.title} works on {' and '.join(self.packages)}, not on {device_kind}"
        absent = " ".join(package for package in self.packages[device_kind] if not _is_installed(package))
        return f"{self.title} needs what is not installed here: pip install {absent}" if absent else None

    def compile(self, module: nn.Module) -> None:
        """Make ``module`` run as one graph from its next call on, in place: its type, its parameters and its submodules
        stay what they are, so any strategy takes it.

        Nothing falls back to eager: what cannot be part of the graph raises on the first call. Shapes are fixed.
        Under DDP torch splits the graph where a bucket of gradients ends, so that reducing one overlaps with computing
        the next. A graph that is captured without torch stays whole, and needs whole parameters: not FSDP,
        not ZeRO-3.
        """
        backend: Any = resolve_name(self.backend)(**self.options) if ":" in self.backend else self.backend
        if self.captures:
            # A twin with the same parameters and submodules, whose forward pass stays the model's own.
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
        headline=False,  # it needs an environment of its own: anywhere else it would be one more row that is skipped
    ),
}


def find_graph(name: str) -> Graph:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r} is unknown; known: {', '.join(GRAPHS)}")
    return GRAPHS[name]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
