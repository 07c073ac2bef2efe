"""End ranks that exceed their limit, that another node has cut off, or that have finished but do not exit.

:class:`Watchdog` decides. Its clock, its observations and its actions are injected. :func:`watching` runs it in a
thread.
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

from pytest_trainbench.schema.job import UNBORN

GRACE_S = 10.0
"""Time after a launch's limit in which ranks report their hang. After that, the watchdog kills them."""

LINGER_S = 5.0
"""How long the ranks may take to exit after all of them have written their traces. A process group that cannot be
destroyed would keep them forever. So would a thread or a process that a step left running."""

LOOK_EVERY_S = 0.1
"""Time between two looks of the watchdog."""

CHECK_EVERY_S = 0.5
"""Time between two checks of the processes. A check takes 0.3 ms of a core that may be busy. A rank that lost a peer
waits for 1 s."""


class Ranks(Protocol):
    """The observations and actions of a watchdog on the ranks of this machine."""

    def __len__(self) -> int: ...

    def phase(self) -> str:
        """The phase of the first rank."""

    def show(self, phase: str) -> None:
        """Show the phase to the user."""

    def ended(self) -> set[int]:
        """Ranks that started and have ended."""

    def told(self, rank: int) -> bool:
        """Whether a rank left a trace, a failure or the stacks of a hang."""

    def leaving(self) -> bool:
        """Whether all ranks have written their traces."""

    def frozen(self) -> set[int]:
        """Ranks that a signal has stopped (SIGSTOP) or that a debugger holds."""

    def cut(self) -> bool:
        """Whether ranks of another node have failed. The ranks here would wait for them in vain."""

    def kill(self) -> None:
        """Kill all ranks that exist. Some ranks may not have started yet."""

    def stop_agent(self) -> None:
        """Ask the agent to stop."""

    def give_up(self) -> None:
        """Record a hang for each rank that left nothing, and let no more ranks start."""


@dataclass(kw_only=True)
class Observed:
    """A watchdog's observations of a launch.

    gone:
        The ranks that ended first, if they left no file.
    stopped:
        Whether the watchdog stopped the agent.
    cut:
        Whether the ranks were ended because ranks of another node failed.
    ended:
        The ranks that had ended before that.
    frozen:
        The ranks that were stopped by a signal at the last check before a rank ended.
    """

    gone: set[int] = field(default_factory=set)
    stopped: bool = False
    cut: bool = False
    ended: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)

    def ours(self, rank: int, failure: Any) -> bool:
        """Whether a rank failed only because the watchdog killed it after a failure on another node."""
        return self.cut and rank not in self.ended and failure.exitcode == -signal.SIGKILL


class Watchdog:
    """Decides at each look what to do with the ranks of one launch.

    ``limit_s``: the limit of the launch. The ranks then report their hang themselves, within :data:`GRACE_S`.
    ``clock``: a monotonic clock in seconds.
    """

    def __init__(self, ranks: Ranks, *, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ranks = ranks
        self.observed = Observed()
        self._clock = clock
        self._shown, self._all_there = "", True
        self._check_at = -math.inf
        self._limit_s = limit_s
        self._kill_from = clock() + limit_s + GRACE_S
        """When ranks are killed, because the launch exceeded its limit. The limit begins anew when the ranks begin.
        Before that, the fork server imports the modules of the preload, which are no part of the launch."""
        self._leave_by = math.inf
        """When ranks that have written their traces must have ended."""
        self._stop_at = math.inf
        """When the agent is stopped. It would wait without a limit for the result of a rank that exited with 0."""

    def look(self) -> bool:
        """Take the actions that are due now. Returns whether the watchdog must look again."""
        now = self._clock()
        if (phase := self.ranks.phase()) != self._shown:
            if self._shown == UNBORN:
                self._kill_from = now + self._limit_s + GRACE_S
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
            self.ranks.kill()  # repeated at each look
        return True

    def _check(self, now: float) -> None:
        """Look at the processes."""
        seen, ended = self.observed, self.ranks.ended()
        if ended and self._all_there and not seen.cut:
            self._all_there = False
            # If one of these ranks left a file, the agent may have stopped the others.
            seen.gone = set() if any(map(self.ranks.told, ended)) else ended
            if seen.frozen:
                self.ranks.kill()  # the agent would ask them to end, and wait for an answer
        if self._all_there:
            seen.frozen = self.ranks.frozen()
        if not seen.cut and self.ranks.cut():
            seen.cut, seen.ended = True, ended
        # The watchdog does this from outside, because a rank that hangs may hold its interpreter lock.
        if self._leave_by == math.inf and self.ranks.leaving():
            self._leave_by = now + LINGER_S
        if self._stop_at == math.inf and (seen.gone or len(ended) == len(self.ranks)):
            self._stop_at = now + GRACE_S


@contextlib.contextmanager
def watching(watchdog: Watchdog) -> Iterator[None]:
    """Run the watchdog in a thread until the end of the block, or until it has nothing more to do."""
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
