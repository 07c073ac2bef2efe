"""Which cases a suite has on hardware that need not be here.

Tests run up to the point where they would measure a case: its name is taken down, and the test is over.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pytest

from pytest_trainbench.hardware.catalog import Accelerator
from pytest_trainbench.hardware.resolve import Hardware, rows
from pytest_trainbench.schema.case import Case
from pytest_trainbench.session import ONLY_ASKED, SESSION, Session

ENOUGH = 4096
"""Devices of the machine that is made believe in: no mesh needs more."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A row that a suite has: the id of its case or, where the test is skipped before there is one, why."""

    case: str | None = None
    skipped: str = ""


def listed(tests: Sequence[Path], family: str, *, root: Path) -> dict[str, Listed]:
    """All rows that the tests have for a family of hardware, by the name that reports show. ``root``: of the project.

    Raises ``RuntimeError`` with pytest's output where a test fails before it would measure.
    """
    asking, said = _Asking(rows(family)[0]), io.StringIO()
    arguments = [*map(str, tests), "--rootdir", str(root), "--hw", family]
    with contextlib.redirect_stdout(said):
        # Only where nothing is to be run does a named device not have to be here.
        ended = pytest.main([*arguments, "--collect-only", "-q", "-s", "-p", "no:cacheprovider"], plugins=[asking])
    if ended != pytest.ExitCode.OK:
        raise RuntimeError(f"the suite of {family} cannot be listed:\n{said.getvalue()}")
    return asking.rows


class _Asking:
    """The pytest plugin that takes down what each collected test would measure."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rows: dict[str, Listed] = {}
        self._ids: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        row = self.accelerator
        config.stash[SESSION] = Session(
            config,
            replace(config.stash[SESSION].settings, devices=None, memory_cap=None, ci=False),
            hardware=Hardware(
                id=row.key,
                kind=row.kind,
                device_name=row.names[0],
                count=ENOUGH,
                memory_bytes=row.memory_gb * 10**9,
                accelerator=row,
            ),
            asked=self._note,
        )

    @pytest.hookimpl(tryfirst=True)  # before pytest's own, which runs nothing under --collect-only
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item, following in zip_longest(session.items, session.items[1:]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        for item in session.items:
            name = item.name.removeprefix("test_")
            self.rows[name] = Listed(case=self._ids.get(name), skipped=self._skipped.get(item.nodeid, ""))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
            if why != ONLY_ASKED:
                self._skipped[report.nodeid] = why

    def _note(self, label: str, case: Case) -> None:
        self._ids[label] = case.id
