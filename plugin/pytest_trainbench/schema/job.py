"""What crosses process boundaries: the job that a rank reads, and the files that a rank writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.plan import Plan

JOB = "job.json"
"""Name of the job's file in its folder."""

FILES = ("trace-{}.json", "failure-{}.json", "hang-{}.txt", "stopped-{}.txt", "progress-{}", "code-{}.json")
"""Files that a rank may write into the job's folder; ``{}`` is the rank. In this order: its trace; why it failed; the
stacks of its threads at the time limit; the same when it was stopped because of another rank; its current phase; which
of the project's files it imported."""

TRACE, FAILURE, STACKS, STOPPED, PROGRESS, CODE = FILES

BUILDING = "building the step"
"""The phase in which a rank imports and calls the step builder."""

SCRATCH = "tmp"
"""Folder for the temporary files of the ranks' profilers. The launcher removes it, because a killed rank cannot."""

UNBORN = "starting"
"""The phase of a rank until it runs."""

LEAVING = "leaving"
"""The last phase. All ranks have written their traces, so a rank that fails now spoils no measurement."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a rank needs to know.

    folder:
        Where the rank writes its files.
    limit_s:
        Limit of the rank's life, in seconds.
    collective_limit_s:
        Limit of each collective, in seconds; below ``limit_s``, or ``ValueError`` is raised.
    reference_steps:
        Train this many steps and return their losses, without measuring. ``None`` for a launch that measures.
    step_limit_s:
        Limit of each step of a reference, and of the start before its first step, in seconds. A reference does the work
        of all ranks on one rank, so the time of the whole cannot be known beforehand.
    import_path:
        Folders to put in front of ``sys.path``.
    delay_ms:
        A planted slowdown of every step, which tests whether the plugin finds it.
    device_uuids:
        UUIDs of the NVIDIA devices in the order of the ranks, for the process that samples them during the launch.
    moved:
        A working tree, and a checkout of another commit. The project's modules must come from the checkout.
    root:
        Root of the project whose imported files the rank notes; ``None`` if nobody needs them.
    """

    case: Case
    device_kind: str
    folder: Path
    limit_s: float
    collective_limit_s: float
    plan: Plan = field(default_factory=Plan)
    reference_steps: int | None = None
    step_limit_s: float | None = None
    import_path: tuple[str, ...] = ()
    delay_ms: float = 0.0
    device_uuids: tuple[str, ...] = ()
    moved: tuple[str, str] | None = None
    root: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.collective_limit_s < self.limit_s:
            raise ValueError(
                f"a collective's limit ({self.collective_limit_s} s) must be below the launch's ({self.limit_s} s)"
            )

    def write(self) -> Path:
        path = self.folder / JOB
        data = {
            **asdict(self),
            "case": self.case.to_json(),
            "folder": str(self.folder),
            "root": None if self.root is None else str(self.root),
            "import_path": list(self.import_path),
            "device_uuids": list(self.device_uuids),
        }
        path.write_text(json.dumps(data, indent=2), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            **{
                **data,
                "case": Case.from_json(data["case"]),
                "folder": Path(data["folder"]),
                "root": None if data["root"] is None else Path(data["root"]),
                "plan": Plan(**data["plan"]),
                "import_path": tuple(data["import_path"]),
                "device_uuids": tuple(data["device_uuids"]),
                "moved": tuple(data["moved"]) if data["moved"] else None,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why one rank failed, written by the rank itself.

    kind:
        ``oom``, ``timeout`` or ``crash``.
    lost_peer:
        Whether the rank failed only because another rank was gone.
    phase, at:
        The phase in which it failed, and the time (seconds since the epoch).
    """

    rank: int
    kind: str
    lost_peer: bool
    message: str
    phase: str
    at: float
    traceback: str
