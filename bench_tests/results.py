"""A page of all stored results of one kind of hardware, as Markdown, made from the baseline files alone.

python -m bench_tests.results h200 > docs/results-h200.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench_tests.baselines import FOLDER, stored
from bench_tests.tables import tables
from bench_tests.tables.cells import TWO_MACHINES, bound_by, peak_mib, percent, rate, text
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.listing import Listed, listed
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.report.rows import devices
from pytest_trainbench.report.terminal import derived
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Record, read_record
from pytest_trainbench.store.other_code import Stale, look

ROOT = Path(__file__).parent.parent

VERSIONS = (
    "torch", "cuda", "nccl", "driver", "deepspeed", "fairscale", "transformers", "accelerate", "megatron-core",
    "torchao", "onnxruntime-gpu", "onnxruntime", "torchvision", "timm",
)  # fmt: skip

OTHER_CODE = "*"
"""Marks a row whose own code has changed since it was measured."""

SILENT = "?"
"""Marks a row that does not say which code made it."""

NOT_STORED = "not stored yet"


def page(family: str, records: Sequence[Record], rows: Mapping[str, Listed], code: Stale) -> str:
    """The page of ``records``; ``rows`` are all rows that the suite has for this hardware, as :func:`listed` gives
    them, and ``code`` says which records are of other code than the suite's."""
    names = sorted({str(record.environment["must_match"]["device"]) for record in records})
    parts = [
        f"# Results: {family.upper()}",
        f"Made by `python -m bench_tests.results {family}` from the {len(records)} baselines of {', '.join(names)}"
        " under `baselines/`. Figures are medians over launches; published figures are of other machines, shown beside"
        f" ours and never used to judge. {TWO_MACHINES}: the ratio is of two rows that were measured on different"
        " machines, whose hosts may differ by more than the rows (*Every row* says which machine, and what its host"
        " sets the pace of).",
        _environment(records),
        _code(records, code),
        *(derived(f"## {title}", table, "pipe") for title, table in tables(records).items()),
        derived("## Every row", _rows(records, code), "pipe"),
        "*apart* is the standard deviation of step time between launches. *compute* is the time in which the device"
        " works on anything but communication. *MFU* is empty where no FLOPs were known when the row was"
        " stored. Where the host needs the whole step to issue it, *bound by* says so:"
        " such a step is as steady as its host.",
        _shared(records, rows),
        _missing(records, rows),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _environment(records: Sequence[Record]) -> str:
    found: dict[str, set[str]] = {name: set() for name in VERSIONS}
    for record in records:
        for name in VERSIONS:
            if name in record.environment["suspects"]:
                found[name].add(str(record.environment["suspects"][name]))
    versions = ", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in found.items() if values)
    machines = sorted({record.machine for record in records})
    days = sorted({record.created[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{versions}. Measured {when} on {len(machines)} machine(s): {', '.join(machines)}."


def _code(records: Sequence[Record], code: Stale) -> str:
    """How many results are of the suite's code as it is beside this page."""
    other, silent = len(code.other), len(code.silent)
    return (
        f"Of these {len(records)} results, {len(records) - other - silent} are of the suite's code as it is here,"
        f" {other} are of other code (marked `{OTHER_CODE}` in *Every row*), and {silent} do not say which code made"
        f" them (marked `{SILENT}`)."
    )


def _rows(records: Sequence[Record], code: Stale) -> pd.DataFrame:
    lines = []
    for record in sorted(records, key=lambda record: record.label):
        mark = OTHER_CODE if record.case.id in code.other else SILENT if record.case.id in code.silent else ""
        commit = record.environment["suspects"].get("commit", "")
        lines.append({**_row(record), "commit": f"{commit} {mark}".strip()})
    table = pd.DataFrame(lines).fillna("")
    return table[[*table.columns.drop("commit"), "commit"]]  # last, whether or not the first row ran out of memory


def _row(record: Record) -> dict[str, str]:
    if record.outcome != "ok":
        return {"case": record.label, "devices": str(devices(record)), "samples/s": rate(record)}
    step_ms = record.values("step_ms")
    apart = statistics.stdev(step_ms) / statistics.mean(step_ms) if len(step_ms) > 1 else None
    return {
        "case": record.label,
        "devices": str(devices(record)),
        "samples/s": rate(record),
        "step ms": f"{statistics.median(step_ms):,.2f}",
        "compute ms": text(record.median("compute_ms"), "{:,.2f}".format),
        "bound by": bound_by(record),
        "peak MiB": peak_mib(record),
        "MFU": percent(record.median("mfu"), digits=1),
        "launches": str(len(record.launches)),
        "apart": percent(apart, digits=1),
        "machine": record.machine,
    }


def _shared(records: Sequence[Record], rows: Mapping[str, Listed]) -> str:
    """The suite's rows whose result stands under another name, since both are one case; empty where there is none."""
    labels = {record.case.id: record.label for record in records}
    found = {name: labels.get(row.case or "") for name, row in rows.items()}
    shared = {name: label for name, label in found.items() if label not in (None, name)}
    if not shared:
        return ""
    lines = (f"- `{row}`: `{label}`" for row, label in shared.items())
    return "## Rows that are the case of another\n\nMeasured once, under the second name.\n\n" + "\n".join(lines)


def _missing(records: Sequence[Record], rows: Mapping[str, Listed]) -> str:
    """The suite's rows without a stored result, and why. A row whose case is not known goes by its name."""
    here = max(map(devices, records))
    labels, ids = ({record.label for record in records}, {record.case.id for record in records})
    absent = [name for name, row in rows.items() if (name not in labels if row.case is None else row.case not in ids)]
    if not absent:
        return "Every row that runs without `--grid` has a result."
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in absent:
        needed = _devices(row)
        why = f"needs {needed} devices" if needed > here else rows[row].skipped or NOT_STORED
        test, _, name = row.rstrip("]").partition("[")
        reasons.setdefault(why, {}).setdefault(test, []).append(name)
    lines = [
        f"- `{test}`, {len(names)} row{'s' * (len(names) > 1)} ({why}): {', '.join(names)}"
        for why, tests in sorted(reasons.items())
        for test, names in tests.items()
    ]
    head = f"Of those that run without `--grid`. No result is of more than {here} devices."
    return f"## Rows without a result\n\n{head}\n\n" + "\n".join(lines)


def _devices(row: str) -> int:
    """How many the mesh at the end of a row's name takes; 1 where it names none."""
    words = row.rstrip("]").split("[")[-1].split("-")
    for start in range(len(words)):
        try:
            return MeshShape.parse("-".join(words[start:])).world_size
        except ValueError:
            continue
    return 1


def main(family: str) -> None:
    kinds = stored(family)
    if not kinds:
        sys.exit(f"there are no baselines of {family} under {FOLDER}; known: {', '.join(sorted(TABLE))}")
    if len(kinds) > 1:  # tables have one line a row, which would be that of whichever came last
        sys.exit(f"there are baselines of several kinds of {family}, each of which has a page: {', '.join(kinds)}")
    records = [read_record(path) for paths in kinds.values() for path in paths]
    code = look(records, Tree.of(ROOT))
    sys.stdout.write(page(family, records, listed([ROOT / "bench_tests"], family, root=ROOT), code))


if __name__ == "__main__":
    main(sys.argv[1])
