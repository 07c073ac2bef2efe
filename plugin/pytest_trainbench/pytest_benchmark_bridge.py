"""Hands step times to pytest-benchmark through its public fixture, when that plugin is loaded.

Its fixture times a function by reading a clock before and after. Here the clock is ours: a function that only moves
it on by a step's length makes pytest-benchmark see exactly the times that the ranks measured, and its table, JSON,
histogram and ``compare`` work on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class ReplayedClock:
    """Seconds that move only when told."""

    __name__ = "replayed_clock"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK: pytest.StashKey[ReplayedClock] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "bench" in getattr(item, "fixturenames", ()):
            item.stash[CLOCK] = clock = ReplayedClock()
            # Its fixture reads the closest marker alone: what the test asks for itself, such as a group, goes into it.
            theirs = item.get_closest_marker("benchmark") or pytest.mark.benchmark.mark
            options = {**theirs.kwargs, "timer": clock, "disable_gc": False, "warmup": False}
            item.add_marker(pytest.mark.benchmark.with_args(*theirs.args, **options), append=False)
            # A row that ended without step times (out of memory, a crash) has none to hand over, and said so itself.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))


@pytest.fixture
def _step_times(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[list[float]], None]:
    clock = request.node.stash.get(CLOCK, ReplayedClock())  # without one it is no case, and ``bench`` refuses it

    def feed(seconds: list[float]) -> None:
        steps = iter(seconds)

        def step() -> None:
            clock.now_s += next(steps, 0.0)  # its profiler calls once more

        # Its fixture takes one series a test; ours may measure several cases.
        if benchmark.enabled and benchmark.stats is None:
            benchmark.pedantic(step, rounds=len(seconds), iterations=1)

    return feed
