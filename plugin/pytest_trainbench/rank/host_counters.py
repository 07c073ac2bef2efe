"""Counters of the host, which a rank reads right before and after its timed steps, and the speed of the host.

A counter that cannot be read is absent, never guessed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

SCATTERED, LOOKS = 400_000, 2
"""Number of objects that :func:`looking_s` reads, and how often. With their list they take 13 MB, more than the private
caches of a core."""


def counters(root: Path = Path("/")) -> dict[str, float]:
    """Counters that only grow. Names that end with ``_s`` are seconds.

    at_s:
        Time now.
    busy_s, stolen_s, idle_s:
        CPU time of all cores that this process may use.
    own_s:
        CPU time of this process and all its descendants.
    waited_s.<thread>:
        How long a thread of this process was ready but had no core.
    periods, throttled:
        Number of periods of the container's CPU quota, and of those in which the quota ran out.
    """
    found = {"at_s": time.perf_counter(), **_cores(root), **_quota(root)}
    with suppress(OSError, ValueError, IndexError):
        found["own_s"] = sum(_cpu_s(root, pid) for pid in family(root, os.getpid()))
    for path in root.glob("proc/self/task/*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread may have ended
            found[f"waited_s.{path.parent.name}"] = int(path.read_text().split()[1]) / 1e9
    return found


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """How much each counter grew, of those that both have. ``waited_s`` is that of the thread that waited longest."""
    grown = {name: after[name] - value for name, value in before.items() if name in after}
    waited = [grown.pop(name) for name in list(grown) if name.startswith("waited_s.")]
    return {**grown, **({"waited_s": max(waited)} if waited else {})}


def clock_mhz(root: Path = Path("/")) -> dict[str, float]:
    """``cpu_mhz`` of the fastest core that this process may use, because the others may be idle. Empty if unknown."""
    found = []
    for core in _mine():
        with suppress(OSError, ValueError):
            path = root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
            found.append(int(path.read_text()) / 1000)
    return {"cpu_mhz": max(found)} if found else {}


@cache
def scattered() -> list[float]:
    """Random numbers, sorted. Their order in the list is then unrelated to their order in memory."""
    made = random.Random(0)
    return sorted(made.random() for _ in range(SCATTERED))


def looking_s() -> float:
    """CPU time in seconds that the interpreter needs to read one object, averaged over about 20 ms.

    The work is always the same, and without torch. Issuing a step is similar work: both follow references, and few of
    the objects are in a core's private caches. Other tenants of a shared host mostly take shared caches and memory
    bandwidth. Sorting a short list hardly shows that, and a loop in Python shows more of it than a step:
    ``python -m benchmarks.host_rate`` compares the probes.

    The measure is this thread's CPU time, not wall time. It contains the cost of neighbours that the kernel does not
    see. It does not contain waiting for a core or for the interpreter's lock. A step's own threads and workers cause
    such waits too, which is no fault of the machine. Other processes are counted by :func:`counters`.
    """
    numbers = scattered()
    sum(numbers)  # after a fork, the first reference to an object copies its page
    began = time.thread_time()
    for _ in range(LOOKS):
        sum(numbers)
    return (time.thread_time() - began) / (LOOKS * SCATTERED)


def _mine() -> set[int]:
    """Cores that this process may use; empty if the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _cores(root: Path) -> dict[str, float]:
    """CPU times of this process's cores, from ``/proc/stat`` (proc_stat(5)). The kernel counts in ticks: user, nice,
    system, idle, iowait, irq, softirq, steal."""
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
    """A process and all its descendants, such as data loader workers."""
    children: list[int] = []
    for path in root.glob(f"proc/{pid}/task/*/children"):
        with suppress(OSError, ValueError):
            children += map(int, path.read_text().split())
    return [pid, *(one for child in children for one in family(root, child))]


def _cpu_s(root: Path, pid: int) -> float:
    """CPU time in seconds of a process and of its ended children (proc_pid_stat(5): utime, stime, cutime, cstime)."""
    fields = (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _quota(root: Path) -> dict[str, float]:
    """Number of CPU quota periods of this process's cgroup, and of those in which the quota ran out."""
    stat = _cgroup(root, "cpu", "cpu.stat", having="nr_periods")
    return {"periods": float(stat["nr_periods"]), "throttled": float(stat["nr_throttled"])} if stat else {}


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this process's cgroup the kernel's out-of-memory killer has killed so far, whether the
    cgroup or the host was out of memory. ``None`` if the kernel does not tell."""
    events = _cgroup(root, "memory", "memory.events", "memory.oom_control", having="oom_kill")
    return int(events["oom_kill"]) if events else None


def _cgroup(root: Path, controller: str, *files: str, having: str) -> dict[str, str]:
    """Keys and values of the first of ``files`` that has the key ``having``, in this process's cgroup, version 1 or 2.
    Empty if no file has it."""
    try:
        entries = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return {}
    for _, controllers, path in entries:
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container the path may be that of the host. The container's own files are then at the top.
        for folder in (mounted / path.lstrip("/"), mounted):
            for file in files:
                with suppress(OSError, ValueError):
                    stat = dict(line.split() for line in (folder / file).read_text().splitlines())
                    if having in stat:
                        return stat
    return {}
