"""Since which run is a row red, and what changed between its last green run and the first red one? Pure.

A baseline may be months old, and much has changed since then. Fewer things changed in the night in which the row turned
red.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_trainbench.hardware.environment import Difference, Environment, differences
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.store.history import Run, own_code

GREEN = ("ok", "saved", "improvement")
"""Outcomes of a row that is in order, if its test passed. Runs with other outcomes say nothing and are skipped."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Since when a row is red.

    runs: the number of red runs in a row, this one included.
    first: when the first of them started; ``None`` if this run is the only one.
    green: when the last green run before them started; ``None`` if the history has none.
    differs: what changed from that green run to the first red one, in the project's code and in the environment.
    """

    runs: int
    first: datetime | None
    green: datetime | None
    differs: tuple[Difference, ...] = ()


def turned(
    earlier: Sequence[Run], case_id: str, now: Environment, *, outcome: str, machine: str, code: str = ""
) -> Turned | None:
    """Since when a row is red that is red now with ``outcome`` on ``machine``; ``code`` is the digest of its code, and
    ``earlier`` holds the runs, the oldest first. ``None`` if they know nothing of the row.

    Only red runs with the same outcome count: a night that timed out, or had no baseline, says nothing of a regression.
    Such runs are skipped. Machines may share one folder, and a row may be red on one of them alone. Runs on this
    machine count, or those of all machines if it has none.
    """
    known = [run for run in earlier if case_id in run.entries]
    here = [run for run in known if machine and run.machine_of(case_id) == machine]
    reds: list[Run] = []
    for run in reversed(here or known):
        entry = run.entries[case_id]
        if entry.fails or (entry.fails is None and OUTCOMES.get(entry.outcome) == "fails"):
            reds += [run] if entry.outcome == outcome else []
        elif entry.outcome in GREEN:
            first, its_code = (reds[-1].environment, reds[-1].entries[case_id].code) if reds else (now, code)
            return Turned(
                runs=len(reds) + 1,
                first=reds[-1].started if reds else None,
                green=run.started,
                differs=(*own_code(entry.code, its_code), *differences(run.environment, first)),
            )
    return Turned(runs=len(reds) + 1, first=reds[-1].started, green=None) if reds else None
