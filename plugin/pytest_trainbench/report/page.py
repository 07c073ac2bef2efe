"""The report as one HTML file. It opens offline, asks no host for anything, and shows names from tests as text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.report.chart import AnyChart
from pytest_trainbench.report.header import Facts, where
from pytest_trainbench.report.pictures import Charts
from pytest_trainbench.report.plain import plain
from pytest_trainbench.report.rows import Row, table
from pytest_trainbench.report.svg import drawn
from pytest_trainbench.report.terminal import counts, facts_of, failure, notes

if TYPE_CHECKING:
    import pandas as pd

CARDS_MOST = 25
"""How many red rows have a card above the table. If all rows of a large suite crash, the table lists the others."""

DETAILS_MOST = 1_000_000
"""Limit on the characters of all tracebacks and logs together. If thousands of rows crash, all of them would make the
page too large to open."""

CUT = "The log is in the output of pytest: the page has only the first logs."

FIRST = ("case", "outcome", "change", "step ms")
"""The first columns. All others may be out of sight, or are left out on a narrow screen."""

CAUSES = ("machine", "your code", "differs", "since")
"""The facts of a red row that may explain it, shown before its full report is opened."""

FIGURES = ("judged", "parts")
"""The facts that a row which is not red shows when it is opened."""


def page(
    rows: Sequence[Row],
    facts: Facts,
    *,
    header: str,
    tables: Mapping[str, pd.DataFrame],
    charts: Charts,
    charts_of: Callable[[Row], Sequence[AnyChart]],
    trend: Sequence[str] = (),
    cut_off: str = "",
) -> str:
    """The page. ``charts_of``: the charts of one row, asked for rows that are red. ``charts``: those of the run."""
    from jinja2 import Environment, StrictUndefined

    rows = _shortened(rows)
    red = [row for row in rows if row.fails]
    style, script = _asset("page.css"), _asset("page.js")
    cells = table(rows) if rows else {}
    columns = {name: cells[name] for name in [*(name for name in FIRST if name in cells), *cells]}
    drifts = [line for line in trend if line.startswith("drift")]
    shown = {id(row): [(chart.title, drawn(chart)) for chart in charts_of(row)] for row in red}
    # Charts and files of the package are marked as safe; all other texts may come from tests.
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    template = environment.from_string(_asset("page.html"))
    return template.render(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        headline=headline(rows, cut_off),
        project=facts.project or "Training benchmark",
        where=where(facts),
        counts=counts(rows, cut_off),
        drifts=drifts,
        red=[_card(row, shown[id(row)]) for row in red[:CARDS_MOST]],
        more_red=max(0, len(red) - CARDS_MOST),
        rows=[
            _line(row, [cells[number] for cells in columns.values()], list(columns), shown.get(id(row), []))
            for number, row in enumerate(rows)
        ],
        columns=[(name, _kind(name)) for name in columns],
        outcomes=list(Counter(sorted(row.verdict.outcome for row in rows)).items()),
        suites=list(Counter(sorted(_suite(row) for row in rows)).items()),
        notes=[*notes(rows), *(line for line in trend if line not in drifts)],
        groups=[(title, [(chart.title, drawn(chart)) for chart in group]) for title, group in charts.items() if group],
        tables=[
            (title, list(map(str, cells)), cells.astype(str).to_numpy().tolist()) for title, cells in tables.items()
        ],
        header=header,
    )


def headline(rows: Sequence[Row], cut_off: str) -> str:
    """For example ``2 of 213 rows are red``."""
    red = sum(row.fails for row in rows)
    if red:
        return f"{red} of {len(rows)} rows {'is' if red == 1 else 'are'} red"
    if cut_off or not rows:
        return cut_off or "No row has a result"
    return f"No row is red, of {len(rows)}"


def _shortened(rows: Sequence[Row]) -> list[Row]:
    left, found = DETAILS_MOST, []
    for row in rows:
        left -= len(row.detail)
        found.append(dataclasses.replace(row, detail=CUT) if row.detail and left < 0 else row)
    return found


def _card(row: Row, charts: list[tuple[str, str]]) -> dict[str, Any]:
    facts = _grouped(facts_of(row))
    return {
        "label": row.label,
        "outcome": row.verdict.outcome,
        "ends": _ends(row),
        "reason": row.verdict.reason,
        "causes": [(name, texts) for name, texts in facts.items() if name in CAUSES],
        "commands": [(name, command) for name, command in (("accept", row.accept), ("again", row.again)) if command],
        "charts": charts,
        "text": failure(row),
    }


def _line(row: Row, cells: list[str], columns: list[str], charts: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "outcome": row.verdict.outcome,
        "ends": _ends(row),
        "suite": _suite(row),
        "cells": [(_kind(name), cell) for name, cell in zip(columns, cells, strict=True)],
        "text": failure(row) if row.fails else _figures(row),
        "charts": charts,
    }


def _figures(row: Row) -> str:
    """The reason and the judged figures of a row that is not red. Empty if it has neither."""
    facts = _grouped(facts_of(row))
    lines = [row.verdict.reason] if row.verdict.reason else []
    return "\n".join([*lines, *(text for name in FIGURES for text in facts.get(name, []))])


def _grouped(facts: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Name -> its lines. A fact without a name continues the one before it."""
    found: dict[str, list[str]] = {}
    name = ""
    for named, text in facts:
        name = named or name
        found.setdefault(name, []).append(text)
    return found


def _ends(row: Row) -> str:
    return "fails" if row.fails else OUTCOMES[row.verdict.outcome]


def _suite(row: Row) -> str:
    return row.label.partition("[")[0]


def _kind(column: str) -> str:
    return "" if column in FIRST else "wide"


def _asset(name: str) -> str:
    return files("pytest_trainbench.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The text's hash for the page's content security policy, which allows no other script and no other style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
