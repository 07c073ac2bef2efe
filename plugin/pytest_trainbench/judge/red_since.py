"""Since which run is a row red, and what changed between its last green run and the first red one? Pure.

A baseline may be months old, and much has changed since: what changed in the night in which a row turned red is fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_trainbench.hardware.environment import Difference, Environment, differences
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.store.history import Run, own_code

GREEN = ("ok", "saved", "improvement")
"""Outcomes after which a row that did not fail was in order. Others say nothing: such a run is passed over."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """first: when the first of the red ``runs`` in a row started, of which this is the last; ``None`` where this is the
    only one. green: when the last green run before them did, and ``differs`` what of the project's code and of the
    environment changed from it to the first red one; ``None`` where no green run is kept."""

    runs: int
    first: datetime | None
    green: datetime | None
    differs: tuple[Difference, ...] = ()


def turned(earlier: Sequence[Run], case_id: str, now: Environment, *, machine: str, code: str = "") -> Turned | None:
    """Of a row that is red now on ``machine``, with the digest of its ``code``; ``earlier`` runs, the oldest first.
    ``None`` where they know nothing of it.

    One folder may be that of a fleet, and what is red on one machine may be green on another: those of this machine
    count alone, unless there are none.
    """
    known = [run for run in earlier if case_id in run.entries]
    here = [run for run in known if machine and run.machine_of(case_id) == machine]
    reds: list[Run] = []
    for run in reversed(here or known):
        entry = run.entries[case_id]
        if entry.fails or (entry.fails is None and OUTCOMES.get(entry.outcome) == "fails"):
            reds.append(run)
        elif entry.outcome in GREEN:
            first, its_code = (reds[-1].environment, reds[-1].entries[case_id].code) if reds else (now, code)
            return Turned(
                runs=len(reds) + 1,
                first=reds[-1].started if reds else None,
                green=run.started,
                differs=(*own_code(entry.code, its_code), *differences(run.environment, first)),
            )
    return Turned(runs=len(reds) + 1, first=reds[-1].started, green=None) if reds else None
