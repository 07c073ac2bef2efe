"""Take part in a session on several machines: ``python -m pytest_trainbench.nodes HOST:PORT``.

One command for all nodes starts pytest on the first node, and adds each other node to its session:

    python -m pytest_trainbench.nodes --nnodes 2 --node-rank 1 --rdzv-endpoint first:29600 -- bench_tests --hw h200

The names are those of torchrun. What they leave out comes from the launcher's variables
(:mod:`pytest_trainbench.schedulers`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import NoReturn

from pytest_trainbench.launch import node_key
from pytest_trainbench.launch.cluster import COMMAND, NodeAgent, endpoint
from pytest_trainbench.launch.fork_server import end_fork_server
from pytest_trainbench.launch.keyed_store import Gone, WrongKey
from pytest_trainbench.schedulers import Place, place, split_endpoint
from pytest_trainbench.settings import OPTIONS

WAIT_S = 600.0
"""Default of ``--wait``: how long a node waits for a session to begin."""

KEY_EVERY_S = 0.5
"""Time between two looks for the key. On machines with a shared home folder, the first node makes it."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Take part in one session until it ends, or become pytest on the first node."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = words.index("--") if "--" in words else len(words)
    parser = _parser()
    given = parser.parse_args(words[:at])
    try:
        here = _here(given, place(os.environ, socket.getfqdn()))
    except ValueError as error:
        parser.error(str(error))
    if here.rank == 0:
        if at == len(words):
            parser.error(
                "the first node runs pytest: give its arguments after --, for example -- bench_tests --hw h200"
            )
        if here.nodes is None:
            parser.error("the number of nodes is not known: type --nnodes N")
        _become_pytest(pytest_command(here, words[at + 1 :], bind=_bind(given.rdzv_endpoint or given.session)))
    if not here.host:
        parser.error("the first node is not known: type its HOST:PORT, for example node-0:29600")
    assert here.port is not None
    _join(here.host, here.port, rank=here.rank, wait_s=given.wait)


def pytest_command(here: Place, arguments: Sequence[str], *, bind: str) -> list[str]:
    """The command of the first node's session. ``bind``: the address to listen on; empty for all addresses."""
    ours = ["--nodes", str(here.nodes), "--node-port", str(here.port)]
    return [sys.executable, "-m", "pytest", *arguments, *ours, *(["--node-host", bind] if bind else [])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {COMMAND}",
        description="Add a node to a benchmark session. On the first node, run pytest with the arguments after --.",
    )
    parser.add_argument("session", nargs="?", metavar="HOST:PORT", help="host and --node-port of `pytest --nodes N`")
    parser.add_argument("--nnodes", type=int, metavar="N", help="number of nodes")
    parser.add_argument("--node-rank", type=int, metavar="R", help="number of this node; the first one is 0")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="the same as HOST:PORT")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, metavar="SECONDS", help="how long to wait for it (default: %(default)g)"
    )
    return parser


def _here(given: argparse.Namespace, told: Place) -> Place:
    """This node's place: what the command line says, else what the launcher's variables say. Raises ``ValueError`` for
    values that cannot be used."""
    typed = given.rdzv_endpoint or given.session
    host, port = split_endpoint(typed) if typed else (told.host, told.port)
    if typed and not host:
        raise ValueError(f"{typed!r} is not HOST:PORT, for example node-0:29600")
    nodes = told.nodes if given.nnodes is None else given.nnodes
    # HOST:PORT alone adds a node, as it does under any launcher.
    rank = given.node_rank if given.node_rank is not None else None if given.session else told.rank
    if nodes is not None and nodes < 2:
        raise ValueError(f"a session on several machines has 2 nodes or more, not {nodes}: run pytest alone")
    if rank is not None and rank < 0:
        raise ValueError(f"--node-rank must be 0 or more, not {rank}")
    return Place(nodes=nodes, rank=rank, host=host, port=port or OPTIONS["node_port"].default)


def _bind(typed: str | None) -> str:
    """The typed endpoint's address, for the first node to listen on. A name is no address: many machines resolve their
    own name to 127.0.1.1, which no other machine reaches."""
    host, _ = split_endpoint(typed or "")
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return host
    return ""


def _become_pytest(command: Sequence[str]) -> NoReturn:
    os.execv(command[0], list(command))


def _join(host: str, port: int, *, rank: int | None, wait_s: float) -> NoReturn:
    session = endpoint(host, port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does, so that no files are left
    until = time.monotonic() + wait_s
    try:
        secret = _key(os.environ, until)
        node = NodeAgent(host, port, secret=secret, rank=rank, wait_s=max(0.0, until - time.monotonic()))
    except ValueError as error:
        _end(str(error), code=1)
    except Gone:
        _end(f"no session answered at {session} within {wait_s:g} s: start pytest there with --nodes", code=1)
    except WrongKey as error:
        _end(f"{session} is refused: {error}; this node's key is in {node_key.where(os.environ)}", code=1)
    if problem := node.join():
        _end(f"this node cannot take part: {problem}", code=1)
    print(f"trainbench: node {node.node} of the session at {session}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="trainbench-") as folder:
            node.follow(Path(folder))
    except (Gone, WrongKey) as error:
        _end(f"the session at {session} is gone: {error}", code=1)
    _end("the session is over", code=0)


def _key(environ: Mapping[str, str], until: float) -> bytes:
    """This node's key. Raises ``ValueError`` if there is none by ``until``, or if it cannot be used."""
    while (secret := node_key.find(environ)) is None:
        if time.monotonic() > until:
            file = node_key.key_file()
            raise ValueError(
                f"this node has no key: copy the first node's file to {file}, or set {node_key.VARIABLE} on every node"
            )
        time.sleep(KEY_EVERY_S)
    return secret


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
