"""The web page of a run: what it says, what it draws, and that no name in it becomes markup."""

from __future__ import annotations

import dataclasses
import math
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from own_project import replay
from samples import case, launch, record, steps

from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.judge.drift import Drift
from pytest_trainbench.judge.red_since import Turned
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.report import header, page, pictures, svg
from pytest_trainbench.report.chart import AnyChart, Bars, Chart, Dot, Launches, Series, Spread
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store.history import Entry, Run

STARTED = datetime(2026, 1, 31, 2, 17, tzinfo=timezone.utc)

FACTS = header.Facts(
    project="me/mine",
    device="4 × NVIDIA H200",
    machine="0123abcd",
    commit="cb87d82c3f01",
    started=STARTED,
    ended=STARTED + timedelta(hours=3, minutes=12),
)

HOSTILE = "x[</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{7*7}}]"


def judged(label: str, now: Record, then: Record | None, **replaced: object) -> Row:
    verdict = judge(now, then)
    return dataclasses.replace(
        Row(label=label, verdict=verdict, record=now, baseline=then, fails=verdict.fails(ci=False)),
        **replaced,  # type: ignore[arg-type]
    )


OK = judged("sharding[ddp-dp4]", steps(100.0, 100.1, 100.0), steps(100.0, 100.0, 100.1))
RED = judged("sharding[zero2-dp4]", steps(110.0, 110.1, 110.0), steps(100.0, 100.0, 100.1), accept="pytest --save-x")


def made(*rows: Row, charts: pictures.Charts | None = None, trend: tuple[str, ...] = (), cut_off: str = "") -> str:
    return page.page(
        rows,
        FACTS,
        header="4 × NVIDIA H200, torch 2.11.0",
        tables={},
        charts=charts or {},
        charts_of=lambda row: pictures.of_row(row, [], []),
        trend=trend,
        cut_off=cut_off,
    )


def test_the_first_screen_says_what_is_red_where_when_and_of_which_commit() -> None:
    text = made(OK, RED)
    assert '<h1 class="bad">1 of 2 rows is red</h1>' in text
    assert (
        "Measured on 4 × NVIDIA H200 (machine 0123abcd), 2026-01-31 02:17 UTC, in 3 h 12 min, commit cb87d82c3f01."
    ) in text
    first, _, rest = text.partition('<section id="rows"')
    assert "step time 10.0% worse" in first and "pytest --save-x" in first and "Step times of each launch" in first
    assert "sharding[ddp-dp4]" not in first and "sharding[ddp-dp4]" in rest


@pytest.mark.parametrize(
    ("rows", "cut_off", "said"),
    [
        ([OK], "", "No row is red, of 1"),
        ([RED, RED], "", "2 of 2 rows are red"),
        ([], "", "No row has a result"),
        ([OK], "the run was cut off: 2 of 3 cases have no result", "the run was cut off: 2 of 3 cases have no result"),
    ],
)
def test_the_headline_counts_red_rows_or_says_what_is_missing(rows: list[Row], cut_off: str, said: str) -> None:
    assert page.headline(rows, cut_off) == said
    assert said in made(*rows, cut_off=cut_off)


@pytest.mark.parametrize(
    ("seconds", "said"), [(12, "12 s"), (240, "4 min"), (11520, "3 h 12 min"), (3599, "1 h 0 min")]
)
def test_a_duration_is_in_the_unit_that_a_person_would_say(seconds: int, said: str) -> None:
    assert header.duration(timedelta(seconds=seconds)) == said


def test_names_from_tests_stay_text() -> None:
    hostile = dataclasses.replace(RED, label=HOSTILE, accept=HOSTILE, detail=HOSTILE)
    dots = (Dot(x=1, y=1, name=HOSTILE, label=HOSTILE),)
    charts: dict[str, list[AnyChart]] = {
        HOSTILE: [
            Chart(title=HOSTILE, across=HOSTILE, up=HOSTILE, series=(Series(name=HOSTILE, dots=dots),) * 2),
            Bars(title=HOSTILE, unit=HOSTILE, bars=((HOSTILE, 1.0),), level=((1.0, HOSTILE),)),
        ]
    }
    text = made(hostile, charts=charts, trend=(f"drift: {HOSTILE}",))
    assert "<img" not in text and "alert(1)</script>" not in text
    assert text.count("<script>") == 1
    assert "{{7*7}}" in text, "a name is no template"


def test_a_name_cannot_turn_the_direction_of_writing() -> None:
    """Else ``x[gnp.exe]`` might be shown as ``x[exe.png]``."""
    label = "x[\u202eabc\x1b[31m]"
    dots = (Dot(x=1, y=1, name=label, label=label),)
    chart = Chart(title="t", across="", up="", series=(Series(name="", dots=dots),))
    text = made(dataclasses.replace(RED, label=label), charts={label: [chart]})
    assert "\u202e" not in text and "\x1b" not in text and "x[\\u202eabc\\x1b[31m]" in text


def test_the_page_names_no_other_host_and_allows_only_its_own_script() -> None:
    text = made(OK, RED)
    assert re.findall(r"(?:src|href)=[\"']?(?!#|data:|[\"'])[^\s>]*", text) == []
    assert "http" not in re.sub(r'<meta http-equiv="Content', "", text)
    assert re.search(r"default-src 'none'; img-src data:; style-src 'sha256-\S+'; script-src 'sha256-\S+'\"", text)


def test_many_red_rows_have_few_cards_and_are_all_in_the_table() -> None:
    rows = [dataclasses.replace(RED, label=f"x[{number}]") for number in range(page.CARDS_MOST + 2)]
    text = made(*rows)
    assert text.count('<article class="card">') == page.CARDS_MOST
    assert "2 more red rows are in the table." in text
    assert text.count("<template>") == len(rows)


def test_a_night_of_crashes_makes_no_huge_page() -> None:
    log = "x" * (page.DETAILS_MOST // 3)
    rows = [dataclasses.replace(RED, label=f"x[{number}]", detail=log) for number in range(6)]
    text = made(*rows)
    assert text.count(log) == 2 * 3 and text.count(page.CUT) == 2 * 3, "in the cards and in the table"


def test_a_run_writes_the_page_and_says_where(project: pytest.Pytester) -> None:
    result = replay(project, "--launches", "1", "--report-html", "out/report.html")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["page: out/report.html"])
    text = (project.path / "out" / "report.html").read_text()
    assert "No row is red, of 1" in text and ">mine</" in text


def test_a_page_that_cannot_be_written_stops_the_run_before_it_measures(project: pytest.Pytester) -> None:
    (project.path / "file").touch()
    result = replay(project, "--report-html", "file/report.html")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --report-html: *file/report.html cannot be written (*)"])


def test_a_conftest_adds_charts_through_the_hook(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        from pytest_trainbench.report.chart import Chart, Dot, Series

        def pytest_trainbench_charts(records):
            dots = tuple(Dot(x=one.case.mesh.world_size, y=one.median("step_ms")) for one in records)
            return {"Mine": [Chart(title="All steps", across="ranks", up="ms", series=(Series(name="", dots=dots),))]}
        """
    )
    assert replay(project, "--launches", "1", "--report-html", "report.html").ret == 0
    text = (project.path / "report.html").read_text()
    assert "<summary>Mine (1)</summary>" in text and "<figcaption>All steps</figcaption>" in text


def test_a_faulty_chart_costs_the_page_and_not_the_report(project: pytest.Pytester) -> None:
    project.makeconftest("def pytest_trainbench_charts(records):\n    raise OSError('no such table')")
    result = replay(project, "--launches", "1", "--report-html", "report.html")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*trainbench: 1 no-baseline*", "report: the web page could not be made (OSError: no such table)"]
    )
    result.stdout.no_fnmatch_line("page: *")


# The charts of the plugin


def night(days_ago: int, ms: float, *, outcome: str = "ok", baseline: str = "a", machine: str = "0123abcd") -> Run:
    entry = Entry(
        id=case().id,
        label="sharding[zero2-dp4]",
        outcome=outcome,
        baseline=baseline,
        launches=({"step_ms": ms},) * 3,
        machine=machine,
        fails=outcome == "regression",
    )
    return Run(
        path=Path("x.jsonl"),
        started=STARTED - timedelta(days=days_ago),
        hardware="h200-sxm",
        environment=Environment(must_match={}, suspects={}),
        entries={entry.id: entry},
    )


def test_the_history_of_a_red_row_marks_its_changes() -> None:
    runs = [
        night(5, 99.0, machine="ffffffff"),
        night(4, 100.0),
        night(3, 101.0, baseline="b"),
        night(2, 109.0, outcome="regression", baseline="b"),
    ]
    red = dataclasses.replace(
        RED,
        record=dataclasses.replace(RED.record or record(), created=STARTED.isoformat()),
        turned=Turned(runs=2, first=runs[3].started, green=runs[2].started),
    )
    drift = Drift(
        id=case().id,
        label="x",
        metric="step_ms",
        change=-0.1,
        since=runs[2].started.date(),
        nights_since=2,
        nights_before=2,
        differs=(),
    )
    _, history = pictures.of_row(red, runs, [drift])
    assert isinstance(history, Chart)
    (series,) = history.series
    assert [(dot.y, dot.tone) for dot in series.dots] == [(100.0, ""), (101.0, ""), (109.0, "bad"), (110.0, "bad")]
    assert [said for _, said in history.since] == ["new baseline", "red since", "drift since"]


def test_a_row_without_a_history_has_no_picture_of_it() -> None:
    (only,) = pictures.of_row(RED, [], [])
    assert only == Launches(
        title="Step times of each launch",
        before=(Spread(p5=100.0, p25=100.0, p50=100.0, p75=100.0, p95=100.0),) * 2
        + (Spread(p5=100.1, p25=100.1, p50=100.1, p75=100.1, p95=100.1),),
        now=only.now if isinstance(only, Launches) else (),
    )


def strategy(name: str, rate: float, memory: float) -> Record:
    one = launch(samples_per_s=rate, peak_allocated_bytes=memory, energy_j_per_sample=1 / rate)
    return record(one, label=f"sharding[{name}]", of=case(model="gpt", strategy=name))


def test_the_frontier_names_the_cases_that_no_other_case_beats() -> None:
    found = pictures.of_run(
        [strategy("a", 10, 2**30), strategy("b", 9, 2**31), strategy("c", 20, 2**32), strategy("d", 20, 2**33)],
        price=None,
    )
    (frontier,) = found["Throughput against memory"]
    assert isinstance(frontier, Chart)
    dots, front = frontier.series
    assert [(dot.x, dot.y, dot.label) for dot in dots.dots] == [(1, 10, "a"), (2, 9, ""), (4, 20, "c"), (8, 20, "")]
    assert [(dot.x, dot.y) for dot in front.dots] == [(1, 10), (4, 20)]
    (cost,) = found["Cost against time"]
    assert isinstance(cost, Chart)
    assert [dot.label for dot in cost.series[0].dots] == [
        "a (least memory)",
        "",
        "c (fastest, cheapest, least energy)",
        "",
    ]
    assert pictures.of_run([strategy("a", 10, 2**30)], price=None) == {}


# The drawing


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0.0, 100.0, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
        (29.7, 31.7, [30.0, 30.5, 31.0, 31.5]),
        (0.0, 0.0, [0.0]),
        (0.0, 0.013, [0.0, 0.005, 0.01]),
    ],
)
def test_ticks_are_round(low: float, high: float, found: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(found)


@pytest.mark.parametrize(
    ("value", "said"), [(0.012, "0.012"), (1500.0, "1,500"), (20_000.0, "20k"), (1.25e6, "1.25M"), (31.5, "31.5")]
)
def test_figures_of_an_axis_are_short(value: float, said: str) -> None:
    assert svg.figure(value) == said


def test_an_ideal_takes_no_colour_from_the_series_after_it() -> None:
    dots = (Dot(x=1, y=1), Dot(x=2, y=2))
    series = (Series(name="a", dots=dots), Series(name="", dots=dots, ideal=True), Series(name="b", dots=dots))
    text = svg.drawn(Chart(title="t", across="x", up="y", series=series))
    assert set(re.findall(r'class="(c\d|i) ', text)) == {"c0", "i", "c1"}


def test_labels_do_not_lie_on_each_other() -> None:
    dots = tuple(Dot(x=1 + number / 50, y=1, name="n", label=f"strategy-{number}") for number in range(12))
    text = svg.drawn(Chart(title="t", across="x", up="y", series=(Series(name="", dots=dots),)))
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)"( text-anchor="end")?>(strat[^<]*)', text)
    places = [(float(x) - (svg.LETTER * len(said) if ends else 0), float(y), said) for x, y, ends, said in found]
    assert places
    for number, (x, y, said) in enumerate(places):
        for other_x, other_y, other in places[number + 1 :]:
            apart = abs(y - other_y) >= svg.LINE - 3
            assert apart or x + svg.LETTER * len(said) <= other_x or other_x + svg.LETTER * len(other) <= x


def test_a_chart_of_one_value_can_be_drawn() -> None:
    one = Chart(title="t", across="x", up="y", series=(Series(name="", dots=(Dot(x=0, y=0),)),))
    assert "nan" not in svg.drawn(one) and "nan" not in svg.drawn(dataclasses.replace(one, from_zero=False, dates=True))
    same = Spread.of([5.0])
    assert "nan" not in svg.drawn(Launches(title="t", before=(), now=(same,)))


def test_nonsense_is_no_chart() -> None:
    with pytest.raises(ValueError, match="finite coordinates"):
        Dot(x=math.nan, y=1)
    with pytest.raises(ValueError, match="tone 'red' is unknown; known: '', 'good', 'bad'"):
        Dot(x=1, y=1, tone="red")
    with pytest.raises(ValueError, match="the chart 't' has no dots: leave it out"):
        Chart(title="t", across="", up="", series=(Series(name="", dots=()),))
    with pytest.raises(ValueError, match=r"must be 0 or more, not \[-1\]"):
        Bars(title="t", unit="", bars=(("a", -1),))
