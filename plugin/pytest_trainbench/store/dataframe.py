"""Records and the history as pandas tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trainbench.schema.conditions import worst
from pytest_trainbench.schema.record import Record, read_record
from pytest_trainbench.store.history import default_folder, read_runs

if TYPE_CHECKING:
    import pandas as pd


def load(path: str | Path) -> pd.DataFrame:
    """All records in a file, or in a folder at any depth: a folder of baselines or of ``--results``.

    One row per launch, with the columns of :func:`frame`. Raises ``FileNotFoundError`` if the path does not exist, and
    ``ValueError`` with the name of a file that is not a record.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; --results DIR or --save-baseline writes records")
    return frame(map(read_record, sorted(path.rglob("*.json")) if path.is_dir() else [path]))


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per launch, with these columns:

    * ``id, label, hardware, builder`` (the function's name), ``mesh, world_size, created, machine, launch`` (from 0),
      ``outcome, reason``
    * ``param.<name>``: each parameter of the case
    * each metric under its own name, with its unit (``step_ms``)
    * ``figure.<name>``: each figure that the step returned
    * ``condition.<name>``: each condition of the machine, for the worst device or rank
    * ``steady_steps``: the number of steps that the metrics were computed from
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for record in records:
        rows.extend(
            {
                "id": record.case.id,
                "label": record.label,
                "hardware": record.hardware,
                "builder": record.case.function,
                "mesh": str(record.case.mesh),
                "world_size": record.case.mesh.world_size,
                "created": pd.Timestamp(record.created),
                "machine": record.environment.get("machine"),
                "launch": number,
                "outcome": launch.outcome,
                "reason": launch.reason,
                **{f"param.{name}": value for name, value in record.case.params.items()},
                **launch.metrics,
                **{f"figure.{name}": value for name, value in launch.figures.items()},
                **{f"condition.{name}": worst(name, values) for name, values in launch.conditions.items()},
                "steady_steps": len(launch.steady_ms),
            }
            for number, launch in enumerate(record.launches)
        )
    return pd.DataFrame(rows)


def load_history(path: str | Path | None = None) -> pd.DataFrame:
    """All runs in a folder of ``--history``, at any depth. ``None``: the default folder.

    One row per launch, the oldest run first, with these columns:

    * ``started``: when the run started
    * ``project``: the name of its folder in the history, empty for runs of older versions
    * ``hardware, machine, id, label, outcome`` (of the case's verdict)
    * ``baseline``: when the baseline of the comparison was made
    * ``code``: one digest of the project's files
    * ``launch`` (from 0)
    * each metric that has a gate, under its own name
    * ``env.<name>``: each fact of the environment (``env.commit``, ``env.torch``)

    A warning names each file that cannot be read, and the file is left out. Raises ``FileNotFoundError`` if the folder
    does not exist.
    """
    import pandas as pd

    path = default_folder() if path is None else Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; a run writes it, unless --history names another folder")
    runs, problems = read_runs(path)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    rows: list[dict[str, Any]] = []
    for run in runs:
        facts = {**run.environment.must_match, **run.environment.suspects}
        rows.extend(
            {
                "started": pd.Timestamp(run.started),
                "project": run.project,
                "hardware": run.hardware,
                "machine": run.environment.machine,
                "id": entry.id,
                "label": entry.label,
                "outcome": entry.outcome,
                "baseline": entry.baseline,
                "code": entry.code,
                "launch": number,
                **launch,
                **{f"env.{name}": value for name, value in facts.items()},
            }
            for entry in run.entries.values()
            for number, launch in enumerate(entry.launches)
        )
    return pd.DataFrame(rows)
