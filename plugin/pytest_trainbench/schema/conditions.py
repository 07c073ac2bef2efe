"""What a launch ran under while its steps were timed: the host's cores, the devices' clocks, who else was there.

Counters that only grow are read by each rank right before and after its timed steps; what has no counter is sampled by
the process that started the ranks, which disturbs none of them. A fact that cannot be read is absent, never guessed.
:data:`CONDITIONS` says which facts there are and how much of each may slow a step.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

Conditions = Mapping[str, Sequence[float]]
"""Facts by name: one figure for the host, or one for each device, or for each rank."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A speed. Lower than the baseline's by more than ``margin`` (a fraction) counts, and lengthens a step by the ratio
    at most, or by its power ``share``."""

    margin: float
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A share of the window that was lost. Higher than the baseline's by more than ``margin`` (a difference) counts,
    and lengthens a step as what is left of the window got shorter. ``normal``: the share to hold it against where the
    baseline is older than conditions; ``None``: nothing then counts. ``cost``: the condition whose shares say better
    how much was lost, where it is known."""

    margin: float
    normal: float | None = None
    cost: str = ""


@dataclass(frozen=True, kw_only=True)
class Present:
    """A number of things that should not be there. More than in the baseline count, and may have cost anything."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """``text`` says it in words, with ``figure``, a value and its unit, at its ``{}``. ``of``: ``host``, ``device`` or
    ``rank``. ``rule`` is ``None`` for a fact that is stored and is never itself held to slow a step."""

    text: str
    of: str
    figure: str = "{:.0%}"
    rule: Rate | Lost | Present | None = None


CONDITIONS: dict[str, Condition] = {
    # Boost clocks of one H200 move by 1 to 2 % between launches of one step. At the power cap they fall from 1,980 to
    # 1,440 MHz within half a second and come back by a few percent: the mean of many samples is the same each time.
    "sm_mhz": Condition(text="SM clock {}", figure="{:,.0f} MHz", of="device", rule=Rate(margin=0.03)),
    "memory_mhz": Condition(text="memory clock {}", figure="{:,.0f} MHz", of="device", rule=Rate(margin=0.03)),
    # A setting: any other value is another one.
    "power_limit_w": Condition(text="power limit {}", figure="{:,.0f} W", of="device", rule=Rate(margin=0.005)),
    # As two of ten samples: one is chance.
    "hw_thermal": Condition(
        text="thermal slowdown by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "sw_thermal": Condition(
        text="thermal slowdown by the driver in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "hw_power_brake": Condition(
        text="power brake by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "hw_slowdown": Condition(
        text="slowdown by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    # A large product runs at the power cap all the time, as it should: what that costs shows as the SM clock.
    "sw_power_cap": Condition(text="at the power cap in {} of the window", of="device"),
    "other_processes": Condition(text="other processes: {}", figure="{:.0f}", of="device", rule=Present()),
    "temperature_c": Condition(text="temperature {}", figure="{:.0f} °C", of="device"),
    "power_w": Condition(text="power {}", figure="{:,.0f} W", of="device"),
    # A machine that does nothing else still has its services: a few percent of few cores.
    "other_cores": Condition(
        text="other processes used {} of the cores", of="host", rule=Lost(margin=0.1, normal=0.0, cost="waiting")
    ),
    # Ranks that share cores wait too: it says what others cost, never that there were any.
    "waiting": Condition(text="a rank was ready and had no core in {} of the window", of="host"),
    "stolen": Condition(
        text="the host of this virtual machine withheld {} of its cores' time",
        of="host",
        rule=Lost(margin=0.05, normal=0.0),
    ),
    # A quota is part of a container, and a step that fills it may do so every night.
    "quota": Condition(text="the container's CPU quota ran out in {} of its periods", of="host", rule=Lost(margin=0.1)),
    # Whatever the kernel does not see: a neighbour on the other half of a core, a lower clock of a virtual one.
    # It notices more of that than a step does: benchmarks/host_rate.
    "host_rate": Condition(
        text="the host looks at {}", figure="{:,.3g} objects/µs", of="host", rule=Rate(margin=0.2, share=0.65)
    ),
    "cpu_mhz": Condition(text="clock of the fastest core {}", figure="{:,.0f} MHz", of="host", rule=Rate(margin=0.05)),
    # Ranks are held against each other: pytest_trainbench.judge.attribution.slow_rank.
    "rank_compute_ms": Condition(text="compute time of the device {}", figure="{:,.4g} ms", of="rank"),
}


def worst(name: str, values: Sequence[float]) -> float:
    """Of the devices or ranks, that which a step waits for."""
    return min(values) if name in CONDITIONS and isinstance(CONDITIONS[name].rule, Rate) else max(values)


CAPACITY_LEAST_S = 0.4
"""Seconds of all cores together below which shares of them are not said: the kernel counts in ticks of 10 ms, and each
rank and core may be one off."""

SCATTERED, LOOKS = 400_000, 2
"""Objects of 13 MB with the list that holds them: more than the caches that a core has to itself."""

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


# The host, as a rank counts


def counters(root: Path = Path("/")) -> dict[str, float]:
    """What only grows. Seconds: of the cores that this process may use ``busy_s``, ``stolen_s`` and ``idle_s``; of this
    process and all that it started ``own_s``; of a thread that was ready and had no core ``waited_s.<thread>``; now,
    ``at_s``. Periods of the container's quota, ``periods``, and those in which it ran out, ``throttled``."""
    found = {"at_s": time.perf_counter(), **_cores(root), **_quota(root)}
    with suppress(OSError, ValueError, IndexError):
        found["own_s"] = sum(_cpu_s(root, pid) for pid in family(root, os.getpid()))
    for path in root.glob("proc/self/task/*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread may have ended
            found[f"waited_s.{path.parent.name}"] = int(path.read_text().split()[1]) / 1e9
    return found


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What both have, by how much it grew; of the threads, the one that waited longest: ``waited_s``."""
    grown = {name: after[name] - value for name, value in before.items() if name in after}
    waited = [grown.pop(name) for name in list(grown) if name.startswith("waited_s.")]
    return {**grown, **({"waited_s": max(waited)} if waited else {})}


def clock_mhz(root: Path = Path("/")) -> dict[str, float]:
    """``cpu_mhz`` of the fastest core that this process may use: the others may be idle."""
    found = []
    for core in _mine():
        with suppress(OSError, ValueError):
            path = root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
            found.append(int(path.read_text()) / 1000)
    return {"cpu_mhz": max(found)} if found else {}


@cache
def scattered() -> list[float]:
    """Numbers in an order that has nothing to do with where they are in memory: made at random, and sorted."""
    made = random.Random(0)
    return sorted(made.random() for _ in range(SCATTERED))


def looking_s() -> float:
    """How long the interpreter takes to look at an object, over 20 ms or so: always the same work, of the kind that
    issuing a step is (references to follow, few of them in a core's own caches), and none of it torch's.

    What neighbours on a shared host take is mostly that: caches that cores share, and memory. Sorting a short list
    notices little of it, and a loop in Python more than a step does: ``python -m benchmarks.host_rate``.

    By the time that this thread had a core: what a neighbour costs whom the kernel does not see is part of that, and
    waiting is not, be it for the interpreter's lock or for a core. A step's own threads and workers make it wait, and
    are no fault of the machine; that others do is counted elsewhere.
    """
    numbers = scattered()
    sum(numbers)  # after a fork, the first to refer to an object copies its page
    began = time.thread_time()
    for _ in range(LOOKS):
        sum(numbers)
    return (time.thread_time() - began) / (LOOKS * SCATTERED)


def host(ranks: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Conditions of one host from what each rank on it counted."""
    found: dict[str, float] = {}

    def known(*names: str) -> bool:
        return all(name in one for one in ranks for name in names)

    if known("busy_s", "stolen_s", "idle_s"):
        first = ranks[0]
        wanted_s = first["busy_s"] + first["stolen_s"]
        capacity_s = wanted_s + first["idle_s"]
        if capacity_s >= CAPACITY_LEAST_S:
            found["stolen"] = first["stolen_s"] / wanted_s if wanted_s else 0.0
            if known("own_s"):
                others_s = first["busy_s"] - sum(one["own_s"] for one in ranks)
                found["other_cores"] = min(1.0, max(0.0, others_s / capacity_s))
    if known("waited_s", "at_s"):
        # Ranks wait for each other, so that the step waits where any of them does: as often as independent ones do.
        found["waiting"] = 1 - math.prod(max(0.0, 1 - one["waited_s"] / one["at_s"]) for one in ranks)
    if known("periods", "throttled") and ranks[0]["periods"]:
        found["quota"] = ranks[0]["throttled"] / ranks[0]["periods"]
    if known("looking_s"):
        found["host_rate"] = 1e-6 / max(one["looking_s"] for one in ranks)
    if known("cpu_mhz"):
        found["cpu_mhz"] = max(one["cpu_mhz"] for one in ranks)
    return {name: [value] for name, value in found.items()}


def hosts(nodes: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """Conditions of several, in the order of the nodes, where all of them know; from what each rank counted."""
    found = list(map(host, nodes))
    known = [name for name in found[0] if all(name in one for one in found)]
    return {name: [value for one in found for value in one[name]] for name in known}


def _mine() -> set[int]:
    """Cores that this process may use; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _cores(root: Path) -> dict[str, float]:
    """Of ``/proc/stat`` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal, in ticks."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    mine = {f"cpu{core}" for core in _mine()}
    busy = stolen = idle = 0
    try:
        lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        cores = [list(map(int, line[1:9])) for line in lines if line and line[0] in mine]
    except (OSError, ValueError):
        return {}
    for user, nice, system, idling, waiting, irq, softirq, steal in cores:
        busy += user + nice + system + irq + softirq
        idle += idling + waiting
        stolen += steal
    return {"busy_s": busy * tick_s, "stolen_s": stolen * tick_s, "idle_s": idle * tick_s} if cores else {}


def family(root: Path, pid: int) -> list[int]:
    """A process and all that descend from it, such as workers that load data."""
    children: list[int] = []
    for path in root.glob(f"proc/{pid}/task/*/children"):
        with suppress(OSError, ValueError):
            children += map(int, path.read_text().split())
    return [pid, *(one for child in children for one in family(root, child))]


def _cpu_s(root: Path, pid: int) -> float:
    """Of a process and of its children that have ended (proc_pid_stat(5): utime, stime, cutime, cstime)."""
    fields = (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _quota(root: Path) -> dict[str, float]:
    """Periods of this process's cgroup, and those in which its quota ran out."""
    stat = _cgroup(root, "cpu", "cpu.stat", having="nr_periods")
    return {"periods": float(stat["nr_periods"]), "throttled": float(stat["nr_throttled"])} if stat else {}


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this process's cgroup the kernel's out-of-memory killer has ended so far, for want of the
    cgroup's memory or the host's; ``None`` where the kernel does not say."""
    events = _cgroup(root, "memory", "memory.events", "memory.oom_control", having="oom_kill")
    return int(events["oom_kill"]) if events else None


def _cgroup(root: Path, controller: str, *files: str, having: str) -> dict[str, str]:
    """The first of these files of this process's cgroup, version 1 or 2, that has such a line; empty where none has."""
    try:
        entries = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return {}
    for _, controllers, path in entries:
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if controllers else "")
        # Inside a container the path may be the host's, and its own folder stands at the top.
        for folder in (mounted / path.lstrip("/"), mounted):
            for file in files:
                with suppress(OSError, ValueError):
                    stat = dict(line.split() for line in (folder / file).read_text().splitlines())
                    if having in stat:
                        return stat
    return {}


# The devices, as whoever started the ranks sees them


@dataclass(kw_only=True)
class Watch:
    """Samples of NVIDIA devices. ``handles``: NVML's, in the order of the devices. Made before the ranks open them, so
    that it sees which processes were there already (how many: ``before``)."""

    nvml: Any
    handles: Sequence[Any]
    before: list[int | None] = field(init=False)
    samples: list[list[dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = [None if pids is None else len(pids) for pids in map(self._pids, self.handles)]

    @classmethod
    def of(cls, uuids: Sequence[str], *, nvml: Any) -> Watch | None:
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
