"""Charts that combine several cases, by the title of their group. A group is a function ``records -> charts`` and its
row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

from pytest_trainbench.report.chart import AnyChart
from pytest_trainbench.schema.record import Record

CHARTS: dict[str, str] = {
    "Scaling": "bench_tests.charts.training:scaling",
    "Acceleration of data parallelism (published for one closed accelerator: 1.05× to 3×)": (
        "bench_tests.charts.training:acceleration"
    ),
    "Loss over samples": "bench_tests.charts.training:losses",
    "TFLOPS of layers": "bench_tests.charts.layers:layers",
}
"""Title -> import path ``package.module:function``. A function uses the records that it knows and ignores the others.
Without such records it returns no chart."""


def charts(records: Sequence[Record]) -> dict[str, list[AnyChart]]:
    """Every group that has at least one chart for these records."""
    made = {}
    for title, path in CHARTS.items():
        draw: Callable[[Sequence[Record]], list[AnyChart]] = resolve_name(path)
        if found := draw(records):
            made[title] = found
    return made
