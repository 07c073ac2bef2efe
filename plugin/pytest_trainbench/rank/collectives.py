"""How often a step communicates, and how much: a count has no noise, and a change of it says what changed."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLLECTIVES: dict[str, tuple[str, int | None]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::allgather_": ("all_gather", 1),
    "c10d::_allgather_base_": ("all_gather", 1),
    "c10d::allgather_coalesced_": ("all_gather", 1),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::gather_": ("gather", 1),
    "c10d::scatter_": ("scatter", 1),
    "c10d::send": ("send", 0),
    "c10d::recv_": ("recv", None),
    "c10d::recv_any_source_": ("recv", None),
    "c10d::barrier": ("barrier", None),
    "c10d::monitored_barrier_": ("barrier", None),
}
"""Operators that communicate -> what a step's counts call them, and which argument holds what this rank hands in.

Every process group of torch is called through one of these, whoever calls it: Python, DDP's reducer, functional
collectives, and whatever the backend.
"""

NODE = re.compile(r'\{\s*"id": \d+, "name": "(?P<name>c10d::\w+)"')
"""Where a node of an execution trace begins that may be one of these."""


DRAIN_S = 0.1
"""From the end of observing to that of the observer: a thread of a process group may still be on its way out of a call
that was observed. On busy cores one was seen to come out after the observer had gone, and its rank died of SIGSEGV."""


def count_collectives(run: Callable[[], object], *, steps: int) -> dict[str, dict[str, float]] | None:
    """Calls and bytes of one step on this rank, by kind, from ``steps`` calls of ``run``.

    Bytes are those of the tensors that the caller hands in, not what an algorithm makes of them on the wire. Calls of
    all threads count. ``None`` where something else observes this process already, of which there can be one.
    """
    from torch.profiler import ExecutionTraceObserver

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(path))
        observer.start()
        try:
            for _ in range(steps):
                run()
        finally:
            observer.stop()
            time.sleep(DRAIN_S)
            observer.unregister_callback()
        return calls(path.read_text(encoding="utf-8"), steps=steps) if path.exists() else None


def calls(trace: str, *, steps: int) -> dict[str, dict[str, float]]:
    """From the execution trace of ``steps`` steps, of which only the nodes that communicate are read: the whole has
    thousands."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for begins in NODE.finditer(trace):
        if begins["name"] in COLLECTIVES:
            node, _ = json.JSONDecoder().raw_decode(trace, begins.start())
            kind, handed_in = COLLECTIVES[begins["name"]]
            sizes[kind].append(0 if handed_in is None else _bytes(node["inputs"]["values"][handed_in]))
    return {kind: {"calls": len(each) / steps, "bytes": sum(each) / steps} for kind, each in sorted(sizes.items())}


def _bytes(value: Any) -> int:
    """Of a tensor (its id, its storage's, offset, elements, bytes an element, device) or of lists of them."""
    if not isinstance(value, list) or not value:
        return 0
    return value[3] * value[4] if isinstance(value[-1], str) else sum(map(_bytes, value))
