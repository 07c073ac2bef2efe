"""The conditions of a launch come from the kernel's counters and from NVML. A value that cannot be read is absent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples import case, trace

from pytest_trainbench.judge.aggregate import host, reduce
from pytest_trainbench.launch import device_monitor
from pytest_trainbench.launch.device_monitor import REASONS, DeviceMonitor
from pytest_trainbench.rank import host_counters
from pytest_trainbench.rank.host_counters import (
    SCATTERED,
    clock_mhz,
    counted,
    counters,
    looking_s,
    oom_kills,
    scattered,
)
from pytest_trainbench.schema.conditions import CONDITIONS, worst
from pytest_trainbench.schema.job import Job

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


# The host


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File system root of a machine with four cores. This process may use two of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    monkeypatch.setattr(os, "getpid", lambda: 40)
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_only_cores_that_this_process_may_use_are_counted(root: Path) -> None:
    """The columns: user, nice, system, idle, iowait, irq, softirq, steal, and two that ``user`` already includes."""
    other, mine = "7 7 7 7 7 7 7 7 7 7", ("1 2 3 40 50 4 5 60 0 0", "1 0 0 10 0 0 0 0 1 0")
    write(root, "proc/stat", f"cpu  1 1\ncpu0 {other}\ncpu1 {mine[0]}\ncpu2 {other}\ncpu3 {mine[1]}\nctxt 5\n")
    found = counters(root)
    assert {name: value / TICK_S for name, value in found.items() if name != "at_s"} == pytest.approx(
        {"busy_s": 16, "stolen_s": 60, "idle_s": 100}
    )


def test_children_of_a_process_count_as_its_own(root: Path) -> None:
    """utime, stime, cutime and cstime are fields 14 to 17. The process name may contain spaces and brackets."""
    processes = ((40, "1 2 3 4", "41 "), (41, "10 0 0 0", "42"), (42, "100 0 0 0", ""), (50, "9 9 9 9", ""))
    for pid, ticks, children in processes:
        write(root, f"proc/{pid}/stat", f"{pid} (a (b) c) S 1 1 1 0 -1 4 0 0 0 0 {ticks} 20 0\n")
        write(root, f"proc/{pid}/task/{pid}/children", children)
    assert counters(root)["own_s"] / TICK_S == pytest.approx(120)


def test_the_wait_for_a_core_is_read_per_thread(root: Path) -> None:
    for thread, waited_ns in ((40, 5), (43, 7)):
        write(root, f"proc/self/task/{thread}/schedstat", f"100 {waited_ns}000000000 3\n")
    found = counters(root)
    assert (found["waited_s.40"], found["waited_s.43"]) == (5.0, 7.0)


@pytest.mark.parametrize(
    ("groups", "stat"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/cpu.stat"),
        ("0::/not/here\n", "sys/fs/cgroup/cpu.stat"),
        ("3:memory:/x\n2:cpu,cpuacct:/y\n0::/\n", "sys/fs/cgroup/cpu/y/cpu.stat"),
        ("1:cpu:/host/path\n", "sys/fs/cgroup/cpu/cpu.stat"),
    ],
)
def test_the_quota_is_found_in_cgroup_v1_and_v2(groups: str, stat: str, root: Path) -> None:
    write(root, "proc/self/cgroup", groups)
    assert "periods" not in counters(root)
    write(root, stat, "usage_usec 1\nnr_periods 20\nnr_throttled 5\nthrottled_usec 9\n")
    assert {name: value for name, value in counters(root).items() if name != "at_s"} == {"periods": 20, "throttled": 5}


@pytest.mark.parametrize(
    ("groups", "path", "text"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n"),
        ("0::/not/here\n", "sys/fs/cgroup/memory.events", "oom 2\noom_kill 3\n"),
        ("4:memory:/x\n2:cpu:/y\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control", "under_oom 0\noom_kill 3\n"),
        ("4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n"),
    ],
)
def test_out_of_memory_kills_are_counted(groups: str, path: str, text: str, root: Path) -> None:
    assert oom_kills(root) is None
    write(root, "proc/self/cgroup", groups)
    assert oom_kills(root) is None
    write(root, path, text)
    assert oom_kills(root) == (3 if "oom_kill 3" in text else None), "kernels before 4.13 do not count"


def test_counters_that_cannot_be_read_are_absent(root: Path) -> None:
    assert set(counters(root)) == {"at_s"}
    assert clock_mhz(root) == {}
    write(root, "proc/stat", "cpu1 garbage\n")
    write(root, "proc/self/task/40/schedstat", "")
    assert set(counters(root)) == {"at_s"}


def test_the_clock_is_of_the_fastest_core_that_this_process_may_use(root: Path) -> None:
    for core, khz in ((0, 5_000_000), (1, 1_200_000), (3, 2_400_000)):
        write(root, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{khz}\n")
    assert clock_mhz(root) == {"cpu_mhz": 2400.0}


def test_counters_are_differences_and_waiting_is_of_the_longest_waiting_thread() -> None:
    before = {"at_s": 10.0, "busy_s": 5.0, "waited_s.1": 1.0, "waited_s.2": 1.0, "own_s": 3.0}
    after = {"at_s": 12.0, "busy_s": 8.0, "waited_s.1": 1.5, "waited_s.3": 9.0, "waited_s.2": 1.1}
    assert counted(before, after) == {"at_s": 2.0, "busy_s": 3.0, "waited_s": 0.5}
    assert counted({"at_s": 1.0}, {"at_s": 2.0}) == {"at_s": 1.0}


RANK = {"at_s": 2.0, "busy_s": 3.0, "stolen_s": 0.5, "idle_s": 0.5, "own_s": 1.0, "waited_s": 0.5}


def test_shares_of_the_host_add_up_all_ranks() -> None:
    """In 4 core-seconds 3 were busy, and two ranks used 2 of them. Of the 3.5 that were wanted, 0.5 were withheld."""
    assert host([RANK, RANK]) == {
        "stolen": [pytest.approx(1 / 7)],
        "other_cores": [0.25],
        "waiting": [pytest.approx(1 - 0.75**2)],
    }
    more = {**RANK, "periods": 20.0, "throttled": 5.0, "cpu_mhz": 2400.0, "looking_s": 1e-7}
    found = host([more, {**more, "cpu_mhz": 2500.0, "looking_s": 4e-7}])
    assert (found["quota"], found["cpu_mhz"]) == ([0.25], [2500.0])
    assert found["host_rate"] == [pytest.approx(2.5)]  # a step waits for the slowest rank


def test_waiting_for_own_threads_does_not_lower_the_host_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such threads hold the interpreter's lock for half of the time or more. A sleep stands for that wait here."""
    alone_s = SCATTERED * min(looking_s() for _ in range(3))

    class Interrupted(list[float]):
        def __iter__(self) -> Iterator[float]:
            time.sleep(10 * alone_s)
            return super().__iter__()

    interrupted = Interrupted(scattered())
    monkeypatch.setattr(host_counters, "scattered", lambda: interrupted)
    assert SCATTERED * min(looking_s() for _ in range(3)) < 3 * alone_s


@pytest.mark.parametrize(
    ("ranks", "known"),
    [
        ([RANK, {"at_s": 2.0}], set()),
        ([{**RANK, "busy_s": 0.2, "stolen_s": 0.0, "idle_s": 0.1}], {"waiting"}),  # a window too short for ticks
        ([{name: value for name, value in RANK.items() if name != "own_s"}], {"stolen", "waiting"}),
        ([{**RANK, "periods": 0.0, "throttled": 0.0}], {"stolen", "other_cores", "waiting"}),  # no quota
    ],
)
def test_a_counter_that_one_rank_lacks_is_absent(ranks: list[dict[str, float]], known: set[str]) -> None:
    assert set(host(ranks)) == known


def test_a_real_busy_child_process_is_counted_as_own() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            before = counters()
            time.sleep(0.5)
            found = counted(before, counters())
        finally:
            child.kill()
    assert found["own_s"] > 5 * TICK_S
    assert found["busy_s"] >= found["own_s"] - 5 * TICK_S
    assert found["waited_s"] >= 0


# The devices


class Failure(Exception):
    pass


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that a device monitor uses. A device's UUID is its handle."""

    pids: dict[str, list[int]] = field(default_factory=dict)
    sm_mhz: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    NVMLError = Failure
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonSwPowerCap = 0x04
    nvmlClocksThrottleReasonHwSlowdown = 0x08
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "silent"):

            def refuse(*_: object) -> None:
                raise Failure("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return self.sm_mhz.get(handle, 1980) if clock == 1 else 3201

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 65

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 698_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons.get(handle, 0)


def watching(nvml: FakeNvml, *uuids: str) -> DeviceMonitor:
    watch = DeviceMonitor.of(uuids or ("GPU-a", "GPU-b"), nvml=nvml)
    assert watch is not None
    return watch


def test_a_device_monitor_reports_every_device_condition() -> None:
    nvml = FakeNvml()
    watch = watching(nvml)
    nvml.pids = {"GPU-a": [os.getpid()], "GPU-b": [os.getpid(), 1]}
    for sm_mhz, reasons in ((1980, 0x04), (1700, 0x04 | 0x40), (1410, 0x04 | 0x08 | 0x20 | 0x40 | 0x80), (1980, 0)):
        nvml.sm_mhz["GPU-b"], nvml.reasons["GPU-b"] = sm_mhz, reasons
        watch.sample(ours={os.getpgid(0)})
    found = watch.conditions()
    assert found == {
        "sm_mhz": [1980.0, 1767.5],
        "memory_mhz": [3201.0, 3201.0],
        "power_limit_w": [700.0, 700.0],
        "hw_thermal": [0.0, 0.5],
        "sw_thermal": [0.0, 0.25],
        "hw_power_brake": [0.0, 0.25],
        "hw_slowdown": [0.0, 0.25],
        "sw_power_cap": [0.0, 0.75],
        "other_processes": [0.0, 1.0],
        "temperature_c": [65.0, 65.0],
        "power_w": [698.5, 698.5],
    }
    assert set(found) == {name for name, condition in CONDITIONS.items() if condition.of == "device"}
    assert [worst(name, found[name]) for name in ("sm_mhz", "hw_thermal")] == [1767.5, 0.5]


@pytest.mark.parametrize(
    ("before", "timing", "others"),
    [
        ([], [999_999_001], [0.0]),  # pids of another namespace: one more than before our rank started
        ([999_999_002], [999_999_002, 999_999_001], [1.0]),
        ([], [], None),  # all processes are hidden, ours too
        ([999_999_002], [], None),
    ],
)
def test_processes_of_a_device_may_be_hidden_or_renumbered_in_a_container(
    before: list[int], timing: list[int], others: list[float] | None
) -> None:
    nvml = FakeNvml(pids={"GPU-a": before})
    watch = watching(nvml, "GPU-a")
    nvml.pids = {"GPU-a": timing}
    watch.sample(ours={os.getpgid(0)})
    assert watch.conditions().get("other_processes") == others


def test_processes_that_a_rank_started_on_a_device_are_its_own() -> None:
    """A rank leads a process group, and its children belong to that group."""
    nvml = FakeNvml()
    watch = watching(nvml, "GPU-a")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as leader:
        try:
            nvml.pids = {"GPU-a": [leader.pid, os.getpid()]}
            watch.sample(ours={leader.pid})
        finally:
            leader.kill()
    assert watch.conditions()["other_processes"] == [1.0]


@pytest.mark.parametrize(
    ("silent", "missing"),
    [
        ("nvmlDeviceGetComputeRunningProcesses", {"other_processes"}),
        ("nvmlDeviceGetClockInfo", {"sm_mhz", "memory_mhz"}),
        ("nvmlDeviceGetTemperature", {"temperature_c"}),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", set(REASONS)),
    ],
)
def test_a_condition_that_the_driver_does_not_report_is_absent(silent: str, missing: set[str]) -> None:
    watch = watching(FakeNvml(pids={"GPU-a": [os.getpid()]}, silent=(silent,)), "GPU-a")
    watch.sample(ours={os.getpgid(0)})
    of_devices = {name for name, condition in CONDITIONS.items() if condition.of == "device"}
    assert set(watch.conditions()) == of_devices - missing


def test_devices_that_were_never_sampled_have_no_conditions() -> None:
    assert watching(FakeNvml()).conditions() == {}
    assert DeviceMonitor.of(["GPU-a"], nvml=FakeNvml(silent=("nvmlInit",))) is None
    assert DeviceMonitor.of(["GPU-a"], nvml=FakeNvml(silent=("nvmlDeviceGetHandleByUUID",))) is None


def test_the_fakes_constants_match_pynvml() -> None:
    import pynvml

    for name in [*REASONS.values(), *(name for name in vars(FakeNvml) if name.isupper() or name[4:5].isupper())]:
        assert hasattr(pynvml, name), name
    for name in REASONS.values():
        assert getattr(pynvml, name) == getattr(FakeNvml, name)


# From the samples to the launch


def job(folder: Path, **replaced: Any) -> Job:
    sample: dict[str, Any] = {
        "case": case(),
        "device_kind": "cuda",
        "folder": folder,
        "limit_s": 10.0,
        "collective_limit_s": 5.0,
        "device_uuids": ("GPU-a",),
    }
    return Job(**{**sample, **replaced})


@pytest.mark.parametrize(("phase", "seen"), [("timing 20 steps", True), ("profiling", False)])
def test_devices_are_sampled_only_while_rank_0_is_timing(
    phase: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = []
    watch = watching(FakeNvml(), "GPU-a")

    def sample(ours: Collection[int]) -> None:
        sampled.append(ours)
        DeviceMonitor.sample(watch, ours)

    monkeypatch.setattr(device_monitor, "SAMPLE_EVERY_S", 0.001)
    monkeypatch.setattr(device_monitor, "monitor", lambda job: watch)
    monkeypatch.setattr(watch, "sample", sample)
    (tmp_path / "progress-0").write_text(phase)
    (tmp_path / "pid-0").write_text("17")
    with device_monitor.sampled(job(tmp_path), 0) as devices:
        deadline = time.monotonic() + (10.0 if seen else 0.1)
        while time.monotonic() < deadline and not sampled:
            time.sleep(0.001)
    assert bool(devices) is seen
    assert all(ours == {17} for ours in sampled)


def test_a_sample_that_ends_after_the_timing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(FakeNvml(), "GPU-a")
    sampled = []

    def sample(ours: set[int]) -> None:
        DeviceMonitor.sample(watch, ours)
        (tmp_path / "progress-0").write_text("profiling")
        sampled.append(ours)

    monkeypatch.setattr(device_monitor, "SAMPLE_EVERY_S", 0.001)
    monkeypatch.setattr(device_monitor, "monitor", lambda job: watch)
    monkeypatch.setattr(watch, "sample", sample)
    (tmp_path / "progress-0").write_text("timing 20 steps")
    with device_monitor.sampled(job(tmp_path), 0) as devices:
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline and not sampled:
            time.sleep(0.001)
    assert (len(sampled), devices) == (1, {})


def test_processes_are_read_in_every_fourth_sample() -> None:
    nvml = FakeNvml()
    watch = watching(nvml, "GPU-a")
    nvml.pids = {"GPU-a": [os.getpid(), 1]}
    for _ in range(device_monitor.PROCESSES_EVERY + 1):
        watch.sample(ours={os.getpgid(0)})
    assert ["other_processes" in one for (one,) in watch.samples] == [True, *[False] * 3, True]
    assert watch.conditions()["other_processes"] == [1.0]


def test_a_driver_that_does_not_answer_delays_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer is not used: it would count the ranks among the processes that ran before them."""
    answers = threading.Event()
    monkeypatch.setattr(device_monitor, "DRIVER_S", 0.01)
    monkeypatch.setattr(device_monitor, "monitor", lambda job: answers.wait(60) and watching(FakeNvml(), "GPU-a"))
    (tmp_path / "progress-0").write_text("timing 20 steps")
    with device_monitor.sampled(job(tmp_path), 0) as devices:
        answers.set()
        time.sleep(2 * device_monitor.SAMPLE_EVERY_S)
    assert devices == {}


@pytest.mark.parametrize("replaced", [{"device_uuids": ()}, {"reference_steps": 3}])
def test_nothing_is_sampled_without_devices_or_without_timing(replaced: dict[str, Any], tmp_path: Path) -> None:
    with device_monitor.sampled(job(tmp_path, **replaced), 0) as devices:
        pass
    assert devices == {}


def test_a_launch_keeps_the_conditions_of_the_devices_it_used() -> None:
    """Two ranks use two of four devices. The compute time of each rank is kept too."""
    devices = {"sm_mhz": [1980.0, 1410.0, 345.0, 345.0]}
    traces = [trace(rank, host=RANK, parts={"compute_ms": 50.0 + rank}) for rank in (0, 1)]
    assert reduce(traces, peak_tflops=None, devices=devices).conditions == {
        **host([RANK, RANK]),
        "sm_mhz": [1980.0, 1410.0],
        "rank_compute_ms": [50.0, 51.0],
    }
    assert reduce([trace(0), trace(1)], peak_tflops=None).conditions == {}
