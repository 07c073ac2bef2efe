"""The measurement of one rank: warm-up, timed steps, counts and profile."""

from __future__ import annotations

import gc
import hashlib
import re
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_trainbench.rank import breakdown, energy, flops, host_counters
from pytest_trainbench.rank.collectives import count_collectives
from pytest_trainbench.rank.compilations import count_compilations
from pytest_trainbench.schema.plan import PACE_STEPS, Plan
from pytest_trainbench.schema.record import Trace
from pytest_trainbench.schema.step import Step

if TYPE_CHECKING:
    import torch


def run(
    step: Step,
    plan: Plan,
    device: torch.device,
    *,
    trace: Trace,
    slowest: Callable[[float], float],
    phase: Callable[[str], None],
    scratch: Path | None = None,
) -> Trace:
    """Warm up, choose the number of steps, time them, then profile a few more. Returns ``trace`` with the measurements.

    slowest:
        Returns the largest of all ranks' values, so that ranks agree on the number of steps. It is also a barrier.
    phase:
        Called with the name of each phase that begins.
    scratch:
        The folder of the profilers' temporary files; ``None`` for the system's.

    Nothing waits for the device between the first and the last timed step. A mark is recorded after each step, and all
    marks are read at the end.
    """
    clock = clock_of(device)
    losses: list[torch.Tensor | None] = []

    phase("counting FLOPs")
    counter = flops.counter() if step.flops is not None and step.counts_flops else None
    with counter or nullcontext():
        first = step.run()
    losses.append(_loss(first))

    def communication() -> dict[str, dict[str, float]] | None:
        phase("counting collectives")
        return count_collectives(lambda: losses.append(step.run()), steps=step.period, scratch=scratch)

    settled = plan.warmup - PACE_STEPS
    if step.eager_steps:
        settled = max(settled, step.eager_steps + 1)
        phase("warming up")
        losses.extend(step.run() for _ in range(step.eager_steps - 2))
        collectives = communication()  # a replay calls no process group
    phase("warming up")
    losses.extend(step.run() for _ in range(settled - len(losses)))
    clock.synchronize()
    began = time.perf_counter()
    losses.extend(step.run() for _ in range(PACE_STEPS))
    clock.synchronize()
    step_s = slowest((time.perf_counter() - began) / PACE_STEPS)
    count = plan.steps(step_s)
    _refuse_shared(losses)

    if not step.eager_steps:
        # Every launch counts the same steps of the training. So rare work is counted in every launch or in none.
        collectives = communication()
        clock.synchronize()

    phase(f"timing {count} steps")
    reset_peak_memory(device)
    # Objects that exist now live to the end. Freezing them keeps garbage collections short, as in a long run. Switching
    # the collector off would differ from real trainings.
    gc.collect()
    gc.freeze()
    # The counter sees a single device.
    counted = energy.counter_of(device) if step.devices == 1 else None
    looking_s = host_counters.looking_s()
    host = host_counters.counters()
    slowest(0.0)
    before_j = counted() if counted else 0.0
    step_ms, timed_losses = timed_loop(step.run, count, clock)
    energy_j = counted() - before_j if counted else None
    host = {**host_counters.counted(host, host_counters.counters()), **host_counters.clock_mhz()}
    host["looking_s"] = (looking_s + host_counters.looking_s()) / 2
    gc.unfreeze()
    losses.extend(timed_losses)
    memory = peak_memory(device)
    if step.peak_bytes and "peak_allocated_bytes" in memory:
        memory["peak_allocated_bytes"] = max(memory["peak_allocated_bytes"], step.peak_bytes())
    compilations = count_compilations()

    phase("profiling")
    found = breakdown.measure(
        step.run, device, step_s=step_s, period=step.period, together=lambda: slowest(0.0), scratch=scratch
    )

    return replace(
        trace,
        step_ms=step_ms,
        losses=[None if loss is None else float(loss) for loss in losses],
        flops_counted=None if counter is None else float(counter.get_total_flops()),
        memory=memory,
        energy_j=energy_j,
        host=host,
        parts={} if found is None else asdict(found),
        collectives=collectives,
        compilations=compilations,
    )


def timed_loop(
    run: Callable[[], torch.Tensor | None], count: int, clock: Clock
) -> tuple[list[float], list[torch.Tensor | None]]:
    """Wall time in ms of each of ``count`` calls, and the losses that they returned."""
    losses: list[torch.Tensor | None] = []
    marks = [clock.mark()]
    for _ in range(count):
        losses.append(run())
        marks.append(clock.mark())
    clock.synchronize()
    return [clock.elapsed_ms(before, after) for before, after in pairwise(marks)], losses


def losses(step: Step, steps: int, *, begin: Callable[[int], None] = lambda _: None) -> list[float | None]:
    """Losses of ``steps`` untimed steps, for a reference. ``begin`` is called before each step, with its number from 1
    on. All earlier steps are then done."""
    found = []
    for number in range(1, steps + 1):
        begin(number)
        loss = _loss(step.run())
        found.append(None if loss is None else float(loss))  # waits for the device
    return found


def _loss(returned: object) -> torch.Tensor | None:
    """The loss that a step returned. Raises ``TypeError`` if it is neither a tensor nor ``None``, and ``ValueError`` if
    it holds its autograd graph."""
    import torch

    if returned is None:
        return None
    if not isinstance(returned, torch.Tensor):
        wanted = "return the loss as a detached tensor, without .item(), or None"
        raise TypeError(f"Step.run returned a value of type {type(returned).__name__}: {wanted}")
    if returned.requires_grad:
        raise ValueError(
            "Step.run returned a loss with its autograd graph, which keeps every step's activations:"
            " return loss.detach()"
        )
    return returned


def _refuse_shared(losses: Iterable[torch.Tensor | None]) -> None:
    """Raises ``ValueError`` if two losses share an address. All losses are still referenced, so a later step then
    overwrote the loss of an earlier one."""
    # The address is 0 for tensors without memory of their own, such as a DTensor.
    addresses = [address for loss in losses if loss is not None and (address := loss.data_ptr())]
    if len(set(addresses)) < len(addresses):
        raise ValueError(
            "Step.run returned the same memory for the losses of several steps, but losses are read after the last"
            " step: return loss.clone()"
        )


def digest(parameters: Iterable[torch.Tensor]) -> str:
    """Fingerprint of the parameters' bits: a hash of one sum per tensor, in order. The bits are summed as integers,
    because a sum of floats depends on the order of summation."""
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for parameter in parameters:
        local = parameter.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        sums.append(local.contiguous().view(widths[local.element_size()]).sum(dtype=torch.int64))
    values = torch.stack(sums).tolist() if sums else []
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def reset_peak_memory(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        # On Linux, 5 resets the peak resident set (proc_pid_clear_refs(5)). If that is not allowed, the peak is that of
        # the process's whole life.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    else:
        torch.accelerator.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak memory since the last reset, in bytes by name.

    peak_allocated_bytes:
        Memory of live tensors.
    peak_reserved_bytes:
        Memory that the caching allocator took from the device.
    process_bytes:
        On CUDA, all memory of the device in use now, as its driver reports it: context, communication buffers and other
        processes included. On a CPU, the peak resident set of the process. Absent on other devices.
    """
    import torch

    if device.type == "cpu":
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return {"process_bytes": int(peak[1]) * 1024} if peak else {}
    memory = torch.cuda if device.type == "cuda" else torch.accelerator
    found = {
        "peak_allocated_bytes": memory.max_memory_allocated(device),
        "peak_reserved_bytes": memory.max_memory_reserved(device),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found["process_bytes"] = total - free
    return found


class Clock(Protocol):
    """Records marks between pieces of work, without waiting for the work."""

    def mark(self) -> Any: ...

    def elapsed_ms(self, before: Any, after: Any) -> float: ...

    def synchronize(self) -> None:
        """Wait until all work so far is done. Marks may be read only after that."""


def clock_of(device: torch.device) -> Clock:
    return _HostClock() if device.type == "cpu" else _DeviceClock(device)


class _DeviceClock:
    """Marks are events in the device's queue."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.Event:
        import torch

        event = torch.Event(device=self.device, enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, before: torch.Event, after: torch.Event) -> float:
        return float(before.elapsed_time(after))

    def synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize(self.device)


class _HostClock:
    """Marks are the host's time, because work on a CPU is done when the call returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def elapsed_ms(self, before: int, after: int) -> float:
        return (after - before) / 1e6

    def synchronize(self) -> None:
        pass
