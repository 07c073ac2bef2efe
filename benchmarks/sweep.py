"""Checks that every row still runs and trains right: one launch of each row, and a list of the failures.

    python -m benchmarks.sweep --side-by-side 3 bench_tests --hw h200 --devices 2

pytest gets all other arguments. Rows run in several sessions at once, so their times mean nothing, and no times are
reported. Counts, memory and losses do not depend on neighbours. The exit code is 1 if a row fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench_tests.tolerances import LEAP, leap, tolerance
from pytest_trainbench.schema.record import Record, read_record

TOLD = ("regression", "incomparable", "invalid", "timeout", "crash", "oom")
"""Outcomes that do not depend on neighbours. A regression of time alone is ``environment``, which is not listed."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one row of a sweep ended: its outcome, and the first line of its failure."""

    label: str
    outcome: str
    said: str = ""


def collect(arguments: Sequence[str]) -> list[str]:
    """Node ids of the rows that pytest would run. Raises ``SystemExit`` with pytest's output if pytest cannot collect
    them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line]


def deal(rows: Sequence[str], sessions: int) -> list[list[str]]:
    """The rows of each session. Neighbours stay together in runs of four, because they often share a reference."""
    runs = [rows[at : at + 4] for at in range(0, len(rows), 4)]
    dealt = [[row for run in runs[number::sessions] for row in run] for number in range(sessions)]
    return [mine for mine in dealt if mine]


def sweep(rows: Sequence[str], options: Sequence[str], sessions: int, folder: Path) -> tuple[list[Ended], list[Record]]:
    """Run every row once. Returns how each row ended, and the records of the rows that were measured."""
    running = []
    for number, mine in enumerate(deal(rows, sessions)):
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--launches", "1", "--confirm", "0", "--history", "none"),
            *(f"--results={folder / 'records'}", f"--junit-xml={folder / f'{number}.xml'}", *options, *mine),
        ]
        with (folder / f"{number}.log").open("w") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
    for session in running:
        session.wait()
    ended = [row for path in sorted(folder.glob("*.xml")) for row in outcomes(path)]
    return ended, [read_record(path) for path in sorted((folder / "records").glob("*.json"))]


def outcomes(junit: Path) -> list[Ended]:
    """The rows of one session, read from its JUnit file."""
    found = []
    for case in ET.parse(junit).iter("testcase"):
        told = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        problem = next((each.get("message", "") for each in case if each.tag in ("failure", "error")), "")
        if name := case.get("name"):
            skipped = "skipped" if case.find("skipped") is not None else "crash" if problem else "skipped"
            outcome = told.get("trainbench_outcome", skipped)
            found.append(Ended(label=name.removeprefix("test_"), outcome=outcome, said=problem.partition("\n")[0]))
    return found


def wrong(ended: Iterable[Ended], asked: int) -> list[str]:
    """A line for each row with a bad outcome, and one line for the rows without a result. ``asked`` is the number of
    rows."""
    rows = list(ended)
    lines = [f"{row.outcome}: {row.label}: {row.said}" for row in rows if row.outcome in TOLD]
    lost = asked - len(rows)
    return [*lines, *([f"{lost} of {asked} rows have no result: their session ended early"] if lost > 0 else [])]


def unsteady(records: Iterable[Record]) -> list[str]:
    """A line for each row with a leap in its losses, which makes a wrong training hard to recognise."""
    lines = []
    for record in records:
        losses = record.launches[0].losses[: tolerance(*names(record)).steps[1]]
        if record.values("loss_deviation") and (by := leap(losses)) > LEAP:
            lines.append(f"{record.label}: its loss leaps by {by:.0%} of its fall: {losses}")
    return lines


def deviations(records: Iterable[Record]) -> list[dict[str, object]]:
    """For each tolerance in use: the largest deviation from the reference, and the row that showed it."""
    found: dict[tuple[float, tuple[int, int]], tuple[float, str]] = {}
    for record in records:
        for value in record.values("loss_deviation"):
            allowed = tolerance(*names(record))
            key = allowed.allowed, allowed.steps
            found[key] = max(found.get(key, (0.0, "")), (value, record.label))
    return [
        {"allowed": f"{allowed:.1%}", "largest seen": f"{seen:.2%}", "row": label}
        for (allowed, _), (seen, label) in sorted(found.items())
    ]


def names(record: Record) -> list[str]:
    """The names by which :data:`bench_tests.tolerances.TOLERANCES` may list a row."""
    params: Mapping[str, object] = record.case.params
    compiled = [f"compiled-{params['precision']}"] if params.get("graph") == "inductor" else []
    return [str(params[name]) for name in ("strategy", "engine", "model", "precision") if name in params] + compiled


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side-by-side", type=int, default=1, metavar="N", help="sessions at once (default: 1)")
    given, pytest_arguments = parser.parse_known_args(arguments)
    rows = collect(pytest_arguments)
    options = [each for each in pytest_arguments if each.startswith("-") or not Path(each.partition("::")[0]).exists()]
    with tempfile.TemporaryDirectory(prefix="trainbench-sweep-") as folder:
        ended, records = sweep(rows, options, given.side_by_side, Path(folder))
    lines = wrong(ended, len(rows)) + unsteady(records)
    counts = Counter(row.outcome for row in ended)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    print(tabulate(deviations(records), headers="keys"))
    print("\n".join(lines or ["every row runs and trains right"]))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
