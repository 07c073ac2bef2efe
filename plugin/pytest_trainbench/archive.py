"""Store a run's baselines, results and history, and compare the run with its history."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import cached_property

from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.judge import attribution, drift
from pytest_trainbench.judge.explain import disturbance
from pytest_trainbench.judge.red_since import Turned, turned
from pytest_trainbench.project.sources import overall
from pytest_trainbench.report.drift import lines
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.files import write
from pytest_trainbench.schema.metrics import Gates
from pytest_trainbench.schema.record import Record, dump
from pytest_trainbench.settings import Settings, flag
from pytest_trainbench.store import baseline, history

HISTORY_DAYS = 365
"""Runs older than this are not read, because they say nothing about today."""


def check_places(options: Settings, hardware: str) -> None:
    """Check that all output paths can be written, before anything is measured. ``hardware``: the id of the hardware.

    Raises ``ValueError`` if a path cannot be written. Without this check, a run would lose its measurements.
    """
    reports = {"report_md": options.report_md, "report_html": options.report_html}
    places = {"results": options.results, **reports}
    if options.save_baseline:
        places["baseline_dir"] = options.baseline_dir / hardware
    for name, path in places.items():
        if path is None:
            continue
        try:
            folder = path.parent if name in reports else path
            folder.mkdir(parents=True, exist_ok=True)
            if name in reports:
                path.open("a").close()
            else:
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ValueError(f"{flag(name)}: {path} cannot be written ({error.strerror})") from None


class Archive:
    """Stores the rows of one run, each as soon as it is measured.

    ``log``: the run's file in the history; ``None`` before the first row, and if the run has no history.
    ``saves``: the stored baselines.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log: history.Log | None = None
        self.saves: list[baseline.Saved] = []
        self.drifts: tuple[drift.Drift, ...] = ()
        """The drifts that :attr:`trend` found."""
        self.problems: list[str] = []
        """A sentence for each record that could not be written to ``--results``."""
        self.gates: dict[str, Gates] = {}
        """The gates that the markers of each case set, by case id."""

    def keep(self, row: Row, record: Record, *, took_s: float) -> None:
        """Store a row immediately, so that the row survives if the run is killed later. ``took_s``: the seconds of the
        row, all launches and their start included."""
        if self.settings.save_baseline and row.verdict.outcome in ("saved", "oom"):
            old = row.baseline
            (saved,) = baseline.merge(
                self.settings.baseline_dir,
                {record.case.id: record},
                add=self.settings.add,
                disturbed={record.case.id} if old is not None and disturbance(old) else set(),
            )
            # What it replaced, with the figures that the table of this run shows.
            self.saves.append(dataclasses.replace(saved, replaced=old))
        if self.settings.results is not None:
            path = self.settings.results / f"{record.case.slug}.json"
            try:
                write(path, dump(record.to_json()))
            except OSError as error:  # for example a full disk; the verdict does not depend on this file
                self.problems.append(f"results: {path} cannot be written ({error.strerror})")
        if self.log is not None:
            before = record if row.verdict.outcome == "saved" else row.baseline
            made = "" if before is None else before.created
            # A disturbed launch must not look like a drift.
            undisturbed = () if before is None else attribution.undisturbed(record, before)
            kept = dataclasses.replace(record, launches=undisturbed or record.launches)
            self.log.add(
                history.Entry.of(kept, outcome=row.verdict.outcome, baseline=made, fails=row.fails, took_s=took_s)
            )

    @cached_property
    def earlier(self) -> tuple[list[history.Run], list[str]]:
        """Earlier runs of this project on this hardware, and a sentence for each file that was left out."""
        if self.log is None:
            return [], []
        since = datetime.now(timezone.utc).date() - timedelta(days=HISTORY_DAYS)
        runs, problems = history.read_runs(self.log.path.parent, since=since)
        earlier = [run for run in runs if run.path != self.log.path]
        return earlier, problems if earlier else [*problems, *self.log.unclaimed()]

    def green_nights(self, records: Sequence[Record]) -> dict[str, list[history.Entry]]:
        """The latest green nights of these baselines' own code, by case id."""
        earlier, _ = self.earlier
        return history.green_nights(earlier, records)

    def turned(self, record: Record, now: Environment, *, outcome: str) -> Turned | None:
        """When this row turned red with this ``outcome``; ``None`` if the history does not show it. ``now``: the
        environment of this run."""
        earlier, _ = self.earlier
        return turned(earlier, record.case.id, now, outcome=outcome, machine=record.machine, code=overall(record.code))

    @cached_property
    def trend(self) -> list[str]:
        """Lines on drifts and on files that could not be written or read. This also writes the reported drifts to the
        history."""
        return [*self.problems, *self._trend()]

    def _trend(self) -> list[str]:
        log = self.log
        if log is None:
            return []
        if log.problem or not log.begun:
            return [f"history: {log.problem}"] if log.problem else []
        try:
            tonight = history.read_run(log.path)
        except ValueError as error:  # for example, somebody deleted the file
            return [f"history: {error}"]
        earlier, problems = self.earlier
        found = drift.watch(
            earlier,
            tonight,
            night_error=self.settings.night_error,
            floor=self.settings.floor,
            gates=self.gates,
        )
        self.drifts = found.drifts
        for case_id in {one.id for one in found.drifts}:
            log.drifted(case_id)
        return [*(f"history: {problem}" for problem in problems), *lines(found, log.path.parent.parent)]
