"""Pass step times to pytest-benchmark through its public fixture, if that plugin is loaded.

The fixture of pytest-benchmark reads a clock before and after a function. Here a replayed clock takes that place, and
the function only advances the clock by the length of a step. So pytest-benchmark sees exactly the times that the ranks
measured, and its table, JSON, histogram and ``compare`` work with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any

import pytest


class ReplayedClock:
    """A clock in seconds that moves only when ``now_s`` is changed."""

    __name__ = "replayed_clock"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK: pytest.StashKey[ReplayedClock] = pytest.StashKey()

CASES: pytest.StashKey[set[str]] = pytest.StashKey()
"""Node ids of the tests that are cases."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = config.stash[CASES] = set[str]()
    for item in items:
        if "bench" in getattr(item, "fixturenames", ()):
            cases.add(item.nodeid)
            item.stash[CLOCK] = clock = ReplayedClock()
            # pytest-benchmark reads only the closest marker, so this marker keeps the options of the test's own one.
            theirs = item.get_closest_marker("benchmark") or pytest.mark.benchmark.mark
            options = {**theirs.kwargs, "timer": clock, "disable_gc": False, "warmup": False}
            item.add_marker(pytest.mark.benchmark.with_args(*theirs.args, **options), append=False)
            # A row without step times (out of memory, a crash) has nothing to pass, and its own report says why.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))


@pytest.fixture
def _step_times(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[list[float]], None]:
    # A test without a clock is no case, and ``bench`` refuses it.
    clock = request.node.stash.get(CLOCK, ReplayedClock())

    def feed(seconds: list[float]) -> None:
        steps = iter(seconds)

        def step() -> None:
            clock.now_s += next(steps, 0.0)  # the profiler of pytest-benchmark calls it once more

        # pytest-benchmark takes one series per test, but a test may measure several cases.
        if benchmark.enabled and benchmark.stats is None:
            benchmark.pedantic(step, rounds=len(seconds), iterations=1)

    return feed


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config) -> Generator[None, Any, Any]:
    """Leave the cases out of pytest-benchmark's table, because the table of this plugin has them.

    With any option of pytest-benchmark, its table shows them too. Its files always have them.
    """
    groups = yield
    given = [*config.invocation_params.args, *config.getini("addopts"), os.environ.get("PYTEST_ADDOPTS", "")]
    if any("--benchmark" in str(word) for word in given):
        return groups
    cases = config.stash.get(CASES, set())
    kept = [(name, [one for one in group if one["fullname"] not in cases]) for name, group in groups]
    return [(name, group) for name, group in kept if group]
