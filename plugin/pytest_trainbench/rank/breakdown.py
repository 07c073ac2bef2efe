"""Where the time of a step goes on an accelerator, profiled in a few steps after the timed window.

A host-bound step takes as long as its host, which varies between launches and between machines. The time of its kernels
does not.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ISSUED_STEPS, PROFILED_STEPS = 3, 4
"""The most steps that are issued one by one to an idle device, and the most steps that are profiled."""

LOOK_S = 1.0
"""Time limit in seconds for each of the two, or one step if a step takes longer. A long step tells as much as several
short ones, and its profile takes longer to read."""

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the profiler's events for work on a device."""

Interval = tuple[float, float]
"""Start and end, in µs."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one step on one rank. Times are in ms.

    host_ms:
        How long the host needs to issue a step: from the call to its return, with an idle device at the start. If it is
        as long as the step, the step is host-bound. A device queues about a thousand kernels that it has not started,
        and then the host waits. So ``host_ms`` may be too long for a step of more kernels.
    compute_ms:
        Time in which the device does anything but communicate.
    exposed_communication_ms:
        Time in which the device communicates, or waits in a collective for another rank, and computes nothing.
    kernels:
        Number of kernels, collectives included.

    A rank with several devices (``nn.DataParallel``) has the times of the device that computes most, and the kernels of
    the device with most.
    """

    host_ms: float
    compute_ms: float
    exposed_communication_ms: float
    kernels: float


def measure(
    run: Callable[[], object],
    device: torch.device,
    *,
    step_s: float,
    period: int,
    together: Callable[[], object],
    scratch: Path | None = None,
) -> Parts | None:
    """Run a few more steps, and measure where their time goes. ``None`` if the device is a CPU.

    step_s:
        About how long a step takes, in seconds; the same on all ranks.
    period:
        See :class:`pytest_trainbench.Step`.
    together:
        A barrier.
    scratch:
        The folder of temporary files; ``None`` for the system's.

    The profiler slows the host, so its wall times mean nothing. It hardly slows the device. In stored rows whose device
    computes all the time, ``compute_ms`` is at most 2 % longer than the step.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

    activities = set(supported_activities()) - {ProfilerActivity.CPU}  # type: ignore[no-untyped-call]
    if device.type == "cpu" or not activities:
        return None
    issued_ms = []
    for _ in range(looks(step_s, most=ISSUED_STEPS, period=1)):
        torch.accelerator.synchronize(device)
        together()
        began = time.perf_counter()
        run()
        issued_ms.append((time.perf_counter() - began) * 1000)
    torch.accelerator.synchronize(device)
    profiled = looks(step_s, most=PROFILED_STEPS, period=period)
    # The first step under the profiler is its warm-up.
    with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=profiled)) as profiler:
        for step in range(1 + profiled):
            run()
            if step in (0, profiled):
                torch.accelerator.synchronize(device)
            if step < profiled:
                profiler.step()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return parts(events, steps=profiled, host_ms=statistics.median(issued_ms))


def looks(step_s: float, *, most: int, period: int) -> int:
    """How many steps to run: at most ``most``, within :data:`LOOK_S`, rounded up to whole periods of the work."""
    steps = max(1, min(most, int(LOOK_S / step_s))) if step_s > 0 else most
    return math.ceil(steps / period) * period


def parts(events: Iterable[Mapping[str, Any]], *, steps: int, host_ms: float) -> Parts | None:
    """The parts of a step, from the profiler's events of ``steps`` steps. ``None`` if the device did nothing.

    Events are in Chrome's trace format, with times in µs. Kernels of collectives have names that begin with ``nccl``,
    for NCCL and RCCL.
    """
    work: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in DEVICE_WORK:
            work[event["pid"]].append(event)  # the profiler writes the device's number as the process id
    if not work:
        return None
    compute_us, exposed_us = max(map(_busy, work.values()))
    per_step = 1 / 1000 / steps
    return Parts(
        host_ms=host_ms,
        compute_ms=compute_us * per_step,
        exposed_communication_ms=exposed_us * per_step,
        kernels=max(sum(event["cat"] == "kernel" for event in one) for one in work.values()) / steps,
    )


def _busy(work: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """How long one device computes, and how long it communicates without computing, in µs."""
    compute: list[Interval] = []
    communication: list[Interval] = []
    for event in work:
        part = communication if event["name"].startswith("nccl") else compute
        part.append((event["ts"], event["ts"] + event["dur"]))
    return covered(compute), covered([*compute, *communication]) - covered(compute)


def covered(intervals: Sequence[Interval]) -> float:
    """Length of the union of the intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
