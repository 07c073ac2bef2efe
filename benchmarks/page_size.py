"""How large is the web page of many rows, and how long does a browser take to open it?

python -m benchmarks.page_size           # 2,000 rows, a tenth of them red
python -m benchmarks.page_size 500

It needs ``pip install playwright`` and a Chromium or Chrome. The time is from the start of the navigation to the first
frame after the page's script, in a fresh tab: the median of five.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice
from pathlib import Path

from bench_tests.charts import charts
from bench_tests.pages.example import BROWSERS, records, slowed
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.report import page, pictures
from pytest_trainbench.report.rows import Row

OPENED = 5

SLOWER = 1.2
"""How many times as long the steps of a red row take."""


def many(count: int) -> list[Row]:
    """Rows made from stored baselines, each compared with itself; every tenth is slowed down, and red."""
    found = []
    for number, record in enumerate(islice(cycle([one for one in records() if one.outcome == "ok"]), count)):
        now = slowed(record, SLOWER) if number % 10 == 0 else record
        verdict = judge(now, record)
        label = f"{record.label}-{number}"
        found.append(
            Row(
                label=label,
                verdict=verdict,
                record=now,
                baseline=record,
                fails=verdict.fails(ci=False),
                accept=f"pytest 'bench_tests::{label}' --save-baseline",
            )
        )
    return found


def opened_s(path: Path) -> list[float]:
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    found = []
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser)
        for _ in range(OPENED):
            tab = chromium.new_page()
            tab.goto(path.as_uri())
            found.append(
                tab.evaluate("new Promise((end) => requestAnimationFrame(() => end(performance.now())))") / 1000
            )
            tab.close()
    return found


def main(count: int = 2000) -> None:
    rows, now = many(count), datetime.now(timezone.utc)
    text = page.page(
        rows,
        page.Facts(
            project="", device="this machine", machine="", commit="", started=now, ended=now + timedelta(hours=3)
        ),
        header="made from stored baselines",
        tables={},
        charts={**pictures.of_run(records(), price=None), **charts(records())},
        charts_of=lambda row: pictures.of_row(row, [], []),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text, encoding="utf-8")
        times = opened_s(path)
    red = sum(row.fails for row in rows)
    print(
        f"{len(rows):,} rows, {red} red: {len(text.encode()) / 1e6:.2f} MB,"
        f" opens in {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
