"""What the harness costs: the timed loop of a rank against a bare loop of the same step, in one process.

    python benchmarks/overhead.py [--device cpu|cuda] [--step-ms 10] [--blocks 40]

Blocks of both loops alternate (A B B A …), so a machine that becomes slower or faster affects both loops equally. The
command prints the ratio of harness to bare loop for neighbouring blocks: its median, and a 95 % bootstrap interval of
that median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from scipy.stats import bootstrap

from pytest_trainbench.rank.measure import Clock, clock_of, timed_loop

STEPS = 20
"""Steps in a block. At 10 ms a step, a block is short compared with the drift of a machine."""


def step_of(device: torch.device, target_ms: float) -> Callable[[], torch.Tensor]:
    """A step of matrix products that takes about ``target_ms`` and is not host-bound."""
    size = 512 if device.type == "cpu" else 4096
    matrix = torch.randn(size, size, device=device) / size**0.5

    def products(count: int) -> torch.Tensor:
        result: torch.Tensor = matrix
        for _ in range(count):
            result = result @ matrix
        return result[0, 0]

    clock = clock_of(device)
    products(10)
    clock.synchronize()
    began = time.perf_counter()
    products(50)
    clock.synchronize()
    count = max(1, round(target_ms / ((time.perf_counter() - began) * 1000 / 50)))
    return lambda: products(count)


def bare_ms(run: Callable[[], torch.Tensor], clock: Clock) -> float:
    clock.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        run()
    clock.synchronize()
    return (time.perf_counter() - began) * 1000 / STEPS


def harness_ms(run: Callable[[], torch.Tensor], clock: Clock) -> float:
    clock.synchronize()
    began = time.perf_counter()
    timed_loop(run, STEPS, clock)
    clock.synchronize()
    return (time.perf_counter() - began) * 1000 / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--blocks", type=int, default=40)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # with several threads the loops would measure other work on the machine
    run, clock = step_of(device, options.step_ms), clock_of(device)
    ratios, bare = [], []
    for block in range(options.blocks):
        order = (bare_ms, harness_ms) if block % 2 == 0 else (harness_ms, bare_ms)
        first, second = order[0](run, clock), order[1](run, clock)
        plain, measured = (first, second) if block % 2 == 0 else (second, first)
        bare.append(plain)
        ratios.append(measured / plain)
    interval = bootstrap((ratios,), statistics.median, vectorized=False, rng=0).confidence_interval
    print(
        f"{device.type}: {statistics.median(bare):.3f} ms a step; harness {statistics.median(ratios) - 1:+.3%}"
        f" (95 %: {interval.low - 1:+.3%} … {interval.high - 1:+.3%}), {options.blocks} pairs of {STEPS} steps"
    )


if __name__ == "__main__":
    main()
