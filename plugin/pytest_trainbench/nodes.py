"""Add a node to a session on several machines: ``python -m pytest_trainbench.nodes HOST:PORT``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NoReturn

from pytest_trainbench.launch.cluster import COMMAND, NodeAgent
from pytest_trainbench.launch.fork_server import end_fork_server
from pytest_trainbench.settings import port_number

WAIT_S = 600.0
"""Default of ``--wait``: how long a node waits for a session to begin."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Take part in one session until it ends."""
    from torch.distributed import DistError

    parser = argparse.ArgumentParser(prog=f"python -m {COMMAND}", description="Add a node to a benchmark session.")
    parser.add_argument("session", metavar="HOST:PORT", help="host and --node-port of `pytest --nodes N`")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, metavar="SECONDS", help="how long to wait for it (default: %(default)g)"
    )
    given = parser.parse_args(arguments)
    host, _, port = given.session.rpartition(":")
    try:
        number = port_number(port)
    except ValueError:
        host = ""
    if not host:
        parser.error(f"{given.session!r} is not HOST:PORT, for example node-0:29600")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does, so that no files are left
    try:
        node = NodeAgent(host, number, wait_s=given.wait)
    except DistError:
        _end(f"no session answered at {given.session} within {given.wait:g} s: start pytest there with --nodes", code=1)
    if problem := node.join():
        _end(f"this node cannot take part: {problem}", code=1)
    print(f"trainbench: node {node.node} of the session at {given.session}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="trainbench-") as folder:
            node.follow(Path(folder))
    except DistError as error:
        _end(f"the session at {given.session} is gone: {str(error).splitlines()[0]}", code=1)
    _end("the session is over", code=0)


def _end(words: str, *, code: int) -> NoReturn:
    """Print ``words`` and end the process without a plain exit, because the heartbeat thread may still be running.

    ``os._exit`` skips ``atexit``, so this function deletes the folder of the fork server's socket itself.
    """
    print(f"trainbench: {words}", flush=True)
    end_fork_server()
    shutil.rmtree(get_temp_dir(), ignore_errors=True)
    os._exit(code)


if __name__ == "__main__":
    main()
