"""The plugin uses private parts of torch and of the standard library. Each test says what breaks without it."""

from __future__ import annotations

import inspect
import multiprocessing.forkserver

import torch

from pytest_trainbench.launch import private as of_launch
from pytest_trainbench.rank import private as of_rank


def test_the_fork_server_can_be_ended() -> None:
    """``_forkserver_pid``: without it a session leaves its fork server behind, with all imported modules."""
    assert hasattr(multiprocessing.forkserver._forkserver, "_forkserver_pid")  # type: ignore[attr-defined]
    pid = of_launch.fork_server_pid()
    assert pid is None or pid > 0


def test_an_agent_need_not_wait_for_agents_of_other_nodes() -> None:
    """``SimpleElasticAgent._exit_barrier``: without it a launch on several nodes waits up to 300 s for a node whose
    ranks failed in their teardown."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    before = vars(SimpleElasticAgent)["_exit_barrier"]
    assert "self._exit_barrier()" in inspect.getsource(SimpleElasticAgent), "a running agent calls it"
    with of_launch.agents_leave_at_once():
        assert vars(SimpleElasticAgent)["_exit_barrier"] is not before
    assert vars(SimpleElasticAgent)["_exit_barrier"] is before


def test_the_device_stays_closed_while_modules_are_preloaded() -> None:
    """``torch.cuda._lazy_init``: without it, a module of ``trainbench_preload`` that opens the device on import makes
    it unusable for every rank."""
    assert "_lazy_init()" in inspect.getsource(torch.cuda.init) and callable(torch.cuda._lazy_init)


def test_the_driver_can_be_asked_about_a_visible_device() -> None:
    """``torch.cuda._get_nvml_device_index``: without it a module that asks for the compute capability on import gets
    the capability of another device."""
    assert list(inspect.signature(torch.cuda._get_nvml_device_index).parameters) == ["device"]


def test_a_device_can_be_kept_busy_for_a_number_of_cycles() -> None:
    """``torch.cuda._sleep``: without it ``--calibrate`` can plant no slowdown on a GPU."""
    assert list(inspect.signature(torch.cuda._sleep).parameters) == ["cycles"]


def test_compilations_and_graph_breaks_are_counted() -> None:
    """``FRAME_COMPILE_COUNTER`` and ``counters``: without them graph breaks and recompilations stay silent."""
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER

    assert hasattr(FRAME_COMPILE_COUNTER, "values")
    assert all(times > 0 for times in of_rank.frame_compilations()) and of_rank.graph_breaks() >= 0
