"""The results page of one kind of hardware, as Markdown, made only from the baseline files.

python -m bench_tests.results h200 > docs/results-h200.md
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pandas as pd
import pytest

from bench_tests.results.stored import FOLDER, stored
from bench_tests.tables import tables
from bench_tests.tables.format import TWO_MACHINES, bound_by, peak_mib, percent, rate, text
from pytest_trainbench.hardware.catalog import TABLE, Accelerator
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.hardware.resolve import rows as accelerators
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.report.rows import devices
from pytest_trainbench.report.terminal import derived
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Record, read_record
from pytest_trainbench.session import SESSION, Session
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

ONLY_ASKED = "only asked for its case"

ENOUGH = 4096
"""Number of devices of the simulated machine. No mesh of the suite needs more."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A row of the suite. ``case`` is the id of its case; ``skipped`` is the reason if its test skips before it has a
    case."""

    case: str | None = None
    skipped: str = ""


def page(family: str, records: Sequence[Record], rows: Mapping[str, Listed], code: Stale) -> str:
    """The page of ``records``.

    ``rows`` are all rows of the suite for this hardware, as :func:`collected` returns them. ``code`` says which records
    were made by other code than the suite's present code.
    """
    names = sorted({str(record.environment["must_match"]["device"]) for record in records})
    parts = [
        f"# Results: {family.upper()}",
        f"Made by `python -m bench_tests.results {family}` from the {len(records)} baselines of {', '.join(names)}"
        " under `baselines/`. Figures are medians over launches. Published figures are of other machines; they are"
        f" shown and never used to judge. {TWO_MACHINES} marks a ratio of two rows from different machines, whose"
        " hosts may differ more than the rows do. *Every row* names the machine of each row, and says whether its host"
        " sets the pace.",
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
        "step ms": f"{statistics.median(step_ms):,.2f}",
        "compute ms": text(record.median("compute_ms"), "{:,.2f}".format),
        "bound by": bound_by(record),
        "peak MiB": peak_mib(record),
        "MFU": percent(record.median("mfu"), digits=1),
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


class Listing(Session):
    """A session with simulated devices. A test that is about to measure a case is asked for
    :attr:`~pytest_trainbench.schema.case.Case.id` and ends."""

    def __init__(self, config: pytest.Config, accelerator: Accelerator) -> None:
        options = config.stash[SESSION].settings
        super().__init__(config, replace(options, devices=None, memory_cap=None, ci=False))
        self.accelerator = accelerator
        self.ids: dict[str, str] = {}

    @property
    def hardware(self) -> Hardware:
        row = self.accelerator
        return Hardware(
            id=row.key,
            kind=row.kind,
            device_name=row.names[0],
            count=ENOUGH,
            memory_bytes=row.memory_gb * 10**9,
            accelerator=row,
        )

    def runner(self, folder: Callable[[str], Path]) -> Any:
        return SimpleNamespace(row=self._note)

    def _note(self, case: Case, *, label: str, **_: object) -> NoReturn:
        self.ids[label] = case.id
        pytest.skip(ONLY_ASKED)


class Asking:
    """A pytest plugin that runs the collected tests in a :class:`Listing`. ``rows`` is the result of
    :func:`collected`."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rows: dict[str, Listed] = {}
        self.skipped: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[SESSION] = Listing(config, self.accelerator)

    @pytest.hookimpl(tryfirst=True)  # before pytest's own hook, which runs nothing under --collect-only
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item, following in zip_longest(session.items, session.items[1:]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        listing = session.config.stash[SESSION]
        assert isinstance(listing, Listing)
        for item in session.items:
            name = item.name.removeprefix("test_")
            self.rows[name] = Listed(case=listing.ids.get(name), skipped=self.skipped.get(item.nodeid, ""))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
            if why != ONLY_ASKED:
                self.skipped[report.nodeid] = why


def collected(family: str) -> dict[str, Listed]:
    """All rows that the suite has for a family of hardware, by the name in reports. None of the hardware has to be
    present.

    Raises ``RuntimeError`` with pytest's output if a test fails before it measures.
    """
    asking, said = Asking(accelerators(family)[0]), io.StringIO()
    arguments = [str(ROOT / "bench_tests"), "--rootdir", str(ROOT), "--hw", family]
    with contextlib.redirect_stdout(said):
        # --collect-only is the only mode that accepts a named device that is absent.
        ended = pytest.main([*arguments, "--collect-only", "-q", "-s", "-p", "no:cacheprovider"], plugins=[asking])
    if ended != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest cannot list the suite for {family}:\n{said.getvalue()}")
    return asking.rows


def main(family: str) -> None:
    kinds = stored(family)
    if not kinds:
        sys.exit(f"{FOLDER} has no baselines of {family}; known hardware: {', '.join(sorted(TABLE))}")
    if len(kinds) > 1:  # tables have one line a row, so only the last kind of hardware would appear
        sys.exit(f"{FOLDER} has baselines of several kinds of {family}; name one of them: {', '.join(kinds)}")
    records = [read_record(path) for paths in kinds.values() for path in paths]
    code = look(records, Tree.of(ROOT))
    sys.stdout.write(page(family, records, collected(family), code))
