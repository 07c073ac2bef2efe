"""The web page of a run in a real browser: it loads nothing, its filters work, and names from tests stay text."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples import steps
from test_page import HOSTILE, OK, RED, made

from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.report.chart import AnyChart, Chart, Dot, Series
from pytest_trainbench.report.rows import Row

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

if BROWSER is None and not os.environ.get("GITHUB_ACTIONS"):  # runners of GitHub have one
    pytest.skip("no browser: apt install chromium", allow_module_level=True)

SKIPPED = Row(label="scaling[weak-dp8]", verdict=Verdict(outcome="skipped", reason="needs 8 devices, has 4"))

HOSTILE_ROW = dataclasses.replace(RED, label=HOSTILE, accept=HOSTILE, detail=HOSTILE)

CHARTS: dict[str, list[AnyChart]] = {
    HOSTILE: [Chart(title=HOSTILE, across="x", up="y", series=(Series(name=HOSTILE, dots=(Dot(x=1, y=1, name="a"),)),))]
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=BROWSER)


class Opened:
    """A page in the browser, what it wrote to the console, and what it asked any host for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())

    def shown(self) -> list[str]:
        """The names of the rows in the table that a person sees."""
        return [row.inner_text() for row in self.page.locator("#rows tbody tr:visible > th").all()]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    path = tmp_path / "report.html"
    path.write_text(made(OK, RED, HOSTILE_ROW, SKIPPED, charts=CHARTS), encoding="utf-8")
    page = browser.new_page()
    one = Opened(page, path)
    yield one
    page.close()
    assert one.said == [], "nothing is wrong in the console"
    assert one.asked == [path.as_uri()], "the page loads nothing"


def test_hostile_names_are_shown_as_text(opened: Opened) -> None:
    assert HOSTILE in opened.page.locator("h3").nth(1).inner_text()
    assert HOSTILE in opened.shown()[2]
    opened.page.get_by_role("button", name=HOSTILE).click()
    assert HOSTILE in opened.page.locator("tr.more pre").inner_text()
    assert opened.page.locator("img").count() == 0


def test_filters_narrow_the_table_and_count_its_rows(opened: Opened) -> None:
    assert len(opened.shown()) == 4
    opened.page.get_by_label("Text").fill("ZERO2")
    assert opened.shown() == ["sharding[zero2-dp4]"]
    assert opened.page.locator("#count").inner_text() == "1 of 4 rows"
    opened.page.get_by_label("Text").fill("")
    opened.page.get_by_label("Outcome").select_option("skipped")
    assert opened.shown() == ["scaling[weak-dp8]"]
    opened.page.get_by_label("Outcome").select_option("")
    opened.page.get_by_label("Suite").select_option("sharding")
    assert opened.shown() == ["sharding[ddp-dp4]", "sharding[zero2-dp4]"]


def test_the_keyboard_opens_the_details_of_a_row(opened: Opened) -> None:
    row = opened.page.get_by_role("button", name="sharding[zero2-dp4]")
    row.focus()
    opened.page.keyboard.press("Enter")
    details = opened.page.locator("tr.more")
    assert "step time: 100" in details.inner_text() and details.locator("svg").count() == 1
    assert row.get_attribute("aria-expanded") == "true"
    opened.page.get_by_label("Text").fill("no such row")
    assert not details.is_visible(), "details go with their row"
    opened.page.get_by_label("Text").fill("")
    assert details.is_visible()
    row.press("Enter")
    assert not details.is_visible()


def test_the_first_stops_of_the_keyboard_are_the_table_the_command_and_the_full_report(opened: Opened) -> None:
    stops = []
    for _ in range(3):
        opened.page.keyboard.press("Tab")
        stops.append(opened.page.evaluate("document.activeElement.innerText"))
    assert stops == ["Skip to all rows", "Copy", "Full report"]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_no_wider_than_the_screen(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Opened, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG 2.2 asks for at level AA."""
    opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    found = opened.page.evaluate(
        """() => {
          const light = (colour) => {
            const part = colour.match(/[0-9.]+/g).slice(0, 3).map((c) => c / 255)
              .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
          };
          const behind = (one) => {
            for (; one; one = one.parentElement) {
              const colour = getComputedStyle(one).backgroundColor;
              if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
            }
            return getComputedStyle(document.body).backgroundColor;
          };
          return [...document.querySelectorAll("h1, h2, p, dt, dd, .badge, code, button, label, td, th")]
            .filter((one) => one.innerText && one.checkVisibility())
            .map((one) => {
              const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
              return [one.className + ": " + one.innerText.slice(0, 40), (a + 0.05) / (b + 0.05)];
            });
        }"""
    )
    assert [(name, ratio) for name, ratio in found if ratio < 4.5] == []


def test_print_opens_what_is_folded(opened: Opened) -> None:
    assert not opened.page.locator(".card pre").first.is_visible()
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator(".card pre").first.is_visible()
    opened.page.emulate_media(media="print")
    assert not opened.page.locator(".filters").is_visible()
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not opened.page.locator(".card pre").first.is_visible()


def test_a_page_of_one_row_has_no_filter_for_suites(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    path.write_text(made(dataclasses.replace(OK, record=steps(1.0), label="mine")), encoding="utf-8")
    page = browser.new_page()
    one = Opened(page, path)
    assert (one.shown(), page.locator("#suite").count()) == (["mine"], 0)
    page.close()
    assert one.said == []
