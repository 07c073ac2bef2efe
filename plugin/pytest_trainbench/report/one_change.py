"""What one change makes, where two cases of a session differ in nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_trainbench.report.rows import devices, signed
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

MESH = "mesh"
"""How the mesh is called among the parameters."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """``name`` went from ``before`` to ``after``: two values that follow each other."""

    name: str
    before: str
    after: str


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One line a change, everything as text; without a line where no two cases differ in one thing only.

    Numbers are held against the next smaller one; other values against the case without the parameter (*none*), or
    where each has it, against the one that was measured first. Figures are medians over all pairs of cases that show
    the change.
    """
    import pandas as pd

    pairs = _pairs([record for record in records if record.outcome == "ok" and record.values("samples_per_s")])
    lines = [
        {
            "change": f"{change.name} {change.before} → {change.after}",
            "pairs": str(len(found)),
            "samples/s": _median_change(found, lambda record: record.middle("samples_per_s")),
            "a device": _median_change(found, _samples_per_s_per_device),
            "memory": _median_change(found, lambda record: record.middle("peak_allocated_bytes", "process_bytes")),
            "energy a sample": _median_change(found, lambda record: record.middle("energy_j_per_sample")),
        }
        for change, found in pairs.items()
    ]
    text = pd.DataFrame(lines)
    return text[[name for name in text if (text[name] != "").any()]]


def _pairs(records: Sequence[Record]) -> dict[Change, list[tuple[Record, Record]]]:
    found: dict[Change, list[tuple[Record, Record]]] = defaultdict(list)
    described = [(record, _description(record)) for record in records]
    for name in dict.fromkeys(name for _, description in described for name in description):
        alike: dict[str, list[tuple[Any, Record]]] = defaultdict(list)
        for record, description in described:
            rest = {key: value for key, value in description.items() if key != name}
            alike[repr((record.case.builder, sorted(rest.items())))].append((description.get(name), record))
        for group in alike.values():
            for (before, one), (after, other) in _neighbours(group):
                if before != after:
                    found[Change(name=name, before=_spell(before), after=_spell(after))].append((one, other))
    return found


def _description(record: Record) -> Mapping[str, Any]:
    """Parameters and mesh. One that is ``None`` says as much as one that is not there."""
    params = {name: value for name, value in record.case.params.items() if value is not None}
    return {**params, MESH: str(record.case.mesh)}


def _neighbours(group: list[tuple[Any, Record]]) -> list[tuple[tuple[Any, Record], tuple[Any, Record]]]:
    without = [pair for pair in group if pair[0] is None]
    having = [pair for pair in group if pair[0] is not None]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value, _ in having):
        having.sort(key=lambda pair: pair[0])
        return list(pairwise([*without, *having]))
    first, *others = [*without, *having]
    return [(first, other) for other in others]


def _spell(value: Any) -> str:
    return "none" if value is None else str(value)


def _median_change(pairs: Sequence[tuple[Record, Record]], figure: Callable[[Record], float | None]) -> str:
    changes = [
        after / before - 1 for one, other in pairs if (before := figure(one)) and (after := figure(other)) is not None
    ]
    return signed(median(changes)) if changes else ""


def _samples_per_s_per_device(record: Record) -> float | None:
    rate = record.middle("samples_per_s")
    return None if rate is None else rate / devices(record)
