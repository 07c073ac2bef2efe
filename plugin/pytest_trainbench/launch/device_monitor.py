"""What NVIDIA's devices run under while steps are timed: samples by the process that started the ranks, which disturb
none of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trainbench.schema.conditions import CONDITIONS

SAMPLE_EVERY_S = 0.05
"""Forty samples of each device in a window of two seconds."""

PROCESSES_EVERY = 4
"""Samples from one that asks for the processes on a device to the next: they come and go more slowly than clocks do."""

REASONS = {
    "hw_thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "sw_thermal": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hw_power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hw_slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "sw_power_cap": "nvmlClocksThrottleReasonSwPowerCap",
}
"""Bits of NVML's answer, by the condition whose share of the samples they give."""


@dataclass(kw_only=True)
class DeviceMonitor:
    """Samples of NVIDIA devices. ``handles``: NVML's, in the order of the devices. Made before the ranks open them, so
    that it sees which processes were there already (how many: ``before``)."""

    nvml: Any
    handles: Sequence[Any]
    before: list[int | None] = field(init=False)
    samples: list[list[dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = [None if pids is None else len(pids) for pids in map(self._pids, self.handles)]

    @classmethod
    def of(cls, uuids: Sequence[str], *, nvml: Any) -> DeviceMonitor | None:
        """``None`` where the driver does not answer."""
        try:
            nvml.nvmlInit()  # never shut down: the next launch asks again
            return cls(nvml=nvml, handles=[nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
        except nvml.NVMLError:
            return None

    def sample(self, ours: Collection[int]) -> None:
        """``ours``: process groups of the ranks."""
        found = [self._facts(handle) for handle in self.handles]
        if len(self.samples) % PROCESSES_EVERY == 0:
            for facts, others in zip(found, self._others(ours), strict=True):
                if others is not None:
                    facts["other_processes"] = others
        self.samples.append(found)

    def _others(self, ours: Collection[int]) -> list[int | None]:
        """How many processes of others each device has; ``None`` where nothing tells."""
        on = [self._pids(handle) for handle in self.handles]
        mine = [{pid for pid in pids or () if _group(pid) in ours} for pids in on]
        if any(mine):
            return [None if pids is None else len(pids - own) for pids, own in zip(on, mine, strict=True)]
        # In a container the list may be empty, or of numbers that mean nothing here: then none of ours is in it.
        return [before if pids else None for pids, before in zip(on, self.before, strict=True)]

    def conditions(self) -> dict[str, list[float]]:
        """Of all samples the mean, which for a reason that a clock was held back is how often; of others the most."""
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
        # The name that every driver has; since 535 it is also called …ClocksEventReasons.
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if reasons is not None:
            read |= {name: float(bool(reasons & getattr(nvml, bit))) for name, bit in REASONS.items()}
        return {name: value for name, value in read.items() if value is not None}


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
