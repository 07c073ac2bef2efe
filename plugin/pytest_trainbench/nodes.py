"""Launches on several machines: one session leads, and on each other machine a process starts the ranks of its node.

    pytest bench_tests --nodes 2                       # on the first, which has ranks 0 to N-1
    python -m pytest_trainbench.nodes FIRST:29400      # on each of the others

All of it goes through one ``TCPStore`` of the session's, texts under keys: a task for a node, whether it is ready,
whether the launch is cut short, and what its ranks left. The agents, and so the ranks, meet in a store of each launch's
own, which a launch that failed leaves nothing in. As with torchrun, whoever reaches the port may start processes: it is
for a network of one's own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from pytest_trainbench.detect import find
from pytest_trainbench.environment import Environment, capture, differences, mismatches
from pytest_trainbench.hardware import Hardware, HardwareNotFound, resolve
from pytest_trainbench.launch import (
    GRACE_S,
    LOG,
    LOG_LINES,
    Ended,
    Left,
    Part,
    collect,
    launch,
    log_of,
    run_ranks,
    start_fork_server,
)
from pytest_trainbench.worker import JOB, Job

LOST_S = 60.0
"""How long a node that says nothing is waited for. It says every second that it is there."""

WAIT_S = 600.0
"""How long a node waits for a session to begin."""

TURN_S = 0.05
"""Between two looks for an answer."""

FILES = ("trace-{}.json", "failure-{}.json", "hang-{}.txt", "progress-{}")
"""What a rank may leave."""

MAY_DIFFER = {"machine", "kernel"}
"""Of nodes of one session, besides variables of the environment, which name a node's own interfaces, say."""


class Lost(Exception):
    """A node, or the session, does not answer any more."""


class Lead:
    """The session's end: opened before anything runs, so that the others find it, and closed when all is done."""

    def __init__(
        self, *, nodes: int, devices: int, port: int, hardware: Hardware, root: Path, preload: str, path: Sequence[str]
    ) -> None:
        """``devices``: ranks that each node starts. Raises ``ValueError`` where the port cannot be had."""
        from torch.distributed import DistError

        self.nodes, self.devices, self.hardware = nodes, devices, hardware
        self.names = [socket.gethostname()]
        self._launches = 0
        self._heard: dict[int, tuple[bytes, float]] = {}
        try:
            self._store = _store("localhost", port, leads=True)
        except DistError as error:
            raise ValueError(f"port {port} cannot be had: {str(error).splitlines()[0]}") from None
        self.address = f"{self.names[0]}:{self._store.port}"
        session = {
            "plugin": version("pytest-trainbench"),
            "hardware": hardware.id,
            "nodes": nodes,
            "devices": devices,
            "root": str(root),
            "preload": preload,
            "path": list(path),
        }
        self._store.set("session", json.dumps(session))

    def gather(self, environment: Environment, *, limit_s: float, progress: Callable[[str], None]) -> Environment:
        """``environment`` of this node, and of the session's other ones, as soon as they are all here.

        Raises ``ValueError`` where they do not come, and where one is not as this one is.
        """
        until = time.monotonic() + limit_s
        come = f"type this on the others: {Path(sys.executable).name} -m {__name__} {self.address}"
        machines = []
        for node in range(1, self.nodes):
            progress(f"waiting for node {node} of {self.nodes - 1} others; {come}")
            while not self._store.check([f"node/{node}"]):
                if time.monotonic() > until:
                    raise ValueError(f"{node} of {self.nodes} nodes came within {limit_s:g} s; {come}")
                time.sleep(TURN_S)
            there = json.loads(self._store.get(f"node/{node}"))
            name = f"node {node} ({there['name']})"
            if there["problem"]:
                raise ValueError(f"{name} cannot take part: {there['problem']}")
            found = Environment.from_json(there["environment"])
            if unlike := _unlike(environment, found, devices=self.devices):
                raise ValueError(f"{name} is not as this one is: {unlike}; make them alike")
            self.names.append(there["name"])
            machines.append(found.machine)
        return dataclasses.replace(
            environment,
            must_match={**environment.must_match, "devices_a_node": self.devices},
            suspects={**environment.suspects, "other_nodes": " ".join(sorted(machines))},
        )

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> Ended:
        """As :func:`pytest_trainbench.launch.launch`, on as many nodes as the job needs, the first being this one."""
        world_size = job.case.mesh.world_size
        if world_size <= self.devices:
            return launch(job, progress=progress)
        job.folder.mkdir(parents=True, exist_ok=True)
        others = range(1, world_size // self.devices)
        self._launches += 1
        mine = f"{self._launches}"
        meeting = _store("localhost", 0, leads=True)
        task = {"job": json.loads(job.write().read_text()), "nodes": len(others) + 1, "port": meeting.port}
        for node in others:
            self._store.set(f"task/{mine}/{node}", json.dumps(task))
        for node in range(others.stop, self.nodes):
            self._store.set(f"task/{mine}/{node}", json.dumps(None))
        began = time.monotonic()
        try:
            progress("waiting for the other nodes")
            for node in others:
                self._wait(f"ready/{mine}/{node}", node, began + job.limit_s)
            part = Part(
                node=0,
                nodes=len(others) + 1,
                ranks=range(self.devices),
                endpoint=f"localhost:{meeting.port}",
                cut=lambda: self._store.check([f"cut/{mine}"]) or any(map(self._silent, others)),
            )
            here = run_ranks(job, progress=progress, part=part)
            if _failed(job, here, part.ranks):
                self._store.set(f"cut/{mine}", "")
            left = [here]
            for node in others:
                self._wait(f"left/{mine}/{node}", node, began + job.limit_s + 2 * GRACE_S + LOST_S)
                left.append(self._fetch(mine, node, job.folder))
        except Lost as lost:
            return Ended(outcome="crash", reason=str(lost))
        finally:
            self._store.set(f"cut/{mine}", "")
        return collect(job, _together(left, self.devices))

    def close(self) -> None:
        self._store.set("over", "")
        time.sleep(2 * TURN_S)  # the others look that often, and hear it as long as this process keeps the store

    def _wait(self, key: str, node: int, until: float) -> None:
        """Raises :class:`Lost` where the node does not answer."""
        while not self._store.check([key]):
            if self._silent(node) or time.monotonic() > until:
                first = node * self.devices
                ranks = f"ranks {first} to {first + self.devices - 1}" if self.devices > 1 else f"rank {first}"
                raise Lost(f"node {node} ({self.names[node]}) does not answer any more; it had {ranks}")
            time.sleep(TURN_S)

    def _silent(self, node: int) -> bool:
        key = f"beat/{node}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        last, heard = self._heard.get(node, (None, 0.0))
        if beat != last:
            self._heard[node] = beat, time.monotonic()
            return False
        return time.monotonic() - heard > LOST_S

    def _fetch(self, mine: str, node: int, folder: Path) -> Left:
        left = json.loads(self._store.get(f"left/{mine}/{node}"))
        for name in left.pop("files"):
            key = f"file/{mine}/{name}"
            (folder / name).write_bytes(self._store.get(key))
            self._store.delete_key(key)
        codes = {int(rank): code for rank, code in left.pop("exit_codes").items()}
        return Left(**{**left, "gone": set(left["gone"])}, exit_codes=codes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """This node and the others: one side of a :class:`pytest_trainbench.runner.Runner`."""

    environment: Environment
    import_path: tuple[str, ...]
    lead: Lead
    name: str = ""

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> Ended:
        return self.lead.launch(job, progress=progress)


def _unlike(here: Environment, there: Environment, *, devices: int) -> str:
    """What keeps two nodes from being taken for two of the same."""
    differ = [
        (name, mine, theirs)
        for name, mine, theirs in differences(here, there)
        if name not in MAY_DIFFER and not name.isupper()
    ]
    found = [*mismatches(here, there, devices=devices), *differ]
    return ", ".join(f"{name} {theirs} there, {mine} here" for name, mine, theirs in found)


def _failed(job: Job, left: Left, ranks: Sequence[int]) -> bool:
    """Whether the others, which would wait for these ranks, may go."""
    return bool(left.problem) or not all((job.folder / FILES[0].format(rank)).exists() for rank in ranks)


def _together(left: Sequence[Left], devices: int) -> Left:
    """Of all nodes, the first being 0; conditions are of as many devices each, where all know them."""
    known = set.intersection(*(set(one.devices) for one in left))
    killed = [one.out_of_memory for one in left]
    return Left(
        exit_codes={rank: code for one in left for rank, code in one.exit_codes.items()},
        gone={rank for one in left for rank in one.gone},
        out_of_memory=True if True in killed else None if None in killed else False,
        devices={name: [value for one in left for value in one.devices[name][:devices]] for name in sorted(known)},
        problem=next((one.problem for one in left if one.problem), ""),
    )


def _store(host: str, port: int, *, leads: bool = False, wait_s: float = 60.0) -> Any:
    """Texts by key, that all nodes share. Raises ``torch.distributed.DistError`` where it is not found within
    ``wait_s``, and where the port of one that ``leads`` (0: any that is free) cannot be had."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # multi_tenant: an agent in the process of the one that leads takes that for its own.
    limit = timedelta(seconds=wait_s)
    return TCPStore(host, port, is_master=leads, wait_for_workers=False, timeout=limit, multi_tenant=leads)


# The other nodes


class Follower:
    """A node's end: takes part in one session, from its beginning to its end."""

    def __init__(self, host: str, port: int, *, wait_s: float) -> None:
        """Raises ``DistError`` where there is no session within ``wait_s``."""
        self.host, self.port = host, port
        self._store = _store(host, port, wait_s=wait_s)
        self.session: Mapping[str, Any] = json.loads(self._store.get("session"))
        self.node = self._store.add("nodes", 1)
        self._uuids: tuple[str, ...] = ()

    def join(self) -> str:
        """Say what this node is; why it cannot take part, or nothing."""
        session, problem, environment = self.session, "", None
        try:
            problem = self._unfit()
            sys.path[:0] = [entry for entry in session["path"] if entry not in sys.path]
            start_fork_server(session["preload"])
            hardware = resolve(session["hardware"], find(session["hardware"]))
            if hardware.kind != "cpu" and hardware.count < session["devices"]:
                problem = problem or f"it has {hardware.count} devices, and {session['devices']} a node are asked for"
            self._uuids = hardware.uuids
            environment = capture(hardware, Path(session["root"])).to_json()
        except HardwareNotFound as error:
            problem = problem or str(error)
        about = {"name": platform.node(), "problem": problem, "environment": environment}
        self._store.set(f"node/{self.node}", json.dumps(about))
        threading.Thread(target=self._beat, name="trainbench-beat", daemon=True).start()
        return problem

    def _unfit(self) -> str:
        mine = version("pytest-trainbench")
        if self.node >= self.session["nodes"]:
            return f"the session has its {self.session['nodes']} nodes already"
        if mine != self.session["plugin"]:
            return f"it has pytest-trainbench {mine}, and the session {self.session['plugin']}"
        return ""

    def follow(self, folder: Path) -> None:
        """Do what comes until the session is over. Raises ``DistError`` where it is gone without a word."""
        number = 1
        while True:
            task = f"task/{number}/{self.node}"
            while not self._store.check([task]):
                if self._store.check(["over"]):
                    return
                time.sleep(TURN_S)
            if found := json.loads(self._store.get(task)):
                # The agents know each other by it, too.
                self._take_part(number, found, folder / Path(found["job"]["folder"]).name)
            number += 1

    def _take_part(self, number: int, task: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir()
        (folder / JOB).write_text(json.dumps(task["job"]), encoding="utf-8")
        job = dataclasses.replace(Job.read(folder / JOB), folder=folder, device_uuids=self._uuids)
        first = self.node * self.session["devices"]
        part = Part(
            node=self.node,
            nodes=task["nodes"],
            ranks=range(first, first + self.session["devices"]),
            endpoint=f"{self.host}:{task['port']}",
            cut=lambda: self._cut(number),
        )
        self._store.set(f"ready/{number}/{self.node}", "")
        left = run_ranks(job, part=part)
        if _failed(job, left, part.ranks):
            self._store.set(f"cut/{number}", "")
        names = []
        for local, rank in enumerate(part.ranks):
            log = "\n".join(log_of(job, local)[-LOG_LINES:])
            (folder / LOG.format(rank)).write_text(log, encoding="utf-8")
            for name in (*(name.format(rank) for name in FILES), LOG.format(rank)):
                if (folder / name).exists():
                    self._store.set(f"file/{number}/{name}", (folder / name).read_text(errors="replace"))
                    names.append(name)
        facts = {**vars(left), "gone": sorted(left.gone), "files": names}
        self._store.set(f"left/{number}/{self.node}", json.dumps(facts))

    def _cut(self, number: int) -> bool:
        try:
            return bool(self._store.check([f"cut/{number}"]))
        except RuntimeError:  # the session is gone
            return True

    def _beat(self) -> None:
        """By a connection of its own: others may wait on theirs."""
        with contextlib.suppress(RuntimeError):
            store = _store(self.host, self.port)
            while True:
                store.set(f"beat/{self.node}", str(time.monotonic()))
                time.sleep(1.0)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The process: see the top of this module."""
    from torch.distributed import DistError

    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description="One more node of a benchmark session.")
    parser.add_argument("session", metavar="HOST:PORT", help="where `pytest --nodes N` runs; its --node-port")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, metavar="SECONDS", help="for the session to begin (default: %(default)g)"
    )
    given = parser.parse_args(arguments)
    host, _, port = given.session.rpartition(":")
    if not host or not port.isdecimal():
        parser.error(f"{given.session!r} is no HOST:PORT, such as node-0:29400")
    try:
        node = Follower(host, int(port), wait_s=given.wait)
    except DistError:
        sys.exit(f"no session answered at {given.session} within {given.wait:g} s: start pytest there with --nodes")
    print(f"trainbench: node {node.node} of the session at {given.session}", flush=True)
    if problem := node.join():
        sys.exit(f"trainbench: this node cannot take part: {problem}")
    with tempfile.TemporaryDirectory(prefix="trainbench-") as folder:
        try:
            node.follow(Path(folder))
        except DistError as error:
            sys.exit(f"trainbench: the session at {given.session} is gone: {str(error).splitlines()[0]}")
    print("trainbench: the session is over", flush=True)
    # Not a plain exit: the thread that says that this node is there may be in the middle of it.
    os._exit(0)


if __name__ == "__main__":
    main()
