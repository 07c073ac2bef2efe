"""Launches on several machines. One session leads; a process on each other machine starts the ranks of its node.

    pytest bench_tests --nodes 2                       # on the first machine, which has ranks 0 to N-1
    python -m pytest_trainbench.nodes FIRST:29600      # on each other machine

The nodes exchange texts through one store of the session: the task of a node, whether the node is ready, whether the
launch is cut short, and the files of the node's ranks. Every message carries proof of the session's key
(:mod:`pytest_trainbench.launch.keyed_store`), because a task starts processes. The elastic agents, and so the ranks,
meet in a separate ``TCPStore`` for each launch, so a failed launch leaves nothing behind. That store, gloo and NCCL are
torch's. They know no key, so they need a private network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import shutil
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.environment import Environment, capture, differences, digest, fact, mismatches
from pytest_trainbench.hardware.resolve import Hardware, resolve
from pytest_trainbench.launch.fork_server import start_fork_server
from pytest_trainbench.launch.keyed_store import KeyedClient, KeyedServer, listen
from pytest_trainbench.launch.launcher import Part, launch, run_ranks
from pytest_trainbench.launch.result import LOG, LOG_LINES, LaunchResult, NodeResult, collect, log_of
from pytest_trainbench.launch.watchdog import GRACE_S
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import FILES, JOB, TRACE, Job
from pytest_trainbench.schema.mesh import MeshShape

COMMAND = "pytest_trainbench.nodes"
"""The module that runs on each other node."""

LOST_S = 60.0
"""A node without a heartbeat for this long is lost. Nodes send a heartbeat every half second."""

TURN_S = 0.1
"""Time between two polls of the store."""

MOST_BYTES = 8 * 2**20
"""Maximum size of one file of a rank."""

MAY_DIFFER = {"machine", "kernel", "NCCL_IB_HCA", "NCCL_TOPO_FILE"}
"""Facts of the environment that may differ between nodes, besides variables that name network interfaces."""


class NodeLost(Exception):
    """A node stopped answering."""


class Leader:
    """The session's side of a cluster. It opens before any launch, so that the other nodes find it."""

    def __init__(
        self,
        *,
        nodes: int,
        devices: int,
        port: int,
        hardware: Hardware,
        root: Path,
        preload: str,
        path: Sequence[str],
        secret: bytes,
        host: str = "",
    ) -> None:
        """``devices``: number of ranks that each node starts. ``secret``: the key that all nodes share. ``host``: the
        address of this machine to listen on; empty for all of its addresses.

        Raises ``ValueError`` if the address or the port is not available.
        """
        self.nodes, self.devices, self.hardware = nodes, devices, hardware
        self.root, self.host = root, host
        self.names = [socket.gethostname()]
        self.machines: list[str] = []
        self.refused: list[str] = []
        """A sentence for each connection that did not have the session's key."""
        self._launches = 0
        self._heard: dict[int, tuple[str, float]] = {}
        session = {
            "plugin": version("pytest-trainbench"),
            "hardware": hardware.id,
            "nodes": nodes,
            "devices": devices,
            "root": str(root),
            "folder": str(Path.cwd()),
            "preload": preload,
            "path": list(own_path(path, root)),
        }
        try:
            self._store = KeyedServer(
                host, port, secret=secret, texts={"session": json.dumps(session)}, refused=self.refused.append
            )
        except OSError as error:
            at = f"port {port} of {host}" if host else f"port {port}"
            raise ValueError(f"{at} is not available: {error.strerror or error}") from None
        self.address = endpoint(host or self.names[0], self._store.port)

    def gather(
        self, here: Environment, *, limit_s: float, progress: Callable[[str], None], key: str = "the same key"
    ) -> None:
        """Wait until all nodes have joined. ``here``: the environment of this node. ``key``: where its key is.

        Raises ``ValueError`` if a node does not join within ``limit_s``, or differs from this node.
        """
        until, told = time.monotonic() + limit_s, 0
        come = f"type this on each other machine: {Path(sys.executable).name} -m {COMMAND} {self.address}"
        come += f" (it needs the key in {key})"
        self.machines = [here.machine]
        for node in range(1, self.nodes):
            progress(f"{node} of {self.nodes} nodes joined; {come}")
            while not self._store.check(f"node/{node}"):
                for sentence in self.refused[told : told + 1]:
                    told += 1
                    progress(sentence)
                if time.monotonic() > until:
                    raise ValueError(f"{node} of {self.nodes} nodes joined within {limit_s:g} s; {come}")
                time.sleep(TURN_S)
            there = json.loads(self._store.get(f"node/{node}"))
            name = f"node {node} ({there['name']})"
            if there["problem"]:
                raise ValueError(f"{name} cannot take part: {there['problem']}")
            found = Environment.from_json(there["environment"])
            if unlike := _unlike(here, found, devices=self.devices):
                raise ValueError(f"{name} differs from this node: {unlike}; make them the same")
            if self.hardware.uuids and found.machine in self.machines:
                raise ValueError(f"{name} is the same machine as node {self.machines.index(found.machine)}")
            self.names.append(there["name"])
            self.machines.append(found.machine)

    def nodes_for(self, mesh: MeshShape) -> int:
        """Number of nodes of a mesh. Raises ``ValueError`` if the mesh does not fill whole nodes, or needs too many."""
        nodes = mesh.nodes(self.devices)
        if nodes > self.nodes:
            raise ValueError(f"{mesh} needs {mesh.world_size} devices, but the session has {self.nodes * self.devices}")
        return nodes

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
        """Run a job on as many nodes as it needs; this node is the first.

        Arguments and result are those of :func:`pytest_trainbench.launch.launcher.launch`.
        """
        others = range(1, self.nodes_for(job.case.mesh))
        if not others:
            return launch(job, progress=progress)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._launches += 1
        mine = self._launches
        meeting = _meeting(self.host)  # the store lives until all nodes have finished
        there = json.loads(job.write().read_text()) | {"import_path": own_path(job.import_path, self.root)}
        task = {"job": there, "nodes": others.stop, "port": meeting.port}
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
                endpoint=endpoint(self.host or "localhost", meeting.port),
                cut=lambda: self._store.check(f"cut/{mine}") or any(map(self._silent, others)),
            )
            left = [run_ranks(job, progress=progress, part=part)]
            if _failed(job, left[0], part.ranks):
                self._store.set(f"cut/{mine}", "")
            for node in others:
                self._wait(f"left/{mine}/{node}", node, 2 * job.limit_s + 2 * GRACE_S)  # its preload may take as long
                left.append(self._fetch(mine, node, job.folder))
        except NodeLost as lost:
            return LaunchResult(outcome="crash", reason=str(lost))
        finally:
            self._store.set(f"cut/{mine}", "")
        return collect(job, _together(left, self.devices))

    def close(self) -> None:
        """Tell the other nodes that the session is over.

        This waits up to 2 s for their answers, because the store ends with this process.
        """
        self._store.set("over", "")
        until = time.monotonic() + 2.0
        for node in range(1, len(self.names)):
            while not self._store.check(f"bye/{node}") and time.monotonic() < until:
                time.sleep(TURN_S)
        self._store.close()

    def _wait(self, key: str, node: int, limit_s: float) -> None:
        """Wait for a key of a node. Raises :class:`NodeLost` if the node does not answer."""
        until = time.monotonic() + limit_s
        while not self._store.check(key):
            if self._silent(node) or time.monotonic() > until:
                first = node * self.devices
                ranks = f"ranks {first} to {first + self.devices - 1}" if self.devices > 1 else f"rank {first}"
                raise NodeLost(f"node {node} ({self.names[node]}) stopped answering; it had {ranks}")
            time.sleep(TURN_S)

    def _silent(self, node: int) -> bool:
        key = f"beat/{node}"
        beat = self._store.get(key) if self._store.check(key) else ""
        last, heard = self._heard.get(node, (None, 0.0))
        if beat != last:
            self._heard[node] = beat, time.monotonic()
            return False
        return time.monotonic() - heard > LOST_S

    def _fetch(self, mine: int, node: int, folder: Path) -> NodeResult:
        left = json.loads(self._store.get(f"left/{mine}/{node}"))
        ranks = range(node * self.devices, (node + 1) * self.devices)
        known = {name.format(rank) for name in (*FILES, LOG) for rank in ranks}
        for name in left.pop("files"):
            key = f"file/{mine}/{name}"
            if name in known:  # a node's name for a file must not lead out of the folder
                (folder / name).write_text(self._store.get(key), encoding="utf-8")
            self._store.delete(key)
        by_rank = {
            name: {int(rank): value for rank, value in left.pop(name).items()}
            for name in ("exit_codes", "out_of_memory")
        }
        return NodeResult(**{**left, **by_rank, "gone": set(left["gone"]), "frozen": set(left["frozen"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """All nodes together, as one side of a :class:`pytest_trainbench.runner.Runner`.

    ``environment``: the environment of this node.
    """

    environment: Environment
    import_path: tuple[str, ...]
    root: Path
    lead: Leader
    name: str = ""

    def environment_of(self, case: Case) -> Environment:
        """The environment of a case. On several nodes, the machine's id is a digest of all of their ids."""
        nodes = self.lead.nodes_for(case.mesh)
        if nodes == 1:
            return self.environment
        machines = self.lead.machines[:nodes]
        return dataclasses.replace(
            self.environment,
            must_match={**self.environment.must_match, "devices_a_node": self.lead.devices},
            machine=digest(machines) if all(machines) else "",
        )

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
        return self.lead.launch(job, progress=progress)


def endpoint(host: str, port: int) -> str:
    """``HOST:PORT``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_path(path: Sequence[str], root: Path) -> tuple[str, ...]:
    """The entries of an import path that belong to the project at ``root``.

    Another node gets only these. Its own interpreter has the libraries.
    """
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    return tuple(
        entry for entry in path if _inside(entry, root) and not any(_inside(entry, folder) for folder in libraries)
    )


def _inside(entry: str, folder: Path) -> bool:
    return Path(entry).resolve().is_relative_to(folder.resolve())


def _meeting(host: str) -> Any:
    """A ``TCPStore`` on a free port, in which the elastic agents of one launch meet. ``host``: the address to listen
    on; empty for all addresses."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listening = listen(host, 0)
    port = listening.getsockname()[1]
    # With multi_tenant, the elastic agent of this process shares the store. The store closes the descriptor.
    return TCPStore(
        host or "localhost",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        multi_tenant=True,
        master_listen_fd=listening.detach(),
    )


def _unlike(here: Environment, there: Environment, *, devices: int) -> str:
    """The differences that forbid two nodes in one session; empty if there are none."""
    differ = mismatches(here, there, devices=devices)
    for name, mine, theirs in differences(here, there):
        # Baselines that a session saved change the working tree of the first node (+dirty).
        same_commit = name == "commit" and str(mine).partition("+")[0] == str(theirs).partition("+")[0]
        if not (name in MAY_DIFFER or name.endswith("_IFNAME") or same_commit):
            differ.append((name, mine, theirs))
    return ", ".join(f"{name} is {fact(theirs)} there and {fact(mine)} here" for name, mine, theirs in differ)


def _failed(job: Job, left: NodeResult, ranks: Sequence[int]) -> bool:
    """Whether these ranks failed. The ranks of other nodes would wait for them, and must be ended."""
    return bool(left.problem) or not all((job.folder / TRACE.format(rank)).exists() for rank in ranks)


def _together(left: Sequence[NodeResult], devices: int) -> NodeResult:
    """The results of all nodes as one, node 0 first.

    A condition is kept if all nodes know it, for ``devices`` devices of each node.
    """
    known = set.intersection(*(set(one.devices) for one in left))
    return NodeResult(
        exit_codes={rank: code for one in left for rank, code in one.exit_codes.items()},
        gone={rank for one in left for rank in one.gone},
        frozen={rank for one in left for rank in one.frozen},
        out_of_memory={rank: killed for one in left for rank, killed in one.out_of_memory.items()},
        devices={name: [value for one in left for value in one.devices[name][:devices]] for name in sorted(known)},
        # The first node only knows that another node is missing; the other node knows why.
        problem=next((one.problem for one in reversed(left) if one.problem), ""),
    )


# The other nodes


class NodeAgent:
    """The side of another node in a cluster. It takes part in one session until the session ends."""

    def __init__(self, host: str, port: int, *, secret: bytes, wait_s: float, rank: int | None = None) -> None:
        """``rank``: the number of this node, from 1; ``None`` for the next free number.

        Raises :class:`~pytest_trainbench.launch.keyed_store.Gone` if no session answers within ``wait_s``, and
        :class:`~pytest_trainbench.launch.keyed_store.WrongKey` if it has another key.
        """
        self.host, self.port = host, port
        self.node = 0
        self._secret, self._rank = secret, rank
        self._store = KeyedClient(host, port, secret=secret, wait_s=wait_s)
        self.session: Mapping[str, Any] = json.loads(self._store.get("session"))
        self._uuids: tuple[str, ...] = ()
        self._task = 0
        self._cut = -1
        """The last task that the session or another node cut short."""
        self._heard = time.monotonic()

    def join(self) -> str:
        """Tell the session about this node. Returns why the node cannot take part, or an empty text."""
        problem, environment = "", None
        try:
            environment = self._prepare().to_json()
        except Exception as error:  # the session must hear of any error
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if taken := self._take_number():
            return taken
        about = {"name": platform.node(), "problem": problem, "environment": environment}
        self._store.set(f"node/{self.node}", json.dumps(about))
        threading.Thread(target=self._beat, name="trainbench-beat", daemon=True).start()
        return problem

    def _take_number(self) -> str:
        """Take this node's number. Returns why there is none, or an empty text."""
        nodes = self.session["nodes"]
        if self._rank is not None:
            self.node = self._rank
            if not 0 < self._rank < nodes:
                return f"a session of {nodes} nodes has the node ranks 0 to {nodes - 1}, not {self._rank}"
            if self._store.add(f"taken/{self._rank}", 1) > 1:
                return f"another node has the node rank {self._rank}"
            return ""
        for self.node in range(1, nodes):
            if self._store.add(f"taken/{self.node}", 1) == 1:
                return ""
        return f"the session already has its {nodes} nodes"

    def _prepare(self) -> Environment:
        """Prepare this node like the session's node. Raises an exception if the node cannot take part."""
        session, mine = self.session, version("pytest-trainbench")
        if mine != session["plugin"]:
            raise ValueError(f"it has pytest-trainbench {mine}, but the session has {session['plugin']}")
        self._check_path(session["path"])
        os.chdir(session["folder"])
        sys.path[:0] = [entry for entry in session["path"] if entry not in sys.path]
        hardware = resolve(session["hardware"], find(session["hardware"]))
        if hardware.kind != "cpu" and hardware.count < session["devices"]:
            raise ValueError(f"it has {hardware.count} devices, but the session uses {session['devices']} per node")
        start_fork_server(session["preload"])
        self._uuids = hardware.uuids
        return capture(hardware, Path(session["root"]))

    def _check_path(self, path: Sequence[str]) -> None:
        """Raise ``ValueError`` if an entry lies outside the session's project."""
        if strange := [entry for entry in path if not _inside(entry, Path(self.session["root"]))]:
            raise ValueError(f"the import path {strange[0]} lies outside the project {self.session['root']}")

    def follow(self, folder: Path) -> None:
        """Run tasks until the session is over.

        Raises :class:`~pytest_trainbench.launch.keyed_store.Gone` if the session disappears.
        """
        while True:
            self._task += 1
            task = f"task/{self._task}/{self.node}"
            while not self._store.check(task):
                if self._store.check("over"):
                    self._store.set(f"bye/{self.node}", "")
                    return
                time.sleep(TURN_S)
            found = json.loads(self._store.get(task))
            # A task that is already cut came while the session counted this node as lost.
            if found and not self._store.check(f"cut/{self._task}"):
                # The folder's name is also the id by which the agents meet.
                # Without leading dots, the name cannot lead out of the folder.
                mine = folder / re.sub(r"^\W+", "", Path(found["job"]["folder"]).name)
                mine.mkdir()
                self._take_part(found, mine)
                shutil.rmtree(mine, ignore_errors=True)

    def _take_part(self, task: Mapping[str, Any], folder: Path) -> None:
        devices, number = self.session["devices"], self._task
        ranks = range(self.node * devices, (self.node + 1) * devices)
        files: dict[str, str] = {}
        try:
            self._check_path(task["job"]["import_path"])
            (folder / JOB).write_text(json.dumps(task["job"]), encoding="utf-8")
            job = dataclasses.replace(Job.read(folder / JOB), folder=folder, device_uuids=self._uuids)
            part = Part(
                node=self.node,
                nodes=task["nodes"],
                ranks=ranks,
                endpoint=endpoint(self.host, task["port"]),
                cut=lambda: self._cut == number or time.monotonic() - self._heard > LOST_S,
            )
            self._store.set(f"ready/{number}/{self.node}", "")
            left = run_ranks(job, part=part)
            if _failed(job, left, ranks):
                self._store.set(f"cut/{number}", "")
            files = _files(job, ranks)
        except Exception as error:  # for example a full disk; the next launch may work
            left = NodeResult(problem=f"node {self.node} ({platform.node()}): {type(error).__name__}: {error}")
            self._store.set(f"cut/{number}", "")
        for name, text in files.items():
            self._store.set(f"file/{number}/{name}", text)
        facts = {**vars(left), "gone": sorted(left.gone), "frozen": sorted(left.frozen), "files": list(files)}
        self._store.set(f"left/{number}/{self.node}", json.dumps(facts))

    def _beat(self) -> None:
        """Send heartbeats, and look whether the current task is cut short.

        This runs in a thread with a connection of its own, because calls hang if the session's host disappears.
        """
        with contextlib.suppress(OSError, RuntimeError):  # the session is gone, or the interpreter is ending
            store = KeyedClient(self.host, self.port, secret=self._secret)
            while True:
                store.set(f"beat/{self.node}", str(time.monotonic()))
                task = self._task
                if store.check(f"cut/{task}"):
                    self._cut = task
                self._heard = time.monotonic()
                time.sleep(0.5)
        self._heard = -math.inf


def _files(job: Job, ranks: Sequence[int]) -> dict[str, str]:
    """The files of this node's ranks, and the ends of their logs. Raises ``ValueError`` if a file is too large."""
    found: dict[str, str] = {}
    for local, rank in enumerate(ranks):
        paths = [path for name in FILES if (path := job.folder / name.format(rank)).exists()]
        found |= {path.name: path.read_text(errors="replace") for path in paths}
        found[LOG.format(rank)] = "\n".join(log_of(job, local)[-LOG_LINES:])
    if large := [name for name, text in found.items() if len(text.encode()) > MOST_BYTES]:
        raise ValueError(f"{large[0]} has more than {MOST_BYTES:,} bytes, so it cannot be sent")
    return found
