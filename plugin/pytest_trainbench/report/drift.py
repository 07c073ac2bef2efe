"""What the history says of a run, as lines for the terminal and for Markdown."""

from __future__ import annotations

from pathlib import Path

from pytest_trainbench.judge.drift import Drift, Watch
from pytest_trainbench.judge.verdict import fact, percent
from pytest_trainbench.schema.metrics import METRICS
from pytest_trainbench.store.baseline import from_here

DRIFTS_SHOWN = 10
"""The largest; where the machine moved, all rows did."""

DIFFERS_SHOWN = 3


def lines(watch: Watch, folder: Path) -> list[str]:
    """A line for each drift, and one that says how far back the history reaches; none where no row has figures."""
    if not watch.nights:
        return []
    largest = sorted(watch.drifts, key=lambda one: -one.change)
    said = [_drift(one) for one in largest[:DRIFTS_SHOWN]]
    if len(largest) > DRIFTS_SHOWN:
        said.append(f"drift: and {len(largest) - DRIFTS_SHOWN} more, all smaller")
    if said:
        said.append("a drift is said every night, until it is mended or --save-baseline accepts it")
    short = [case_id for case_id, count in watch.nights.items() if count < watch.needed]
    fewest, most = min(watch.nights.values()), max(watch.nights.values())
    span = f"{fewest} to {most}" if fewest < most else str(most)
    if len(short) == len(watch.nights):
        kept = f"{span} {_nights(most)} of these rows on this machine"
        history = f"{kept}; a drift can be seen from {watch.needed} on ({from_here(folder)})"
    elif short:
        history = (
            f"{len(short)} of {len(watch.nights)} rows have fewer than the {watch.needed} nights on this machine that"
            f" a drift takes to be seen; {_drifts(len(watch.drifts))} in the others"
        )
    else:
        history = f"{_drifts(len(watch.drifts))} over {span} nights on this machine"
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
