"""The timed loop: how many steps it times, what it returns, and that nothing in it waits for the device."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from samples import trace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from pytest_trainbench.rank import measure
from pytest_trainbench.rank.measure import digest
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Trace
from pytest_trainbench.schema.step import Step

CPU = torch.device("cpu")
QUICK = Plan(warmup=6, window_s=0.5, min_steps=4, max_steps=50)
BEFORE = QUICK.warmup + 1
"""Steps before the timed steps: the warm-up, and one step whose collectives are counted."""


# The plan


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.1, 20), (0.099, 21), (10.0, 10), (0.2, 10), (0.0001, 100), (0.0, 100)],
)
def test_the_step_count_fills_the_window_within_bounds(step_s: float, steps: int) -> None:
    assert Plan(window_s=2.0, min_steps=10, max_steps=100).steps(step_s) == steps


@pytest.mark.parametrize(
    "nonsense", [{"warmup": 3}, {"min_steps": 1}, {"min_steps": 5, "max_steps": 4}, {"window_s": 0.0}]
)
def test_a_plan_that_measures_nothing_is_refused(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a plan needs at least 4 warm-up steps, 2 <= min_steps <= max_steps"):
        Plan(**nonsense)
    assert Plan(warmup=4, min_steps=2, max_steps=2, window_s=1e-9).steps(1.0) == 2


# The loop


def training(counts_flops: bool = True) -> Step:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    inputs, targets = torch.randn(16, 8), torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    flops = 2 * 2 * 16 * 8 * 4  # forward and the weight's gradient
    return Step(run=run, samples=16, flops=flops, counts_flops=counts_flops, parameters=model.parameters)


def run(step: Step, *, slowest: Callable[[float], float] = lambda _: 0.05) -> tuple[Trace, list[str]]:
    """Run a step. The default slowest rank takes 50 ms, so ten steps fill the window of :data:`QUICK`."""
    phases: list[str] = []
    return measure.run(step, QUICK, CPU, trace=trace(), slowest=slowest, phase=phases.append), phases


def test_a_real_step_gives_times_of_timed_steps_and_losses_of_all_steps() -> None:
    timing, phases = run(training())
    assert phases == ["counting FLOPs", "warming up", "counting collectives", "timing 10 steps", "profiling"]
    assert len(timing.step_ms) == 10
    assert all(0 < ms < 1000 for ms in timing.step_ms)
    assert timing.losses == measure.losses(training(), BEFORE + 10)
    assert timing.losses[-1] < timing.losses[0]  # type: ignore[operator]
    assert timing.flops_counted == training().flops
    assert set(timing.memory) == {"process_bytes"}
    assert timing.memory["process_bytes"] > 10 * 2**20
    assert timing.parts == {}, "on a CPU the device is the host"
    assert timing.host["looking_s"] > 0
    assert timing.collectives == {}, "counted, and there are none"


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("eager_steps", "settled"), [(11, 12), (2, 3)])
def test_a_captured_step_is_counted_before_its_capture_and_timed_after_it(
    eager_steps: int, settled: int, one_rank: None
) -> None:
    calls: list[int] = []

    def step() -> None:
        if len(calls) < eager_steps + 1:
            dist.all_reduce(torch.zeros(1))  # a replay of the capture bypasses the process group
        calls.append(len(calls))

    seen = Step(run=step, samples=1, parameters=tuple, trains=False, eager_steps=eager_steps)
    timing, phases = run(seen)
    assert timing.collectives == {"all_reduce": {"calls": 1, "bytes": 4}}
    assert phases[:4] == ["counting FLOPs", "warming up", "counting collectives", "warming up"]
    assert len(calls) == settled + 3 + len(timing.step_ms)


@pytest.mark.parametrize(("seen", "told", "peak"), [(5, 9, 9), (9, 5, 9)])
def test_a_step_may_report_memory_that_the_allocator_cannot_see(
    seen: int, told: int, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "peak_memory", lambda _: {"peak_allocated_bytes": seen, "process_bytes": 20})
    timing, _ = run(dataclasses.replace(training(), peak_bytes=lambda: told))
    assert timing.memory == {"peak_allocated_bytes": peak, "process_bytes": 20}


def test_flops_are_not_counted_if_the_step_says_so() -> None:
    assert run(training(counts_flops=False))[0].flops_counted is None


def test_all_ranks_time_the_step_count_of_the_slowest_rank() -> None:
    asked: list[float] = []

    def slowest(mine: float) -> float:
        asked.append(mine)
        return 0.1

    timing, _ = run(training(), slowest=slowest)
    assert len(timing.step_ms) == 5
    assert asked[0] > 0, "this rank's own step"
    assert asked[1:] == [0.0], "a barrier before the first timed step"


@pytest.mark.parametrize("warmup", [4, 5, 8])
def test_the_last_three_warm_up_steps_are_timed_together(warmup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only steps advance the clock. The FLOP-counted step and early steps are slow, and so is one of the last three."""
    log: list[str] = []
    took_s = iter([*[1.0] * (warmup - 3), 0.03, 0.05, 0.01, *[0.02] * 99])
    now_s = [0.0]

    def step() -> None:
        now_s[0] += next(took_s)
        log.append("run")

    def slowest(mine: float) -> float:
        log.append(f"slowest {mine:.3f}")
        return mine

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(measure, "clock_of", lambda _: Clock(log, *range(100)))
    plan = Plan(warmup=warmup, window_s=0.11, min_steps=2, max_steps=50)
    seen = Step(run=step, samples=1, parameters=tuple)
    assert measure.run(seen, plan, CPU, trace=trace(), slowest=slowest, phase=log.append).step_ms == [1.0] * 4
    assert log == [
        *["counting FLOPs", "run", "warming up", *["run"] * (warmup - 4)],
        *["synchronize", "run", "run", "run", "synchronize", "slowest 0.030"],
        *["counting collectives", "run", "synchronize"],
        *["timing 4 steps", "slowest 0.000", "mark", *["run", "mark"] * 4, "synchronize", *["elapsed"] * 4],
        "profiling",
    ]


class Loss(torch.Tensor):
    """A loss that logs when it is read. On a device, reading means waiting."""

    seen: list[str]

    def __float__(self) -> float:
        self.seen.append("read")
        return super().__float__()


def fake(log: list[str], value: float = 1.0) -> Step:
    def run() -> torch.Tensor:
        log.append("run")
        loss = torch.tensor(value).as_subclass(Loss)
        loss.seen = log
        return loss

    return Step(run=run, samples=1, parameters=tuple)


def test_no_loss_is_read_before_the_last_step() -> None:
    log: list[str] = []
    timing, _ = run(fake(log))
    assert log == ["run"] * (BEFORE + 10) + ["read"] * (BEFORE + 10)
    assert timing.losses == [1.0] * (BEFORE + 10)


def test_a_rank_without_losses_returns_none_for_each_step() -> None:
    timing, _ = run(Step(run=lambda: None, samples=1, parameters=tuple))
    assert timing.losses == [None] * (BEFORE + 10)


def undetached(log: list[str]) -> Step:
    weight = torch.ones(1, requires_grad=True)

    def run() -> torch.Tensor:
        log.append("run")
        return (weight * 2.0).sum()

    return Step(run=run, samples=1, parameters=lambda: [weight])


GRAPH = r"^Step\.run returned a loss with its autograd graph, .* every step's activations: return loss\.detach\(\)$"


def test_a_loss_with_its_graph_is_refused_after_the_first_step() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=GRAPH):
        run(undetached(log))
    assert log == ["run"]


def test_the_reference_refuses_a_loss_with_its_graph() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=GRAPH):
        measure.losses(undetached(log), 3)
    assert log == ["run"]


@pytest.mark.parametrize(
    ("returned", "name"), [(0.5, "float"), ({"loss": torch.tensor(0.5)}, "dict"), ((torch.tensor(0.5),), "tuple")]
)
def test_a_loss_that_is_no_tensor_is_refused_after_the_first_step(returned: Any, name: str) -> None:
    step = Step(run=lambda: returned, samples=1, parameters=tuple)
    wanted = "return the loss as a detached tensor, without .item(), or None"
    said = f"^{re.escape(f'Step.run returned a value of type {name}: {wanted}')}$"
    with pytest.raises(TypeError, match=said):
        run(step)
    with pytest.raises(TypeError, match=said):
        measure.losses(step, 3)


def written_over(log: list[str], buffers: int, own: int = 0) -> Step:
    """A step whose first ``own`` losses have their own memory, like eager steps. Later losses share ``buffers``."""
    places = torch.ones(buffers)

    def run() -> torch.Tensor:
        log.append("run")
        return torch.ones(()) if len(log) <= own else places[len(log) % buffers].fill_(1 / len(log))

    return Step(run=run, samples=1, parameters=tuple)


@pytest.mark.parametrize(("buffers", "own"), [(1, 0), (2, 0), (1, QUICK.warmup - 2)])
def test_losses_that_later_steps_overwrite_are_refused_before_timing(buffers: int, own: int) -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=r"^Step\.run returned the same memory .*: return loss\.clone\(\)$"):
        run(written_over(log, buffers, own))
    assert log == ["run"] * QUICK.warmup


def test_losses_beside_each_other_in_one_buffer_are_accepted() -> None:
    timing, _ = run(written_over([], buffers=100))
    assert timing.losses == pytest.approx([1 / step for step in range(1, BEFORE + 11)])


def test_losses_without_memory_of_their_own_are_accepted(one_rank: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    ones = distribute_tensor(torch.ones(2), mesh, [Replicate()])
    timing, _ = run(Step(run=lambda: ones.sum(), samples=1, parameters=tuple))
    assert timing.losses == [2.0] * (BEFORE + 10)


def test_the_reference_reads_each_loss_after_its_step() -> None:
    assert measure.losses(written_over([], 1), 3) == pytest.approx([1, 1 / 2, 1 / 3])


class Clock:
    """A clock that returns the test's times and logs each access."""

    def __init__(self, log: list[str], *times_ms: float) -> None:
        self.log, self.times_ms = log, iter(times_ms)

    def mark(self) -> float:
        self.log.append("mark")
        return next(self.times_ms)

    def elapsed_ms(self, before: float, after: float) -> float:
        self.log.append("elapsed")
        return after - before

    def synchronize(self) -> None:
        self.log.append("synchronize")


def test_the_loop_synchronizes_once_after_the_last_step() -> None:
    log: list[str] = []
    step_ms, losses = measure.timed_loop(fake(log).run, 3, Clock(log, 0.0, 5.0, 8.0, 12.0))
    assert step_ms == [5.0, 3.0, 4.0]
    assert len(losses) == 3
    assert log == ["mark", *["run", "mark"] * 3, "synchronize", *["elapsed"] * 3]


def test_the_host_clock_counts_milliseconds() -> None:
    clock = measure.clock_of(CPU)
    assert clock.elapsed_ms(1_000_000, 3_500_000) == 2.5


def peaks_of(*sizes: int) -> list[int]:
    """Peak memory of a fresh process while it holds each size in bytes. The peak is reset before each size."""
    program = """
import sys
import torch
from pytest_trainbench.rank import measure
for size in map(int, sys.argv[1:]):
    measure.reset_peak_memory(torch.device("cpu"))
    held = torch.ones(size, dtype=torch.uint8)
    print(measure.peak_memory(torch.device("cpu"))["process_bytes"])
    del held
"""
    done = subprocess.run([sys.executable, "-c", program, *map(str, sizes)], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def test_the_peak_memory_is_the_peak_since_the_reset() -> None:
    low, high, after = peaks_of(2**20, 200 * 2**20, 2**20)
    assert high - low == pytest.approx(200 * 2**20, rel=0.2)
    if after == high:
        pytest.skip("this kernel takes no reset of a process's peak, which is then that of its whole life")
    assert high - after > 150 * 2**20


# The fingerprint


def flipped(value: torch.Tensor, at: int, bit: int) -> torch.Tensor:
    """The same tensor with one bit of one element changed."""
    raw = bytearray(value.flatten().view(torch.uint8).numpy().tobytes())
    raw[at * value.element_size() + bit // 8] ^= 1 << bit % 8
    return torch.frombuffer(raw, dtype=value.dtype).reshape(value.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_every_changed_bit_changes_the_digest(dtype: torch.dtype) -> None:
    value = (torch.arange(6).reshape(2, 3) + 0.5).to(dtype)
    bits = range(8 * value.element_size())
    changed = {digest([value, flipped(value, at, bit)]) for at in range(value.numel()) for bit in bits}
    assert digest([value, value]) not in changed


def test_equal_bits_have_equal_digests_in_any_tensor() -> None:
    value = torch.randn(3, 4)
    held = torch.nn.Parameter(value.t().contiguous().t())
    assert digest([value]) == digest([value.clone()]) == digest([held])
    assert re.fullmatch(r"[0-9a-f]{16}", digest([value]))


def test_the_digest_compares_bits_and_not_values() -> None:
    zero, minus = torch.tensor([0.0]), torch.tensor([-0.0])
    assert zero == minus
    assert digest([zero]) != digest([minus])
    assert digest([torch.tensor(math.nan)]) == digest([torch.tensor(math.nan)])


def test_the_order_of_tensors_changes_the_digest() -> None:
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    assert digest([first, second]) != digest([second, first])


def test_no_tensor_an_empty_and_a_scalar_tensor_have_different_digests() -> None:
    assert len({digest([]), digest([torch.empty(0)]), digest([torch.tensor(1.0)])}) == 3


def test_training_changes_the_digest() -> None:
    step = training()
    before = digest(step.parameters())
    step.run()
    assert digest(step.parameters()) != before


class Sharded(torch.Tensor):
    """A tensor with a different local part, like a DTensor."""

    def detach(self) -> Any:
        return self

    def to_local(self) -> torch.Tensor:
        return torch.tensor([7.0])


def test_the_digest_of_a_sharded_tensor_is_of_the_local_part() -> None:
    assert digest([torch.zeros(5).as_subclass(Sharded)]) == digest([torch.tensor([7.0])])
