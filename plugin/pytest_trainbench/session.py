"""The state of one pytest session: its hardware, its baselines or other side, and its measured rows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainbench import progress, settings
from pytest_trainbench.archive import Archive
from pytest_trainbench.hardware.catalog import Price
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
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store import baseline, history, other_code

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.launch.cluster import Cluster
    from pytest_trainbench.launch.side_process import SideProcess
    from pytest_trainbench.runner import Runner

CPU_RANKS = 4
"""How many ranks share a CPU by default. ``--devices`` sets another number."""

NAMED = ("torch", "deepspeed", "fairscale", "transformers")
"""Libraries whose versions the header shows."""

ONLY_ASKED = "this run only lists its cases"
"""Why a row is skipped in a run that only lists cases."""


class Session:
    """The state of one session, made once in ``pytest_configure``.

    Only a run that lists cases sets the last two arguments. ``hardware``: assumed hardware, in place of the detected
    hardware. ``asked``: called with the label and the case of each row, instead of measuring the row.
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
        self.started = datetime.now(timezone.utc)
        self.rows: list[Row] = []
        self.rows_before: dict[str, int] = {}
        """Node id of a case -> the number of rows before it started."""
        self.hidden = ""
        self.cases = 1
        """How many collected tests are cases. They share the run's error budget."""
        self.unfinished: set[str] = set()
        """Node ids of the cases that have not finished."""
        self.record_property: Callable[[str, object], None] = lambda name, value: None
        """Adds a property to JUnit's file. The first case sets it."""
        self.spared = 0
        """How many tests ``--stale`` deselected."""
        self.environ = dict(os.environ)
        """The environment variables of the fork server, and so of all ranks. Later changes do not reach them."""
        self.sides: tuple[SideProcess, SideProcess] | None = None
        """With ``--against``, the other side and this side while they run. ``until_end`` ends both."""
        self.cluster: Cluster | None = None
        """With ``--nodes``, this node and the others."""
        self.until_end = contextlib.ExitStack()
        self._hardware = hardware
        self._runner: Runner | None = None

    @property
    def hardware(self) -> Hardware:
        """The hardware of this session. Raises ``pytest.UsageError`` if the requested hardware is missing."""
        if self._hardware is None:
            try:
                found = find(self.settings.hw)
                self._hardware, self.hidden = resolve(self.settings.hw, found), found.hidden
            except HardwareNotFound as error:
                raise pytest.UsageError(str(error)) from None
        return self._hardware

    @cached_property
    def other(self) -> Other | None:
        """The side that ``--against`` names. Raises ``pytest.UsageError`` if that side cannot be used."""
        if self.settings.against is None:
            return None
        try:
            return checkout.find(self.settings.against, self.config.rootpath)
        except ValueError as error:
            raise pytest.UsageError(f"--against={self.settings.against} cannot be used: {error}") from None

    @cached_property
    def other_code(self) -> other_code.Stale:
        """The baselines that are stale, by the project's code at the start of the session.

        A baseline that does not say which code made it counts as stale.
        """
        return other_code.look(self.baselines, Tree.of(self.config.rootpath))

    @cached_property
    def baselines(self) -> list[Record]:
        """All baselines of this hardware at the start of the session. Under ``--collect-only`` a named family needs no
        device."""
        family = rows(self.settings.hw) if self.config.option.collectonly else ()
        ids = [row.key for row in family] or [self.hardware.id]
        return [record for one in ids for record in baseline.load_all(self.settings.baseline_dir, one)]

    @property
    def cut_off(self) -> str:
        """A sentence if the run ended before its last case, else empty. Without it, the report would look complete."""
        left = len(self.unfinished)
        return f"the run was cut off: {left} of {self.cases} cases have no result" if left else ""

    @property
    def unjudged_most(self) -> float | None:
        """The share of rows that may judge no time; ``None`` if the run does not fail for it."""
        return self.settings.unjudged_share if self.settings.ci else None

    @property
    def available(self) -> int:
        """How many ranks the session can start."""
        return self.devices_a_node * self.settings.nodes

    @property
    def devices_a_node(self) -> int:
        """How many ranks the session can start on each node."""
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
                nights=self.archive.green_nights,
            )
        return self._runner

    def _here(self) -> dict[str, Any]:
        """This process as one side: its environment, and the import path of the ranks that it starts."""
        from pytest_trainbench.hardware.environment import capture

        return {
            "environment": capture(self.hardware, self.config.rootpath, environ=self.environ),
            "import_path": tuple(entry or str(Path.cwd()) for entry in sys.path),
            "root": self.config.rootpath,
        }

    def begin(self) -> None:
        """Start to import the heavy libraries in the background, while pytest still prints.

        Raises ``pytest.UsageError`` if the other side or the other nodes cannot be used.
        """
        self.environ = dict(os.environ)
        if self.other is None:
            from pytest_trainbench.launch.fork_server import end_fork_server, start_fork_server

            # Else the fork server would finish its imports first, and disturb the next command.
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
        """Wait for the other nodes. Raises ``pytest.UsageError`` if a node does not join, or differs from this node."""
        from pytest_trainbench.launch import node_key
        from pytest_trainbench.launch.cluster import Cluster, Leader

        here = self._here()
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        try:
            lead = Leader(
                nodes=self.settings.nodes,
                devices=self.devices_a_node,
                port=self.settings.node_port,
                hardware=self.hardware,
                root=self.config.rootpath,
                preload=self.settings.preload,
                path=here["import_path"],
                secret=node_key.find_or_make(os.environ),
                host=self.settings.node_host,
            )
            self.until_end.callback(lead.close)
            lead.gather(
                here["environment"],
                key=node_key.where(os.environ),
                limit_s=self.settings.launch_timeout,
                progress=(lambda text: reporter.write_line(f"trainbench: {text}")) if reporter else lambda _: None,
            )
        except ValueError as error:
            raise pytest.UsageError(f"--nodes {self.settings.nodes} cannot be used: {error}") from None
        self.cluster = Cluster(lead=lead, **here)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Tables under the main one, by title: those of the suite's hooks and, if requested, the cost. Empty tables are
        left out."""
        return tables(
            self.rows,
            self.config.hook.pytest_trainbench_tables(records=measured(self.rows)),
            hardware=self.hardware,
            with_cost=self.settings.cost or self.settings.task_samples is not None,
            price=self.price,
            task_samples=self.settings.task_samples,
        )

    def facts(self) -> header.Facts:
        """What the top of a report says about this run, up to now."""
        found = [record.environment for record in measured(self.rows)]
        return header.Facts(
            project=project_name(self.config.rootpath, self.settings.project),
            device=header.devices(self.hardware, self.settings.nodes),
            machine=next((str(one["machine"]) for one in found if one.get("machine")), ""),
            commit=next((str(one["suspects"]["commit"]) for one in found if "commit" in one["suspects"]), ""),
            started=self.started,
            ended=datetime.now(timezone.utc),
        )

    def page(self) -> str:
        """The report as one HTML file."""
        from pytest_trainbench.report import page, pictures

        records = measured(self.rows)
        drifts, earlier = (self.archive.drifts, self.archive.earlier[0]) if self.archive.log else ((), [])
        charts = dict(pictures.of_run(records, price=self.price))
        for made in self.config.hook.pytest_trainbench_charts(records=records):
            charts |= made
        return page.page(
            self.rows,
            self.facts(),
            header=self.header(),
            tables=self.tables,
            charts=charts,
            charts_of=lambda row: pictures.of_row(row, earlier, drifts),
            trend=self.archive.trend,
            cut_off=self.cut_off,
        )

    @property
    def price(self) -> Price | None:
        """The price of a device: that of ``--price``, else that of the hardware table."""
        accelerator = self.hardware.accelerator
        return self.settings.price or (accelerator.price if accelerator else None)

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

    def length(self, labels: Sequence[str]) -> str:
        """How long the cases with these labels take, by the last runs of the history. Empty if they know less than half
        of the cases."""
        if self.settings.history is None:
            return ""
        project = project_name(self.config.rootpath, self.settings.project)
        known = history.launch_seconds(self.settings.history / project / self.hardware.id)
        found = [known[label] for label in labels if label in known]
        launches = self.settings.launches * (1 if self.other is None else 2)
        return header.length(found, cases=len(labels), launches=launches)

    def _compared_with(self) -> str:
        if self.other is not None:
            return header.against(self.other.name)
        if self.settings.calibrate:
            return header.CALIBRATES
        return header.stored(
            baseline.count(self.settings.baseline_dir, self.hardware.id),
            self.settings.baseline_dir / self.hardware.id,
            guessed_root=self.config.rootpath if self.config.inipath is None else None,
        )

    def _shown(self, name: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        plugins = self.config.pluginmanager
        return progress.shown(name, plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager"))


SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""The session's key in pytest's ``config.stash``."""
