"""Launch traces: real figures of launches without a change between them, one CSV for each kind of hardware.

    python -m benchmarks.detection.traces baselines/h200-sxm-141gb results/night-1 > traces/h200-sxm-141gb.csv

This command writes the trace of every record in those folders. The folders are baselines, or were written by
``--results`` with ``--confirm 0``: rows that got more launches because they looked slow would be a biased sample. Only
launches of one record belong together, because code or machine may differ between records.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pytest_trainbench.schema.metrics import METRICS, Statistical, host_bound
from pytest_trainbench.schema.record import Record, read_record

FOLDER = Path(__file__).parent / "traces"

COLUMNS = ("machine", "recorded", "case", "host_bound", "metric", "launch", "value", "steps", "step_noise")
"""Columns of the CSV. ``value`` is the launch's figure in the metric's unit. ``steps`` and ``step_noise`` are the
number of steps in its steady window and their relative standard deviation; both are empty for a metric that does not
come from steps. ``host_bound`` is 1, 0, or empty if not measured."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One metric of one record, with the figures of its launches. ``hardware`` is the name of the file."""

    hardware: str
    machine: str
    case: str
    host_bound: bool
    metric: str
    values: tuple[float, ...]


def read(folder: Path = FOLDER) -> list[Trace]:
    """All stored traces with at least two launches. A case that is host-bound in any record counts as host-bound in
    all."""
    found: dict[tuple[str, str, str, str, str], list[dict[str, str]]] = {}
    bound: set[str] = set()
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                key = path.stem, line["machine"], line["recorded"], line["case"], line["metric"]
                found.setdefault(key, []).append(line)
                if line["host_bound"] == "1":
                    bound.add(line["case"])
    return [
        Trace(
            hardware=hardware,
            machine=machine,
            case=case,
            host_bound=case in bound,
            metric=metric,
            values=tuple(float(line["value"]) for line in lines),
        )
        for (hardware, machine, _, case, metric), lines in found.items()
        if len(lines) > 1
    ]


def lines(record: Record) -> Iterator[tuple[object, ...]]:
    """The lines of one record, in the order of :data:`COLUMNS`."""
    bound = int(host_bound(record)) if record.values("host_ms") else ""
    for metric, row in METRICS.items():
        if not isinstance(row.gate, Statistical):
            continue
        for number, launch in enumerate(record.launches):
            if metric not in launch.metrics:
                continue
            steps, noise = "", ""
            if metric == "step_ms":
                steady = launch.steady_ms
                steps, noise = str(len(steady)), f"{statistics.pstdev(steady) / statistics.mean(steady):.2g}"
            machine = record.machine
            yield machine, record.created, record.label, bound, metric, number, launch.metrics[metric], steps, noise


def write(records: Iterable[Record], file: TextIO) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for record in records:
        if record.outcome == "ok":
            table.writerows(lines(record))


if __name__ == "__main__":
    paths = [path for folder in map(Path, sys.argv[1:]) for path in sorted(folder.rglob("*.json"))]
    write(map(read_record, paths), sys.stdout)
