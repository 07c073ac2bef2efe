"""The page docs/planted.md: see the package."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from tabulate import tabulate

from benchmarks.planted.faults import FAULTS, VARIABLE
from pytest_trainbench.record import Record, read_record
from pytest_trainbench.verdict import OUTCOMES

ROOT = Path(__file__).parents[2]

PRELOAD = "bench_tests.torchvision_ops bench_tests.models.bert torch._dynamo benchmarks.planted.faults"

ROWS = "(test_mixed_precision and not compiled and (tf32-dp1 or bf16-dp1 or bf16-dp2)) or (matrix_product and bf16)"

HIT: Mapping[str, Sequence[str]] = {
    "synchronised": ["mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "full_precision": ["mixed_precision[tf32-dp1]"],
    "small_buckets": ["mixed_precision[bf16-dp2]"],
    "eager_attention": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "recomputed": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
}
"""Rows that a fault is to make red; one that needs more devices than there are is not asked for."""

SPARED: Mapping[str, Sequence[str]] = {
    "full_precision": ["mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "small_buckets": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]"],
}
"""Rows beside the matrix product, which trains nothing, that a fault has nothing to do with."""

RED = {outcome for outcome, ends in OUTCOMES.items() if ends == "fails"}


class Bench:
    """Runs of the suite in one temporary folder, against the baselines there."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder = folder
        self.arguments = arguments
        self.runs = 0

    def run(self, *arguments: str, fault: str | None = None) -> tuple[dict[str, str], dict[str, Record]]:
        """Outcome and record of every row by its label."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        command = [sys.executable, "-m", "pytest", "bench_tests", "-k", ROWS, "-q", "-p", "no:cacheprovider"]
        command += ["-o", f"trainbench_preload={PRELOAD}", "--baseline-dir", str(self.folder / "baselines")]
        command += ["--results", str(folder), "--junit-xml", str(folder / "junit.xml")]
        command += ["--history", "none", *self.arguments, *arguments]  # these are no nights of this machine
        environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "CI")}
        if fault is not None:
            environment[VARIABLE] = fault
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        print(done.stdout, file=sys.stderr, flush=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stderr}")
        records = [read_record(path) for path in sorted(folder.glob("*.json"))]
        return outcomes(folder / "junit.xml"), {record.label: record for record in records}


def outcomes(junit: Path) -> dict[str, str]:
    """Of each row that ran, by label, from pytest's own report."""
    found = {}
    for test in ElementTree.parse(junit).iter("testcase"):
        for said in test.iter("property"):
            if said.attrib["name"] == "trainbench_outcome":
                found[test.attrib["name"].removeprefix("test_")] = said.attrib["value"]
    return found


def slower(now: Record, before: Record) -> str:
    ratio = median(now.values("step_ms")) / median(before.values("step_ms")) - 1 if now.values("step_ms") else None
    return "" if ratio is None else f"{ratio:+.1%}".replace("-", "−")


def page(bench: Bench, *, nights: int, faults: Sequence[str]) -> Iterator[str]:
    stored, before = bench.run("--save-baseline")
    if not stored or set(stored.values()) != {"saved"}:
        sys.exit(f"no baseline to begin with: {stored}")
    some = next(iter(before.values()))
    environment = some.environment["suspects"]
    yield "# Planted slowdowns"
    yield (
        f"Made by `python -m benchmarks.planted {' '.join(sys.argv[1:])}` on {some.hardware}, torch"
        f" {environment['torch']}: baselines first, {nights} runs in which nothing changed, then one for each"
        f" of {len(faults)} faults of `benchmarks/planted/faults.py`. *Hit* rows are to be red, *spared* ones are not"
        " to be."
    )
    if nights:
        yield from unchanged(bench, nights, list(stored))
    if faults:
        yield from planted(bench, faults, before)


def unchanged(bench: Bench, nights: int, labels: Sequence[str]) -> Iterator[str]:
    counted: dict[str, list[str]] = {label: [] for label in labels}
    for _ in range(nights):
        found, _ = bench.run()
        for label, outcome in found.items():
            counted[label].append(outcome)
    red = sum(outcome in RED for found in counted.values() for outcome in found)
    yield f"## {nights} runs with nothing changed: {red} red rows of {nights * len(labels)}"
    lines = [
        {"row": label, "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in Counter(found).items())}
        for label, found in counted.items()
    ]
    yield tabulate(lines, headers="keys", tablefmt="pipe")


def planted(bench: Bench, faults: Sequence[str], before: Mapping[str, Record]) -> Iterator[str]:
    yield "## Faults"
    rows = []
    for fault in faults:
        found, records = bench.run(fault=fault)
        for label in found:
            hit, spared = label in HIT[fault], label in SPARED.get(fault, ()) or label.startswith("matrix_product")
            is_red = found[label] in RED
            rows.append(
                {
                    "fault": fault,
                    "what it does": (FAULTS[fault].__doc__ or "").split(":")[0].rstrip("."),
                    "row": label,
                    "step time": slower(records[label], before[label]),
                    "launches": len(records[label].launches),
                    "is": found[label],
                    "should be": "red" if hit else "not red" if spared else "",
                    "": "" if not (hit or spared) else "yes" if is_red == hit else "NO",
                }
            )
    yield tabulate(rows, headers="keys", tablefmt="pipe")
    right = sum(row[""] == "yes" for row in rows)
    yield f"{right} of {sum(row[''] != '' for row in rows)} as they should be."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description="real slowdowns, planted")
    parser.add_argument("--nights", type=int, default=10, help="runs with nothing changed (default: 10)")
    parser.add_argument(
        "--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="of these only (default: all)"
    )
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in page(Bench(Path(folder), arguments), nights=options.nights, faults=options.faults):
            print(part, flush=True, end="\n\n")


if __name__ == "__main__":
    main()
