"""How a step's time is divided, from the events of the profiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_trainbench.rank import breakdown
from pytest_trainbench.rank.breakdown import Parts, covered


def event(
    start_us: float, length_us: float, name: str = "gemm", category: str = "kernel", device: int = 0
) -> dict[str, Any]:
    """An event as kineto writes it: https://github.com/pytorch/kineto, output_json.cpp."""
    where = {"pid": device, "tid": 7, "args": {"device": device, "stream": 7}}
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": length_us, **where}


def test_step_time_is_divided_into_compute_and_exposed_communication() -> None:
    """Two steps of 10 ms have 6 ms of kernels, 1 ms of copies, and a collective of 4 ms with 1 ms under a kernel."""
    step = [
        event(0, 2000),
        event(1000, 3000, "fused"),  # at the same time on another stream
        event(4000, 2000),
        event(5000, 4000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        event(9000, 0, "Memset (Device)", "gpu_memset"),
        event(9000, 1000, "Memcpy DtoD (Device -> Device)", "gpu_memcpy"),
    ]
    second = [{**one, "ts": one["ts"] + 10_500} for one in step]
    others = [event(0, 21_000, "ProfilerStep#1", "user_annotation"), {"ph": "M", "name": "process_name"}]

    assert breakdown.parts([*step, *second, *others], steps=2, host_ms=3.5) == Parts(
        host_ms=3.5, compute_ms=7.0, exposed_communication_ms=3.0, kernels=4.0
    )


def test_the_busiest_of_several_devices_gives_the_compute_time() -> None:
    """With ``nn.DataParallel``, two devices work at the same time. They are not one device that never pauses."""
    second = [event(5000, 4000, device=1), event(9000, 3000, "ncclDevKernel_Broadcast", device=1)]
    third = [event(9000, 500, device=2), event(9600, 1, "Memset (Device)", "gpu_memset", device=2)]
    first = [event(0, 3000), event(3000, 3000), event(6000, 1000, "ncclDevKernel_Broadcast")]

    assert breakdown.parts([*second, *first, *third], steps=1, host_ms=3.5) == Parts(
        host_ms=3.5, compute_ms=6.0, exposed_communication_ms=1.0, kernels=3.0
    )


def test_a_trace_without_device_work_has_no_parts() -> None:
    assert breakdown.parts([event(0, 10, "aten::mm", "cpu_op")], steps=1, host_ms=1.0) is None


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 1), (5, 6)], 2), ([(0, 10), (2, 3)], 10), ([(3, 5), (0, 4)], 5), ([(0, 1), (1, 2)], 2)],
)
def test_overlapping_intervals_count_once(intervals: list[tuple[float, float]], length: float) -> None:
    assert covered(intervals) == length


def test_no_step_is_profiled_on_a_cpu() -> None:
    def never() -> None:
        raise AssertionError("run")

    assert breakdown.measure(never, torch.device("cpu"), step_s=0.1, period=1, together=never) is None


@pytest.mark.parametrize(("step_s", "steps"), [(0.0, 4), (0.04, 4), (0.25, 4), (0.4, 2), (1.27, 1), (60.0, 1)])
def test_long_steps_are_profiled_fewer_times(step_s: float, steps: int) -> None:
    assert breakdown.looks(step_s, most=4, period=1) == steps


@pytest.mark.parametrize(("step_s", "period", "steps"), [(0.04, 4, 4), (1.27, 4, 4), (0.04, 3, 6), (0.3, 2, 4)])
def test_whole_periods_of_the_work_are_profiled(step_s: float, period: int, steps: int) -> None:
    assert breakdown.looks(step_s, most=4, period=period) == steps
