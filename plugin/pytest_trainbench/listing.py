"""List the cases of a suite for hardware that this machine need not have.

Each test runs until it would measure a case. The plugin then notes the case's id and skips the test.
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
"""Number of devices of the assumed machine, more than any mesh needs."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A row of a suite: the id of its case, or the reason if the test is skipped before it makes a case."""

    case: str | None = None
    skipped: str = ""


def listed(tests: Sequence[Path], family: str, *, root: Path) -> dict[str, Listed]:
    """All rows of the tests on a family of hardware, by label. ``root``: the project's root.

    Raises ``RuntimeError`` with pytest's output if a test fails before it would measure.
    """
    asking, said = _Asking(rows(family)[0]), io.StringIO()
    arguments = [*map(str, tests), "--rootdir", str(root), "--hw", family]
    with contextlib.redirect_stdout(said):
        # With --collect-only, the hardware of --hw need not be here.
        ended = pytest.main([*arguments, "--collect-only", "-q", "-s", "-p", "no:cacheprovider"], plugins=[asking])
    if ended != pytest.ExitCode.OK:
        raise RuntimeError(f"the suite of {family} cannot be listed:\n{said.getvalue()}")
    return asking.rows


class _Asking:
    """The pytest plugin that notes the case of each collected test."""

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

    @pytest.hookimpl(tryfirst=True)  # before pytest's own loop, which runs nothing under --collect-only
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
