"""A slowdown planted on purpose, to see whether it is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_trainbench.rank.private import spin

if TYPE_CHECKING:
    import torch

TRIAL_CYCLES = 20_000_000
"""About 10 ms of a GPU: long enough to be timed well, short enough not to be noticed."""


def slowed(
    run: Callable[[], torch.Tensor | None], delay_ms: float, device: torch.device
) -> Callable[[], torch.Tensor | None]:
    """``run``, after which the device is busy for ``delay_ms`` more.

    On a GPU that is a kernel that spins for as many clock cycles as took so long when the device was idle: nothing
    synchronises, and a step whose host sets the pace may hide it, as it would hide any slower kernel. On a CPU the
    process spins. Raises ``ValueError`` for other devices.
    """

    if device.type == "cuda":
        cycles = _cycles(delay_ms, device)

        def delay() -> None:
            spin(cycles)
    elif device.type == "cpu":

        def delay() -> None:
            until = time.perf_counter() + delay_ms / 1000
            while time.perf_counter() < until:
                pass
    else:
        raise ValueError(f"no delay can be planted on a {device.type} device: only on cuda and cpu")

    def slower() -> torch.Tensor | None:
        loss = run()
        delay()
        return loss

    return slower


def _cycles(delay_ms: float, device: torch.device) -> int:
    import torch

    began, ended = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    for _ in range(2):  # the first one may load the kernel
        began.record()
        spin(TRIAL_CYCLES)
        ended.record()
    torch.accelerator.synchronize(device)
    return round(TRIAL_CYCLES * delay_ms / float(began.elapsed_time(ended)))
