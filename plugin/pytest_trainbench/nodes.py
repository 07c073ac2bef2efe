"""One more node of a session on several machines: ``python -m pytest_trainbench.nodes HOST:PORT``."""

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

from pytest_trainbench.launch.cluster import COMMAND, Follower
from pytest_trainbench.launch.launcher import end_fork_server
from pytest_trainbench.settings import port_number

WAIT_S = 600.0
"""How long a node waits for a session to begin."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Take part in one session, from its beginning to its end."""
    from torch.distributed import DistError

    parser = argparse.ArgumentParser(prog=f"python -m {COMMAND}", description="One more node of a benchmark session.")
    parser.add_argument("session", metavar="HOST:PORT", help="where `pytest --nodes N` runs; its --node-port")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, metavar="SECONDS", help="for the session to begin (default: %(default)g)"
    )
    given = parser.parse_args(arguments)
    host, _, port = given.session.rpartition(":")
    try:
        number = port_number(port)
    except ValueError:
        host = ""
    if not host:
        parser.error(f"{given.session!r} is no HOST:PORT, such as node-0:29600")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does: leaves no files
    try:
        node = Follower(host, number, wait_s=given.wait)
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
    """Not a plain exit: the thread that says that this node is there may be in the middle of it. So what ``atexit``
    would see to is left to this: the folder of the fork server's socket."""
    print(f"trainbench: {words}", flush=True)
    end_fork_server()
    shutil.rmtree(get_temp_dir(), ignore_errors=True)
    os._exit(code)


if __name__ == "__main__":
    main()
