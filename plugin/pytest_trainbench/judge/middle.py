"""The one figure of several launches that every report shows: the figure that was judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache

from pytest_trainbench.judge.compare import judged, learn, varies
from pytest_trainbench.judge.noise import DEFAULT, compare
from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.judge.policy import DEFAULT_POLICY, Priors
from pytest_trainbench.judge.visits import grouped
from pytest_trainbench.schema.metrics import METRICS, host_bound
from pytest_trainbench.schema.record import Record


def both_judged(verdict: Verdict, record: Record, baseline: Record | None) -> tuple[Record, Record | None]:
    """Both sides of a verdict, with the figures by which they were judged."""
    now = {change.metric: change.now for change in verdict.changes}
    before = {change.metric: change.before for change in verdict.changes}
    return _judged(record, now), None if baseline is None else _judged(baseline, before)


def stored_judged(records: Sequence[Record]) -> list[Record]:
    """Baselines of one kind of hardware, each with the figures by which a run on its machine is judged."""

    @cache
    def priors(machine: str) -> Priors:
        return learn(records, machine)

    def figures(record: Record) -> dict[str, float]:
        known = {name: record.values(name) for name in judged(record)}
        return {
            name: _location(record, name, priors(record.machine))
            for name, values in known.items()
            if varies(DEFAULT_POLICY.gate(name), values) and min(values) > 0
        }

    return [_judged(record, figures(record)) for record in records]


def _location(record: Record, name: str, priors: Priors) -> float:
    """Where a run on the baseline's machine finds the metric."""
    stored = grouped(record.visits, name, record.machine)
    return compare(stored, stored[-1], prior=priors.noise.get((name, host_bound(record)), DEFAULT)).before


def _judged(record: Record, figures: Mapping[str, float]) -> Record:
    """The record with its judged figures. A metric that is a multiple of a judged one follows it, so that a table
    agrees with itself."""
    follow = {}
    for name, metric in METRICS.items():
        if (base := metric.multiple_of) is None or base not in figures:
            continue
        value, of_base = record.median(name), record.median(base)
        if value is not None and of_base:
            follow[name] = value * figures[base] / of_base
    return dataclasses.replace(record, judged={**figures, **follow})
