"""What one pytest session holds: where it runs, what it compares with, what it measured."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainbench import progress, settings
from pytest_trainbench.archive import Archive
from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.resolve import Hardware, HardwareNotFound, resolve, rows
from pytest_trainbench.launch import checkout
from pytest_trainbench.launch.checkout import Other
from pytest_trainbench.project.name import project_name
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.report import header
from pytest_trainbench.report.rows import Row
from pytest_trainbench.report.tables import measured, tables
from pytest_trainbench.schema.case import Case
from pytest_trainbench.store import baseline, history, other_code

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.launch.cluster import Cluster
    from pytest_trainbench.launch.side_process import SideProcess
    from pytest_trainbench.runner import Runner

CPU_RANKS = 4
"""How many ranks share a CPU unless ``--devices`` says otherwise."""

NAMED = ("torch", "deepspeed", "fairscale", "transformers")
"""Libraries whose versions the header shows."""


ONLY_ASKED = "only asked for its case"
"""Why a row is skipped in a run that only lists cases."""


class Session:
    """Made once, in ``pytest_configure``.

    ``hardware``: what it is taken to run on instead of looking; ``asked``: told the label and the case of each row
    instead of measuring any. Both are for a run that only lists cases.
    """

    def __init__(
        self,
        config: pytest.Config,
        options: settings.Settings,
        *,
        hardware: Hardware | None = None,
        asked: Callable[[str, Case], None] | None = None,
    ) -> None:
        self.config = config
        self.settings = options
        self.asked = asked
        self.archive = Archive(options)
        self.rows: list[Row] = []
        self.hidden = ""
        self.cases = 1
        """How many tests measure something: they share the night's error."""
        self.unfinished: set[str] = set()
        """Which of them have not come to their end."""
        self.spared = 0
        """How many tests ``--stale`` left out."""
        self.environ = dict(os.environ)
        """What the fork server, and so every rank, got: later changes do not reach them."""
        self.sides: tuple[SideProcess, SideProcess] | None = None
        """The other side and this one, while they run; ``until_end`` ends them."""
        self.cluster: Cluster | None = None
        """This node and the others, where there are several."""
        self.until_end = contextlib.ExitStack()
        self._hardware = hardware
        self._runner: Runner | None = None

    @property
    def hardware(self) -> Hardware:
        """What this session runs on. Raises ``pytest.UsageError`` where it is not there."""
        if self._hardware is None:
            try:
                found = find(self.settings.hw)
                self._hardware, self.hidden = resolve(self.settings.hw, found), found.hidden
            except HardwareNotFound as error:
                raise pytest.UsageError(str(error)) from None
        return self._hardware

    @cached_property
    def other(self) -> Other | None:
        """What ``--against`` names. Raises ``pytest.UsageError`` where that cannot be used."""
        if self.settings.against is None:
            return None
        try:
            return checkout.find(self.settings.against, self.config.rootpath)
        except ValueError as error:
            raise pytest.UsageError(f"--against={self.settings.against} cannot be used: {error}") from None

    @cached_property
    def other_code(self) -> other_code.Stale:
        """The baselines that are of other code than the project's when the session began, or do not say. Where nothing
        is to run, those of a named family need no device."""
        family = rows(self.settings.hw) if self.config.option.collectonly else ()
        ids = [row.key for row in family] or [self.hardware.id]
        records = (record for one in ids for record in baseline.load_all(self.settings.baseline_dir, one))
        return other_code.look(records, Tree.of(self.config.rootpath))

    @property
    def cut_off(self) -> str:
        """What a run that ended before its last case is to say: what it measured looks complete."""
        left = len(self.unfinished)
        return f"the run was cut off: {left} of {self.cases} have no result" if left else ""

    @property
    def available(self) -> int:
        """Ranks that can be started."""
        return self.devices_a_node * self.settings.nodes

    @property
    def devices_a_node(self) -> int:
        if self.hardware.kind == "cpu":
            return self.settings.devices or CPU_RANKS
        return min(self.hardware.count, self.settings.devices or self.hardware.count)

    def runner(self, folder: Callable[[str], Path]) -> Runner:
        if self._runner is None:
            from pytest_trainbench.runner import Here, Runner

            before, now = self.sides or (None, self.cluster or Here(**self._here()))
            if self.settings.history is not None and not self.settings.calibrate and before is None:
                self.archive.log = history.Log(
                    self.settings.history,
                    project=project_name(self.config.rootpath, self.settings.project),
                    hardware=self.hardware.id,
                    environment=now.environment.to_json(),
                    started=datetime.now(timezone.utc),
                )
            self._runner = Runner(
                settings=self.settings,
                hardware=self.hardware,
                now=now,
                before=before,
                folder=folder("trainbench"),
                progress=self._shown,
                cases=self.cases,
            )
        return self._runner

    def _here(self) -> dict[str, Any]:
        """What this process is, and what ranks that it starts can import."""
        from pytest_trainbench.hardware.environment import capture

        return {
            "environment": capture(self.hardware, self.config.rootpath, environ=self.environ),
            "import_path": tuple(entry or str(Path.cwd()) for entry in sys.path),
            "root": self.config.rootpath,
        }

    def begin(self) -> None:
        """Let the heavy libraries be imported while pytest is still talking."""
        self.environ = dict(os.environ)
        if self.other is None:
            from pytest_trainbench.launch.fork_server import end_fork_server, start_fork_server

            # By itself it would end only after all its imports, beside what is run next.
            self.until_end.callback(end_fork_server)
            start_fork_server(self.settings.preload)
            if self.settings.nodes > 1:
                self._gather()
            return
        from pytest_trainbench.launch.side_process import sides

        try:
            self.sides = self.until_end.enter_context(
                sides(
                    self.other,
                    hardware=self.hardware,
                    root=self.config.rootpath,
                    preload=self.settings.preload,
                    limit_s=self.settings.launch_timeout,
                )
            )
        except ValueError as error:
            raise pytest.UsageError(f"--against={self.settings.against} cannot be used: {error}") from None

    def _gather(self) -> None:
        """Wait for the other nodes. Raises ``pytest.UsageError`` where they do not come, or are not as this one is."""
        from pytest_trainbench.launch.cluster import Cluster, Leader

        here = self._here()
        try:
            lead = Leader(
                nodes=self.settings.nodes,
                devices=self.devices_a_node,
                port=self.settings.node_port,
                hardware=self.hardware,
                root=self.config.rootpath,
                preload=self.settings.preload,
                path=here["import_path"],
            )
            self.until_end.callback(lead.close)
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            lead.gather(
                here["environment"],
                limit_s=self.settings.launch_timeout,
                progress=(lambda text: reporter.write_line(f"trainbench: {text}")) if reporter else lambda _: None,
            )
        except ValueError as error:
            raise pytest.UsageError(f"--nodes {self.settings.nodes} cannot be had: {error}") from None
        self.cluster = Cluster(lead=lead, **here)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """What the suite's hooks make of all records, and their cost if asked for; the tables that have rows, by
        title."""
        return tables(
            self.rows,
            self.config.hook.pytest_trainbench_tables(records=measured(self.rows)),
            hardware=self.hardware,
            with_cost=self.settings.cost or self.settings.task_samples is not None,
            price=self.settings.price,
            task_samples=self.settings.task_samples,
        )

    def header(self) -> str:
        versions = {}
        for name in NAMED:
            with contextlib.suppress(PackageNotFoundError):
                versions[name] = version(name)
        return header.header(
            self.hardware,
            nodes=self.settings.nodes,
            launches=self.settings.launches,
            versions=versions,
            compared_with=self._compared_with(),
        )

    def _compared_with(self) -> str:
        if self.other is not None:
            return header.against(self.other.name)
        return header.stored(
            baseline.count(self.settings.baseline_dir, self.hardware.id),
            self.settings.baseline_dir / self.hardware.id,
            guessed_root=self.config.rootpath if self.config.inipath is None else None,
        )

    def _shown(self, name: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        plugins = self.config.pluginmanager
        return progress.shown(name, plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager"))


SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""Where pytest's ``config.stash`` has it."""
