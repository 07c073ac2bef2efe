"""3D parallelism: one GPT under every split into tensor, pipeline and data parallelism, in three libraries.

Run a part of it: ``pytest bench_tests -k "megatron and pp2" --hw h200``. ``--grid full`` adds splits over two and eight
devices.
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
"""Samples a step. The number is fixed, so a mesh with fewer replicas gives each replica more micro-batches."""

WORK = {
    "smoke": {"model": "gpt-tiny", "sequence": 32, "micro_batch": 2},
    "seed": {"model": "gpt-1.3b", "sequence": 1024, "micro_batch": 1},
}


def rows(*meshes: str, schedules: Sequence[str | None] | None = None) -> list[Any]:
    """Parameters of every row that the engines have on ``meshes``: engine, schedule and mesh.

    ``schedules`` limits the rows to these schedules; ``None`` means all.
    """
    return [
        pytest.param(engine, schedule, mesh, id="-".join(filter(None, (engine, schedule, mesh))))
        for mesh in meshes
        for engine, row in ENGINES.items()
        for schedule in row.schedules_on(MeshShape.parse(mesh))
        if schedules is None or schedule in schedules
    ]


PUBLISHED = rows("dp4", "dp2-tp2", "tp4", "dp2-pp2", "pp4", "tp2-pp2") + rows("tp4-pp4", schedules=["1f1b"])
"""The published TP × PP splits of four devices; data parallelism takes the remaining devices. The last split needs
sixteen devices."""

ROWS = {
    "smoke": rows("tp2", "pp2") + rows("tp2-pp2", "tp4-pp4", schedules=["1f1b"]),
    "seed": {
        "headline": PUBLISHED,
        # Two devices, for smaller machines, and all three kinds of parallelism at once.
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
    """Training under every split matches training in one unsharded process on the same samples."""
    row = ENGINES[engine]
    if reason := row.missing(hardware.kind, amp):
        pytest.skip(reason)
    bench(
        "bench_tests.steps.parallel:parallel_step",
        mesh=mesh,
        plan=plan,
        reference={"engine": row.reference, "schedule": None},
        engine=engine,
        precision=amp,
        global_batch=GLOBAL_BATCH,
        **({} if schedule is None else {"schedule": schedule}),
        **tolerance(engine).options,
        **WORK[profile],
    )
