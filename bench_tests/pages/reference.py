"""Reference tables from the code: options, fixtures, markers, outcomes, metrics and hardware."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench_tests.tolerances import SAME_FORMATS, TOLERANCES
from pytest_trainbench import plugin
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.report.exchange import FORMATS
from pytest_trainbench.schema.metrics import METRICS, Counted, Exact, Gate, Relative, Statistical
from pytest_trainbench.settings import ONLY_INI, OPTIONS, Option, flag

ENDS = {"passes": "passes", "warns": "passes, and the report warns", "skips": "is skipped", "fails": "fails"}
"""How an outcome ends its test, in words."""

WHEN = {
    "ok": "No change was detected, and the row was sensitive enough to detect a change of its tolerance.",
    "saved": "`--save-baseline` stored the row.",
    "calibrated": "`--calibrate` tried what the row can detect.",
    "improvement": "The row is better than its baseline. Save a new baseline. It fails with `--fail-on-improvement`.",
    "new": "The commit of `--against` does not have this case, so there is nothing to compare with.",
    "no-baseline": "There is nothing to compare with. It fails where `CI` is set.",
    "noisy": "The row would have missed a change of its tolerance, so its result is not `ok`.",
    "oom": "The step ran out of device or host memory, and so did its baseline. It fails where `CI` is set and there"
    " is no baseline. Where the baseline fitted, the outcome is `regression`, or `invalid` with `--save-baseline`.",
    "skipped": "The case needs more devices than there are, or the test called `pytest.skip`. A run in which every row"
    " is skipped fails where `CI` is set.",
    "regression": "The row is worse than its baseline by more than noise and more than the floor. A count is worse"
    " when it grows at all in most launches.",
    "environment": "The row is slower, and the [machine](environment.md) may be why. The report says whether the code"
    " is excluded.",
    "incomparable": "The baseline is of another device, link, power cap or number of nodes, or of a step that does"
    " other work, or it has a figure that this run lacks.",
    "invalid": "The figures cannot be trusted: a [guard](how-it-works.md#guards) failed.",
    "timeout": "A launch took longer than `--launch-timeout`, or the run longer than `--run-timeout`.",
    "crash": "A rank ended with an error. The report shows its message and the end of its log.",
}
"""When a row has each outcome."""


def blocks() -> dict[str, str]:
    """The content of every block that comes from the code, by the name of the block."""
    return {
        "options": options(OPTIONS),
        "ini": table({"ini name": f"`trainbench_{name}`", "meaning": text} for name, text in ONLY_INI.items()),
        "suite-options": suite_options(),
        "fixtures": "\n\n".join(f"## `{name}`\n\n{docstring(getattr(plugin, name))}" for name in FIXTURES),
        "markers": markers(),
        "outcomes": outcomes(OUTCOMES),
        "metrics": metrics(),
        "hardware": hardware(),
        "tolerances": tolerances(),
        "formats": formats(),
    }


ROOT = Path(__file__).parent.parent.parent

FIXTURES = ("bench", "mesh", "hardware")
"""Fixtures that users ask for."""

MARKERS = ("mesh", "gate", "profiles")
"""Markers of the plugin and of the suite."""


def options(rows: Mapping[str, Option]) -> str:
    """One line an option: its flag, its environment and ini names, and its help."""
    return table(
        {
            "option": code(f"{flag(name)} {one.metavar or ''}".strip()),
            "meaning": one.help.replace("%%", "%"),
            "environment, ini": f"`TRAINBENCH_{name.upper()}`, `trainbench_{name}`",
        }
        for name, one in rows.items()
    )


class Asked:
    """Stands for pytest's parser: keeps which options the suite adds."""

    def __init__(self) -> None:
        self.options: dict[str, dict[str, Any]] = {}

    def addoption(self, name: str, **how: Any) -> None:
        self.options[name] = how


def suite_options() -> str:
    parser = Asked()
    runpy.run_path(str(ROOT / "conftest.py"))["pytest_addoption"](parser)
    return table(
        {"option": f"`{name}`", "values": ", ".join(f"`{one}`" for one in how["choices"]), "meaning": how["help"]}
        for name, how in parser.options.items()
    )


def markers() -> str:
    """As ``pytest --markers`` prints them."""
    command = [sys.executable, "-m", "pytest", "--markers", "-p", "no:cacheprovider"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^@pytest\.mark\.((\w+)\(.*?\)): (.*)$", printed, flags=re.MULTILINE)
    return table({"marker": f"`{call}`", "meaning": said} for call, name, said in found if name in MARKERS)


def outcomes(rows: Mapping[str, str]) -> str:
    return table({"outcome": f"`{name}`", "the test": ENDS[end], "when": WHEN[name]} for name, end in rows.items())


def metrics() -> str:
    return table(
        {
            "metric": f"`{name}`",
            "meaning": one.title,
            "unit": one.unit,
            "better": "higher" if one.higher_is_better else "lower",
            "judged": judged(one.gate),
        }
        for name, one in METRICS.items()
    )


def judged(gate: Gate | None) -> str:
    """How a metric is judged, in words."""
    match gate:
        case Statistical():
            return f"against noise; floor {gate.floor:.3g}, tolerance {gate.tolerance:.3g}"
        case Relative():
            return f"by a fixed fraction; floor {gate.floor:.3g}, tolerance {gate.tolerance:.3g}"
        case Counted():
            return "as a count; not in compiled steps" if gate.generated else "as a count"
        case Exact():
            return "must be equal to compare"
        case None:
            return "no: shown and stored"


def hardware() -> str:
    """One line an accelerator. Peaks are dense TFLOPS; an empty cell is a figure that no source gives."""
    formats = ("fp32", "tf32", "bf16", "fp16", "fp8")
    return table(
        {
            "`--hw`": f"`{row.family}`, `{row.key}`",
            "memory GB": f"{row.memory_gb:,}",
            **{name: f"{row.peak_tflops[name]:,g}" if name in row.peak_tflops else "" for name in formats},
            "memory GB/s": "" if row.bandwidth_gb_s is None else f"{row.bandwidth_gb_s:,g}",
            "link": row.link or "",
            "source": f"[source]({row.source})" if row.source.startswith("http") else row.source,
        }
        for row in TABLE.values()
    )


def tolerances() -> str:
    rows = {f"`{name}`": one for name, one in TOLERANCES.items()} | {"all others": SAME_FORMATS}
    return table(
        {
            "strategy, engine or format": name,
            "allowed": f"{100 * one.allowed:g} %",
            "seen": f"{100 * one.seen:.2g} %",
            "seen on": one.where,
            "compared steps": "{} to {}".format(*one.steps),
        }
        for name, one in rows.items()
    )


def formats() -> str:
    return table({"format": f"`{name}`", "for": f"[{one.reader}]({one.source})"} for name, one in FORMATS.items())


def docstring(thing: object) -> str:
    """A docstring as Markdown: roles and double backticks become code."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", inspect.getdoc(thing) or "")
    return text.replace("``", "`")


def code(said: str) -> str:
    """As code in a cell. A bar would end the cell, and GitHub and mkdocs escape it in different ways."""
    return f"<code>{said.replace('|', '&#124;')}</code>" if "|" in said else f"`{said}`"


def table(lines: Iterable[Mapping[str, str]]) -> str:
    """A Markdown table; columns of figures are aligned to the right. Empty without lines."""
    rows = [{name: cell.replace("|", "&#124;") for name, cell in line.items()} for line in lines]
    if not rows:
        return ""
    columns = [[row[name] for row in rows] for name in rows[0]]
    sides = ["right" if all(re.fullmatch(r"[\d.,]*( ?%)?", cell) for cell in column) else "left" for column in columns]
    return tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True, colalign=sides)
