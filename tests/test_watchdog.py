"""The watchdog ends ranks that must not go on, at the right moment. The clock and the ranks are simulated."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import case

from pytest_trainbench.launch.ranks import LocalRanks
from pytest_trainbench.launch.watchdog import (
    CHECK_EVERY_S,
    GRACE_S,
    LINGER_S,
    LOOK_EVERY_S,
    Observed,
    Watchdog,
    watching,
)
from pytest_trainbench.schema.job import Job

LIMIT_S = 60.0


@dataclass
class Pack:
    """Two simulated ranks of one node. ``did`` holds the watchdog's actions, each with its time in seconds."""

    now_s: float = 0.0
    doing: str = "starting"
    over: set[int] = field(default_factory=set)
    wrote: set[int] = field(default_factory=set)
    ice: set[int] = field(default_factory=set)
    go: bool = False
    cut_off: bool = False
    did: list[tuple[str, float]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    checks: int = 0

    def clock(self) -> float:
        return self.now_s

    def __len__(self) -> int:
        return 2

    def phase(self) -> str:
        return self.doing

    def show(self, phase: str) -> None:
        self.shown.append(phase)

    def ended(self) -> set[int]:
        self.checks += 1
        return set(self.over)

    def told(self, rank: int) -> bool:
        return rank in self.wrote

    def leaving(self) -> bool:
        return self.go

    def frozen(self) -> set[int]:
        return set(self.ice)

    def cut(self) -> bool:
        return self.cut_off

    def kill(self) -> None:
        self.did.append(("kill", self.now_s))

    def stop_agent(self) -> None:
        self.did.append(("stop", self.now_s))

    def give_up(self) -> None:
        self.did.append(("give up", self.now_s))

    def first(self, what: str) -> float:
        """The time of the first such action in seconds; infinite if there is none."""
        return next((at for one, at in self.did if one == what), float("inf"))


def until(pack: Pack, watchdog: Watchdog, end_s: float) -> bool:
    """Look ten times a second until ``end_s``. Return whether the watchdog would go on."""
    goes_on = True
    while goes_on and pack.now_s < end_s:
        goes_on = watchdog.look()
        pack.now_s += LOOK_EVERY_S
    return goes_on


@pytest.fixture
def pack() -> Pack:
    return Pack()


@pytest.fixture
def watchdog(pack: Pack) -> Watchdog:
    return Watchdog(pack, limit_s=LIMIT_S, clock=pack.clock)


def test_ranks_that_work_are_left_alone(pack: Pack, watchdog: Watchdog) -> None:
    assert until(pack, watchdog, LIMIT_S) and pack.did == []
    assert watchdog.observed == Observed()


def test_the_limit_begins_when_the_ranks_begin(pack: Pack, watchdog: Watchdog) -> None:
    """Before that, the fork server imports the modules of the preload."""
    until(pack, watchdog, LIMIT_S - 1)
    pack.doing = "opening the device"
    until(pack, watchdog, 2 * LIMIT_S)
    assert pack.did == []
    until(pack, watchdog, 2 * LIMIT_S + GRACE_S + 1)
    assert pack.first("give up") == pytest.approx(2 * LIMIT_S - 1 + GRACE_S, abs=2 * LOOK_EVERY_S)


def test_ranks_that_were_stopped_are_noted_until_a_rank_ends(pack: Pack, watchdog: Watchdog) -> None:
    pack.ice = {1}
    until(pack, watchdog, 1.0)
    pack.ice, pack.over, pack.wrote = set(), {0}, {0}
    until(pack, watchdog, 2.0)
    assert watchdog.observed.frozen == {1}
    assert [what for what, _ in pack.did] == ["kill"]


def test_each_phase_is_shown_once(pack: Pack, watchdog: Watchdog) -> None:
    until(pack, watchdog, 1.0)
    pack.doing = "timing 20 steps"
    until(pack, watchdog, 2.0)
    assert pack.shown == ["starting", "timing 20 steps"]


def test_processes_are_checked_twice_a_second(pack: Pack, watchdog: Watchdog) -> None:
    until(pack, watchdog, 10.0)
    assert pack.checks == pytest.approx(10.0 / CHECK_EVERY_S, abs=4)


def test_ranks_beyond_their_limit_are_given_up_and_killed_repeatedly(pack: Pack, watchdog: Watchdog) -> None:
    assert until(pack, watchdog, LIMIT_S + GRACE_S + 1.0), "some may not have been born yet"
    assert pack.first("give up") == pytest.approx(LIMIT_S + GRACE_S, abs=2 * LOOK_EVERY_S)
    assert pack.first("kill") == pack.first("give up")
    assert len(pack.did) > 10


def test_ranks_that_wrote_their_traces_have_some_time_to_exit(pack: Pack, watchdog: Watchdog) -> None:
    until(pack, watchdog, 20.0)
    pack.go = True
    until(pack, watchdog, 20.0 + LINGER_S + 2.0)
    assert pack.first("kill") == pytest.approx(20.0 + LINGER_S, abs=CHECK_EVERY_S + 2 * LOOK_EVERY_S)
    assert pack.first("give up") == pack.first("stop") == float("inf")


def test_a_rank_that_exits_without_a_message_ends_the_launch(pack: Pack, watchdog: Watchdog) -> None:
    """To the agent, a rank that exits with 0 has not failed. It only has not returned yet."""
    until(pack, watchdog, 5.0)
    pack.over = {1}
    assert not until(pack, watchdog, LIMIT_S)
    assert watchdog.observed == Observed(gone={1}, stopped=True)
    assert [what for what, _ in pack.did] == ["kill", "stop"]
    assert pack.first("stop") == pytest.approx(5.0 + GRACE_S, abs=CHECK_EVERY_S + 2 * LOOK_EVERY_S)


def test_a_rank_that_left_a_message_is_left_to_the_agent(pack: Pack, watchdog: Watchdog) -> None:
    pack.over, pack.wrote = {1}, {1}
    assert until(pack, watchdog, LIMIT_S) and watchdog.observed == Observed()


def test_only_the_first_ranks_to_end_count(pack: Pack, watchdog: Watchdog) -> None:
    """If one of them failed, the agent may have stopped the others meanwhile."""
    pack.over, pack.wrote = {1}, {1}
    until(pack, watchdog, 2.0)
    pack.over = {0, 1}
    until(pack, watchdog, 4.0)
    assert watchdog.observed.gone == set()


def test_an_agent_that_misses_the_end_of_all_ranks_is_stopped(pack: Pack, watchdog: Watchdog) -> None:
    pack.over, pack.wrote = {0, 1}, {0, 1}
    assert not until(pack, watchdog, LIMIT_S)
    assert watchdog.observed == Observed(stopped=True)


def test_ranks_that_fell_before_the_cut_off_are_known(pack: Pack, watchdog: Watchdog) -> None:
    """Another rank of its node may end seconds later. Meanwhile another node may miss the first one."""
    pack.over, pack.cut_off = {0}, True
    until(pack, watchdog, 1.0)
    pack.over = {0, 1}
    until(pack, watchdog, 3.0)
    seen = watchdog.observed
    assert (seen.cut, seen.gone, seen.ended) == (True, {0}, {0})
    assert len(pack.did) > 10 and {what for what, _ in pack.did} == {"kill"}
    by_signal = SimpleNamespace(exitcode=-signal.SIGKILL)
    assert [seen.ours(0, by_signal), seen.ours(1, by_signal)] == [False, True]
    assert not seen.ours(1, SimpleNamespace(exitcode=3))


def test_ranks_that_end_after_the_cut_off_are_not_counted_as_gone(pack: Pack, watchdog: Watchdog) -> None:
    pack.cut_off = True
    until(pack, watchdog, 1.0)
    pack.over = {1}
    until(pack, watchdog, 3.0)
    assert (watchdog.observed.gone, watchdog.observed.ended) == (set(), set())


def test_a_thread_looks_until_the_block_ends(pack: Pack) -> None:
    pack.now_s = 1.0
    watchdog = Watchdog(pack, limit_s=LIMIT_S, clock=pack.clock)
    with watching(watchdog):
        while not pack.checks:
            pass
    looked = pack.checks
    pack.now_s = 100.0
    time.sleep(3 * LOOK_EVERY_S)
    assert pack.checks == looked


def test_the_limit_holds_if_progress_cannot_be_reported(tmp_path: Path) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    job = Job(case=case(), device_kind="cpu", folder=tmp_path, limit_s=0.2, collective_limit_s=0.1)
    ranks = LocalRanks(job=job, ranks=range(2), progress=gone)
    assert Watchdog(ranks, limit_s=job.limit_s).look(), "and does not raise"
