"""What a suite can add to the report. Implement it in a ``conftest.py`` or a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.schema.record import Record


def pytest_trainbench_tables(records: Sequence[Record]) -> Mapping[str, pd.DataFrame]:  # type: ignore[empty-body]
    """Tables to show under the main one, by title, made of all records of a session: rates of several cases held
    against each other, for example. Cells are shown as they are; a table without rows is not shown."""
