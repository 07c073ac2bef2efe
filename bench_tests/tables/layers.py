"""The best TFLOPS of each layer over its grid, beside the device's peak, the best matrix product, and published
figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_tests.layers import COUNTINGS, DIRECTIONS, LAYERS, MODES
from bench_tests.layers.published import (
    DEVICES,
    HIDDEN,
    LAYER_TFLOPS,
    MATRIX_PRODUCT_TFLOPS,
    THEORETICAL_GB_PER_S,
    THEORETICAL_TFLOPS,
    VECTOR_PRODUCT_TFLOPS,
)
from bench_tests.tables.format import beside, built_by, percent, shown, text, went_well
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.report.rows import tflops
from pytest_trainbench.schema.record import Record
from pytest_trainbench.schema.step import DTYPES

if TYPE_CHECKING:
    import pandas as pd


ORDER: dict[str, Sequence[str]] = {
    "layer": tuple(LAYERS),
    "direction": DIRECTIONS,
    "mode": tuple(MODES),
    "precision": DTYPES,
    "counting": COUNTINGS,
}
"""The order of a parameter's values in tables. Values of other parameters are in order of size."""


class Best(NamedTuple):
    """The fastest record of a group, and its TFLOPS: the median over its launches."""

    tflops: float
    record: Record

    @property
    def params(self) -> Mapping[str, Any]:
        return self.record.case.params


def layers(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each layer, direction, mode, number format and counting: the best measured batch and sequence.

    *of peak* is the share of the dense peak in the hardware table. *of product* is the share of the best matrix product
    of the same format among ``records``; a mark says that another machine ran the product. Either is empty if the peak
    or the product is missing. Layers of the published size also show the published figures of other devices.
    """
    products = best_of(records, "matrix_product", "precision")
    best = best_of(records, "layer_pass", "layer", "direction", "mode", "precision", "counting", "hidden")
    return shown(
        {
            "layer": LAYERS[layer].title,
            "pass": direction if counting == "exact" else f"{direction} (counted as published)",
            "mode": mode,
            "format": precision,
            "batch × sequence × hidden": f"{one.params['batch']} × {one.params['sequence']} × {hidden}",
            "TFLOPS": tflops(one.tflops),
            "of peak": _part(one.tflops, peak_of(hardware, precision)),
            "of product": _beside(one, products.get((hardware, precision))),
            **_published(LAYER_TFLOPS[layer, direction] if hidden == HIDDEN else None),
        }
        for (hardware, layer, direction, mode, precision, counting, hidden), one in best.items()
    )


def products(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each product and number format, at the best measured size, and lines with the device's peaks.

    *of peak* is the share of the dense peak for matrix products, and of the memory bandwidth for vector products. Lines
    of accelerators also show the published figures of other devices, in the line's unit.
    """
    lines = []
    for (hardware, precision), one in best_of(records, "matrix_product", "precision").items():
        peak = peak_of(hardware, precision)
        lines.append(
            {
                "product": "matrix",
                "format": precision,
                "size": f"{one.params['size']:,} × {one.params['size']:,}",
                "TFLOPS": tflops(one.tflops),
                "GB/s": "",
                "of peak": _part(one.tflops, peak),
                **_published(MATRIX_PRODUCT_TFLOPS.get(precision) if _known(hardware) else None),
            }
        )
        if peak is not None:
            most = {"product": "matrix, in theory", "format": precision, "TFLOPS": tflops(peak)}
            lines.append({**most, **_published(THEORETICAL_TFLOPS.get(precision))})
    bandwidths: dict[str, float] = {}
    for (hardware, precision), one in best_of(records, "vector_product", "precision").items():
        bandwidth = _bandwidth_gb_per_s(hardware)
        lines.append(
            {
                "product": "vector",
                "format": precision,
                "size": f"{one.params['size']:,}",
                "TFLOPS": tflops(one.tflops),
                "GB/s": f"{_gb_per_s(one.record):,.0f}",
                "of peak": _part(_gb_per_s(one.record), bandwidth),
                **_published(VECTOR_PRODUCT_TFLOPS if _known(hardware) else None),
            }
        )
        if bandwidth is not None:
            bandwidths[hardware] = bandwidth
    for bandwidth in bandwidths.values():
        most = {"product": "memory, in theory (GB/s)", "GB/s": f"{bandwidth:,.0f}"}
        lines.append({**most, **_published(THEORETICAL_GB_PER_S)})
    return shown(lines)


def _known(hardware: str) -> bool:
    """Whether published devices are comparable with this hardware. A CPU is not."""
    return not hardware.startswith("cpu-")


def best_of(records: Iterable[Record], builder: str, *names: str) -> dict[tuple[Any, ...], Best]:
    """The best record for each hardware and combination of the parameters ``names``, in :data:`ORDER`.

    Records that did not end well, or of a device with a memory cap, are left out.
    """

    def rank(key: tuple[Any, ...]) -> tuple[Any, ...]:
        hardware, *values = key
        pairs = zip(names, values, strict=True)
        return hardware, *(ORDER[name].index(value) if name in ORDER else value for name, value in pairs)

    groups: dict[tuple[Any, ...], list[Best]] = defaultdict(list)
    for record in went_well(built_by(records, builder)):
        key = (record.hardware, *(record.case.params[name] for name in names))
        groups[key].append(Best(median(record.values("tflops_per_device")), record))
    return {key: max(groups[key], key=lambda one: one.tflops) for key in sorted(groups, key=rank)}


def _gb_per_s(record: Record) -> float:
    return median(launch.figures["bytes_per_step"] / launch.metrics["step_ms"] / 1e6 for launch in record.launches)


def _bandwidth_gb_per_s(hardware: str) -> float | None:
    return TABLE[hardware].bandwidth_gb_s if hardware in TABLE else None


def peak_of(hardware: str, precision: str) -> float | None:
    return TABLE[hardware].peak_tflops.get(precision) if hardware in TABLE else None


def _beside(one: Best, product: Best | None) -> str:
    return beside(_part(one.tflops, product.tflops), one.record, product.record) if product else ""


def _published(figures: Sequence[float | None] | None) -> dict[str, str]:
    texts = [text(figure, "{:g}".format) for figure in figures or [None] * len(DEVICES)]
    return dict(zip((f"published {device}" for device in DEVICES), texts, strict=True))


def _part(value: float, whole: float | None) -> str:
    return percent(None if whole is None else value / whole)
