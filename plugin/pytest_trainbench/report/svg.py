"""Draws charts as SVG text. Colours come from the page's style, so that they follow its light or dark scheme.

The drawings load nothing and need no script. plotly's script alone would add 4.8 MB to each page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count, pairwise

from pytest_trainbench.report.chart import AnyChart, Bars, Chart, Launches, Series, Spread
from pytest_trainbench.report.plain import plain

WIDTH, HEIGHT, LOW = 560.0, 320.0, 210.0
LEFT, RIGHT, BOTTOM = 58.0, 14.0, 44.0

LINE = 16.0
"""Height of a line of text."""

LETTER = 6.6
"""Width of a letter, rounded up."""

COLOURS = 8
"""How many colours for series the page's style has: the classes ``c0`` to ``c7``."""

KEYS_MOST = 16
"""A key with more series than this would fill the picture. Their names are then only seen on hover."""

NAME_MOST = 36
"""Letters of a bar's name. A longer name is cut in the middle, and seen whole on hover."""


def drawn(chart: AnyChart) -> str:
    """The chart as one ``<svg>`` element. All texts are escaped."""
    match chart:
        case Chart():
            return _chart(chart)
        case Bars():
            return _bars(chart)
        case Launches():
            return _launches(chart)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step * power for step in (1, 2, 5, 10) if (high - low) / (step * power) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def figure(value: float) -> str:
    """``1,500``, ``20k``, ``1.2M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Maps values to places. ``low`` and ``high`` are at the places ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _axis(values: Sequence[float], *, from_zero: bool, start: float, end: float) -> _Axis:
    low, high = min(values), max(values)
    if from_zero and low >= 0:
        low = 0.0
    room = (high - low) or abs(high) or 1.0
    return _Axis(
        low=low if from_zero and low == 0 else low - 0.08 * room, high=high + 0.08 * room, start=start, end=end
    )


def _chart(chart: Chart) -> str:
    keys = _key(chart.series)
    rows = max((key.row for key in keys), default=-1) + 1
    top = 34 + LINE * rows
    height = (LOW if chart.dates else HEIGHT) + LINE * max(0, rows - 1)
    dots = [dot for one in chart.series for dot in one.dots]
    xs = [dot.x for dot in dots] + [x for x, _ in chart.since]
    ys = [dot.y for dot in dots] + [y for y, _ in chart.level]
    x = _axis(xs, from_zero=not chart.dates, start=LEFT, end=WIDTH - RIGHT)
    y = _axis(ys, from_zero=chart.from_zero, start=height - BOTTOM, end=top)
    parts = [_text(4, 14, chart.up, "q")]
    for key in keys:
        up = 26 + key.row * LINE
        parts.append(
            f'<path class="{key.colour} l" d="M{key.left:.0f} {up:.0f}h14"/>'
            if key.line
            else f'<circle class="{key.colour} d" cx="{key.left + 7:.0f}" cy="{up:.0f}" r="4"/>'
        )
        parts.append(_text(key.left + 18, up + 4, key.name, "q"))
    for value in ticks(y.low, y.high):
        parts.append(f'<path class="g" d="M{LEFT:.0f} {y.at(value):.1f}H{WIDTH - RIGHT:.0f}"/>')
        parts.append(_text(LEFT - 6, y.at(value) + 4, figure(value), "q", anchor="end"))
    for value, said in _days(x.low, x.high) if chart.dates else _numbers(xs, x):
        parts.append(_text(x.at(value), height - BOTTOM + 18, said, "q", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, chart.across, "q", anchor="middle"))
    taken = [_Area(x.at(dot.x) - 5, y.at(dot.y) - 5, 10, 10) for dot in dots]
    for value, said in chart.level:
        parts.append(f'<path class="m" d="M{LEFT:.0f} {y.at(value):.1f}H{WIDTH - RIGHT:.0f}"/>')
        parts.append(_text(WIDTH - RIGHT, y.at(value) - 4, said, "q", anchor="end"))
        taken.append(_Area(WIDTH - RIGHT - LETTER * len(said), y.at(value) - LINE, LETTER * len(said), LINE))
    for number, (value, said) in enumerate(chart.since):
        place = x.at(value)
        right = place > WIDTH / 2
        parts.append(f'<path class="m" d="M{place:.1f} {top:.0f}V{height - BOTTOM:.0f}"/>')
        parts.append(
            _text(place + (-4 if right else 4), top + 10 + number * LINE, said, "q", anchor="end" if right else "start")
        )
    for colour, one in zip(_colours(chart.series), chart.series, strict=True):
        places = [(x.at(dot.x), y.at(dot.y)) for dot in one.dots]
        if one.line or one.ideal:
            path = "L".join(f"{across:.1f} {up:.1f}" for across, up in places)
            title = f"<title>{escape(one.name)}</title>"
            parts.append(f'<path class="{colour} l" d="M{path}">{title if one.ideal else ""}</path>')
        if one.ideal:
            continue
        for dot, (across, up) in zip(one.dots, places, strict=True):
            tone = dot.tone or colour
            title = f"<title>{escape(dot.name)}</title>" if dot.name else ""
            parts.append(f'<circle class="{tone} d" cx="{across:.1f}" cy="{up:.1f}" r="4">{title}</circle>')
    labelled = [dot for dot in dots if dot.label]
    for dot in labelled:
        parts += _label(x.at(dot.x), y.at(dot.y), dot.label, taken, bottom=height - BOTTOM, top=top)
    return _svg(WIDTH, height, chart.title, parts)


@dataclass(frozen=True)
class _Area:
    x: float
    y: float
    width: float
    height: float

    def meets(self, other: _Area) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


def _label(x: float, y: float, said: str, taken: list[_Area], *, top: float, bottom: float) -> list[str]:
    """The label where nothing else is: beside, above or below its dot. No label if all these places are taken; the
    dot's name is still seen on hover."""
    width = LETTER * len(said)
    for away in (0.0, -10.0, 10.0, -18.0, 18.0, -28.0, 28.0):
        for left in (x + 8, x - 8 - width, x - width / 2):
            if left == x - width / 2 and abs(away) < 16:
                continue
            area = _Area(left, y + away - LINE / 2, width, LINE - 2)
            inside = left >= LEFT and left + width <= WIDTH and area.y >= top - 6 and area.y + LINE <= bottom + 6
            if inside and not any(area.meets(other) for other in taken):
                taken.append(area)
                # A narrow screen has larger letters: the end at the dot is the one that stays.
                if left < x - width:
                    return [_text(x - 8, y + away + 4, said, "", anchor="end")]
                return [_text(left, y + away + 4, said, "")]
    return []


def _bars(chart: Bars) -> str:
    names = [name if len(name) <= NAME_MOST else f"{name[:17]}…{name[-18:]}" for name, _ in chart.bars]
    left = 12 + LETTER * max(map(len, names))
    top = 22 + LINE * len(chart.level)
    height = top + 20 * len(names) + 30
    most = max([*(value for _, value in chart.bars), *(value for value, _ in chart.level)]) or 1.0
    x = _Axis(low=0.0, high=most * 1.12, start=left, end=WIDTH - RIGHT)
    parts = [_text((left + WIDTH - RIGHT) / 2, height - 4, chart.unit, "q", anchor="middle")]
    for value in ticks(0.0, x.high):
        parts.append(f'<path class="g" d="M{x.at(value):.1f} {top:.0f}V{height - 30:.0f}"/>')
        parts.append(_text(x.at(value), height - 18, figure(value), "q", anchor="middle"))
    for number, (name, (whole, value)) in enumerate(zip(names, chart.bars, strict=True)):
        y = top + 20 * number
        parts.append(_text(left - 6, y + 14, name, "", anchor="end"))
        title = f"<title>{escape(whole)}: {figure(value)} {escape(chart.unit)}</title>"
        parts.append(
            f'<rect class="c0 b" x="{left:.1f}" y="{y + 3:.1f}" width="{x.at(value) - left:.1f}" height="14">'
            f"{title}</rect>"
        )
        parts.append(_text(x.at(value) + 4, y + 14, figure(value), "q"))
    for number, (value, said) in enumerate(chart.level):
        place, up = x.at(value), 12 + LINE * number
        parts.append(f'<path class="m" d="M{place:.1f} {up + 4:.0f}V{height - 30:.0f}"/>')
        parts.append(_text(place - 4, up + 6, said, "q", anchor="end"))
    return _svg(WIDTH, height, chart.title, parts)


def _launches(chart: Launches) -> str:
    """One line for each launch: a thin line from the 5th to the 95th percentile of its step times, a bar over the
    middle half, and a dot at the median."""
    spreads = [*chart.before, *chart.now]
    gap = 14.0
    height = 20 + gap * len(spreads) + (8 if chart.before else 0) + 40
    room = (max(one.p95 for one in spreads) - min(one.p5 for one in spreads)) or spreads[0].p50 * 0.1
    x = _Axis(
        low=min(one.p5 for one in spreads) - 0.05 * room,
        high=max(one.p95 for one in spreads) + 0.05 * room,
        start=LEFT + 20,
        end=WIDTH - RIGHT,
    )
    parts, y = [], 14.0
    for value in ticks(x.low, x.high):
        parts.append(f'<path class="g" d="M{x.at(value):.1f} 8V{height - 38:.0f}"/>')
        parts.append(_text(x.at(value), height - 22, figure(value), "q", anchor="middle"))
    parts.append(_text((LEFT + WIDTH) / 2, height - 6, "step time, ms", "q", anchor="middle"))
    for said, colour, group in (("baseline", "c1", chart.before), ("now", "c0", chart.now)):
        if not group:
            continue
        parts.append(_text(4, y + 4, said, ""))
        for number, one in enumerate(group, start=1):
            parts.append(_spread(one, x, y, colour, f"{said}, launch {number}"))
            y += gap
        y += 8
    return _svg(WIDTH, height, chart.title, parts)


def _spread(one: Spread, x: _Axis, y: float, colour: str, name: str) -> str:
    said = f"{name}: median {one.p50:.4g} ms, 5 % to 95 %: {one.p5:.4g} to {one.p95:.4g} ms"
    return (
        f'<g class="{colour}"><title>{escape(said)}</title>'
        f'<path class="l" d="M{x.at(one.p5):.1f} {y:.0f}H{x.at(one.p95):.1f}"/>'
        f'<path class="w" d="M{x.at(one.p25):.1f} {y:.0f}H{x.at(one.p75):.1f}"/>'
        f'<circle class="d" cx="{x.at(one.p50):.1f}" cy="{y:.0f}" r="3.5"/></g>'
    )


def _numbers(values: Sequence[float], axis: _Axis) -> list[tuple[float, str]]:
    """Ticks of a number axis. A few whole numbers, such as numbers of devices, are the ticks themselves."""
    own = sorted({value for value in values if value > 0})
    wide = all(axis.at(after) - axis.at(before) > 4 * LETTER for before, after in pairwise(own))
    chosen = own if len(own) <= 6 and wide and all(map(float.is_integer, map(float, own))) else None
    return [(value, figure(value)) for value in chosen or ticks(axis.low, axis.high, 8)]


def _days(low: float, high: float) -> list[tuple[float, str]]:
    """Up to six days on the axis, at midnight UTC."""
    day = 86400.0
    first, last = math.ceil(low / day), math.floor(high / day)
    if last < first:
        middle = (low + high) / 2
        return [(middle, f"{datetime.fromtimestamp(middle, timezone.utc):%d %b %H:%M}")]
    step = max(1, math.ceil((last - first + 1) / 6))
    return [
        (number * day, f"{datetime.fromtimestamp(number * day, timezone.utc):%d %b}")
        for number in range(first, last + 1, step)
    ]


@dataclass(frozen=True, kw_only=True)
class _Key:
    """The name of one series, and where it stands."""

    name: str
    colour: str
    line: bool
    row: int
    left: float


def _key(series: Sequence[Series]) -> list[_Key]:
    """The names of the series, as many in a row as fit. Empty for one series, and for too many of them."""
    named = [(colour, one) for colour, one in zip(_colours(series), series, strict=True) if one.name]
    if not 1 < len(named) <= KEYS_MOST:
        return []
    keys, row, left = [], 0, LEFT
    for colour, one in named:
        width = 30 + LETTER * len(one.name)
        if left > LEFT and left + width > WIDTH:
            row, left = row + 1, LEFT
        keys.append(_Key(name=one.name, colour=colour, line=one.line or one.ideal, row=row, left=left))
        left += width
    return keys


def _colours(series: Sequence[Series]) -> list[str]:
    """The class of each series. An ideal has a style of its own and takes no colour."""
    own = (f"c{number % COLOURS}" for number in count())
    return ["i" if one.ideal else next(own) for one in series]


def escape(said: str) -> str:
    return html.escape(plain(said))


def _text(x: float, y: float, said: str, kind: str, *, anchor: str = "start") -> str:
    how = "" if anchor == "start" else f' text-anchor="{anchor}"'
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}{how}>{escape(said)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    label = escape(title)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
