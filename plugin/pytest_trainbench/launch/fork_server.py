"""Start and end the fork server: ranks are forked from it with the heavy libraries already in memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.util import get_temp_dir
from pathlib import Path

from pytest_trainbench.launch.private import fork_server_pid
from pytest_trainbench.rank import host_counters

SOCKETS_VARIABLE = "TRAINBENCH_SOCKETS"
"""The variable that tells the fork server the folder of its socket, so that it removes the folder if this process is
killed."""

PRELOAD_VARIABLE = "TRAINBENCH_PRELOAD"
"""The variable that tells the fork server which modules to import."""


def start_fork_server(modules: str) -> None:
    """Start to import ``modules`` (space-separated) in the fork server, before the first launch needs them."""
    import multiprocessing.forkserver as server

    multiprocessing.set_forkserver_preload(["pytest_trainbench.launch.preload"])
    told = {PRELOAD_VARIABLE: modules, SOCKETS_VARIABLE: get_temp_dir()}
    os.environ.update(told)
    try:
        server.ensure_running()
    finally:
        for name in told:
            del os.environ[name]


def end_fork_server() -> None:
    """Kill the fork server and its children. The next launch starts a new server, which preloads nothing."""
    pid = fork_server_pid()
    for one in reversed(host_counters.family(Path("/"), pid)) if pid is not None else ():
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)
