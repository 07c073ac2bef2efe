"""Hooks for a suite to add to the report. Implement them in a ``conftest.py`` or a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.report.chart import AnyChart
    from pytest_trainbench.schema.record import Record


def pytest_trainbench_tables(records: Sequence[Record]) -> Mapping[str, pd.DataFrame]:  # type: ignore[empty-body]
    """Tables to show under the main one, by title, made from all records of a session.

    For example, a table can compare the rates of several cases. Cells are shown unchanged. A table without rows is not
    shown.
    """


def pytest_trainbench_charts(records: Sequence[Record]) -> Mapping[str, Sequence[AnyChart]]:  # type: ignore[empty-body]
    """Charts for the page of ``--report-html``, by the title of their group, made from all records of a session.

    A chart is data (:mod:`pytest_trainbench.report.chart`), and the plugin draws it. A group without charts is not
    shown.
    """
