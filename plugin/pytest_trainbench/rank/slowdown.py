"""A slowdown planted on purpose, to test whether the plugin finds it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_trainbench.rank.private import spin

if TYPE_CHECKING:
    import torch

TRIAL_CYCLES = 20_000_000
"""Clock cycles that take a GPU about 10 ms: long enough to be timed well, and short compared with a launch."""


def slowed(
    run: Callable[[], torch.Tensor | None], delay_ms: float, device: torch.device
) -> Callable[[], torch.Tensor | None]:
    """``run``, followed by ``delay_ms`` of work on the device.

    On a GPU the work is a kernel that spins. Its clock cycles are calibrated on the idle device. Nothing synchronises.
    So a host-bound step may hide the delay, as it would hide any slower kernel. On a CPU the process spins. Raises
    ``ValueError`` for other devices.
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
    for _ in range(2):  # the first call may load the kernel
        began.record()
        spin(TRIAL_CYCLES)
        ended.record()
    torch.accelerator.synchronize(device)
    return round(TRIAL_CYCLES * delay_ms / float(began.elapsed_time(ended)))
