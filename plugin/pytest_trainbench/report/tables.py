"""The tables under the main one: the suite's own, the calibration and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.report import calibration, cost, one_change
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd


def measured(rows: Sequence[Row]) -> list[Record]:
    """The records of all rows. Rows that share a record give it once."""
    return [row.record for row in rows if row.record is not None and not row.same_as]


def tables(
    rows: Sequence[Row],
    of_suite: Iterable[Mapping[str, pd.DataFrame]],
    *,
    hardware: Hardware,
    with_cost: bool,
    price: Price | None,
    task_samples: int | None,
) -> dict[str, pd.DataFrame]:
    """Title -> table, without empty tables.

    ``of_suite``: the tables of the suite's hooks. ``price``: of a device; ``None`` if it is not known.
    """
    records = measured(rows)
    found = {title: table for made in of_suite for title, table in made.items() if len(table)}
    if calibrations := [row.calibration for row in rows if row.calibration]:
        found[calibration.TITLE] = calibration.table(calibrations)
    if with_cost and cost.costs(records):
        title = cost.title(price=price, hardware=hardware.id, task_samples=task_samples)
        found[title] = cost.table(records, price=price, task_samples=task_samples)
        if len(changes := one_change.table(records)):
            found["Effect of a single change"] = changes
    return found
