"""Launches on several nodes, each with its own agent. In these tests all nodes are processes of one machine."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_project import pytest_run, stored
from ranks import TURN, preload
from samples import case, trace

from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.environment import Environment, capture, mismatches
from pytest_trainbench.hardware.resolve import resolve
from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.judge.attribution import unlike
from pytest_trainbench.launch import cluster
from pytest_trainbench.launch.cluster import Leader
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.settings import read

HERE = str(Path(__file__).parent)
KEY = b"a key of the tests, long enough"
PRELOAD = "torch.distributed.device_mesh torch._dynamo torch.utils.flop_counter"


class Session:
    """A lead node and one other node, with one rank each."""

    def __init__(self, folder: Path, *, host: str = "") -> None:
        self.folder = folder
        hardware = resolve("cpu", find("cpu"))
        self.environment = capture(hardware, Path(HERE))
        """The environment of this node."""
        self.lead = Leader(
            nodes=2,
            devices=1,
            port=0,
            hardware=hardware,
            root=Path(HERE),
            preload=PRELOAD,
            path=[HERE],
            secret=KEY,
            host=host,
        )
        self.log = folder / "node.log"
        self.other = other_node(self.lead.address, self.log)
        self.launches = 0

    def job(self, *, ranks: int = 2, limit_s: float = 60.0, **params: object) -> Job:
        self.launches += 1
        return Job(
            case=Case(builder="steps:linear", mesh=MeshShape(dp=ranks), params=params),
            device_kind="cpu",
            folder=self.folder / f"job-{self.launches}",
            limit_s=limit_s,
            collective_limit_s=limit_s / 2,
            plan=Plan(warmup=4, min_steps=10, max_steps=10),
            import_path=(HERE,),
        )

    def run(self, **how: Any) -> LaunchResult:
        preload()
        with TURN:
            return self.lead.launch(self.job(**how), progress=lambda _: None)

    def end(self) -> int:
        """End the session. Return the exit code of the other node."""
        self.lead.close()
        return self.other.wait(30)


def other_node(address: str, log: Path, *options: str) -> subprocess.Popen[str]:
    host, _, port = address.rpartition(":")
    host = host if host.startswith("[") else "localhost"  # the name of this machine may have no address
    command = [sys.executable, "-m", "pytest_trainbench.nodes", f"{host}:{port}", *options]
    environ = {**os.environ, "TRAINBENCH_NODE_KEY": KEY.decode()}
    with log.open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, text=True, stdin=subprocess.DEVNULL, env=environ)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINBENCH_NODE_KEY", KEY.decode())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session(tmp_path_factory.mktemp("nodes"))
    made.lead.gather(made.environment, limit_s=120, progress=lambda _: None)
    yield made
    assert made.end() == 0
    assert made.log.read_text().splitlines()[-1] == "trainbench: the session is over"


def test_ranks_of_two_nodes_train_as_one_launch(session: Session) -> None:
    ended = session.run()
    assert (ended.outcome, ended.reason, [one.node for one in ended.traces]) == ("ok", None, [0, 1])
    first, second = ended.traces
    assert first.digest_before == second.digest_before != first.digest_after == second.digest_after
    one = reduce(ended.traces, peak_tflops=None)
    assert one.outcome == "ok"
    assert {name: len(values) for name, values in one.conditions.items() if name == "waiting"} == {"waiting": 2}


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "rank {} failed while building the step: RuntimeError: planted"),
        ("exit", "rank {} exited with code 3 while building the step"),
        ("kill", "rank {} was killed by SIGKILL while building the step.*"),
    ],
)
def test_the_reason_names_a_failure_on_any_node(session: Session, culprit: int, fault: str, reason: str) -> None:
    ended = session.run(fault=fault, culprit=culprit)
    assert ended.outcome == "crash" and re.fullmatch(reason.format(culprit), str(ended.reason))
    if fault == "raise":
        assert "RuntimeError: planted" in ended.detail and "steps.py" in ended.detail


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_hangs_ends_its_launch_on_both_nodes(session: Session, culprit: int) -> None:
    ended = session.run(fault="hang", culprit=culprit, limit_s=8)
    assert ended.outcome == "timeout"
    assert f"rank {culprit} " in str(ended.reason) and "building the step" in str(ended.reason)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_crash_in_teardown_on_one_node_does_not_delay_the_other(session: Session, culprit: int) -> None:
    """Without ``agents_leave_at_once``, the agent of the other node would wait for 300 s."""
    with TURN:
        began = time.monotonic()
        ended = session.run(fault="fallen teardown", culprit=culprit, limit_s=120)
    assert (ended.outcome, len(ended.traces)) == ("ok", 2)
    assert time.monotonic() - began < 90


def test_a_session_still_works_after_failed_launches(session: Session) -> None:
    assert session.run().outcome == "ok"


def test_a_mesh_larger_than_all_nodes_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="dp3 needs 3 devices, but the session has 2"):
        session.run(ranks=3)


def test_a_case_that_fits_one_node_runs_on_the_first_node(session: Session) -> None:
    ended = session.run(ranks=1)
    assert (ended.outcome, [one.node for one in ended.traces]) == ("ok", [0])
    assert " torchrun --nproc-per-node 1 " in ended.by_hand


def test_the_reason_names_a_lost_node_and_nothing_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOST_S", 3.0)
    session = Session(tmp_path)
    session.lead.gather(session.environment, limit_s=120, progress=lambda _: None)
    assert session.run().outcome == "ok"
    session.other.kill()
    for _ in range(2):
        ended = session.run()
        name = session.lead.names[1]
        assert ended.outcome == "crash"
        assert ended.reason == f"node 1 ({name}) stopped answering; it had rank 1"
    session.lead.close()


def test_a_node_lost_during_a_launch_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOST_S", 3.0)
    session = Session(tmp_path)
    session.lead.gather(session.environment, limit_s=120, progress=lambda _: None)
    began: list[str] = []

    def look(phase: str) -> None:
        if phase.startswith("timing") and not began:
            began.append(phase)
            session.other.kill()

    monkeypatch.setattr(cluster, "run_ranks", slowly(look))
    ended = session.run(slow_ms=200.0, limit_s=120)
    assert (began, ended.outcome) != ([], "ok")
    assert ended.reason == f"node 1 ({session.lead.names[1]}) stopped answering; it had rank 1"
    session.lead.close()


def slowly(look: Callable[[str], None]) -> Callable[..., object]:
    run_ranks = cluster.run_ranks
    return lambda job, *, progress, part: run_ranks(job, progress=look, part=part)


def test_a_killed_session_leaves_no_process_on_other_nodes(tmp_path: Path) -> None:
    """A killed session cannot tell the other nodes that it ends."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import test_nodes\n"
        "if __name__ == '__main__':\n"
        "    session = test_nodes.Session(Path(sys.argv[2]))\n"
        "    session.lead.gather(session.environment, limit_s=120, progress=lambda _: None)\n"
        "    print(session.other.pid, flush=True)\n"
        "    session.lead.launch(session.job(slow_ms=1000.0, limit_s=600), progress=lambda _: None)\n"
    )
    (tmp_path / "leads.py").write_text(script)
    command = [sys.executable, str(tmp_path / "leads.py"), HERE, str(tmp_path)]
    progress = tmp_path / "job-1" / "progress-0"
    with TURN, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leads:
        assert leads.stdout is not None
        other = int(leads.stdout.readline())
        wait_for(lambda: progress.exists() and "timing" in progress.read_text())
        leads.kill()
        leads.wait()
        wait_for(lambda: gone(other))
    assert "is gone" in (tmp_path / "node.log").read_text()


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for(what: Callable[[], object], *, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


# Whole pytest sessions


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def test_a_baseline_of_two_nodes_is_incomparable_with_one_node(project: pytest.Pytester) -> None:
    port = free_port()
    other = other_node(f"localhost:{port}", project.path / "node.log")
    with TURN:
        saved = pytest_run(project, "--nodes", "2", "--node-port", f"{port}", "--devices", "1", "--launches", "1",
                           "--save-baseline")  # fmt: skip
        assert (saved.ret, other.wait(30), len(stored(project))) == (0, 0, 1)
        saved.stdout.fnmatch_lines(["trainbench: 2 nodes of *", "*: 1 of 2 nodes joined; type this on *"])
        alone = pytest_run(project, "--devices", "2", "--launches", "1")
    assert alone.ret == 1
    alone.stdout.fnmatch_lines(["incomparable: mine: *nodes was 2, is 1*"])


def test_a_mesh_must_fill_whole_nodes(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.parametrize("mesh", ["dp2", "dp3", "dp5"], indirect=True)
        def test_mine(mesh):
            pass
    """
    )
    run = pytest_run(project, "--nodes", "2", "--devices", "2", "-rs")
    run.assert_outcomes(passed=1, skipped=2)
    run.stdout.fnmatch_lines_random(["*needs 3 devices, which do not fill whole nodes of 2", "*needs 5 devices, has 4"])


def test_missing_nodes_end_the_run_with_the_command_to_join(project: pytest.Pytester) -> None:
    run = pytest_run(project, "--nodes", "3", "--node-port", f"{free_port()}", "--launch-timeout", "1")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(
        ["ERROR: --nodes 3 cannot be used: 1 of 3 nodes joined within 1 s; type this on each other machine:*"]
    )


def test_a_taken_port_ends_the_run_with_the_reason(project: pytest.Pytester) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = pytest_run(project, "--nodes", "2", "--node-port", f"{port}")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"ERROR: --nodes 2 cannot be used: port {port} is not available: *"])
    run = pytest_run(project, "--nodes", "2", "--node-port", f"{port}", "--node-host", "192.0.2.1")
    run.stderr.fnmatch_lines([f"ERROR: --nodes 2 cannot be used: port {port} of 192.0.2.1 is not available: *"])


def test_a_node_that_finds_no_session_says_so(tmp_path: Path) -> None:
    port = free_port()
    alone = other_node(f"localhost:{port}", tmp_path / "log", "--wait", "1")
    assert alone.wait(60) == 1
    said = (tmp_path / "log").read_text().splitlines()[-1]
    assert said == f"trainbench: no session answered at localhost:{port} within 1 s: start pytest there with --nodes"


def test_a_leaving_node_removes_the_folder_of_its_fork_server() -> None:
    program = """
from multiprocessing.util import get_temp_dir
from pytest_trainbench import nodes
from pytest_trainbench.launch.fork_server import start_fork_server
start_fork_server("")
print(get_temp_dir(), flush=True)
nodes._end("the session is over", code=3)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    folder, said = done.stdout.splitlines()
    assert (said, done.returncode) == ("trainbench: the session is over", 3)
    assert Path(folder).is_absolute() and not Path(folder).exists()


def test_a_node_stopped_while_joining_can_join_again(tmp_path: Path) -> None:
    lead = Leader(
        nodes=2, devices=1, port=0, hardware=resolve("cpu", find("cpu")), root=tmp_path, preload="", path=[], secret=KEY
    )
    port = int(lead.address.rpartition(":")[2])
    stopped = cluster.NodeAgent("localhost", port, secret=KEY, wait_s=30)
    stopped._store._channel._connection.close()
    again = cluster.NodeAgent("localhost", port, secret=KEY, wait_s=30)
    assert (again.join(), again.node) == ("", 1)
    third = cluster.NodeAgent("localhost", port, secret=KEY, wait_s=30)
    assert third.join() == "the session already has its 2 nodes"
    lead.gather(capture(lead.hardware, tmp_path), limit_s=30, progress=lambda _: None)
    assert len(lead.names) == 2


def lead_of(folder: Path, **replaced: Any) -> Leader:
    how: dict[str, Any] = {"nodes": 2, "devices": 1, "port": 0, "preload": "", "path": [], "secret": KEY}
    return Leader(**{**how, "hardware": resolve("cpu", find("cpu")), "root": folder, **replaced})


def test_nodes_have_the_ranks_that_they_ask_for(tmp_path: Path) -> None:
    lead = lead_of(tmp_path, nodes=4)
    port = int(lead.address.rpartition(":")[2])
    agents = [cluster.NodeAgent("localhost", port, secret=KEY, wait_s=30, rank=rank) for rank in (2, None, 2, 4, None)]
    assert [(agent._take_number(), agent.node) for agent in agents] == [
        ("", 2),
        ("", 1),
        ("another node has the node rank 2", 2),
        ("a session of 4 nodes has the node ranks 0 to 3, not 4", 4),
        ("", 3),
    ]
    lead.close()


def test_a_node_with_another_key_starts_nothing_and_is_named(tmp_path: Path) -> None:
    lead, told = lead_of(tmp_path), list[str]()
    port = lead.address.rpartition(":")[2]
    with pytest.MonkeyPatch.context() as environ:
        environ.setattr(f"{__name__}.KEY", b"another key of somebody else")
        other = other_node(f"localhost:{port}", tmp_path / "log")
    assert other.wait(60) == 1
    said = (tmp_path / "log").read_text().splitlines()
    assert said == [
        f"trainbench: localhost:{port} is refused: it closed the connection, so it is no session with this key;"
        " this node's key is in TRAINBENCH_NODE_KEY"
    ]
    with pytest.raises(ValueError, match="1 of 2 nodes joined"):
        lead.gather(capture(lead.hardware, tmp_path), limit_s=0.5, progress=told.append)
    assert any(
        re.fullmatch(r"refused 127.0.0.1 \(port \d+\): it does not have this session's key", one) for one in told
    )
    lead.close()


def test_a_node_refuses_import_paths_outside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (root / "src").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "link").symlink_to(elsewhere)
    path = [str(elsewhere), str(root / "link"), str(root), str(root / "src"), *sys.path]
    assert cluster.own_path(path, root) == (str(root), str(root / "src"))
    monkeypatch.setattr(cluster, "own_path", lambda path, root: path)  # a session that does not keep to it
    lead = lead_of(root, path=[str(root / "link")])
    agent = cluster.NodeAgent("localhost", int(lead.address.rpartition(":")[2]), secret=KEY, wait_s=30)
    before = list(sys.path)
    assert agent.join() == f"the import path {root / 'link'} lies outside the project {root}"
    assert sys.path == before
    lead.close()


def test_a_node_cannot_write_outside_the_folder_of_a_launch(tmp_path: Path) -> None:
    lead = lead_of(tmp_path)
    agent = cluster.NodeAgent("localhost", int(lead.address.rpartition(":")[2]), secret=KEY, wait_s=30)
    job = tmp_path / "job"
    job.mkdir()
    files = ["../escaped", "trace-1.json", "trace-0.json", str(tmp_path / "absolute")]
    for name in files:
        agent._store.set(f"file/1/{name}", "{}")
    left = {
        "exit_codes": {},
        "gone": [],
        "frozen": [],
        "out_of_memory": {},
        "devices": {},
        "problem": "",
        "files": files,
    }
    agent._store.set("left/1/1", json.dumps(left))
    lead._fetch(1, 1, job)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["job", "trace-1.json"]
    lead.close()


def test_nodes_meet_at_an_ipv6_address(tmp_path: Path) -> None:
    session = Session(tmp_path, host="::1")
    assert session.lead.address.startswith("[::1]:")
    session.lead.gather(session.environment, limit_s=120, progress=lambda _: None)
    ended = session.run()
    assert (ended.outcome, ended.reason, [one.node for one in ended.traces]) == ("ok", None, [0, 1])
    assert session.end() == 0


def test_one_command_starts_a_session_on_all_nodes(project: pytest.Pytester) -> None:
    """As under ``srun``: the same command on each node, and the launcher's variables differ."""
    port = free_port()
    command = [sys.executable, "-m", "pytest_trainbench.nodes", "--rdzv-endpoint", f"127.0.0.1:{port}", "--",
               "--hw", "cpu", "--devices", "1", "--launches", "1", "--save-baseline"]  # fmt: skip
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[1-2]"}
    with TURN:
        first, second = (
            subprocess.Popen(
                command,
                cwd=project.path,
                env={**os.environ, **slurm, "SLURM_NODEID": f"{rank}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        )
        said, of_second = first.communicate(timeout=240)[0], second.communicate(timeout=60)[0]
    assert (first.returncode, second.returncode) == (0, 0), said + of_second
    assert "trainbench: 2 nodes of " in said and len(stored(project)) == 1
    assert f"trainbench: node 1 of the session at 127.0.0.1:{port}" in of_second


def test_lead_and_node_both_report_different_hardware(tmp_path: Path) -> None:
    hardware = dataclasses.replace(resolve("cpu", find("cpu")), id="cpu-another-96c")
    lead = Leader(nodes=2, devices=1, port=0, hardware=hardware, root=tmp_path, preload="", path=[], secret=KEY)
    other = other_node(lead.address, tmp_path / "log")
    with pytest.raises(ValueError, match=r"node 1 \(.*\) cannot take part: --hw cpu-another-96c: this machine is cpu-"):
        lead.gather(capture(hardware, tmp_path), limit_s=60, progress=lambda _: None)
    assert other.wait(30) == 1
    assert "this node cannot take part: --hw cpu-another-96c" in (tmp_path / "log").read_text()
    lead.close()


def test_against_does_not_run_on_several_nodes() -> None:
    with pytest.raises(ValueError, match="--against starts both sides on this machine: leave out --nodes"):
        read({"against": "main", "nodes": "2"}, {}, {}, Path())


# Pure functions


def environment(**suspects: str) -> Environment:
    return Environment(must_match={"device": "H200"}, suspects={"torch": "2.13.0", **suspects}, machine="0123abcd")


def test_nodes_must_match_in_packages_and_settings() -> None:
    here = environment(NCCL_SOCKET_IFNAME="eth0", kernel="6.1")
    like = dataclasses.replace(environment(NCCL_SOCKET_IFNAME="eth1", kernel="6.2"), machine="ba987654")
    assert cluster._unlike(here, like, devices=8) == ""
    unlike_this = environment(torch="2.11.0", transformers="5.0", NCCL_ALGO="Ring")
    assert cluster._unlike(environment(), unlike_this, devices=8).split(", ") == [
        "torch is 2.11.0 there and 2.13.0 here",
        "transformers is 5.0 there and not known here",
        "NCCL_ALGO is Ring there and not known here",
    ]
    assert cluster._unlike(environment(commit="a1b2c3+dirty"), environment(commit="a1b2c3"), devices=8) == ""


def test_a_row_on_several_nodes_belongs_to_their_set_of_machines(tmp_path: Path) -> None:
    lead: Any = SimpleNamespace(devices=8, machines=["0123abcd", "ffffffff", "ba987654"], nodes=3)
    lead.nodes_for = lambda mesh: Leader.nodes_for(lead, mesh)
    several = cluster.Cluster(environment=environment(), import_path=(), root=tmp_path, lead=lead)
    one, two, three = (several.environment_of(case(mesh=f"dp{8 * count}")) for count in (1, 2, 3))
    assert one == environment()
    assert two.must_match == three.must_match == {"device": "H200", "devices_a_node": 8}
    assert len({one.machine, two.machine, three.machine}) == 3
    lead.machines[1:] = reversed(lead.machines[1:])
    assert several.environment_of(case(mesh="dp24")) == three, "the nodes come in any order"


@pytest.mark.parametrize(
    ("before", "now", "devices", "differ"),
    [
        (8, 8, 16, []),
        (8, 4, 8, [("nodes", 1, 2)]),
        (8, 4, 4, []),
        (None, 8, 16, [("nodes", 1, 2)]),
        (None, 8, 8, []),
    ],
)
def test_records_compare_only_with_the_same_number_of_nodes(
    before: int | None, now: int | None, devices: int, differ: list[object]
) -> None:
    old, new = (
        dataclasses.replace(environment(), must_match={"device": "H200", **({"devices_a_node": one} if one else {})})
        for one in (before, now)
    )
    assert mismatches(old, new, devices=devices) == differ


def test_a_cause_names_the_disturbed_node() -> None:
    traces = [trace(rank, node=rank // 2, host={"looking_s": 1e-8 * (1 + rank // 2)}) for rank in range(4)]
    now = reduce(traces, peak_tflops=None).conditions
    before = reduce([dataclasses.replace(one, host={"looking_s": 1e-8}) for one in traces], peak_tflops=None).conditions
    assert (now["host_rate"], before["host_rate"]) == ([100.0, 50.0], [100.0, 100.0])
    (cause,) = unlike(now, before)
    assert cause.what.endswith(" on node 1")
