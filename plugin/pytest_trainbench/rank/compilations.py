"""How often ``torch.compile`` broke a graph or compiled again. Counts have no noise."""

from __future__ import annotations

from pytest_trainbench.rank.private import frame_compilations, graph_breaks


def count_compilations() -> dict[str, float]:
    """``graph_breaks`` and ``recompiles`` of this process so far; empty if ``torch.compile`` compiled nothing."""
    frames = frame_compilations()
    if not frames:
        return {}
    return {"graph_breaks": float(graph_breaks()), "recompiles": float(sum(times - 1 for times in frames))}
