"""The drifts that the history shows, as lines for the terminal and for Markdown."""

from __future__ import annotations

from pathlib import Path

from pytest_trainbench.hardware.environment import fact
from pytest_trainbench.judge.drift import Drift, Findings
from pytest_trainbench.judge.explain import percent
from pytest_trainbench.schema.metrics import METRICS
from pytest_trainbench.store.baseline import from_here

DRIFTS_SHOWN = 10
"""How many drifts are listed, the largest first. If the machine itself became slower, all rows drift."""

DIFFERS_SHOWN = 3


def lines(found: Findings, folder: Path) -> list[str]:
    """One line per drift, and one line on how many nights the history has. No lines if no row has figures."""
    if not found.nights:
        return []
    largest = sorted(found.drifts, key=lambda one: -one.change)
    said = [_drift(one) for one in largest[:DRIFTS_SHOWN]]
    if len(largest) > DRIFTS_SHOWN:
        said.append(f"drift: and {len(largest) - DRIFTS_SHOWN} more, all smaller")
    if said:
        said.append("a drift is reported in every run, until it is repaired or --save-baseline accepts it")
    short = [case_id for case_id, count in found.nights.items() if count < found.needed]
    fewest, most = min(found.nights.values()), max(found.nights.values())
    span = f"{fewest} to {most}" if fewest < most else str(most)
    if not most:
        history = "this machine has no id (a host name or an /etc/machine-id), so its nights are not compared"
    elif len(short) == len(found.nights):
        kept = f"{span} {_nights(most)} of these rows on this machine"
        history = f"{kept}; drift detection needs {found.needed} ({from_here(folder)})"
    elif short:
        history = (
            f"{len(short)} of {len(found.nights)} rows have fewer than the {found.needed} nights on this machine that"
            f" drift detection needs; {_drifts(len(found.drifts))} in the others"
        )
    else:
        history = f"{_drifts(len(found.drifts))} over {span} nights on this machine"
    return [*said, f"history: {history}"]


def _drift(one: Drift) -> str:
    differs = [f"{name}: {fact(before)} → {fact(now)}" for name, before, now in one.differs[:DIFFERS_SHOWN]]
    if len(one.differs) > DIFFERS_SHOWN:
        differs.append(f"and {len(one.differs) - DIFFERS_SHOWN} more")
    against = f"{one.nights_since} {_nights(one.nights_since)} against {one.nights_before} before"
    worse = f"{METRICS[one.metric].title} {percent(one.change)} worse since {one.since}"
    return f"drift: {one.label}: {worse} ({'; '.join([against, *differs])})"


def _drifts(count: int) -> str:
    return f"{count} drifts" if count > 1 else f"{count or 'no'} drift"


def _nights(count: int) -> str:
    return "night" if count == 1 else "nights"
