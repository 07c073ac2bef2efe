"""All measurements, kept for months: ``<folder>/<project>/<hardware id>/<UTC time>-<eight hex digits>.jsonl``.

Each project has a folder of its own, because a case's id does not name its project.

Each run writes one file, and no other run writes to it, so simultaneous runs lose nothing. The first line describes the
run. Each other line is one of these:

* a case, written when it is measured, so that a killed run keeps its measurements
* a reported drift
* a case whose test failed after it was measured
"""

from __future__ import annotations

import contextlib
import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.environment import Difference, Environment
from pytest_trainbench.project.sources import overall
from pytest_trainbench.schema.files import ANYTHING, check, check_fields, check_schema, parse, read_text, told
from pytest_trainbench.schema.metrics import METRICS, check_figures
from pytest_trainbench.schema.record import Record, check_environment

SCHEMA = 1
"""Version of the stored format. A release that raises it still reads the previous version."""


UNCHANGED = ("ok", "noisy")
"""Outcomes of a case in which no change was seen."""


def default_folder() -> Path:
    """The folder of runs unless ``--history`` names another one.

    It is in the user's data folder, which survives when a CI runner deletes its workspace.
    """
    from platformdirs import user_data_path

    return user_data_path("pytest-trainbench", appauthor=False) / "history"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case in one run.

    outcome: the outcome of the case's verdict.
    baseline: when the baseline of the comparison was created, as in its record. If the case became a baseline itself,
    when that was created. Empty without a baseline.
    launches: for each launch the metrics that have a gate, by name.
    machine: as in an environment. For a case on several nodes it differs from the run's machine. Empty in older files.
    fails: whether the case's test failed. For some outcomes the options of the run decide this. ``None`` in older
    files.
    code: one digest of all the project's files that the case imported; empty if they are not known.
    launch_s: seconds of one launch, its start included; ``None`` in older files.
    """

    id: str
    label: str
    outcome: str
    baseline: str
    launches: tuple[Mapping[str, float], ...]
    machine: str = ""
    fails: bool | None = None
    code: str = ""
    launch_s: float | None = None

    @classmethod
    def of(cls, record: Record, *, outcome: str, baseline: str, fails: bool, took_s: float | None = None) -> Entry:
        gated = [name for name, metric in METRICS.items() if metric.gate is not None]
        return cls(
            id=record.case.id,
            label=record.label,
            outcome=outcome,
            baseline=baseline,
            machine=record.machine,
            fails=fails,
            code=overall(record.code),
            launch_s=None if took_s is None else round(took_s / len(record.launches), 2),
            launches=tuple(
                {name: launch.metrics[name] for name in gated if name in launch.metrics} for launch in record.launches
            ),
        )

    def values(self, metric: str) -> list[float]:
        """The metric's value in each launch that has one."""
        return [launch[metric] for launch in self.launches if metric in launch]


ENTRY_FIELDS: dict[str, Any] = {
    "id": str,
    "label": str,
    "outcome": str,
    "baseline": str,
    "launches": (list, (dict, float)),
    "machine": str,
    "fails": (None, object),
    "code": str,
    "launch_s": (None, float),
}
"""Shape of each field of a stored entry: see :func:`pytest_trainbench.schema.files.check`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, read from its file.

    ``project``: the name from :func:`pytest_trainbench.project.name.project_name`, empty in older files.
    ``drifted``: ids of the cases with a reported drift.
    """

    path: Path
    started: datetime
    hardware: str
    environment: Environment
    entries: Mapping[str, Entry]
    project: str = ""
    drifted: frozenset[str] = frozenset()

    def machine_of(self, case_id: str) -> str:
        """The machine of a case, or of the whole run if the case has none of its own."""
        entry = self.entries.get(case_id)
        return (entry and entry.machine) or self.environment.machine


NIGHTS_MOST = 30
"""Green nights of a case that count at most, the latest ones."""


def green_nights(runs: Sequence[Run], records: Sequence[Record]) -> dict[str, list[Entry]]:
    """For each baseline the latest nights of its own code in which nothing changed, by case id. A baseline that does
    not know its code has none."""
    codes = {record.case.id: overall(record.code) for record in records if record.code}
    found: dict[str, list[Entry]] = {}
    for run in runs:
        for id, entry in run.entries.items():
            if entry.outcome in UNCHANGED and entry.code and entry.code == codes.get(id):
                found.setdefault(id, []).append(replace(entry, machine=run.machine_of(id)))
    return {id: entries[-NIGHTS_MOST:] for id, entries in found.items()}


def own_code(before: str, now: str) -> list[Difference]:
    """The difference between the code of a case in two runs, by the digests of their entries.

    Empty if the code is the same, or if one run does not know it.
    """
    return [("your code", before, now)] if before and now and before != now else []


class Log:
    """The file of the current run. The first line creates it, and then ``begun`` is true.

    If the folder cannot be written, the run goes on. ``problem`` is then a sentence that says so, and nothing more is
    written.
    """

    def __init__(
        self, folder: Path, *, project: str, hardware: str, environment: Mapping[str, Any], started: datetime
    ) -> None:
        name = f"{started.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}.jsonl"
        self.path = folder / project / hardware / name
        self.begun = False
        self.problem = ""
        self._head = {
            "schema": SCHEMA,
            "started": started.isoformat(timespec="seconds"),
            "project": project,
            "hardware": hardware,
            "environment": dict(environment),
        }

    def add(self, entry: Entry) -> None:
        self._write({"case": asdict(entry)})

    def drifted(self, case_id: str) -> None:
        self._write({"drift": case_id})

    def disowned(self, case_id: str) -> None:
        """Mark the case as invalid, because its test failed after the case was measured."""
        self._write({"disowned": case_id})

    def unclaimed(self) -> list[str]:
        """A sentence on this hardware's runs without a project: older versions kept all projects together."""
        old = self.path.parents[2] / self.path.parent.name
        if next(old.glob("*.jsonl"), None) is None:
            return []
        move = f"mv {shlex.quote(str(old))}/*.jsonl {shlex.quote(str(self.path.parent))}"
        return [
            f"the runs in {old} do not say their project, so they do not count; if all are of this project, type {move}"
        ]

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.problem:
            return
        lines = [line] if self.begun else [self._head, line]
        text = "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
            self.begun = True
        except OSError as error:
            why = f"{self.path.parent} cannot be written ({error.strerror})"
            self.problem = f"{why}; --history DIR names another folder"


def read_run(path: Path, *, inside: Path | None = None) -> Run:
    """The run in a file that :class:`Log` wrote. A last line without a line break is incomplete, and is left out.

    ``inside``: the folder that the file must be in, wherever links lead.

    Raises ``ValueError`` if the file does not hold a run. The sentence names the file.
    """
    try:
        whole = read_text(path, inside=inside).rpartition("\n")[0]
        head, *lines = [parse(line) for line in whole.split("\n")]
        check_schema(head["schema"], SCHEMA)
        for name in ("started", "hardware"):
            check(head[name], str, name)
        check(head.get("project", ""), str, "project")
        if datetime.fromisoformat(head["started"]).tzinfo is None:
            raise ValueError(f"its time, started={head['started']!r}, has no time zone")
        check_environment(head["environment"])
        for line in lines:
            check(line, (dict, ANYTHING), "a line")
        found = [_entry(line["case"], path) for line in lines if "case" in line]
        entries = {entry.id: entry for entry in found}
        for id in (line["disowned"] for line in lines if "disowned" in line):
            entries[id] = replace(entries[id], outcome="invalid", fails=True)
        return Run(
            path=path,
            started=datetime.fromisoformat(head["started"]),
            hardware=head["hardware"],
            environment=Environment.from_json(head["environment"]),
            entries=entries,
            project=head.get("project", ""),
            drifted=frozenset(str(line["drift"]) for line in lines if "drift" in line),
        )
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a run: it has no {error}") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} cannot be read as a run: {told(error)}") from error


def _entry(data: Any, path: Path) -> Entry:
    check_fields(data, ENTRY_FIELDS, "a case")
    for launch in data["launches"]:
        check_figures(launch, path)
    return Entry(**{**data, "launches": tuple(data["launches"])})


def launch_seconds(folder: Path, *, runs: int = 10) -> dict[str, float]:
    """Label of a row -> seconds of one of its launches, from the last ``runs`` runs of a folder.

    A file that cannot be read is passed over: :func:`read_runs` reports it.
    """
    found: dict[str, float] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.name)[-runs:]:
        with contextlib.suppress(ValueError):
            entries = read_run(path).entries.values()
            found |= {entry.label: entry.launch_s for entry in entries if entry.launch_s is not None}
    return found


def read_runs(folder: Path, *, since: date = date.min) -> tuple[list[Run], list[str]]:
    """All runs in a folder, at any depth, that started on the day ``since`` or later, the oldest first.

    The second list has a sentence for each file that cannot be read.
    """
    runs, problems = [], []
    for path in sorted(folder.rglob("*.jsonl"), key=lambda path: path.name):
        if path.name < since.isoformat().replace("-", ""):
            continue
        try:
            runs.append(read_run(path, inside=folder))
        except ValueError as error:
            problems.append(str(error))
    return runs, problems
