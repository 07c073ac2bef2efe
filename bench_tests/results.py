"""A page of all stored results of one kind of hardware, as Markdown, made from the baseline files alone.

    python -m bench_tests.results h200 > docs/results-h200.md
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from bench_tests.tables import tables
from pytest_trainbench.hardware import TABLE
from pytest_trainbench.mesh import MeshShape
from pytest_trainbench.metrics import host_bound
from pytest_trainbench.record import Record, read_record
from pytest_trainbench.report.rows import devices, mib
from pytest_trainbench.report.terminal import derived

ROOT = Path(__file__).parent.parent

VERSIONS = (
    "torch", "cuda", "nccl", "driver", "deepspeed", "fairscale", "transformers", "accelerate", "megatron-core",
    "torchao", "onnxruntime", "torchvision", "timm",
)  # fmt: skip

NOT_STORED = "not stored yet, or skipped for want of a device or package"


def page(family: str, records: Sequence[Record], rows: Iterable[str]) -> str:
    """The page of ``records``; ``rows`` are the names of all rows that the suite has for this hardware."""
    names = sorted({str(record.environment["must_match"]["device"]) for record in records})
    parts = [
        f"# Results: {family.upper()}",
        f"Made by `python -m bench_tests.results {family}` from the {len(records)} baselines of {', '.join(names)}"
        " under `baselines/`. Figures are medians over launches; published figures are of other machines, shown beside"
        " ours and never used to judge.",
        _environment(records),
        *(derived(f"## {title}", table, "pipe") for title, table in tables(records).items()),
        derived("## Every row", _rows(records), "pipe"),
        "*apart* is the standard deviation of step time between launches. *compute* is the time in which the device"
        " works on anything but communication. Where the host needs the whole step to issue it, *bound by* says so:"
        " such a step is as steady as its host.",
        _missing(records, rows),
    ]
    return "\n\n".join(parts) + "\n"


def _environment(records: Sequence[Record]) -> str:
    found: dict[str, set[str]] = {name: set() for name in VERSIONS}
    for record in records:
        for name in VERSIONS:
            if name in record.environment["suspects"]:
                found[name].add(str(record.environment["suspects"][name]))
    versions = ", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in found.items() if values)
    machines = sorted({record.environment["machine"] for record in records})
    days = sorted({record.created[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{versions}. Measured {when} on {len(machines)} machine(s): {', '.join(machines)}."


def _rows(records: Sequence[Record]) -> pd.DataFrame:
    return pd.DataFrame(map(_row, sorted(records, key=lambda record: record.label))).fillna("")


def _row(record: Record) -> dict[str, str]:
    if record.outcome != "ok":
        return {"case": record.label, "devices": str(devices(record)), "samples/s": record.outcome.upper()}
    step_ms, compute_ms, mfu = (record.values(name) for name in ("step_ms", "compute_ms", "mfu"))
    apart = statistics.stdev(step_ms) / statistics.mean(step_ms) if len(step_ms) > 1 else None
    return {
        "case": record.label,
        "devices": str(devices(record)),
        "samples/s": f"{statistics.median(record.values('samples_per_s')):,.1f}",
        "step ms": f"{statistics.median(step_ms):,.2f}",
        "compute ms": f"{statistics.median(compute_ms):,.2f}" if compute_ms else "",
        "bound by": "host" if host_bound(record) else "",
        "peak MiB": mib(statistics.median(record.values("peak_allocated_bytes"))),
        "MFU": f"{statistics.median(mfu):.1%}" if mfu else "",
        "launches": str(len(record.launches)),
        "apart": "" if apart is None else f"{apart:.1%}",
        "machine": record.environment["machine"],
        "commit": str(record.environment["suspects"].get("commit", "")),
    }


def _missing(records: Sequence[Record], rows: Iterable[str]) -> str:
    """The suite's rows without a stored result, and why."""
    here = max(map(devices, records))
    stored = {record.label for record in records}
    absent = [row for row in rows if row not in stored]
    if not absent:
        return "Every row of the suite has a result."
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in absent:
        needed = _devices(row)
        why = f"needs {needed} devices" if needed > here else NOT_STORED
        test, _, name = row.rstrip("]").partition("[")
        reasons.setdefault(why, {}).setdefault(test, []).append(name)
    lines = [
        f"- `{test}`, {len(names)} rows, {why}: {', '.join(names)}"
        for why, tests in sorted(reasons.items())
        for test, names in tests.items()
    ]
    return f"## Rows without a result\n\nNo result is of more than {here} devices.\n\n" + "\n".join(lines)


def _devices(row: str) -> int:
    """How many the mesh at the end of a row's name takes; 1 where it names none."""
    words = row.rstrip("]").split("[")[-1].split("-")
    for start in range(len(words)):
        try:
            return MeshShape.parse("-".join(words[start:])).world_size
        except ValueError:
            continue
    return 1


def collected(family: str) -> list[str]:
    """Names of all rows that the suite has for a family of hardware, as reports show them."""
    listed = [sys.executable, "-m", "pytest", "bench_tests", "--collect-only", "-q", "--hw", family]
    listing = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = (line.partition("::")[2] for line in listing.splitlines() if "::" in line)
    return [name.removeprefix("test_") for name in names]


def main(family: str) -> None:
    ids = [key for key, row in TABLE.items() if family in (key, row.family)]
    paths = sorted(path for key in ids for path in (ROOT / "baselines" / key).glob("*.json"))
    if not paths:
        sys.exit(f"there are no baselines of {family} under {ROOT / 'baselines'}; known: {', '.join(sorted(TABLE))}")
    records = [read_record(path) for path in paths]
    sys.stdout.write(page(family, records, collected(family)))


if __name__ == "__main__":
    main(sys.argv[1])
