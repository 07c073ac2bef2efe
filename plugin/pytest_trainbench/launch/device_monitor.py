"""Conditions of NVIDIA devices while steps are timed.

The process that started the ranks takes the samples, so the ranks are not disturbed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trainbench.launch.ranks import phase, pids
from pytest_trainbench.schema.conditions import CONDITIONS
from pytest_trainbench.schema.job import Job

SAMPLE_EVERY_S = 0.05
"""Time between samples: forty samples of each device in a window of two seconds."""

PROCESSES_EVERY = 4
"""Only every so many samples list the processes on a device, because processes change more slowly than clocks."""

REASONS = {
    "hw_thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "sw_thermal": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hw_power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hw_slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "sw_power_cap": "nvmlClocksThrottleReasonSwPowerCap",
}
"""Bits of NVML's throttle reasons, by condition. A condition is the share of samples with its bit set."""


@dataclass(kw_only=True)
class DeviceMonitor:
    """Samples of NVIDIA devices. ``handles``: NVML's handles, in the order of the devices.

    The monitor is made before the ranks open the devices, to count the processes that were there ``before``.
    """

    nvml: Any
    handles: Sequence[Any]
    before: list[int | None] = field(init=False)
    samples: list[list[dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = [None if pids is None else len(pids) for pids in map(self._pids, self.handles)]

    @classmethod
    def of(cls, uuids: Sequence[str], *, nvml: Any) -> DeviceMonitor | None:
        """A monitor of these devices; ``None`` if NVML fails."""
        try:
            nvml.nvmlInit()  # never shut down, because the next launch uses it again
            return cls(nvml=nvml, handles=[nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
        except nvml.NVMLError:
            return None

    def sample(self, ours: Collection[int]) -> None:
        """Take one sample of each device. ``ours``: process groups of the ranks."""
        found = [self._facts(handle) for handle in self.handles]
        if len(self.samples) % PROCESSES_EVERY == 0:
            for facts, others in zip(found, self._others(ours), strict=True):
                if others is not None:
                    facts["other_processes"] = others
        self.samples.append(found)

    def _others(self, ours: Collection[int]) -> list[int | None]:
        """The number of processes on each device that are not ours; ``None`` if it is unknown."""
        on = [self._pids(handle) for handle in self.handles]
        mine = [{pid for pid in pids or () if _group(pid) in ours} for pids in on]
        if any(mine):
            return [None if pids is None else len(pids - own) for pids, own in zip(on, mine, strict=True)]
        # In a container, NVML may list no processes, or ids of another namespace. The list then has none of ours.
        return [before if pids else None for pids, before in zip(on, self.before, strict=True)]

    def conditions(self) -> dict[str, list[float]]:
        """Each condition by device: the mean of all samples, but the maximum for ``other_processes``.

        For a throttle reason, the mean is the share of samples with this reason.
        """
        found: dict[str, list[float]] = {}
        for name in CONDITIONS:
            by_device = zip(*self.samples, strict=True)
            devices = [[sample[name] for sample in samples if name in sample] for samples in by_device]
            if devices and all(devices):
                pick = max if name == "other_processes" else statistics.fmean
                found[name] = [float(pick(values)) for values in devices]
        return found

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError:
            return None

    def _pids(self, handle: Any) -> set[int] | None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return None if processes is None else {process.pid for process in processes}

    def _facts(self, handle: Any) -> dict[str, float]:
        nvml = self.nvml
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle)
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        read = {
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": None if power_mw is None else power_mw / 1000,
            "power_limit_w": None if limit_mw is None else round(limit_mw / 1000),
        }
        # All drivers know the function by this name. Since driver 535 it is also called …ClocksEventReasons.
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if reasons is not None:
            read |= {name: float(bool(reasons & getattr(nvml, bit))) for name, bit in REASONS.items()}
        return {name: value for name, value in read.items() if value is not None}


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


DRIVER_S = 10.0
"""How long a launch waits until NVIDIA's driver has listed the processes on the devices."""


@contextlib.contextmanager
def sampled(job: Job, rank: int) -> Iterator[dict[str, list[float]]]:
    """Collect the conditions of NVIDIA devices while ``rank`` of this machine is timing.

    The yielded dictionary is filled at the end. It stays empty without NVIDIA devices. A thread takes the samples, so a
    driver that hangs cannot hold up a launch. A driver that has not answered before the ranks start is not asked again,
    because the monitor would count the ranks as processes that were there before.
    """
    found: dict[str, list[float]] = {}
    watches: list[DeviceMonitor] = []
    ready, done = threading.Event(), threading.Event()

    def timing() -> bool:
        return phase(job.folder, rank).startswith("timing")

    def sample() -> None:
        try:
            watch = monitor(job)
        finally:
            ready.set()
        if watch is None or done.is_set():
            return
        watches.append(watch)
        while not done.wait(SAMPLE_EVERY_S):
            if timing():
                watch.sample(ours=pids(job.folder))
                if not timing():  # timing may have ended before the clocks were read
                    watch.samples.pop()

    thread = threading.Thread(target=sample, name="trainbench-sample", daemon=True)
    thread.start()
    if not ready.wait(DRIVER_S):
        done.set()
    try:
        yield found
    finally:
        done.set()
        thread.join(timeout=SAMPLE_EVERY_S)
        if watches and not thread.is_alive():
            found |= watches[0].conditions()


def monitor(job: Job) -> DeviceMonitor | None:
    """A monitor of the job's devices; ``None`` for a reference, without NVIDIA devices, or if NVML fails."""
    if not job.device_uuids or job.reference_steps is not None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return DeviceMonitor.of(job.device_uuids, nvml=pynvml)
