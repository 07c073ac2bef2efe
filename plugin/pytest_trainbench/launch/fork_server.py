"""The process that ranks are forked from, with the heavy libraries in memory already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from pathlib import Path

from pytest_trainbench.launch.private import fork_server_pid
from pytest_trainbench.rank import host_counters

PRELOAD_VARIABLE = "TRAINBENCH_PRELOAD"
"""Tells the fork server what to import: its only way to know."""


def start_fork_server(modules: str) -> None:
    """Start importing ``modules`` (space-separated) in the fork server now, so that the first launch need not wait."""
    import multiprocessing.forkserver as server

    multiprocessing.set_forkserver_preload(["pytest_trainbench.launch.preload"])
    os.environ[PRELOAD_VARIABLE] = modules
    try:
        server.ensure_running()
    finally:
        del os.environ[PRELOAD_VARIABLE]


def end_fork_server() -> None:
    """With what it started. The next launch starts another, which imports nothing ahead of time."""
    pid = fork_server_pid()
    for one in reversed(host_counters.family(Path("/"), pid)) if pid is not None else ():
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)
