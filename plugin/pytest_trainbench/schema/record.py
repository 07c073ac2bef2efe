"""Measurements: one trace per rank, one launch per start of all ranks, one record per case."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.files import ANYTHING, check, check_fields, check_schema, parse, read_text, told

SCHEMA = 1
"""Version of the stored format. A release that raises it also reads the previous version."""

LAUNCH_FIELDS: dict[str, Any] = {
    "outcome": str,
    "reason": (None, str),
    "step_ms": (list, float),
    "steady_from": int,
    "losses": (list, float),
    "metrics": (dict, float),
    "figures": (dict, float),
    "collectives": (dict, (dict, float)),
    "conditions": (dict, (list, float)),
    "phases_s": (dict, float),
}
"""Shape of each field of a stored launch: see :func:`pytest_trainbench.schema.files.check`."""

LAUNCH_OUTCOMES = ("ok", "oom", "invalid", "timeout", "crash")

ABOVE_ZERO = ("step_ms", "samples_per_s", "compute_ms")
"""Times and rates that are judged. Their logarithms are compared, and a step that took place cannot have a zero."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one rank measured in one launch. The rank writes it as JSON. A field with a default gets its value once it
    is measured.

    node:
        Number of the machine on which the rank ran, from 0.
    flops:
        FLOPs of one step on all ranks, by formula.
    devices:
        Number of devices that this rank drives.
    digest_before, digest_after:
        Exact fingerprints of the parameters before and after all steps.
    step_ms:
        Wall time of each timed step in ms, in order.
    losses:
        Loss of every step from the first; ``None`` if this rank has none.
    flops_counted:
        Counted FLOPs of one step on this rank alone; ``None`` if not counted.
    memory:
        Bytes by name.
    parts:
        Where a step's time goes, by name (:class:`pytest_trainbench.rank.breakdown.Parts`); empty on a CPU.
    collectives:
        Calls and bytes of one step by kind; ``None`` if they could not be counted.
    compilations:
        See :func:`pytest_trainbench.rank.compilations.count_compilations`.
    energy_j:
        Energy of this rank's device in all timed steps, in joules; ``None`` if it has no counter.
    host:
        Counters of the host during the timed steps (:func:`pytest_trainbench.rank.host_counters.counters`).
    figures:
        The step's own figures (:attr:`pytest_trainbench.Step.figures`).
    phases_s:
        Seconds by phase of the rank.
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
        """Compute time of the device per step, in ms; ``None`` on a CPU."""
        return self.parts.get("compute_ms")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch, aggregated over its ranks. Verdicts compare launches.

    outcome:
        One of :data:`LAUNCH_OUTCOMES`.
    reason:
        Why ``outcome`` is not ``ok``; ``None`` if it is.
    step_ms:
        The slowest rank's time of every timed step, in ms.
    steady_from:
        Index in ``step_ms`` of the first step of the steady window, from which metrics are read.
    losses:
        Mean over data-parallel ranks of every step from the first. The list ends before the first loss that is not
        finite.
    metrics:
        Values by metric name.
    figures:
        The step's own figures (:attr:`pytest_trainbench.Step.figures`).
    collectives:
        Calls and bytes of one step by kind, summed over all ranks.
    conditions:
        Conditions of the machine by name (:data:`pytest_trainbench.schema.conditions.CONDITIONS`).
    phases_s:
        Seconds by phase.

    Raises ``ValueError`` for an unknown outcome, for a number that is not finite, for a judged time or rate that is not
    above 0, and for an ok launch without step times above 0.
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
            raise ValueError(f"launch outcome {self.outcome!r} is unknown; known: {', '.join(LAUNCH_OUTCOMES)}")
        if (self.outcome == "ok") != (self.reason is None):
            rule = "a launch has a reason exactly if its outcome is not 'ok'"
            raise ValueError(f"{rule}: its outcome is {self.outcome!r}, its reason {self.reason!r}")
        numbers = [*self.step_ms, *self.losses, *self.metrics.values(), *self.figures.values()]
        numbers += self.phases_s.values()
        numbers += (number for kind in self.collectives.values() for number in kind.values())
        numbers += (number for values in self.conditions.values() for number in values)
        if broken := [number for number in numbers if not math.isfinite(number)]:
            raise ValueError(f"numbers of a launch must be finite, not {broken}")
        if self.outcome == "ok" and not (self.step_ms and min(self.step_ms) > 0):
            raise ValueError(f"an ok launch needs step times above 0, not {self.step_ms}")
        for name in ABOVE_ZERO:
            if self.metrics.get(name, 1.0) <= 0:
                raise ValueError(f"the metric {name} must be above 0, not {self.metrics[name]}")

    @classmethod
    def from_json(cls, data: Any) -> Launch:
        """Raises ``ValueError`` for data that is not a stored launch."""
        check_fields(data, LAUNCH_FIELDS, "a launch")
        return cls(**data)

    @property
    def steady_ms(self) -> list[float]:
        return self.step_ms[self.steady_from :]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The launches of a baseline that one run added.

    launches:
        Their number.
    machine:
        Id of the machine; empty if unknown.
    created:
        Time in UTC, as ISO 8601.
    """

    launches: int
    machine: str
    created: str

    @classmethod
    def from_json(cls, data: Any) -> Saving:
        """Raises ``ValueError`` for data that is not a stored saving."""
        check_fields(data, {"launches": int, "machine": str, "created": str}, "a saving")
        if missing := {"launches", "machine", "created"} - data.keys():
            raise ValueError(f"a saving has no {min(missing)}")
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Record:
    """All launches of one case in one run, with everything that a later comparison needs. A baseline may hold the
    launches of several runs.

    label:
        The row's short name in reports.
    hardware:
        Id of the hardware.
    created:
        Time in UTC, as ISO 8601.
    environment:
        JSON of :class:`pytest_trainbench.hardware.environment.Environment`.
    code:
        Digests of the project's files that the ranks imported, by path relative to the project's root
        (:mod:`pytest_trainbench.project.sources`). Empty in older files.
    savings:
        The runs of a baseline in the order of their launches, if there were several; empty if there was one.
    judged:
        Figures by which a verdict judged the launches, by metric (:mod:`pytest_trainbench.judge.middle`). Reports show
        them. They are never stored.

    Raises ``ValueError`` without launches, and if ``savings`` do not add up to them.
    """

    case: Case
    label: str
    hardware: str
    created: str
    launches: tuple[Launch, ...]
    environment: dict[str, Any]
    plugin_version: str
    code: Mapping[str, str] = field(default_factory=dict)
    savings: tuple[Saving, ...] = ()
    judged: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.launches:
            raise ValueError(f"a record of {self.label} needs at least one launch")
        if self.savings and (sum(one.launches for one in self.savings), True) != (
            len(self.launches),
            all(one.launches > 0 for one in self.savings),
        ):
            raise ValueError(f"the savings of {self.label} do not add up to its {len(self.launches)} launches")

    @property
    def outcome(self) -> str:
        """The first launch outcome that is not ``ok``; ``ok`` if all are."""
        return next((launch.outcome for launch in self.launches if launch.outcome != "ok"), "ok")

    @property
    def reason(self) -> str | None:
        return next((launch.reason for launch in self.launches if launch.outcome != "ok"), None)

    @property
    def machine(self) -> str:
        """Id of the machine, from the environment; empty if unknown."""
        return str(self.environment.get("machine", ""))

    @property
    def visits(self) -> tuple[Record, ...]:
        """The launches of each saving as a record of its own."""
        if not self.savings:
            return (self,)
        launches = iter(self.launches)
        return tuple(
            replace(
                self,
                launches=tuple(islice(launches, one.launches)),
                created=one.created,
                environment={**self.environment, "machine": one.machine},
                savings=(),
                judged={},
            )
            for one in self.savings
        )

    def values(self, metric: str) -> list[float]:
        """The metric's value in each launch that has one."""
        return [launch.metrics[metric] for launch in self.launches if metric in launch.metrics]

    def median(self, *metrics: str) -> float | None:
        """Median over the launches. Of several metrics it takes the first that any launch has; ``None`` if no launch
        has any of them."""
        return next((statistics.median(values) for metric in metrics if (values := self.values(metric))), None)

    def figure(self, *metrics: str) -> float | None:
        """The figure that reports show of all launches: the judged one, else the median. Of several metrics it takes
        the first that any launch has; ``None`` if no launch has any of them."""
        name = next((metric for metric in metrics if self.values(metric)), None)
        return None if name is None else self.judged.get(name, self.median(name))

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
            **({"savings": [asdict(one) for one in self.savings]} if self.savings else {}),
            "launches": [asdict(launch) for launch in self.launches],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        for name in ("label", "hardware", "created", "plugin_version"):
            check(data[name], str, name)
        if datetime.fromisoformat(data["created"]).tzinfo is None:
            raise ValueError(f"its time, created={data['created']!r}, has no time zone")
        check_environment(data["environment"])
        check(data["launches"], (list, (dict, ANYTHING)), "launches")
        savings = data.get("savings", [])
        check(savings, (list, (dict, ANYTHING)), "savings")
        code = data.get("code", {})
        check(code, (dict, str), "code")
        if strange := [path for path in code if not _stays_inside(path)]:
            raise ValueError(f"code names the file {strange[0]!r:.80}, which is outside the project")
        return cls(
            case=Case.from_json(data["case"]),
            label=data["label"],
            hardware=data["hardware"],
            created=data["created"],
            launches=tuple(map(Launch.from_json, data["launches"])),
            environment=data["environment"],
            plugin_version=data["plugin_version"],
            code=dict(code),
            savings=tuple(map(Saving.from_json, savings)),
        )


def check_environment(data: Any) -> None:
    """Raise ``ValueError`` unless ``data`` is the JSON of an environment."""
    check(data, (dict, ANYTHING), "environment")
    for name in ("must_match", "suspects"):
        check(data[name], (dict, object), f"{name} of its environment")
    check(data.get("machine", ""), str, "machine of its environment")


def _stays_inside(path: str) -> bool:
    """Whether a relative path names a file below its folder."""
    return not (path.startswith("/") or "\0" in path or ".." in path.split("/"))


def dump(data: Mapping[str, Any]) -> str:
    """JSON that is easy to read and to diff: indented, with each list of numbers on one line.

    Fractions are rounded to 6 significant digits. Whole numbers, such as bytes and FLOPs, stay exact. So does the case,
    because its parameters are part of its id.
    """
    stored = {name: value if name == "case" else as_stored(value) for name, value in data.items()}
    text = json.dumps(stored, indent=2, ensure_ascii=False, allow_nan=False)
    numbers = r"\[\n\s+([^\[\]{}\"]*?)\n\s+\]"
    return re.sub(numbers, lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read_record(path: Path, *, inside: Path | None = None) -> Record:
    """Read a record from a file that :func:`dump` wrote.

    ``inside``: the folder that the file must be in, wherever links lead.

    Raises ``ValueError`` with one sentence that names the file, if the file is missing or holds no valid record.
    """
    try:
        data = parse(read_text(path, inside=inside))
        check_schema(data["schema"], SCHEMA)
        record = Record.from_json(data)
        if record.case.id != data["id"]:
            ids = f"its id {data['id']!r} differs from the id of its case, {record.case.id!r}"
            raise ValueError(f"{ids}: the file was edited by hand")
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a record: it has no {error}") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a record: {told(error)}") from error
    return record


def as_stored(value: Any) -> Any:
    """``value`` as a file stores it, with rounded fractions: see :func:`dump`."""
    if isinstance(value, float):
        return value if value.is_integer() else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: as_stored(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_stored(item) for item in value]
    return value
