"""Energy is read before and after the timed steps, if the device counts it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from samples import trace

from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.rank import energy, measure
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.step import Step

CPU = torch.device("cpu")


class Failure(Exception):
    pass


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that the counter uses. A device's UUID is its handle."""

    total_mj: dict[str, int] = field(default_factory=dict)
    driver: bool = True
    counts: bool = True

    NVMLError = Failure

    def nvmlInit(self) -> None:
        if not self.driver:
            raise Failure("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.total_mj:
            raise Failure("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.counts:
            raise Failure("Not Supported")
        return self.total_mj[handle]


def test_the_counter_gives_joules_of_the_device() -> None:
    nvml = FakeNvml({"GPU-a": 5_000, "GPU-b": 7_000})
    counted = energy.counter("GPU-b", nvml=nvml)
    assert counted is not None and counted() == 7.0
    nvml.total_mj["GPU-b"] += 2_500
    assert counted() == 9.5


@pytest.mark.parametrize(
    "nvml", [FakeNvml({"GPU-a": 1}, driver=False), FakeNvml(), FakeNvml({"GPU-a": 1}, counts=False)]
)
def test_a_device_that_does_not_count_has_no_counter(nvml: FakeNvml) -> None:
    assert energy.counter("GPU-a", nvml=nvml) is None


def test_a_cpu_has_no_counter() -> None:
    assert energy.counter_of(CPU) is None


@pytest.mark.parametrize(("devices", "taken_j"), [(1, 12 * 3.0), (2, None)])
def test_energy_covers_only_the_timed_steps(
    devices: int, taken_j: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes 3 J, also in the warm-up. If a rank has two devices, one device's counter is not enough."""
    runs = 0

    def run() -> torch.Tensor:
        nonlocal runs
        runs += 1
        return torch.tensor(1.0 / runs)

    monkeypatch.setattr(energy, "counter_of", lambda device: lambda: runs * 3.0)
    plan = Plan(warmup=5, min_steps=12, max_steps=12)
    step = Step(run=run, samples=1, parameters=list, devices=devices)
    timing = measure.run(step, plan, CPU, trace=trace(), slowest=lambda value: value, phase=lambda _: None)
    assert timing.energy_j == taken_j


@pytest.mark.parametrize(
    ("joules", "per_sample"),
    [((100.0, 60.0), 160.0 / (8 * 4)), ((None, None), None), ((100.0, None), None), ((100.0, 0.0), None)],
)
def test_energy_per_sample_adds_up_all_ranks_or_is_absent(
    joules: tuple[float | None, ...], per_sample: float | None
) -> None:
    """Four timed steps of 8 samples."""
    launch = reduce([trace(rank, energy_j=taken) for rank, taken in enumerate(joules)], peak_tflops=None)
    assert launch.metrics.get("energy_j_per_sample") == per_sample


def test_flops_of_a_rank_with_several_devices_are_divided_by_them() -> None:
    one, four = (reduce([trace(devices=devices, flops_counted=4e12)], peak_tflops=None).metrics for devices in (1, 4))
    assert ("devices" in one, four["devices"]) == (False, 4)
    assert one["tflops_per_device"] / four["tflops_per_device"] == pytest.approx(4)
