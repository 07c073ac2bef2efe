"""Where the time of a step goes on an accelerator: a short window after the timed one, seen by the profiler.

A step that waits for its host takes as long as the host does, which varies from launch to launch and from machine to
machine; what its kernels take does not.
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
"""Steps that are issued one by one to an idle device, and that are profiled, at most."""

LOOK_S = 1.0
"""Seconds that either takes, or one step where that is longer: a long step says as much as several short ones, and its
profile takes longer to read."""

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the profiler's events that keep a device busy."""

Interval = tuple[float, float]
"""Start and end, in µs."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of one step on one rank.

    host_ms: from the call to its return when the device is idle at first: what the host needs to issue a step. Where
    it is as long as the step, the host sets the pace. But a device holds about a thousand launches that it has not
    begun, and a host that is so far ahead waits for it: of a step with more it may be too long. compute_ms: the device
    works on anything but communication. exposed_communication_ms: it communicates, or waits in a collective for another
    rank, and does nothing else. kernels: launched, collectives included.

    A rank with several devices (``nn.DataParallel``) has the times of the one that computes most, and the kernels of
    the one with most.
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
) -> Parts | None:
    """Run some more steps, of about ``step_s`` seconds, and see where their time goes; ``None`` where the device is the
    host.

    ``period``: that of :class:`pytest_trainbench.Step`. ``together`` is a barrier, and ``step_s`` the same on all
    ranks. The profiler makes the host slower, so that it says nothing of wall time; the device's own work is all but
    the same under it (of stored rows that do nothing else at most 2 % longer than their steps).
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
    # The first step under the profiler sets it up.
    with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=profiled)) as profiler:
        for step in range(1 + profiled):
            run()
            if step in (0, profiled):
                torch.accelerator.synchronize(device)
            if step < profiled:
                profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return parts(events, steps=profiled, host_ms=statistics.median(issued_ms))


def looks(step_s: float, *, most: int, period: int) -> int:
    """How many steps to look at: see :data:`LOOK_S`; whole periods of the work."""
    steps = max(1, min(most, int(LOOK_S / step_s))) if step_s > 0 else most
    return math.ceil(steps / period) * period


def parts(events: Iterable[Mapping[str, Any]], *, steps: int, host_ms: float) -> Parts | None:
    """From the events of ``steps`` steps in Chrome's trace format (times in µs); ``None`` where the device did nothing.

    A collective's kernel is known by its name: NCCL's and RCCL's begin with ``nccl``.
    """
    work: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in DEVICE_WORK:
            work[event["pid"]].append(event)  # the device's number, as the profiler writes it
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
    """How long (µs) one device computes, and how long it only communicates."""
    compute: list[Interval] = []
    communication: list[Interval] = []
    for event in work:
        part = communication if event["name"].startswith("nccl") else compute
        part.append((event["ts"], event["ts"] + event["dur"]))
    return covered(compute), covered([*compute, *communication]) - covered(compute)


def covered(intervals: Sequence[Interval]) -> float:
    """Length of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
