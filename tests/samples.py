"""Small samples of the objects that modules exchange. Keyword arguments replace the fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Launch, Record, Trace

MIB = 2**20


def case(*, mesh: str = "dp2", builder: str = "suite.sharding:train_step", **params: Any) -> Case:
    return Case(builder=builder, mesh=MeshShape.parse(mesh), params=params or {"strategy": "zero2"})


def capped(one: Record, memory_cap_gb: float = 24.0) -> Record:
    """The same record, measured under a memory cap."""
    return replace(one, case=replace(one.case, memory_cap_gb=memory_cap_gb))


def trace(rank: int = 0, **replaced: Any) -> Trace:
    """The trace of one of two data-parallel ranks: two warm-up steps, then four timed steps of 100 ms."""
    sample: dict[str, Any] = {
        "rank": rank,
        "coordinates": {"dp": rank},
        "node": 0,
        "step_ms": [100.0] * 4,
        "losses": [4.0, 3.0, 2.5, 2.2, 2.0, 1.9],
        "samples": 8,
        "tokens": 8192,
        "flops": 4e12,
        "flops_counted": 2e12,
        "dtype": "bf16",
        "replicated": True,
        "trains": True,
        "devices": 1,
        "digest_before": "before",
        "digest_after": "after",
        "memory": {"peak_allocated_bytes": 700 * MIB, "process_bytes": 900 * MIB},
        "parts": {},
        "collectives": None,
        "compilations": {},
        "energy_j": None,
        "host": {},
        "figures": {},
        "phases_s": {"building": 1.5, "timing": 0.4},
    }
    return Trace(**{**sample, **replaced})


def launch(step_ms: float = 100.0, *, conditions: Mapping[str, list[float]] | None = None, **metrics: float) -> Launch:
    """A successful launch with ``metrics`` besides its step time, under these ``conditions``."""
    return Launch(
        step_ms=[step_ms + 10, step_ms, step_ms],
        steady_from=1,
        losses=[4.0, 3.0, 2.0],
        metrics={"step_ms": step_ms, **metrics},
        conditions={**(conditions or {})},
        phases_s={"building": 1.5},
    )


def failed(outcome: str, reason: str | None = None) -> Launch:
    return Launch(outcome=outcome, reason=reason or f"it ended {outcome}")


def record(*launches: Launch, of: Case | None = None, **replaced: Any) -> Record:
    """A record of these launches. Without any, it has three launches of 100 ms a step."""
    sample: dict[str, Any] = {
        "case": of or case(),
        "label": "sharding[zero2-dp2]",
        "hardware": "h200-sxm",
        "created": "2026-01-02T03:04:05+00:00",
        "launches": launches or (launch(),) * 3,
        "environment": {"must_match": {"device": "NVIDIA H200"}, "suspects": {}, "machine": "0123abcd"},
        "plugin_version": "0.1.0",
    }
    return Record(**{**sample, **replaced})


def steps(*step_ms: float, **metrics: Any) -> Record:
    """A record of one launch for each step time."""
    return record(*(launch(ms, **metrics) for ms in step_ms))


def metric(name: str, values: Sequence[float]) -> Record:
    """A record of one launch for each value of a metric, all equally fast."""
    metrics: list[dict[str, Any]] = [{name: value} for value in values]
    return record(*(launch(**each) for each in metrics))


def near(value: float, **tolerance: Any) -> Any:
    """``pytest.approx``, inside a value whose type wants a number there."""
    return pytest.approx(value, **tolerance)
