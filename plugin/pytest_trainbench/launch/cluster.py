"""Launches on several machines: one session leads, and on each other machine a process starts the ranks of its node.

    pytest bench_tests --nodes 2                       # on the first, which has ranks 0 to N-1
    python -m pytest_trainbench.nodes FIRST:29600      # on each of the others

All of it goes through one ``TCPStore`` of the session's, texts under keys: a task for a node, whether it is ready,
whether the launch is cut short, and what its ranks left. The agents, and so the ranks, meet in a store of each launch's
own, which a launch that failed leaves nothing in. As with torchrun, whoever reaches the port may start processes: it is
for a network of one's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.environment import Environment, capture, differences, digest, mismatches
from pytest_trainbench.hardware.resolve import Hardware, resolve
from pytest_trainbench.judge.verdict import fact
from pytest_trainbench.launch.launcher import (
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
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import FILES, JOB, TRACE, Job
from pytest_trainbench.schema.mesh import MeshShape

COMMAND = "pytest_trainbench.nodes"
"""The module that runs on each of the other nodes."""

LOST_S = 60.0
"""How long a node that says nothing is waited for. It says every second that it is there."""

TURN_S = 0.1
"""Between two looks for an answer."""

MOST_BYTES = 8 * 2**20 - 1024
"""Of one text: a ``TCPStore`` hangs up on whoever sends 8 MiB or more."""

MAY_DIFFER = {"machine", "kernel", "NCCL_IB_HCA", "NCCL_TOPO_FILE"}
"""Of nodes of one session, besides variables that name a node's own network interfaces."""


class Lost(Exception):
    """A node does not answer any more."""


class Lead:
    """The session's end: opened before anything runs, so that the others find it, and closed when all is done."""

    def __init__(
        self, *, nodes: int, devices: int, port: int, hardware: Hardware, root: Path, preload: str, path: Sequence[str]
    ) -> None:
        """``devices``: ranks that each node starts. Raises ``ValueError`` where the port cannot be had."""
        from torch.distributed import DistError

        self.nodes, self.devices, self.hardware = nodes, devices, hardware
        self.names = [socket.gethostname()]
        self.machines: list[str] = []
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
            "folder": str(Path.cwd()),
            "preload": preload,
            "path": list(path),
        }
        self._store.set("session", json.dumps(session))

    def gather(self, here: Environment, *, limit_s: float, progress: Callable[[str], None]) -> None:
        """Wait until all nodes are there. ``here``: the environment of this one.

        Raises ``ValueError`` where they do not come, and where one is not as this one is.
        """
        until = time.monotonic() + limit_s
        come = f"type this on the others: {Path(sys.executable).name} -m {COMMAND} {self.address}"
        self.machines = [here.machine]
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
            if unlike := _unlike(here, found, devices=self.devices):
                raise ValueError(f"{name} is not as this one is: {unlike}; make them alike")
            if self.hardware.uuids and found.machine in self.machines:
                raise ValueError(f"{name} is the machine of node {self.machines.index(found.machine)} once more")
            self.names.append(there["name"])
            self.machines.append(found.machine)

    def nodes_for(self, mesh: MeshShape) -> int:
        """Raises ``ValueError`` for a mesh that does not take whole nodes, or more than there are."""
        nodes = mesh.nodes(self.devices)
        if nodes > self.nodes:
            raise ValueError(f"{mesh} needs {mesh.world_size} devices, and {self.nodes * self.devices} are there")
        return nodes

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> Ended:
        """As :func:`pytest_trainbench.launch.launcher.launch`, on as many nodes as the job needs, the first being this
        one."""
        others = range(1, self.nodes_for(job.case.mesh))
        if not others:
            return launch(job, progress=progress)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._launches += 1
        mine = self._launches
        meeting = _store("localhost", 0, leads=True)  # kept until all have left
        task = {"job": json.loads(job.write().read_text()), "nodes": others.stop, "port": meeting.port}
        for node in range(1, self.nodes):
            self._store.set(f"task/{mine}/{node}", json.dumps(task if node in others else None))
        try:
            progress("waiting for the other nodes")
            for node in others:
                self._wait(f"ready/{mine}/{node}", node, job.limit_s)
            part = Part(
                node=0,
                nodes=others.stop,
                ranks=range(self.devices),
                endpoint=f"localhost:{meeting.port}",
                cut=lambda: self._store.check([f"cut/{mine}"]) or any(map(self._silent, others)),
            )
            left = [run_ranks(job, progress=progress, part=part)]
            if _failed(job, left[0], part.ranks):
                self._store.set(f"cut/{mine}", "")
            for node in others:
                self._wait(f"left/{mine}/{node}", node, job.limit_s + 2 * GRACE_S)
                left.append(self._fetch(mine, node, job.folder))
        except Lost as lost:
            return Ended(outcome="crash", reason=str(lost))
        finally:
            self._store.set(f"cut/{mine}", "")
        return collect(job, _together(left, self.devices))

    def close(self) -> None:
        """Tell the others, who look now and then, and hear it as long as this process keeps the store."""
        self._store.set("over", "")
        until = time.monotonic() + 2.0
        for node in range(1, len(self.names)):
            while not self._store.check([f"bye/{node}"]) and time.monotonic() < until:
                time.sleep(TURN_S)

    def _wait(self, key: str, node: int, limit_s: float) -> None:
        """Raises :class:`Lost` where the node does not answer."""
        until = time.monotonic() + limit_s
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

    def _fetch(self, mine: int, node: int, folder: Path) -> Left:
        left = json.loads(self._store.get(f"left/{mine}/{node}"))
        for name in left.pop("files"):
            key = f"file/{mine}/{name}"
            (folder / name).write_bytes(self._store.get(key))
            self._store.delete_key(key)
        by_rank = {
            name: {int(rank): value for rank, value in left.pop(name).items()}
            for name in ("exit_codes", "out_of_memory")
        }
        return Left(**{**left, **by_rank, "gone": set(left["gone"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """This node, whose ``environment`` it is, and the others: one side of a
    :class:`pytest_trainbench.runner.Runner`."""

    environment: Environment
    import_path: tuple[str, ...]
    root: Path
    lead: Lead
    name: str = ""

    def environment_of(self, case: Case) -> Environment:
        """On several nodes the machine is all of theirs together."""
        nodes = self.lead.nodes_for(case.mesh)
        if nodes == 1:
            return self.environment
        machines = self.lead.machines[:nodes]
        return dataclasses.replace(
            self.environment,
            must_match={**self.environment.must_match, "devices_a_node": self.lead.devices},
            machine=digest(machines) if all(machines) else "",
        )

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> Ended:
        return self.lead.launch(job, progress=progress)


def _store(host: str, port: int, *, leads: bool = False, wait_s: float = 60.0) -> Any:
    """Texts by key, that all nodes share. Raises ``torch.distributed.DistError`` where it is not found within
    ``wait_s``, and where the port of one that ``leads`` (0: any that is free) cannot be had."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # multi_tenant: an agent in the process of the one that leads takes that for its own.
    limit = timedelta(seconds=wait_s)
    return TCPStore(host, port, is_master=leads, wait_for_workers=False, timeout=limit, multi_tenant=leads)


def _unlike(here: Environment, there: Environment, *, devices: int) -> str:
    """What keeps two nodes from being taken for two of the same."""
    differ = mismatches(here, there, devices=devices)
    for name, mine, theirs in differences(here, there):
        # Baselines that a session saved make the first node's working tree differ.
        same_commit = name == "commit" and str(mine).partition("+")[0] == str(theirs).partition("+")[0]
        if not (name in MAY_DIFFER or name.endswith("_IFNAME") or same_commit):
            differ.append((name, mine, theirs))
    return ", ".join(f"{name} is {fact(theirs)} there and {fact(mine)} here" for name, mine, theirs in differ)


def _failed(job: Job, left: Left, ranks: Sequence[int]) -> bool:
    """Whether the others, which would wait for these ranks, may go."""
    return bool(left.problem) or not all((job.folder / TRACE.format(rank)).exists() for rank in ranks)


def _together(left: Sequence[Left], devices: int) -> Left:
    """Of all nodes, the first being 0; conditions are of as many devices each, where all know them."""
    known = set.intersection(*(set(one.devices) for one in left))
    return Left(
        exit_codes={rank: code for one in left for rank, code in one.exit_codes.items()},
        gone={rank for one in left for rank in one.gone},
        out_of_memory={rank: killed for one in left for rank, killed in one.out_of_memory.items()},
        devices={name: [value for one in left for value in one.devices[name][:devices]] for name in sorted(known)},
        # The first node only knows that another did not come; that one knows why.
        problem=next((one.problem for one in reversed(left) if one.problem), ""),
    )


# The other nodes


class Follower:
    """A node's end: takes part in one session, from its beginning to its end."""

    def __init__(self, host: str, port: int, *, wait_s: float) -> None:
        """Raises ``DistError`` where there is no session within ``wait_s``."""
        self.host, self.port = host, port
        self.node = 0
        self._store = _store(host, port, wait_s=wait_s)
        self.session: Mapping[str, Any] = json.loads(self._store.get("session"))
        self._uuids: tuple[str, ...] = ()
        self._task = 0
        self._cut = -1
        """The last task that the session, or another node, has cut short."""
        self._heard = time.monotonic()

    def join(self) -> str:
        """Say what this node is; why it cannot take part, or nothing."""
        problem, environment = "", None
        try:
            environment = self._prepare().to_json()
        except Exception as error:  # whatever it is, the session must hear of it
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        self.node = self._store.add("nodes", 1)
        if self.node >= self.session["nodes"]:
            return f"the session has its {self.session['nodes']} nodes already"
        about = {"name": platform.node(), "problem": problem, "environment": environment}
        self._store.set(f"node/{self.node}", json.dumps(about))
        threading.Thread(target=self._beat, name="trainbench-beat", daemon=True).start()
        return problem

    def _prepare(self) -> Environment:
        """Raises what keeps this node from taking part."""
        session, mine = self.session, version("pytest-trainbench")
        if mine != session["plugin"]:
            raise ValueError(f"it has pytest-trainbench {mine}, and the session {session['plugin']}")
        os.chdir(session["folder"])
        sys.path[:0] = [entry for entry in session["path"] if entry not in sys.path]
        hardware = resolve(session["hardware"], find(session["hardware"]))
        if hardware.kind != "cpu" and hardware.count < session["devices"]:
            raise ValueError(f"it has {hardware.count} devices, and {session['devices']} a node are asked for")
        start_fork_server(session["preload"])
        self._uuids = hardware.uuids
        return capture(hardware, Path(session["root"]))

    def follow(self, folder: Path) -> None:
        """Do what comes until the session is over. Raises ``DistError`` where it is gone without a word."""
        while True:
            self._task += 1
            task = f"task/{self._task}/{self.node}"
            while not self._store.check([task]):
                if self._store.check(["over"]):
                    self._store.set(f"bye/{self.node}", "")
                    return
                time.sleep(TURN_S)
            found = json.loads(self._store.get(task))
            # One that is cut already came while this node was thought to be lost.
            if found and not self._store.check([f"cut/{self._task}"]):
                # The agents know each other by it, too.
                mine = folder / Path(found["job"]["folder"]).name
                mine.mkdir()
                self._take_part(found, mine)
                shutil.rmtree(mine, ignore_errors=True)

    def _take_part(self, task: Mapping[str, Any], folder: Path) -> None:
        devices, number = self.session["devices"], self._task
        ranks = range(self.node * devices, (self.node + 1) * devices)
        files: dict[str, str] = {}
        try:
            (folder / JOB).write_text(json.dumps(task["job"]), encoding="utf-8")
            job = dataclasses.replace(Job.read(folder / JOB), folder=folder, device_uuids=self._uuids)
            part = Part(
                node=self.node,
                nodes=task["nodes"],
                ranks=ranks,
                endpoint=f"{self.host}:{task['port']}",
                cut=lambda: self._cut == number or time.monotonic() - self._heard > LOST_S,
            )
            self._store.set(f"ready/{number}/{self.node}", "")
            left = run_ranks(job, part=part)
            if _failed(job, left, ranks):
                self._store.set(f"cut/{number}", "")
            files = _files(job, ranks)
        except Exception as error:  # of a full disk, say: of the next launch nobody knows
            left = Left(problem=f"node {self.node} ({platform.node()}): {type(error).__name__}: {error}")
            self._store.set(f"cut/{number}", "")
        for name, text in files.items():
            self._store.set(f"file/{number}/{name}", text)
        facts = {**vars(left), "gone": sorted(left.gone), "files": list(files)}
        self._store.set(f"left/{number}/{self.node}", json.dumps(facts))

    def _beat(self) -> None:
        """Say that this node is there, and hear of what is cut: by a connection and in a thread of its own, which a
        session's host that vanished leaves without an answer."""
        with contextlib.suppress(RuntimeError):  # the session is gone, or the interpreter is about to be
            store = _store(self.host, self.port)
            while True:
                store.set(f"beat/{self.node}", str(time.monotonic()))
                task = self._task
                if store.check([f"cut/{task}"]):
                    self._cut = task
                self._heard = time.monotonic()
                time.sleep(0.5)
        self._heard = -math.inf


def _files(job: Job, ranks: Sequence[int]) -> dict[str, str]:
    """What the ranks of this node left, and the ends of their logs. Raises ``ValueError`` for more than can be sent."""
    found: dict[str, str] = {}
    for local, rank in enumerate(ranks):
        paths = [path for name in FILES if (path := job.folder / name.format(rank)).exists()]
        found |= {path.name: path.read_text(errors="replace") for path in paths}
        found[LOG.format(rank)] = "\n".join(log_of(job, local)[-LOG_LINES:])
    if large := [name for name, text in found.items() if len(text.encode()) > MOST_BYTES]:
        raise ValueError(f"{large[0]} has more than {MOST_BYTES:,} bytes and cannot be sent")
    return found
