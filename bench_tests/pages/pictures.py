"""Pictures of the pages, as SVG text. They follow the reader's light or dark scheme and load nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bench_tests.pages.stored import HEADLINE, sharded
from bench_tests.tables.format import samples_per_s
from pytest_trainbench.schema.metrics import host_bound
from pytest_trainbench.schema.record import Record

STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f }
  .quiet { fill: #57606a } .title { font-weight: 600; font-size: 15px }
  .grid { stroke: #d0d7de } .card { fill: #ffffff; stroke: #d0d7de } .leader { stroke: #8c959f }
  .dot { fill: #0969da; stroke: #0969da; stroke-width: 2 } .open { fill: #ffffff; stroke: #0969da; stroke-width: 2 }
  .box { fill: #ddf4ff; stroke: #0969da } .end { fill: #fff8c5; stroke: #9a6700 } .arrow { stroke: #57606a; fill: none }
  .head { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d } .card { fill: #0d1117; stroke: #3d444d } .leader { stroke: #656c76 }
    .dot { fill: #4493f8; stroke: #4493f8 } .open { fill: #0d1117; stroke: #4493f8 }
    .box { fill: #10253f; stroke: #4493f8 } .end { fill: #2e2710; stroke: #d29922 } .arrow { stroke: #9198a1 }
    .head { fill: #9198a1 }
  }
"""

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 100, 60
LINE = 16
"""Height of a label, in px."""

LETTER = 7.4
"""Width of a letter, in px, rounded up."""


@dataclass(frozen=True, kw_only=True)
class Point:
    name: str
    x: float
    y: float
    filled: bool


@dataclass(frozen=True, kw_only=True)
class Area:
    """A rectangle in px."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Area) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


def sharding(records: Sequence[Record]) -> str:
    """Throughput against peak memory of the sharding strategies. Raises ``ValueError`` where no row has both."""
    rows = [one for one in sharded(records) if one.values("peak_allocated_bytes") and one.values("samples_per_s")]
    if not rows:
        raise ValueError("no stored sharding row has samples/s and peak memory: save baselines of sharding first")
    points = [
        Point(
            name=one.case.params["strategy"],
            x=(one.figure("peak_allocated_bytes") or 0.0) / 2**30,
            y=samples_per_s(one),
            filled=not host_bound(one),
        )
        for one in rows
    ]
    return scatter(
        points,
        title=f"GPT-1.3B on {HEADLINE} × H200: faster is higher, smaller is further left",
        across="peak allocated memory of a device, GiB",
        up="samples/s",
        key=("the device sets the pace", "host-bound"),
    )


def scatter(points: Sequence[Point], *, title: str, across: str, up: str, key: tuple[str, str]) -> str:
    """Labelled points, both axes from 0. ``key`` says what a filled and what an open point means."""
    x_step, y_step = nice(max(point.x for point in points)), nice(max(point.y for point in points))
    most = [step * (int(max(values) / step) + 1) for step, values in ((x_step, [p.x for p in points]),
                                                                      (y_step, [p.y for p in points]))]  # fmt: skip

    def place(point: Point) -> tuple[float, float]:
        return (
            LEFT + point.x / most[0] * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - point.y / most[1] * (HEIGHT - TOP - BOTTOM),
        )

    lines = [text(20, 28, title, "title"), *_key(key)]
    for tick in range(int(most[0] / x_step) + 1):
        x = place(Point(name="", x=tick * x_step, y=0, filled=True))[0]
        lines.append(text(x, HEIGHT - BOTTOM + 20, f"{tick * x_step:g}", "quiet", anchor="middle"))
    for tick in range(int(most[1] / y_step) + 1):
        y = place(Point(name="", x=0, y=tick * y_step, filled=True))[1]
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        lines.append(text(LEFT - 8, y + 4, f"{tick * y_step:g}", "quiet", anchor="end"))
    lines.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, across, "quiet", anchor="middle"))
    lines.append(text(20, TOP - 16, up, "quiet"))
    spots = [place(point) for point in points]
    lines += _labels(points, spots)
    lines += [
        f'<circle class="{"dot" if point.filled else "open"}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        for point, (x, y) in zip(points, spots, strict=True)
    ]
    return svg(WIDTH, HEIGHT, lines)


def nice(most: float, ticks: int = 5) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides ``most`` into about so many parts."""
    power = 10.0 ** (len(str(int(most / ticks))) - 1)
    return next(step * power for step in (1, 2, 5, 10) if most / (step * power) <= ticks + 1)


def _key(key: tuple[str, str]) -> Iterator[str]:
    for kind, name, x in (("dot", key[0], 26), ("open", key[1], 226)):
        yield f'<circle class="{kind}" cx="{x}" cy="52" r="5"/>'
        yield text(x + 12, 56, name, "quiet")


def _labels(points: Sequence[Point], spots: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Each point's name where nothing else is: right or left of it, nearer places first."""
    taken = [Area(x=x - 7, y=y - 7, width=14, height=14) for x, y in spots]
    for point, (x, y) in sorted(zip(points, spots, strict=True), key=lambda one: one[1][1]):
        width = LETTER * len(point.name)
        for away in sorted(range(-8, 9), key=abs):
            found = None
            for left in (x + 12, x - 12 - width):
                area = Area(x=left, y=y + away * LINE / 2 - LINE / 2, width=width, height=LINE)
                inside = left >= LEFT and left + width <= WIDTH - RIGHT
                if inside and not any(area.meets(other) for other in taken):
                    found = area
                    break
            if found:
                break
        else:
            raise ValueError(f"no place is left for the label {point.name}: make the picture larger")
        taken.append(found)
        yield text(found.x, found.y + LINE - 4, point.name)
        if abs(away) > 1:
            end = found.x - 2 if found.x > x else found.x + width + 2
            middle = found.y + LINE / 2
            yield f'<line class="leader" x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{middle:.1f}"/>'


FLOW = (
    ("Options", "command line > environment > ini > default"),
    ("Hardware", "the requested devices are here, or the run stops"),
    ("Case", "step builder + parameters + mesh = Case.id"),
    ("Launch", "fresh processes, one a device; 3 to 10 a row"),
    ("Rank", "builds the mesh and the step; times, traces, writes JSON"),
    ("Record", "all ranks and launches of the case, with the environment"),
    ("Verdict", "record against baseline, with the noise of similar rows"),
    ("Test and report", "passes, fails or skips; says what changed and where"),
)
"""The steps from the options to the verdict; each is drawn as one box."""


def flow() -> str:
    """The steps of a run from top to bottom; a row in doubt goes back for a launch, and a baseline goes in and out."""
    height, gap, left, width = 46, 20, 20, 440
    lines = []
    for number, (title, said) in enumerate(FLOW):
        y = 20 + number * (height + gap)
        kind = "end" if number == len(FLOW) - 1 else "box"
        lines.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        lines.append(text(left + 14, y + 19, title, "title"))
        lines.append(text(left + 14, y + 37, said, "quiet"))
        if number:
            lines.append(arrow([(left + width / 2, y - gap), (left + width / 2, y - 2)]))

    def middle(name: str) -> float:
        return 20 + [title for title, _ in FLOW].index(name) * (height + gap) + height / 2

    right = left + width
    verdict, launch = middle("Verdict"), middle("Launch")
    out, into = verdict - 10, verdict + 10
    lines.append(arrow([(right, out), (right + 40, out), (right + 40, launch), (right + 2, launch)]))
    lines.append(text(right + 50, (out + launch) / 2 - 4, "in doubt:"))
    lines.append(text(right + 50, (out + launch) / 2 + 14, "one more launch"))
    top = verdict + 10 - height / 2
    lines.append(f'<rect class="end" x="{right + 70}" y="{top:g}" width="150" height="{height}" rx="6"/>')
    lines.append(text(right + 84, top + 19, "Baseline", "title"))
    lines.append(text(right + 84, top + 37, "JSON in your repo", "quiet"))
    lines.append(arrow([(right + 70, into), (right + 2, into)]))
    end = middle("Test and report")
    lines.append(arrow([(right, end), (right + 145, end), (right + 145, top + height + 2)]))
    lines.append(text(right + 8, end + 18, "--save-baseline", "quiet"))
    return svg(right + 240, 20 + len(FLOW) * (height + gap) + 14, lines)


def arrow(points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="arrow" points="{path}" marker-end="url(#head)"/>'


def text(x: float, y: float, said: str, kind: str = "", *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(said)}</text>'


def svg(width: float, height: float, lines: Sequence[str]) -> str:
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
            f"<style>{STYLE}</style>",
            f"<defs>{head}</defs>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
            *lines,
            "</svg>\n",
        ]
    )
