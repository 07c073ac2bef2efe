"""How launchers tell a process which node it is on: the number of nodes, the node's rank and the first node's host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """One node's place among all nodes. A launcher may leave a fact out.

    nodes: the number of nodes. rank: this node's number, from 0. host: the first node. port: its port.
    """

    nodes: int | None = None
    rank: int | None = None
    host: str = ""
    port: int | None = None


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One launcher's variables. It is in use if ``rank`` is set.

    rank, nodes: names of variables with whole numbers.
    host: the first node's host, from all variables and this machine's full host name; empty if it is not known.
    first: the variable with the rank of the first node, if that may differ from 0.
    """

    rank: str
    nodes: str
    host: Callable[[Mapping[str, str], str], str]
    first: str = ""


LAUNCHERS: dict[str, Launcher] = {
    # torchrun takes its arguments from these variables. Kubeflow's Trainer sets them.
    "torchrun": Launcher(
        rank="PET_NODE_RANK",
        nodes="PET_NNODES",
        host=lambda environ, _: environ.get("PET_RDZV_ENDPOINT") or environ.get("PET_MASTER_ADDR", ""),
    ),
    # torchrun sets these for its processes.
    "a process of torchrun": Launcher(
        rank="GROUP_RANK",
        nodes="GROUP_WORLD_SIZE",
        host=lambda environ, _: environ.get("MASTER_ADDR", ""),
    ),
    "Slurm": Launcher(
        rank="SLURM_NODEID",
        nodes="SLURM_NNODES",
        host=lambda environ, _: first_host(environ.get("SLURM_JOB_NODELIST", "")),
    ),
    "AWS Batch": Launcher(
        rank="AWS_BATCH_JOB_NODE_INDEX",
        nodes="AWS_BATCH_JOB_NUM_NODES",
        host=lambda environ, _: environ.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", ""),
        first="AWS_BATCH_JOB_MAIN_NODE_INDEX",
    ),
    "SkyPilot": Launcher(
        rank="SKYPILOT_NODE_RANK",
        nodes="SKYPILOT_NUM_NODES",
        host=lambda environ, _: next(iter(environ.get("SKYPILOT_NODE_IPS", "").split()), ""),
    ),
    # The number of pods is in no variable. The pods are called JOB-0, JOB-1, … in the subdomain of the job.
    "a Kubernetes Indexed Job": Launcher(
        rank="JOB_COMPLETION_INDEX",
        nodes="",
        host=lambda environ, name: first_pod(name, environ["JOB_COMPLETION_INDEX"]),
    ),
}
"""All known launchers. The first one whose ``rank`` is set counts, because an outer launcher sets its variables too."""


def place(environ: Mapping[str, str], host_name: str) -> Place:
    """This node's place, from the variables of its launcher. ``host_name``: the full name of this machine.

    Raises ``ValueError`` if a variable is not a whole number.
    """
    found = next(((name, one) for name, one in LAUNCHERS.items() if environ.get(one.rank)), None)
    if found is None:
        return Place()
    name, one = found
    rank = _whole(environ, one.rank, name)
    first = _whole(environ, one.first, name) if one.first and environ.get(one.first) else 0
    assert rank is not None and first is not None
    host, port = split_endpoint(one.host(environ, host_name))
    # The first node has rank 0. The nodes before it move up.
    return Place(
        nodes=_whole(environ, one.nodes, name) if one.nodes and environ.get(one.nodes) else None,
        rank=0 if rank == first else rank + (rank < first),
        host=host,
        port=port,
    )


def split_endpoint(text: str) -> tuple[str, int | None]:
    """``HOST:PORT`` or ``HOST`` as its parts. An IPv6 address with a port stands in brackets: ``[::1]:29600``.

    Raises ``ValueError`` for a port that is not 1 to 65535.
    """
    found = re.fullmatch(r"\[(?P<six>[^\]]*)\](?::(?P<six_port>\w*))?|(?P<host>[^:]*)(?::(?P<port>\w*))?", text)
    if found is None:
        return text, None  # an IPv6 address alone
    host, port = found["six"] or found["host"] or "", found["six_port"] or found["port"]
    if port is None:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port, flags=re.ASCII) or not 0 < int(port) < 2**16:
        raise ValueError(f"{text!r} must end with a port, 1 to 65535")
    return host, int(port)


def first_host(nodes: str) -> str:
    """The first host of Slurm's list of nodes: ``gpu[003-007,010],cpu1`` gives ``gpu003``."""
    bracketed = r"(?:[^,\[]|\[[^\]]*\])*"
    found = re.match(bracketed, nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found[0]) if found else ""


def first_pod(host_name: str, index: str) -> str:
    """The host name of pod 0 of an Indexed Job, from another pod's full host name and index: ``job-3.service.…`` gives
    ``job-0.service.…``. Empty if the name does not end with the index."""
    pod, dot, domain = host_name.partition(".")
    stem = pod.removesuffix(f"-{index}")
    return f"{stem}-0{dot}{domain}" if stem != pod else ""


def _whole(environ: Mapping[str, str], variable: str, launcher: str) -> int:
    text = environ.get(variable, "")
    if not re.fullmatch(r"[0-9]{1,9}", text, flags=re.ASCII):
        raise ValueError(f"{variable}={text} of {launcher} must be a whole number")
    return int(text)
