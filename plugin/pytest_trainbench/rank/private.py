"""Every use of torch's private API in a rank, one function each.

tests/test_private.py says what breaks if torch removes one.
"""

from __future__ import annotations

import sys


def spin(cycles: int) -> None:
    """Keep the current CUDA device busy for this many clock cycles. The call does not wait for it."""
    import torch

    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def frame_compilations() -> list[int]:
    """How often ``torch.compile`` compiled each frame of this process. Empty if it compiled none. The call does not
    import torch's compiler."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return [] if module is None else list(module.FRAME_COMPILE_COUNTER.values())


def graph_breaks() -> int:
    """Number of graph breaks in this process so far."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())
