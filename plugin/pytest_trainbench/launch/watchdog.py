"""Ends ranks that outlive their limit, that another node has cut off, or that are done and do not end by themselves.

:class:`Watchdog` decides; its clock and everything that it sees and does are injected. :func:`watching` lets a thread
look.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

GRACE_S = 10.0
"""How long after its limit a launch may still take to report what hung before its ranks are killed from outside."""

LINGER_S = 5.0
"""How long the ranks, once all have written their traces, may take to end by themselves. A process group that cannot be
taken down would keep them for good, and so would a thread or a process that a step left running."""

LOOK_EVERY_S = 0.1
"""From one look to the next."""

CHECK_EVERY_S = 0.5
"""From one check of the processes to the next. A check costs 0.3 ms of a core that may be busy, and a rank that lost a
peer waits for 1 s."""


class Ranks(Protocol):
    """What a watchdog sees of the ranks on this machine, and what it can do."""

    def __len__(self) -> int: ...

    def phase(self) -> str:
        """What the first of them does."""

    def show(self, phase: str) -> None:
        """Tell whoever waits."""

    def ended(self) -> set[int]:
        """Ranks that were there and are no more."""

    def told(self, rank: int) -> bool:
        """Whether a rank left anything: what it measured, or why it could not."""

    def leaving(self) -> bool:
        """Whether all of them have written their traces."""

    def cut(self) -> bool:
        """Whether ranks of another node have failed, so that these would wait for them in vain."""

    def kill(self) -> None:
        """End all that are there. Some may not have been born yet."""

    def stop_agent(self) -> None:
        """Ask the agent to give up."""

    def give_up(self) -> None:
        """Write down, for those that left nothing, that they did not finish; and see to it that no more are born."""


@dataclass(kw_only=True)
class Observed:
    """What a watchdog saw of a launch.

    gone: the ranks that ended first, before anybody could stop them, if they left nothing. stopped: whether the agent
    had to be stopped. cut: whether the ranks were ended for those of another node. ended: the ranks that had ended
    before that.
    """

    gone: set[int] = field(default_factory=set)
    stopped: bool = False
    cut: bool = False
    ended: set[int] = field(default_factory=set)

    def ours(self, rank: int, failure: Any) -> bool:
        """Whether a rank failed because it was killed for those of another node."""
        return self.cut and rank not in self.ended and failure.exitcode == -signal.SIGKILL


class Watchdog:
    """Decides, look by look, what is to be done to the ranks of one launch.

    ``limit_s``: of the launch. Its ranks report by themselves what hung then, and have :data:`GRACE_S` more for that.
    ``clock``: seconds that only grow.
    """

    def __init__(self, ranks: Ranks, *, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ranks = ranks
        self.observed = Observed()
        self._clock = clock
        self._shown, self._all_there = "", True
        self._check_at = -math.inf
        self._kill_from = clock() + limit_s + GRACE_S
        """When the launch has outlived its limit."""
        self._leave_by = math.inf
        """When ranks that have written their traces must be gone."""
        self._stop_at = math.inf
        """When the agent is stopped: for what a rank that ended with 0 was to return, it waits without a limit."""

    def look(self) -> bool:
        """Do what is due now. Returns whether there is more to come."""
        now = self._clock()
        if (phase := self.ranks.phase()) != self._shown:
            self._shown = phase
            self.ranks.show(phase)
        if now >= self._check_at:
            self._check_at = now + CHECK_EVERY_S
            self._check(now)
        if now > self._stop_at:
            self.ranks.kill()
            self.observed.stopped = True
            self.ranks.stop_agent()
            return False
        overdue = now > self._kill_from
        if overdue:
            self.ranks.give_up()
        if overdue or self.observed.cut or now > self._leave_by:
            self.ranks.kill()  # again at each look
        return True

    def _check(self, now: float) -> None:
        """Look at the processes."""
        seen, ended = self.observed, self.ranks.ended()
        if ended and self._all_there and not seen.cut:
            self._all_there = False
            # Where one of them failed, the agent may have stopped the others meanwhile.
            seen.gone = set() if any(map(self.ranks.told, ended)) else ended
        if not seen.cut and self.ranks.cut():
            seen.cut, seen.ended = True, ended
        # From outside: what holds a rank up may hold its interpreter, too.
        if self._leave_by == math.inf and self.ranks.leaving():
            self._leave_by = now + LINGER_S
        if self._stop_at == math.inf and (seen.gone or len(ended) == len(self.ranks)):
            self._stop_at = now + GRACE_S


@contextlib.contextmanager
def watching(watchdog: Watchdog) -> Iterator[None]:
    """A thread looks until the end of the block, or until the watchdog has nothing more to do."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY_S) and watchdog.look():
            pass

    thread = threading.Thread(target=watch, name="trainbench-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
