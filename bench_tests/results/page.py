"""The results page of one kind of hardware, as Markdown, made only from the baseline files.

python -m bench_tests.results h200 > docs/results-h200.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench_tests.results.stored import FOLDER, stored
from bench_tests.tables import tables
from bench_tests.tables.format import TWO_MACHINES, bound_by, peak_mib, percent, rate, text
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.judge.middle import stored_judged
from pytest_trainbench.listing import Listed, listed
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.report.rows import devices
from pytest_trainbench.report.terminal import derived
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Record, read_record
from pytest_trainbench.store.other_code import Stale, look

ROOT = Path(__file__).parent.parent.parent

VERSIONS = (
    "torch", "cuda", "nccl", "driver", "deepspeed", "fairscale", "transformers", "accelerate", "megatron-core",
    "torchao", "onnxruntime-gpu", "onnxruntime", "torchvision", "timm",
)  # fmt: skip

OTHER_CODE = "*"
"""Marks a row whose own code has changed since its measurement."""

SILENT = "?"
"""Marks a row whose baseline does not say which code made it."""

NOT_STORED = "not stored yet"


def page(family: str, records: Sequence[Record], rows: Mapping[str, Listed], code: Stale) -> str:
    """The page of ``records``.

    ``rows`` are all rows of the suite for this hardware, as :func:`listed` returns them. ``code`` says which records
    were made by other code than the suite's present code.
    """
    names = sorted({str(record.environment["must_match"]["device"]) for record in records})
    parts = [
        f"# Results: {family.upper()}",
        f"Made by `python -m bench_tests.results {family}` from the {len(records)} baselines of {', '.join(names)}"
        " under `baselines/`. Figures are the judged [locations](statistics.md#location) of launches."
        f" Published figures are of other machines; they are shown and never used to judge. {TWO_MACHINES} marks a"
        " ratio of two rows from different machines, whose hosts may differ more than the rows do. *Every row* names"
        " the machine of each row, and says whether its host sets the pace.",
        _environment(records),
        _code(records, code),
        *(derived(f"## {title}", table, "pipe") for title, table in tables(records).items()),
        derived("## Every row", _rows(records, code), "pipe"),
        "*Spread* is the relative standard deviation of step time between launches. *Compute* is the time in which the"
        " device does anything but communicate. *MFU* is empty if no FLOPs were known when the row was stored. *Bound"
        " by* names the host if it sets the pace: such a row varies as much as its host does.",
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
    """How many results were made by the present code of the suite."""
    other, silent = len(code.other), len(code.silent)
    return (
        f"Of these {len(records)} results, {len(records) - other - silent} are of the suite's code as it is here,"
        f" {other} are of other code (marked `{OTHER_CODE}` in *Every row*), and {silent} do not name their code"
        f" (marked `{SILENT}`)."
    )


def _rows(records: Sequence[Record], code: Stale) -> pd.DataFrame:
    lines = []
    for record in sorted(records, key=lambda record: record.label):
        mark = OTHER_CODE if record.case.id in code.other else SILENT if record.case.id in code.silent else ""
        commit = record.environment["suspects"].get("commit", "")
        lines.append({**_row(record), "commit": f"{commit} {mark}".strip()})
    table = pd.DataFrame(lines).fillna("")
    return table[[*table.columns.drop("commit"), "commit"]]  # the last column, even if the first row ran out of memory


def _row(record: Record) -> dict[str, str]:
    if record.outcome != "ok":
        return {"case": record.label, "devices": str(devices(record)), "samples/s": rate(record)}
    step_ms = record.values("step_ms")
    spread = statistics.stdev(step_ms) / statistics.mean(step_ms) if len(step_ms) > 1 else None
    return {
        "case": record.label,
        "devices": str(devices(record)),
        "samples/s": rate(record),
        "step ms": text(record.figure("step_ms"), "{:,.2f}".format),
        "compute ms": text(record.figure("compute_ms"), "{:,.2f}".format),
        "bound by": bound_by(record),
        "peak MiB": peak_mib(record),
        "MFU": percent(record.figure("mfu"), digits=1),
        "launches": str(len(record.launches)),
        "spread": percent(spread, digits=1),
        "machine": record.machine,
    }


def _shared(records: Sequence[Record], rows: Mapping[str, Listed]) -> str:
    """A list of rows that share their case with another row, under whose name the result is stored. Empty if there are
    none."""
    labels = {record.case.id: record.label for record in records}
    found = {name: labels.get(row.case or "") for name, row in rows.items()}
    shared = {name: label for name, label in found.items() if label not in (None, name)}
    if not shared:
        return ""
    lines = (f"- `{row}`: `{label}`" for row, label in shared.items())
    return "## Rows that share a case\n\nEach case was measured once, under the second name.\n\n" + "\n".join(lines)


def _missing(records: Sequence[Record], rows: Mapping[str, Listed]) -> str:
    """A list of rows without a stored result, with the reason. A row without a known case is identified by its name."""
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
    head = f"These rows run without `--grid`. No stored result uses more than {here} devices."
    return f"## Rows without a result\n\n{head}\n\n" + "\n".join(lines)


def _devices(row: str) -> int:
    """Number of devices of the mesh at the end of a row's name; 1 if the name has no mesh."""
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
        sys.exit(f"{FOLDER} has no baselines of {family}; known hardware: {', '.join(sorted(TABLE))}")
    if len(kinds) > 1:  # tables have one line a row, so only the last kind of hardware would appear
        sys.exit(f"{FOLDER} has baselines of several kinds of {family}; name one of them: {', '.join(kinds)}")
    records = stored_judged([read_record(path) for paths in kinds.values() for path in paths])
    code = look(records, Tree.of(ROOT))
    sys.stdout.write(page(family, records, listed([ROOT / "bench_tests"], family, root=ROOT), code))
