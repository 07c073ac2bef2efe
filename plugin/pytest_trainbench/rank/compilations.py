"""How often ``torch.compile`` compiled, and what it could not: a count has no noise."""

from __future__ import annotations

import sys


def count_compilations() -> dict[str, float]:
    """``graph_breaks`` and ``recompiles`` of this process so far; empty where ``torch.compile`` compiled nothing."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    if module is None or not module.FRAME_COMPILE_COUNTER:
        return {}
    from torch._dynamo.utils import counters

    return {
        "graph_breaks": float(sum(counters["graph_break"].values())),
        "recompiles": float(sum(times - 1 for times in module.FRAME_COMPILE_COUNTER.values())),
    }
