"""What a rank uses of torch's private parts: one function each.

tests/test_private.py says what breaks when one of them goes.
"""

from __future__ import annotations

import sys


def spin(cycles: int) -> None:
    """Keep the current CUDA device busy for so many clock cycles, without waiting for it."""
    import torch

    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def frame_compilations() -> list[int]:
    """How often ``torch.compile`` compiled each frame of this process. Where it compiled none, the list is empty, and
    torch's compiler is not imported either."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return [] if module is None else list(module.FRAME_COMPILE_COUNTER.values())


def graph_breaks() -> int:
    """Graph breaks of this process so far."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())
