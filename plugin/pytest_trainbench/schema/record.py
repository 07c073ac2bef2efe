"""What was measured: traces (one a rank), launches (one a process launch), records (one a case)."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_trainbench.schema.case import Case

SCHEMA = 1
"""Version of the stored format. A release that raises it also reads the version before."""

LAUNCH_OUTCOMES = ("ok", "oom", "invalid", "timeout", "crash")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one rank saw of one launch; written by the rank as JSON. What has a default is known once it has been
    measured.

    node: which of the launch's machines it ran on, from 0. step_ms: wall time of each timed step (ms), in order.
    losses: of every step from the first, ``None`` where this rank has none. digest_before, digest_after: exact
    fingerprints of the parameters. flops: of one step on all ranks by formula; flops_counted: as the counter saw them
    on this rank alone. memory: bytes by name. parts: where a step's time goes, by name
    (:class:`pytest_trainbench.rank.breakdown.Parts`); empty on a CPU. collectives: calls and bytes of one step by kind,
    ``None`` where they could not be counted. compilations: see
    :func:`pytest_trainbench.rank.compilations.count_compilations`. energy_j: taken by this rank's device in all timed
    steps, ``None`` where it has no counter. host: what its host counted meanwhile
    (:func:`pytest_trainbench.rank.host_counters.counters`). figures: what the step said of itself. devices: that this
    rank keeps busy. phases_s: seconds by phase.
    """

    rank: int
    coordinates: dict[str, int]
    node: int
    samples: int
    tokens: int | None
    flops: float | None
    dtype: str
    replicated: bool
    trains: bool
    devices: int
    digest_before: str
    digest_after: str = ""
    step_ms: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    flops_counted: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    collectives: dict[str, dict[str, float]] | None = None
    compilations: dict[str, float] = field(default_factory=dict)
    energy_j: float | None = None
    host: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def compute_ms(self) -> float | None:
        """How long the device computes for a step; ``None`` on a CPU."""
        return self.parts.get("compute_ms")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process launch, its ranks reduced: the unit of evidence.

    step_ms holds the slowest rank's time for every timed step; those from index ``steady_from`` on are the
    steady window that ``metrics`` (values by metric name) were read from. ``figures`` are what the step said of itself.
    ``collectives`` are calls and bytes of one step by kind, all ranks added up. ``conditions`` are what it ran under
    (:data:`pytest_trainbench.schema.conditions.CONDITIONS`). losses are the mean over data-parallel ranks, from the
    first step on, up to the first that is not finite: every number here is. ``reason`` says why ``outcome`` is not
    ``ok``.
    """

    outcome: str = "ok"
    reason: str | None = None
    step_ms: list[float] = field(default_factory=list)
    steady_from: int = 0
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    collectives: dict[str, dict[str, float]] = field(default_factory=dict)
    conditions: dict[str, list[float]] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome not in LAUNCH_OUTCOMES:
            raise ValueError(f"a launch ends as one of {', '.join(LAUNCH_OUTCOMES)}, not {self.outcome!r}")
        if (self.outcome == "ok") != (self.reason is None):
            raise ValueError(f"a launch that ended {self.outcome!r} has the reason {self.reason!r}")
        numbers = [*self.step_ms, *self.losses, *self.metrics.values(), *self.figures.values()]
        numbers += self.phases_s.values()
        numbers += (number for kind in self.collectives.values() for number in kind.values())
        numbers += (number for values in self.conditions.values() for number in values)
        if broken := [number for number in numbers if not math.isfinite(number)]:
            raise ValueError(f"a launch holds finite numbers, not {broken}")
        if self.outcome == "ok" and not (self.step_ms and min(self.step_ms) > 0):
            raise ValueError(f"an ok launch has step times above 0, not {self.step_ms}")
        if self.metrics.get("step_ms", 1.0) <= 0:
            raise ValueError(f"a step takes more than {self.metrics['step_ms']} ms")

    @property
    def steady_ms(self) -> list[float]:
        return self.step_ms[self.steady_from :]


@dataclass(frozen=True, kw_only=True)
class Record:
    """All launches of one case in one session, with what is needed to compare them later.

    ``label`` is the short name shown to people, ``created`` the UTC time (ISO 8601), ``hardware`` the
    hardware id, ``environment`` as :class:`pytest_trainbench.hardware.environment.Environment` gives it. ``code`` has a
    digest of each of the project's files that the ranks imported, by path relative to the project's root
    (:mod:`pytest_trainbench.project.sources`); empty in older files.
    """

    case: Case
    label: str
    hardware: str
    created: str
    launches: tuple[Launch, ...]
    environment: dict[str, Any]
    plugin_version: str
    code: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.launches:
            raise ValueError(f"a record of {self.label} needs at least one launch")

    @property
    def outcome(self) -> str:
        """The first outcome among the launches that is not ``ok``."""
        return next((launch.outcome for launch in self.launches if launch.outcome != "ok"), "ok")

    @property
    def reason(self) -> str | None:
        return next((launch.reason for launch in self.launches if launch.outcome != "ok"), None)

    @property
    def machine(self) -> str:
        """Of its environment; empty where that does not say."""
        return str(self.environment.get("machine", ""))

    def values(self, metric: str) -> list[float]:
        """The metric's value in each launch that has one."""
        return [launch.metrics[metric] for launch in self.launches if metric in launch.metrics]

    def median(self, *metrics: str) -> float | None:
        """Median over the launches of the first of these metrics that any launch has; ``None`` where none has one."""
        return next((statistics.median(values) for metric in metrics if (values := self.values(metric))), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "id": self.case.id,
            "label": self.label,
            "case": self.case.to_json(),
            "hardware": self.hardware,
            "created": self.created,
            "plugin_version": self.plugin_version,
            "environment": self.environment,
            "code": dict(self.code),
            "launches": [asdict(launch) for launch in self.launches],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        if datetime.fromisoformat(data["created"]).tzinfo is None:
            raise ValueError(f"created is {data['created']!r}, without a time zone")
        for name in ("must_match", "suspects"):
            if not isinstance(data["environment"][name], Mapping):
                raise ValueError(f"{name} of its environment is {data['environment'][name]!r}")
        return cls(
            case=Case.from_json(data["case"]),
            label=data["label"],
            hardware=data["hardware"],
            created=data["created"],
            launches=tuple(Launch(**launch) for launch in data["launches"]),
            environment=data["environment"],
            plugin_version=data["plugin_version"],
            code=dict(data.get("code", {})),
        )


def dump(data: Mapping[str, Any]) -> str:
    """JSON for people and ``git diff``: indented, and a list of numbers on one line.

    Fractions are cut to 6 significant digits; whole numbers, such as bytes and FLOPs, are kept as they are, and so is
    the case, whose parameters name it.
    """
    stored = {name: value if name == "case" else as_stored(value) for name, value in data.items()}
    text = json.dumps(stored, indent=2, ensure_ascii=False, allow_nan=False)
    numbers = r"\[\n\s+([^\[\]{}\"]*?)\n\s+\]"
    return re.sub(numbers, lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read_record(path: Path) -> Record:
    """The record in a file written with :func:`dump`.

    Raises ``ValueError`` with one sentence that names the file for anything that is not one.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its format is {data['schema']!r}, and this pytest-trainbench reads {SCHEMA}")
        record = Record.from_json(data)
        if record.case.id != data["id"]:
            ids = f"its id {data['id']!r} is not that of its case, {record.case.id!r}"
            raise ValueError(f"{ids}: it was edited by hand")
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a record: it has no {error}") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a record: {error}") from error
    return record


def as_stored(value: Any) -> Any:
    """What a file keeps of it; see :func:`dump`."""
    if isinstance(value, float):
        return value if value.is_integer() else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: as_stored(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_stored(item) for item in value]
    return value
