"""What one pytest session holds: where it runs, what it compares with, what it measured."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainbench import settings
from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.hardware.resolve import Hardware, HardwareNotFound, resolve, rows
from pytest_trainbench.judge import attribution, drift
from pytest_trainbench.judge.red_since import Turned, turned
from pytest_trainbench.launch import checkout
from pytest_trainbench.launch.checkout import Other
from pytest_trainbench.project.name import project_name
from pytest_trainbench.project.sources import Tree, overall
from pytest_trainbench.report import calibration, cost, one_change
from pytest_trainbench.report.drift import lines as drift_lines
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.metrics import Gates
from pytest_trainbench.schema.record import Record, dump
from pytest_trainbench.store import baseline, history, other_code

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.launch.cluster import Cluster
    from pytest_trainbench.launch.side_process import SideProcess
    from pytest_trainbench.runner import Runner

CPU_RANKS = 4
"""How many ranks share a CPU unless ``--devices`` says otherwise."""

HISTORY_DAYS = 365
"""Older runs are not read: they say nothing of today."""

QUIET_S = 30.0
"""Where there is no terminal to draw on, long work is heard of this often."""


class Session:
    """Made once, in ``pytest_configure``."""

    def __init__(self, config: pytest.Config, options: settings.Settings) -> None:
        self.config = config
        self.settings = options
        self.rows: list[Row] = []
        self.saves: list[baseline.Saved] = []
        self.hidden = ""
        self.cases = 1
        """How many tests measure something: they share the night's error."""
        self.unfinished: set[str] = set()
        """Which of them have not come to their end."""
        self.spared = 0
        """How many tests ``--stale`` left out."""
        self.environ = dict(os.environ)
        """What the fork server, and so every rank, got: later changes do not reach them."""
        self.log: history.Log | None = None
        self.gates: dict[str, Gates] = {}
        """By id of a case, what its markers ask for."""
        self.sides: tuple[SideProcess, SideProcess] | None = None
        """The other side and this one, while they run; ``until_end`` ends them."""
        self.cluster: Cluster | None = None
        """This node and the others, where there are several."""
        self.until_end = contextlib.ExitStack()
        self._hardware: Hardware | None = None
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
                self.log = history.Log(
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
                progress=self._progress,
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

    def check_places(self) -> None:
        """That what is to be written can be: a night that finds out at its end has lost what it measured.

        Raises ``pytest.UsageError``.
        """
        options = self.settings
        places = {"results": options.results, "report_md": options.report_md}
        if options.save_baseline:
            places["baseline_dir"] = options.baseline_dir / self.hardware.id
        for name, path in places.items():
            if path is None:
                continue
            try:
                folder = path.parent if name == "report_md" else path
                folder.mkdir(parents=True, exist_ok=True)
                if name == "report_md":
                    path.open("a").close()
                else:
                    tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                raise pytest.UsageError(f"{settings.flag(name)}: {path} cannot be written ({error.strerror})") from None

    def begin(self) -> None:
        """Let the heavy libraries be imported while pytest is still talking."""
        self.environ = dict(os.environ)
        if self.other is None:
            from pytest_trainbench.launch.launcher import end_fork_server, start_fork_server

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
        from pytest_trainbench.launch.cluster import Cluster, Lead

        here = self._here()
        try:
            lead = Lead(
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

    def keep(self, row: Row, record: Record) -> None:
        """Store what a row measured at once: a run that is killed later must not take it along."""
        if self.settings.save_baseline and row.verdict.outcome in ("saved", "oom"):
            self.saves += baseline.merge(self.settings.baseline_dir, {record.case.id: record})
        if self.settings.results is not None:
            self.settings.results.mkdir(parents=True, exist_ok=True)
            path = self.settings.results / f"{record.case.slug}.json"
            path.write_text(dump(record.to_json()), encoding="utf-8")
        if self.log is not None:
            before = record if row.verdict.outcome == "saved" else row.baseline
            made = "" if before is None else before.created
            # What disturbed a launch is no drift.
            calm = () if before is None else attribution.calm(record, before)
            kept = dataclasses.replace(record, launches=calm or record.launches)
            self.log.add(history.Entry.of(kept, outcome=row.verdict.outcome, baseline=made, fails=row.fails))

    @cached_property
    def earlier(self) -> tuple[list[history.Run], list[str]]:
        """Runs of this project on this hardware that the history has, but for this one, and sentences on what was
        left out."""
        if self.log is None:
            return [], []
        since = datetime.now(timezone.utc).date() - timedelta(days=HISTORY_DAYS)
        runs, problems = history.read_runs(self.log.path.parent, since=since)
        earlier = [run for run in runs if run.path != self.log.path]
        return earlier, problems if earlier else [*problems, *self.log.unclaimed()]

    def turned(self, record: Record) -> Turned | None:
        """Since when a row is red that is red now."""
        earlier, _ = self.earlier
        now = self._runner.now.environment if self._runner else Environment.from_json(record.environment)
        return turned(earlier, record.case.id, now, machine=record.machine, code=overall(record.code))

    @cached_property
    def trend(self) -> list[str]:
        """What the history says of this run, which is part of it from here on."""
        log = self.log
        if log is None:
            return []
        if log.problem or not log.begun:
            return [f"history: {log.problem}"] if log.problem else []
        try:
            tonight = history.read_run(log.path)
        except ValueError as error:  # somebody took it away meanwhile
            return [f"history: {error}"]
        earlier, problems = self.earlier
        found = drift.watch(
            earlier,
            tonight,
            night_error=self.settings.night_error,
            floor=self.settings.floor,
            gates=self.gates,
        )
        for case_id in {one.id for one in found.drifts}:
            log.drifted(case_id)
        return [*(f"history: {problem}" for problem in problems), *drift_lines(found, log.path.parent.parent)]

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """What the suite's hooks make of all records, and their cost if asked for; the tables that have rows, by
        title."""
        records = [row.record for row in self.rows if row.record is not None and not row.same_as]
        made = self.config.hook.pytest_trainbench_tables(records=records)
        tables = {title: table for tables in made for title, table in tables.items() if len(table)}
        if calibrations := [row.calibration for row in self.rows if row.calibration]:
            tables[calibration.TITLE] = calibration.table(calibrations)
        options = self.settings
        if (options.cost or options.task_samples) and cost.costs(records):
            listed = self.hardware.accelerator.price if self.hardware.accelerator else None
            price, task = options.price or listed, options.task_samples
            title = cost.title(price=price, hardware=self.hardware.id, task_samples=task)
            tables[title] = cost.table(records, price=price, task_samples=task)
            if len(changes := one_change.table(records)):
                tables["What one change made"] = changes
        return tables

    def header(self) -> str:
        from importlib.metadata import PackageNotFoundError, version

        versions = []
        for package in ("torch", "deepspeed", "fairscale", "transformers"):
            with contextlib.suppress(PackageNotFoundError):
                versions.append(f"{package} {version(package)}")
        unknown = (
            "" if self.hardware.accelerator or self.hardware.kind == "cpu" else " (not in the hardware table: no MFU)"
        )
        return (
            f"{self._devices()} [{self.hardware.id}]{unknown}, {', '.join(versions)}; {self._compared_with()};"
            f" launches of each case: {self.settings.launches}"
        )

    def _compared_with(self) -> str:
        if self.other is not None:
            return f"against {self.other.name}, in turns"
        folder, root = self.settings.baseline_dir, self.config.rootpath
        stored = baseline.count(folder, self.hardware.id)
        text = f"{stored} baseline{'' if stored == 1 else 's'} in {baseline.from_here(folder / self.hardware.id)}"
        if not stored and self.config.inipath is None and folder.is_relative_to(root):
            text += f" (pytest found no ini file, and took {root} for the project's root)"
        return text

    def _devices(self) -> str:
        hardware = self.hardware
        nodes = f"{self.settings.nodes} nodes of " if self.settings.nodes > 1 else ""
        if hardware.kind == "cpu":
            return f"{nodes}{hardware.device_name}, {hardware.count} cores"
        return f"{nodes}{hardware.count} × {hardware.device_name}"

    @contextlib.contextmanager
    def _progress(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show on the terminal what is running: behind the cursor, and gone when it is done."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if reporter is None or capture is None:
            yield lambda _: None
            return
        live, heard = reporter.isatty, time.monotonic()

        def tell(phase: str) -> None:
            nonlocal heard
            if live:
                reporter._tw.write(f"\x1b7\x1b[K {name}: {phase}\x1b8", flush=True)
            elif time.monotonic() - heard > QUIET_S:
                heard = time.monotonic()
                reporter.write_line(f"\n  {name}: {phase}")

        with capture.global_and_fixture_disabled():
            yield tell
            if live:
                reporter._tw.write("\x1b[K", flush=True)


SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""Where pytest's ``config.stash`` has it."""
