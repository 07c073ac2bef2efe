"""The state of the ranks on this machine, from the files in the job's folder and from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_trainbench.launch.fork_server import end_fork_server
from pytest_trainbench.schema.job import FAILURE, LEAVING, PROGRESS, STACKS, TRACE, UNBORN, Job

NEVER_STARTED = """\
it was never started: the fork server was not ready and has been killed
a module of trainbench_preload may hang on import
"""


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def phase(folder: Path, rank: int) -> str:
    path = folder / PROGRESS.format(rank)
    return path.read_text() if size(path) else UNBORN


def kill(folder: Path) -> None:
    """Kill all process groups of ranks: ranks that the agent could not stop, and processes that ranks started."""
    for group in pids(folder):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def pids(folder: Path) -> set[int]:
    """Process ids of the ranks. Each rank leads a process group of its own."""
    found = set()
    for path in folder.glob("pid-*"):
        with contextlib.suppress(OSError, ValueError):
            found.add(int(path.read_text()))
    return found


def ended_in(folder: Path) -> set[int]:
    """Ranks that started and have ended."""
    return _in_state(folder, "ZX")


def frozen_in(folder: Path) -> set[int]:
    """Ranks that a signal has stopped, or that a debugger holds."""
    return _in_state(folder, "Tt")


def _in_state(folder: Path, states: str) -> set[int]:
    """Ranks in one of these states of ``/proc``. A process that is gone is in state ``Z``."""
    found = set()
    for path in folder.glob("pid-*"):
        with contextlib.suppress(OSError, ValueError):  # for example, the file is being written
            if state(int(path.read_text())) in states:
                found.add(int(path.name.removeprefix("pid-")))
    return found


def state(pid: int) -> str:
    """The state of a process in ``/proc``; ``Z`` if it is gone. Raises ``OSError`` if it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
    return stat.rpartition(")")[2].split()[0]


def told(folder: Path, rank: int) -> bool:
    """Whether a rank left a trace, a failure or the stacks of a hang."""
    return any(size(folder / name.format(rank)) for name in (TRACE, FAILURE, STACKS))


@dataclass(frozen=True, kw_only=True)
class LocalRanks:
    """The ``ranks`` of ``job`` on this machine, for a :class:`~pytest_trainbench.launch.watchdog.Watchdog`.

    progress: called with each new phase of the first rank. cut_off: whether ranks of another node have failed.
    """

    job: Job
    ranks: range
    progress: Callable[[str], None]
    cut_off: Callable[[], bool] | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    def phase(self) -> str:
        return phase(self.job.folder, self.ranks[0])

    def show(self, phase: str) -> None:
        with contextlib.suppress(Exception):  # a lost terminal must not stop the watchdog
            self.progress(phase)

    def ended(self) -> set[int]:
        return ended_in(self.job.folder)

    def told(self, rank: int) -> bool:
        return told(self.job.folder, rank)

    def leaving(self) -> bool:
        return all(phase(self.job.folder, rank) == LEAVING for rank in self.ranks)

    def frozen(self) -> set[int]:
        return frozen_in(self.job.folder)

    def cut(self) -> bool:
        return self.cut_off is not None and self.cut_off()

    def kill(self) -> None:
        kill(self.job.folder)

    def stop_agent(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # ranks exist, so the agent's handler is installed

    def give_up(self) -> None:
        for rank in self.ranks:
            stacks = self.job.folder / STACKS.format(rank)
            if not size(stacks) and not size(self.job.folder / TRACE.format(rank)):
                began = (self.job.folder / f"pid-{rank}").exists()
                with contextlib.suppress(OSError):  # for example a full disk
                    stacks.write_text("killed from outside: it did not stop by itself\n" if began else NEVER_STARTED)
        if len(pids(self.job.folder)) < len(self.ranks):
            # The agent waits without a limit for a rank that has not started. A rank without a process id on file
            # cannot be killed alone.
            end_fork_server()
