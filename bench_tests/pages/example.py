"""The web page of ``--report-html``, made from stored baselines, as an example for the site and for the README.

python -m bench_tests.pages.example page.html        # writes the page
python -m bench_tests.pages.example docs/report.png  # writes a picture of its first screen; it needs playwright
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from bench_tests.charts import charts
from bench_tests.results.stored import stored
from bench_tests.tables import tables
from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.report import page, pictures
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.record import Record, read_record

FAMILY = "h200"

SLOWER = {"sharding[zero2-dp4]": 1.06, "mixed_precision[bf16-dp2]": 1.05}
"""Row -> how many times as long its steps take in the example. Without such rows no row would be red."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SIZE = (1120, 780)
"""Of the picture, in px."""


def slowed(record: Record, factor: float) -> Record:
    """The record as if each step had taken ``factor`` times as long. The record must have ended well."""
    launches = tuple(
        dataclasses.replace(
            one,
            step_ms=[ms * factor for ms in one.step_ms],
            metrics={**one.metrics, "step_ms": one.metrics["step_ms"] * factor},
        )
        for one in record.launches
    )
    return dataclasses.replace(record, launches=launches)


def row(record: Record) -> Row:
    """The row of a stored baseline: red if :data:`SLOWER` has it, else as the run that saved it had it."""
    if record.label not in SLOWER:
        outcome = "saved" if record.outcome == "ok" else record.outcome
        return Row(label=record.label, verdict=Verdict(outcome=outcome), record=record)
    now = slowed(record, SLOWER[record.label])
    verdict = judge(now, record)
    test = record.label.partition("[")[0]
    return Row(
        label=record.label,
        verdict=verdict,
        record=now,
        baseline=record,
        fails=verdict.fails(ci=False),
        accept=f"pytest 'bench_tests/test_{test}.py::test_{record.label}' --hw h200 --save-baseline",
    )


def records() -> list[Record]:
    """The stored baselines of one family of hardware."""
    return [read_record(path) for paths in stored(FAMILY).values() for path in paths]


def example(found: Sequence[Record]) -> str:
    """The page of these records, of which there is at least one."""
    rows = [row(one) for one in found]
    times = [datetime.fromisoformat(one.created) for one in found]
    device = str(found[0].environment["must_match"]["device"])
    return page.page(
        rows,
        page.Facts(
            project="Example: the stored baselines as one run. Two rows are made slower, to show red rows.",
            device=device,
            machine="",
            commit="",
            started=max(times),
            ended=max(times) + timedelta(seconds=sum(_seconds(one) for one in found)),
        ),
        header=f"{device}; made by python -m bench_tests.pages.example",
        tables=tables(found),
        charts={**pictures.of_run(found, price=None), **charts(found)},
        charts_of=lambda one: pictures.of_row(one, [], []),
    )


def _seconds(record: Record) -> float:
    return sum(sum(one.phases_s.values()) for one in record.launches)


def screenshot(html: str, path: Path) -> None:
    """Write a picture of the page's first screen. Raises ``SystemExit`` without playwright or without a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("a picture needs playwright: pip install playwright")
    if (browser := next(filter(None, map(shutil.which, BROWSERS)), None)) is None:
        sys.exit(f"a picture needs a browser, one of {', '.join(BROWSERS)}: apt install chromium")
    width, height = SIZE
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        source = Path(folder) / "page.html"
        source.write_text(html, encoding="utf-8")
        chromium = started.chromium.launch(executable_path=browser)
        tab = chromium.new_page(viewport={"width": width, "height": height})
        tab.goto(source.as_uri())
        tab.screenshot(path=path)


def main(path: Path) -> None:
    html = example(records())
    if path.suffix == ".png":
        screenshot(html, path)
    else:
        path.write_text(html, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name one file: python -m bench_tests.pages.example page.html, or docs/report.png")
    main(Path(sys.argv[1]))
