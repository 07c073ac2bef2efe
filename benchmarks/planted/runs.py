"""Runs the suite several times and keeps the outcome of each row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.planted.faults import VARIABLE
from pytest_trainbench.schema.record import read_record

ROOT = Path(__file__).parents[2]

PRELOAD = "bench_tests.models.torchvision_ops bench_tests.models.bert torch._dynamo benchmarks.planted.faults"

ROWS = "(test_mixed_precision and not compiled and (tf32-dp1 or bf16-dp1 or bf16-dp2)) or bf16-8192"

BASELINE, UNCHANGED = "baseline", "unchanged"


@dataclass(frozen=True, kw_only=True)
class PlantedRow:
    """One row of one run: its outcome, the median step of its launches (``None`` where none ended) and how many they
    were, and what its test failed with."""

    outcome: str
    step_ms: float | None
    launches: int
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class PlantedRun:
    """``kind``: ``baseline``, ``unchanged``, or the fault that was planted. ``rows`` by label."""

    kind: str
    hardware: str
    machine: str
    torch: str
    commit: str
    rows: Mapping[str, PlantedRow]


def run(kinds: Sequence[str], arguments: Sequence[str]) -> Iterator[PlantedRun]:
    """A run that stores baselines, then one of each of ``kinds`` against them; ``arguments`` are pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate([BASELINE, *kinds]):
            found = _one(kind, Path(folder), f"run-{number}", arguments)
            if kind == BASELINE and {row.outcome for row in found.rows.values()} != {"saved"}:
                sys.exit(f"the first run stored no baselines for some rows: {found.rows}")
            yield found


def _one(kind: str, folder: Path, name: str, arguments: Sequence[str]) -> PlantedRun:
    results, junit = folder / name, folder / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "bench_tests", "-k", ROWS, "-q", "-p", "no:cacheprovider"]
    command += ["-o", f"trainbench_preload={PRELOAD}", "--baseline-dir", str(folder / "baselines")]
    command += ["--results", str(results), "--junit-xml", str(junit)]
    command += ["--history", "none", *arguments]  # these runs do not belong to the machine's history
    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "CI")}
    if kind == BASELINE:
        command += ["--save-baseline"]
    elif kind != UNCHANGED:
        environment[VARIABLE] = kind
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout, file=sys.stderr, flush=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stderr}")
    records = {record.label: record for record in map(read_record, sorted(results.glob("*.json")))}
    if not records:
        sys.exit(f"{' '.join(command)} measured nothing\n{done.stdout}")
    some = next(iter(records.values()))
    suspects = some.environment["suspects"]
    rows = {}
    for label, (outcome, said) in outcomes(junit).items():
        record = records.get(label)  # a row that failed before its measurement has no record
        steps = record.values("step_ms") if record else []
        rows[label] = PlantedRow(
            outcome=outcome,
            step_ms=median(steps) if steps else None,
            launches=len(record.launches) if record else 0,
            said=said,
        )
    return PlantedRun(
        kind=kind,
        hardware=some.hardware,
        machine=some.environment["machine"],
        torch=suspects["torch"],
        commit=suspects["commit"],
        rows=rows,
    )


def outcomes(junit: Path) -> dict[str, tuple[str, str]]:
    """Label of each row that ran -> its outcome and the first line of its failure, from pytest's JUnit file."""
    found = {}
    for test in ElementTree.parse(junit).iter("testcase"):
        failure = test.find("failure")
        said = "" if failure is None else failure.attrib["message"].removeprefix("Failed: ").partition("\n")[0]
        for one in test.iter("property"):
            if one.attrib["name"] == "trainbench_outcome":
                found[test.attrib["name"].removeprefix("test_")] = (one.attrib["value"], said)
    return found


def write(run: PlantedRun, path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def read(path: Path) -> list[PlantedRun]:
    """Of one file: baselines first, then the runs against them. Raises ``ValueError`` where it begins otherwise."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        rows = {label: PlantedRow(**row) for label, row in data.pop("rows").items()}
        found.append(PlantedRun(**data, rows=rows))
    if not found or found[0].kind != BASELINE:
        raise ValueError(f"{path} does not begin with a run of baselines: python -m benchmarks.planted run {path}")
    return found
