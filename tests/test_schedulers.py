"""A node finds its place from its launcher's variables, or from torchrun's names on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_trainbench import nodes
from pytest_trainbench.schedulers import LAUNCHERS, Place, first_host, place, split_endpoint


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, Place()),
        (
            {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[003-004]"},
            Place(nodes=2, rank=1, host="gpu003"),
        ),
        (
            {"PET_NNODES": "3", "PET_NODE_RANK": "0", "PET_RDZV_ENDPOINT": "[fd00::1]:29500"},
            Place(nodes=3, rank=0, host="fd00::1", port=29500),
        ),
        (
            {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "first", "SLURM_NODEID": "0"},
            Place(nodes=2, rank=1, host="first"),
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, Place(rank=3, host="bench-0.bench.default.svc.cluster.local")),
        (
            {
                "AWS_BATCH_JOB_NUM_NODES": "2",
                "AWS_BATCH_JOB_NODE_INDEX": "1",
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
                "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.5",
            },
            Place(nodes=2, rank=1, host="10.0.0.5"),
        ),
        (
            {
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NODE_RANK": "1",
                "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
            },
            Place(nodes=2, rank=1, host="10.0.0.5"),
        ),
    ],
)
def test_each_launchers_variables_give_the_place(environ: dict[str, str], found: Place) -> None:
    assert place(environ, "bench-3.bench.default.svc.cluster.local") == found


def test_the_main_node_of_aws_batch_is_first_wherever_it_is() -> None:
    ranks = [
        place(
            {
                "AWS_BATCH_JOB_NUM_NODES": "4",
                "AWS_BATCH_JOB_NODE_INDEX": f"{at}",
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2",
            },
            "",
        ).rank
        for at in range(4)
    ]
    assert ranks == [1, 2, 0, 3]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_is_no_number_is_refused_with_its_variable(launcher: str) -> None:
    variable = LAUNCHERS[launcher].rank
    with pytest.raises(ValueError, match=f"{variable}=-1 of {launcher} must be a whole number"):
        place({variable: "-1"}, "")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("", ""),
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[003-007,010],cpu1", "gpu003"),
        ("gpu[5,7]", "gpu5"),
        ("r[1-2]n[03-04]-ib,x", "r1n03-ib"),
    ],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("first:29600", ("first", 29600)),
        ("first", ("first", None)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:29600", ("::1", 29600)),
        ("[::1]", ("::1", None)),
        ("fe80::1", ("fe80::1", None)),
        (":29600", ("", 29600)),
        ("", ("", None)),
    ],
)
def test_an_endpoint_may_have_an_ipv6_address(text: str, parts: tuple[str, int | None]) -> None:
    assert split_endpoint(text) == parts


@pytest.mark.parametrize("text", ["first:0", "first:65536", "first:x", "first:", "[::1]:x"])
def test_an_endpoint_with_an_impossible_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must end with a port, 1 to 65535"):
        split_endpoint(text)


# The command


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command became: pytest's command, or the session that it joins."""
    for one in LAUNCHERS.values():
        monkeypatch.delenv(one.rank, raising=False)
    found: dict[str, Any] = {}

    def end(**became: Any) -> None:
        found.update(became)
        raise SystemExit(0)

    monkeypatch.setattr(nodes, "_become_pytest", lambda command: end(pytest=list(command)[3:]))
    monkeypatch.setattr(nodes, "_join", lambda host, port, **how: end(host=host, port=port, rank=how["rank"]))
    return found


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        nodes.main(arguments)
    assert end.value.code == 0


def test_the_first_node_becomes_pytest(ended: dict[str, Any]) -> None:
    call("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "first:1234", "--", "bench_tests", "-k", "zero")
    assert ended == {"pytest": ["bench_tests", "-k", "zero", "--nodes", "2", "--node-port", "1234"]}


@pytest.mark.parametrize(("typed", "address"), [("10.0.0.1:9", "10.0.0.1"), ("[fd00::1]:9", "fd00::1")])
def test_the_first_node_listens_on_a_typed_address_alone(ended: dict[str, Any], typed: str, address: str) -> None:
    call("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", typed, "--", "bench_tests")
    assert ended["pytest"][-2:] == ["--node-host", address]


def test_the_other_nodes_join_with_their_ranks(ended: dict[str, Any]) -> None:
    call("--nnodes", "3", "--node-rank", "2", "--rdzv-endpoint", "[fd00::1]:1234", "--", "bench_tests")
    assert ended == {"host": "fd00::1", "port": 1234, "rank": 2}


def test_one_command_serves_all_nodes_of_slurm(ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    slurm: Mapping[str, str] = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[3-4]"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NODEID", "0")
    call("--", "bench_tests")
    assert ended["pytest"] == ["bench_tests", "--nodes", "2", "--node-port", "29600"]
    monkeypatch.setenv("SLURM_NODEID", "1")
    call("--", "bench_tests")
    assert (ended["host"], ended["port"], ended["rank"]) == ("gpu3", 29600, 1)


def test_host_and_port_alone_join_under_any_launcher(ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "0")
    call("first:29600")
    assert ended == {"host": "first", "port": 29600, "rank": None}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--node-rank", "0", "--nnodes", "2"], "the first node runs pytest: give its arguments after --"),
        (["--node-rank", "0", "--", "bench_tests"], "the number of nodes is not known: type --nnodes N"),
        (["--node-rank", "1"], "the first node is not known: type its HOST:PORT"),
        ([":29600"], "':29600' is not HOST:PORT"),
        (["first:70000"], "'first:70000' must end with a port"),
        (["--nnodes", "1", "--node-rank", "0"], "has 2 nodes or more, not 1"),
        (["--node-rank", "-1", "first:1"], "--node-rank must be 0 or more"),
    ],
)
def test_what_is_missing_is_named(
    ended: dict[str, Any], capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit) as end:
        nodes.main(arguments)
    assert end.value.code == 2 and problem in capsys.readouterr().err
