"""Charts of a report, as data. :mod:`pytest_trainbench.report.svg` draws them, so a suite never writes markup."""

from __future__ import annotations

import math
from dataclasses import dataclass

TONES = ("", "good", "bad")


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One point of a chart.

    name: the text that a reader sees on hover.
    label: the text beside the dot; empty for a dot that needs no label.
    tone: one of :data:`TONES`; empty for the colour of its series.

    Raises ``ValueError`` for a coordinate that is not finite, and for an unknown tone.
    """

    x: float
    y: float
    name: str = ""
    label: str = ""
    tone: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.x) and math.isfinite(self.y)):
            raise ValueError(f"a dot needs finite coordinates, not {self.x!r} and {self.y!r}")
        if self.tone not in TONES:
            raise ValueError(f"tone {self.tone!r} is unknown; known: {', '.join(map(repr, TONES))}")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Dots of one colour. ``line`` joins them in their order. ``ideal`` draws only a dashed line, without dots."""

    name: str
    dots: tuple[Dot, ...]
    line: bool = False
    ideal: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Dots and lines over two axes.

    across, up: what the axes show, with the unit.
    since: vertical lines, each at an ``x`` and with a text, for example where a row turned red.
    level: horizontal lines, each at a ``y`` and with a text.
    dates: whether ``x`` is in seconds since 1970, and the axis shows days in UTC.
    from_zero: whether the vertical axis starts at 0.
    """

    title: str
    across: str
    up: str
    series: tuple[Series, ...]
    since: tuple[tuple[float, str], ...] = ()
    level: tuple[tuple[float, str], ...] = ()
    dates: bool = False
    from_zero: bool = True

    def __post_init__(self) -> None:
        if not any(one.dots for one in self.series):
            raise ValueError(f"the chart {self.title!r} has no dots: leave it out")


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars from 0: a name and a value each. ``level``: vertical lines, each at a value and with a text."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]
    level: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.bars:
            raise ValueError(f"the chart {self.title!r} has no bars: leave it out")
        if broken := [value for _, value in (*self.bars, *((text, at) for at, text in self.level)) if not value >= 0]:
            raise ValueError(f"values of the chart {self.title!r} must be 0 or more, not {broken}")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Step times of one launch in ms: the 5th, 25th, 50th, 75th and 95th percentile."""

    p5: float
    p25: float
    p50: float
    p75: float
    p95: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Raises ``ValueError`` without values."""
        if not values:
            raise ValueError("a spread needs at least one value")
        ordered = sorted(values)

        def at(share: float) -> float:
            place = share * (len(ordered) - 1)
            low = math.floor(place)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

        return cls(p5=at(0.05), p25=at(0.25), p50=at(0.5), p75=at(0.75), p95=at(0.95))


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Step times of each launch: those of the baseline (or of the other side), and those of this run."""

    title: str
    before: tuple[Spread, ...]
    now: tuple[Spread, ...]

    def __post_init__(self) -> None:
        if not self.now:
            raise ValueError(f"the chart {self.title!r} has no launch of this run: leave it out")


AnyChart = Chart | Bars | Launches
