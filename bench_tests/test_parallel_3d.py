"""3D parallelism: one GPT under every split into tensor, pipeline and data parallelism, by three libraries.

Run a part of it: ``pytest bench_tests -k "megatron and pp2" --hw h200``. ``--grid full`` has splits over two and eight
devices too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench_tests.engines import ENGINES
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware

GLOBAL_BATCH = 4
"""Samples a step: fixed, so that a mesh with fewer replicas gives each more micro-batches."""

WORK = {
    "smoke": {"model": "gpt-tiny", "sequence": 32, "micro_batch": 2},
    "seed": {"model": "gpt-1.3b", "sequence": 1024, "micro_batch": 1},
}


def rows(*meshes: str, schedules: Sequence[str | None] | None = None) -> list[Any]:
    """Engine, schedule and mesh of every row that an engine has on ``meshes``, of ``schedules`` only where given."""
    return [
        pytest.param(engine, schedule, mesh, id="-".join(filter(None, (engine, schedule, mesh))))
        for mesh in meshes
        for engine, row in ENGINES.items()
        for schedule in row.schedules_on(MeshShape.parse(mesh))
        if schedules is None or schedule in schedules
    ]


PUBLISHED = rows("dp4", "dp2-tp2", "tp4", "dp2-pp2", "pp4", "tp2-pp2") + rows("tp4-pp4", schedules=["1f1b"])
"""The published TP × PP on four devices, dp taking what is left; the last of them needs sixteen."""

ROWS = {
    "smoke": rows("tp2", "pp2") + rows("tp2-pp2", "tp4-pp4", schedules=["1f1b"]),
    "seed": {
        "headline": PUBLISHED,
        # Two devices, where no more are, and three dimensions at once.
        "full": PUBLISHED + rows("dp2", "tp2", "pp2") + rows("dp2-tp2-pp2", schedules=["1f1b"]),
        "published": PUBLISHED,
    },
}


@pytest.mark.profiles(**{"engine,schedule,mesh": ROWS})
def test_parallel_3d(
    bench: Callable[..., object],
    engine: str,
    schedule: str | None,
    mesh: MeshShape,
    profile: str,
    plan: Plan | None,
    amp: str,
    hardware: Hardware,
) -> None:
    """Whatever the split, training is that of one unsharded process on the same samples."""
    if reason := ENGINES[engine].missing(hardware.kind, amp):
        pytest.skip(reason)
    bench(
        "bench_tests.steps.parallel:parallel_step",
        mesh=mesh,
        plan=plan,
        reference={"engine": "reference", "schedule": None},
        engine=engine,
        precision=amp,
        global_batch=GLOBAL_BATCH,
        **({} if schedule is None else {"schedule": schedule}),
        **tolerance(engine).options,
        **WORK[profile],
    )
