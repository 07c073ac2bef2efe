"""The effect of a single change: compares cases of a session that differ in one parameter or in the mesh only."""

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
"""Name of the mesh among the parameters."""


@dataclass(frozen=True, kw_only=True)
class OneChange:
    """Parameter ``name`` changed from ``before`` to ``after``. See :func:`table` for which values are compared."""

    name: str
    before: str
    after: str


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One line per change. Every cell is text. The table is empty if no two cases differ in one thing only.

    A number is compared with the next smaller number. Any other value is compared with the case without the parameter
    (*none*). If all cases have the parameter, it is compared with the value that was measured first. Each figure is the
    median over all pairs of cases that show the change.
    """
    import pandas as pd

    pairs = _pairs([record for record in records if record.outcome == "ok" and record.values("samples_per_s")])
    lines = [
        {
            "change": f"{change.name} {change.before} → {change.after}",
            "pairs": str(len(found)),
            "samples/s": _median_change(found, lambda record: record.figure("samples_per_s")),
            "per device": _median_change(found, _samples_per_s_per_device),
            "memory": _median_change(found, lambda record: record.figure("peak_allocated_bytes", "process_bytes")),
            "energy per sample": _median_change(found, lambda record: record.figure("energy_j_per_sample")),
        }
        for change, found in pairs.items()
    ]
    text = pd.DataFrame(lines)
    return text[[name for name in text if (text[name] != "").any()]]


def _pairs(records: Sequence[Record]) -> dict[OneChange, list[tuple[Record, Record]]]:
    found: dict[OneChange, list[tuple[Record, Record]]] = defaultdict(list)
    described = [(record, _description(record)) for record in records]
    for name in dict.fromkeys(name for _, description in described for name in description):
        alike: dict[str, list[tuple[Any, Record]]] = defaultdict(list)
        for record, description in described:
            rest = {key: value for key, value in description.items() if key != name}
            alike[repr((record.case.builder, sorted(rest.items())))].append((description.get(name), record))
        for group in alike.values():
            for (before, one), (after, other) in _neighbours(group):
                if before != after:
                    found[OneChange(name=name, before=_spell(before), after=_spell(after))].append((one, other))
    return found


def _description(record: Record) -> Mapping[str, Any]:
    """Parameters and mesh. A parameter of ``None`` counts as missing."""
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
    rate = record.figure("samples_per_s")
    return None if rate is None else rate / devices(record)
