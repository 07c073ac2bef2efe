"""The best TFLOPS of each layer, beside the device's peak and its best matrix product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bench_tests.layers import LAYERS
from bench_tests.tables.layers import best_of, peak_of
from pytest_trainbench.report.chart import AnyChart, Bars
from pytest_trainbench.schema.record import Record


def layers(records: Sequence[Record]) -> list[AnyChart]:
    """One chart for each hardware, direction, number format and counting, with the layers and modes as bars."""
    products = best_of(records, "matrix_product", "precision")
    found = best_of(records, "layer_pass", "direction", "precision", "counting", "layer", "mode", "hidden")
    bars: dict[tuple[str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for (hardware, direction, precision, counting, layer, mode, hidden), one in found.items():
        bars[hardware, direction, precision, counting].append((f"{LAYERS[layer].title}, {mode}, {hidden}", one.tflops))
    charts: list[AnyChart] = []
    for (hardware, direction, precision, counting), group in bars.items():
        levels = []
        if (theory := peak_of(hardware, precision)) is not None:
            levels.append((theory, f"theoretical product, {theory:,.0f}"))
        if (product := products.get((hardware, precision))) is not None:
            levels.append((product.tflops, f"measured product, {product.tflops:,.0f}"))
        counted = "" if counting == "exact" else ", counted as published"
        charts.append(
            Bars(
                title=f"{direction}, {precision}{counted} [{hardware}]",
                unit="TFLOPS of a device, at the best measured shape",
                bars=tuple(group),
                level=tuple(levels),
            )
        )
    return charts
