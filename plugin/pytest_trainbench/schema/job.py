"""The boundary between processes: what a rank is told, and the files that it leaves. All of it is JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.plan import Plan

JOB = "job.json"
"""File of a job in its folder."""

FILES = ("trace-{}.json", "failure-{}.json", "hang-{}.txt", "stopped-{}.txt", "progress-{}", "code-{}.json")
"""Files that a rank may leave there: what it measured, why it could not, where its threads hung or were when it was
stopped for another rank, what it does, which files of the project it imported."""

TRACE, FAILURE, STACKS, STOPPED, PROGRESS, CODE = FILES

LEAVING = "leaving"
"""The last phase: all ranks have written their traces, and whatever becomes of this one, it spoils no measurement."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a rank is told.

    With ``reference_steps`` the ranks only train that many steps and hand back their losses. ``limit_s`` bounds the
    rank's life, ``collective_limit_s`` each collective, and ``step_limit_s`` each of the reference's steps and what
    comes before the first: one rank does the work of all there, and nobody knows how long that takes.
    ``import_path`` is put in front of ``sys.path``. ``delay_ms`` is a slowdown of every step, planted to see whether it
    is found. ``device_uuids``: of NVIDIA's devices, in order, for whoever watches them from outside. ``moved``: a
    working tree, and the checkout of another commit that its modules are to come from instead. ``root``: of the project
    whose files the rank notes; ``None`` where nobody asks for them.
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
    """Why one rank gave up, written by the rank itself. ``lost_peer`` marks a victim: it failed because another rank
    had gone."""

    rank: int
    kind: str
    lost_peer: bool
    message: str
    phase: str
    at: float
    traceback: str
