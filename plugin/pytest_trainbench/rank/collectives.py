"""How often a step communicates, and how many bytes. Counts have no noise, and a changed count shows what changed."""

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
"""torch's communication operators. Each has the kind under which it is counted, and the index of the argument with this
rank's input tensors; ``None`` if there is none.

Every call of a process group goes through one of these operators, with every backend: from Python, from DDP's reducer,
from functional collectives.
"""

NODE = re.compile(r'\{\s*"id": \d+, "name": "(?P<name>c10d::\w+)"')
"""Where a node with a ``c10d`` operator begins in an execution trace."""


DRAIN_S = 0.1
"""Seconds from the last observed step to the removal of the observer. A thread of a process group may still be in an
observed call. On busy cores such a thread returned after the removal, and its rank died of SIGSEGV."""


def count_collectives(
    run: Callable[[], object], *, steps: int, scratch: Path | None = None
) -> dict[str, dict[str, float]] | None:
    """``calls`` and ``bytes`` of one step on this rank, by kind, averaged over ``steps`` calls of ``run``.

    ``scratch``: the folder of temporary files; ``None`` for the system's.

    Bytes are the sizes of the input tensors, not what an algorithm sends over the wire. Calls of all threads count.
    ``None`` if another execution trace observer is active in this process, because torch allows only one.
    """
    from torch.profiler import ExecutionTraceObserver

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
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
    """``calls`` and ``bytes`` of one step by kind, from the execution trace of ``steps`` steps. A trace has thousands
    of nodes, so only those that communicate are parsed."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for begins in NODE.finditer(trace):
        if begins["name"] in COLLECTIVES:
            node, _ = json.JSONDecoder().raw_decode(trace, begins.start())
            kind, handed_in = COLLECTIVES[begins["name"]]
            sizes[kind].append(0 if handed_in is None else _bytes(node["inputs"]["values"][handed_in]))
    return {kind: {"calls": len(each) / steps, "bytes": sum(each) / steps} for kind, each in sorted(sizes.items())}


def _bytes(value: Any) -> int:
    """Bytes of a tensor or of nested lists of tensors. The trace writes a tensor as ``[id, storage id, offset, number
    of elements, bytes per element, device]``."""
    if not isinstance(value, list) or not value:
        return 0
    return value[3] * value[4] if isinstance(value[-1], str) else sum(map(_bytes, value))
