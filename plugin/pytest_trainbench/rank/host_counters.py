"""What a rank counts of its host right before and after its timed steps, and how fast the host is.

Counters only grow. What cannot be read is absent, never guessed.
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
"""Objects of 13 MB with the list that holds them: more than the caches that a core has to itself."""


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
