"""What every run measured, kept for months: ``<folder>/<project>/<hardware id>/<UTC time>-<eight hex digits>.jsonl``.

Many projects share a folder, and a case's id does not tell whose it is: each project has a folder of its own there.

One file a run, which that run alone writes, so that two at once lose nothing. Its first line tells of the run, every
other of one case, written when the case is done (a run that is killed keeps what it measured), of a drift that was
said, or of a case whose test failed after it was measured.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.environment import Difference, Environment
from pytest_trainbench.project.sources import overall
from pytest_trainbench.schema.metrics import METRICS
from pytest_trainbench.schema.record import Record

SCHEMA = 1
"""Version of the stored format. A release that raises it also reads the version before."""


def default_folder() -> Path:
    """Where runs are kept unless ``--history`` names another folder. A runner's workspace is wiped, its user's data is
    not."""
    from platformdirs import user_data_path

    return user_data_path("pytest-trainbench", appauthor=False) / "history"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case in one run.

    outcome: of its verdict. baseline: when the baseline that it was held against was made (as in its record), or the
    one that it became; empty where there was none. launches: of each launch the metrics that have a gate, by name.
    machine: as of an environment; on several nodes not that of the run. Empty in older files. fails: whether its test
    did, which for some outcomes was that run's to say; ``None`` in older files. code: one digest of all the project's
    files that the case imported; empty where they are not known.
    """

    id: str
    label: str
    outcome: str
    baseline: str
    launches: tuple[Mapping[str, float], ...]
    machine: str = ""
    fails: bool | None = None
    code: str = ""

    @classmethod
    def of(cls, record: Record, *, outcome: str, baseline: str, fails: bool) -> Entry:
        gated = [name for name, metric in METRICS.items() if metric.gate is not None]
        return cls(
            id=record.case.id,
            label=record.label,
            outcome=outcome,
            baseline=baseline,
            machine=record.machine,
            fails=fails,
            code=overall(record.code),
            launches=tuple(
                {name: launch.metrics[name] for name in gated if name in launch.metrics} for launch in record.launches
            ),
        )

    def values(self, metric: str) -> list[float]:
        """The metric's value in each launch that has one."""
        return [launch[metric] for launch in self.launches if metric in launch]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One file. ``project``: its name as :func:`pytest_trainbench.project.name.project_name` has it, empty in older
    files. ``drifted``: ids of the cases that a drift was said of."""

    path: Path
    started: datetime
    hardware: str
    environment: Environment
    entries: Mapping[str, Entry]
    project: str = ""
    drifted: frozenset[str] = frozenset()

    def machine_of(self, case_id: str) -> str:
        """That a case was measured on, or all of them together."""
        entry = self.entries.get(case_id)
        return (entry and entry.machine) or self.environment.machine


def own_code(before: str, now: str) -> list[Difference]:
    """That the code of a case changed between two runs, by the digests of their entries; empty where one run does not
    know."""
    return [("your code", before, now)] if before and now and before != now else []


class Log:
    """The file of the run that goes on; it is made with the first line (``begun``).

    A folder that cannot be written stops no run: ``problem`` is then the sentence that says so, and nothing more is
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
        """Its test failed after it was measured: that night is none of the case."""
        self._write({"disowned": case_id})

    def unclaimed(self) -> list[str]:
        """What to say of this hardware's runs that are of no project: older versions kept those of all together."""
        old = self.path.parents[2] / self.path.parent.name
        if next(old.glob("*.jsonl"), None) is None:
            return []
        move = f"mv {shlex.quote(str(old))}/*.jsonl {shlex.quote(str(self.path.parent))}"
        return [
            f"the runs in {old} do not say their project, so they do not count; if all are of this one, type {move}"
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


def read_run(path: Path) -> Run:
    """The run in a file that :class:`Log` wrote. A last line without an end is left out: it was never finished.

    Raises ``ValueError`` with one sentence that names the file for anything that is not one.
    """
    try:
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        head, *lines = [json.loads(line) for line in whole.split("\n")]
        if head["schema"] != SCHEMA:
            raise ValueError(f"its format is {head['schema']!r}, and this pytest-trainbench reads {SCHEMA}")
        found = [
            Entry(**{**line["case"], "launches": tuple(line["case"]["launches"])}) for line in lines if "case" in line
        ]
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
            drifted=frozenset(line["drift"] for line in lines if "drift" in line),
        )
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a run: it has no {error}") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a run: {error}") from error


def read_runs(folder: Path, *, since: date = date.min) -> tuple[list[Run], list[str]]:
    """Every run in a folder, at any depth, that started on that day or later, the oldest first; and a sentence for
    each file that cannot be read."""
    runs, problems = [], []
    for path in sorted(folder.rglob("*.jsonl"), key=lambda path: path.name):
        if path.name < since.isoformat().replace("-", ""):
            continue
        try:
            runs.append(read_run(path))
        except ValueError as error:
            problems.append(str(error))
    return runs, problems
