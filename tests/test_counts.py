"""Collectives of a step are counted exactly, whoever starts them, and so are compilations by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ranks import start, train
from torch.profiler import ExecutionTraceObserver

from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.rank import collectives
from pytest_trainbench.schema.record import Trace


def traces(
    folder: Path, builder: str, *, mesh: str = "dp1", way: Callable[..., LaunchResult] = train
) -> tuple[Trace, ...]:
    ended = way(folder, f"counted_steps:{builder}", mesh=mesh, warmup=4, steps=2)
    assert ended.outcome == "ok", f"{ended.reason}\n{ended.detail}"
    return ended.traces


def test_every_communication_operator_of_torch_has_a_row() -> None:
    """These operators take a process group and tensors. The test fails if torch adds an operator that has no row."""
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("c10d::")]
    argued = {schema.name: [str(argument.type) for argument in schema.arguments] for schema in schemas}
    group = "__torch__.torch.classes.c10d.ProcessGroup"
    assert {name for name, types in argued.items() if group in types} == set(collectives.COLLECTIVES)
    for name, (_, handed_in) in collectives.COLLECTIVES.items():
        assert handed_in is None or "Tensor" in argued[name][handed_in]


def test_each_kind_is_counted_with_the_bytes_of_its_inputs(tmp_path: Path) -> None:
    """Counted by hand from ``counted_steps.every_kind``. A tensor of 12 floats has 48 bytes."""
    expected = {
        "all_gather": {"calls": 2.0, "bytes": 48.0 + 48.0},
        "all_reduce": {"calls": 5.0, "bytes": 48.0 + 24.0 + 16.0 + 96.0 + 48.0},
        "all_to_all": {"calls": 1.0, "bytes": 48.0},
        "barrier": {"calls": 1.0, "bytes": 0.0},
        "broadcast": {"calls": 1.0, "bytes": 48.0},
        "recv": {"calls": 1.0, "bytes": 0.0},
        "reduce_scatter": {"calls": 2.0, "bytes": 96.0 + 96.0},
        "send": {"calls": 1.0, "bytes": 48.0},
    }
    assert [one.collectives for one in traces(tmp_path, "every_kind", mesh="dp2")] == [expected, expected]


def test_steps_that_differ_are_counted_over_a_period(tmp_path: Path) -> None:
    """One all_reduce in three steps, whichever step the count starts with."""
    (one,) = traces(tmp_path, "every_third")
    assert one.collectives == {"all_reduce": {"calls": 1 / 3, "bytes": 4.0}}


def test_graph_breaks_and_recompilations_are_counted(tmp_path: Path) -> None:
    """In a fresh process, because the counters belong to the process."""
    (one,) = traces(tmp_path, "compiled", way=start)
    assert one.compilations == {"graph_breaks": 2.0, "recompiles": 2.0}
    (tmp_path / "eager").mkdir()
    (one,) = traces(tmp_path / "eager", "every_third", way=start)
    assert one.compilations == {}, "absent where nothing is compiled"


def test_collectives_are_not_counted_if_another_observer_is_active(tmp_path: Path) -> None:
    ran: list[int] = []
    other = ExecutionTraceObserver().register_callback(str(tmp_path / "other.json"))
    try:
        assert collectives.count_collectives(lambda: ran.append(1), steps=3) is None
    finally:
        other.unregister_callback()
    assert len(ran) == 3
    assert collectives.count_collectives(lambda: ran.append(1), steps=1) == {}


def test_a_failing_step_leaves_no_observer_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        collectives.count_collectives(lambda: 1 / 0, steps=1)
    assert collectives.count_collectives(lambda: None, steps=1) == {}
