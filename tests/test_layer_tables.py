"""The tables of layers: the best shape of a grid, compared with the peak, a product and published figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import capped, failed, record

from bench_tests.layers import DIRECTIONS, LAYERS
from bench_tests.layers.published import (
    DEVICES,
    LAYER_TFLOPS,
    MATRIX_PRODUCT_TFLOPS,
    THEORETICAL_GB_PER_S,
    THEORETICAL_TFLOPS,
    VECTOR_PRODUCT_TFLOPS,
)
from bench_tests.tables.layers import layers, products
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Launch, Record

H200 = "h200-sxm-141gb"
"""989.4 TFLOPS in 16 bits, 494.7 in tf32, 4,800 GB/s."""

BERT = {
    "layer": "bert", "direction": "fwd_bwd", "mode": "sdpa", "precision": "bf16", "batch": 64, "sequence": 512,
    "hidden": 1024, "heads": 16, "ffn": 4096, "counting": "exact",
}  # fmt: skip


def measured(builder: str, *tflops: float, hardware: str = H200, step_ms: float = 1.0, **params: Any) -> Record:
    """A record with one launch per figure. A step of a vector product moves 4.2 GB."""
    launches = [
        Launch(
            step_ms=[step_ms],
            metrics={"step_ms": step_ms, "tflops_per_device": value},
            figures={"bytes_per_step": 4.2e9},
        )
        for value in tflops
    ]
    case = Case(builder=f"bench_tests.steps.layer:{builder}", mesh=MeshShape(), params=params)
    return record(*launches, of=case, hardware=hardware)


def layer(*tflops: float, hardware: str = H200, **params: Any) -> Record:
    return measured("layer_pass", *tflops, hardware=hardware, **{**BERT, **params})


def test_the_headline_is_the_best_shape_of_the_grid() -> None:
    records = [
        layer(428, 432, 900, batch=64),  # the median counts, so one lucky launch is no headline
        layer(440, 444, 445, batch=128),
        layer(350, 350, 350, batch=16, sequence=128),
        measured("matrix_product", 769, precision="bf16", size=4096),
        measured("matrix_product", 792, precision="bf16", size=8192),
        measured("matrix_product", 2000, precision="fp16", size=8192),
    ]
    table = layers(records)
    assert table is not None
    assert table.to_dict("records") == [
        {
            "layer": "BERT layer",
            "pass": "fwd_bwd",
            "mode": "sdpa",
            "format": "bf16",
            "batch × sequence × hidden": "128 × 512 × 1024",
            "TFLOPS": "444",
            "of peak": "45%",
            "of product": "56%",
            "published A100 80GB": "136",
            "published A6000": "70",
            "published V100 32GB": "64",
            "published 3090 Ti": "62",
        }
    ]


def test_lines_do_not_depend_on_the_order_of_records() -> None:
    others = [
        {"layer": "gpt2"}, {"direction": "fwd"}, {"mode": "eager"}, {"precision": "fp16"}, {"counting": "published"},
    ]  # fmt: skip
    table = layers([*(layer(100, **other) for other in others), layer(100)])
    assert table is not None
    assert table[["layer", "pass", "mode", "format"]].to_numpy().tolist() == [
        ["BERT layer", "fwd", "sdpa", "bf16"],
        ["BERT layer", "fwd_bwd", "eager", "bf16"],
        ["BERT layer", "fwd_bwd", "sdpa", "bf16"],
        ["BERT layer", "fwd_bwd (counted as published)", "sdpa", "bf16"],
        ["BERT layer", "fwd_bwd", "sdpa", "fp16"],
        ["GPT-2 layer", "fwd_bwd", "sdpa", "bf16"],
    ]


def test_columns_without_a_source_are_left_out() -> None:
    table = layers([layer(0.05, hardware="cpu-amd-epyc-2c", hidden=64)])
    assert table is not None
    (line,) = table.to_dict("records")
    assert line == {
        "layer": "BERT layer",
        "pass": "fwd_bwd",
        "mode": "sdpa",
        "format": "bf16",
        "batch × sequence × hidden": "64 × 512 × 64",
        "TFLOPS": "0.05",
    }


def test_a_product_of_another_machine_is_marked() -> None:
    product = measured("matrix_product", 800, precision="bf16", size=8192)
    table = layers([layer(400), replace(product, environment={"machine": "4567abcd"})])
    assert table is not None
    assert table["of product"].tolist() == ["50% †"]


def test_a_product_of_other_hardware_is_not_compared() -> None:
    table = layers([layer(400), measured("matrix_product", 230, hardware="a100-sxm-80gb", precision="bf16", size=8192)])
    assert table is not None
    assert "of product" not in table


def test_a_shape_that_ran_out_of_memory_is_no_headline() -> None:
    case = Case(builder="bench_tests.steps.layer:layer_pass", mesh=MeshShape(), params={**BERT, "batch": 128})
    table = layers([record(failed("oom"), of=case, hardware=H200), layer(432, batch=64)])
    assert table is not None
    assert table["batch × sequence × hidden"].tolist() == ["64 × 512 × 1024"]


@pytest.mark.parametrize("table", [layers, products])
def test_records_with_a_memory_cap_are_left_out(table: Any) -> None:
    product = measured("matrix_product", 2000, precision="bf16", size=8192)
    assert table([capped(layer(900)), capped(product)]) is None


def test_products_are_compared_with_peak_and_bandwidth() -> None:
    table = products(
        [
            measured("matrix_product", 402, precision="tf32", size=4096),
            measured("matrix_product", 349, precision="tf32", size=16384),
            measured("vector_product", 0.7, precision="bf16", size=2**28),
        ]
    )
    assert table is not None
    assert table.to_dict("records") == [
        {
            "product": "matrix",
            "format": "tf32",
            "size": "4,096 × 4,096",
            "TFLOPS": "402",
            "GB/s": "",
            "of peak": "81%",
            "published A100 80GB": "116",
            "published A6000": "60",
            "published V100 32GB": "",
            "published 3090 Ti": "42",
        },
        {
            "product": "matrix, in theory",
            "format": "tf32",
            "size": "",
            "TFLOPS": "495",
            "GB/s": "",
            "of peak": "",
            "published A100 80GB": "156",
            "published A6000": "75",
            "published V100 32GB": "",
            "published 3090 Ti": "80",
        },
        {
            "product": "vector",
            "format": "bf16",
            "size": "268,435,456",
            "TFLOPS": "0.7",
            "GB/s": "4,200",
            "of peak": "88%",
            "published A100 80GB": "0.202",
            "published A6000": "0.082",
            "published V100 32GB": "0.098",
            "published 3090 Ti": "0.107",
        },
        {
            "product": "memory, in theory (GB/s)",
            "format": "",
            "size": "",
            "TFLOPS": "",
            "GB/s": "4,800",
            "of peak": "",
            "published A100 80GB": "2039",
            "published A6000": "768",
            "published V100 32GB": "900",
            "published 3090 Ti": "1008",
        },
    ]


def test_a_cpu_has_no_theoretical_rows() -> None:
    cpu = "cpu-amd-epyc-2c"
    table = products(
        [
            measured("matrix_product", 0.1, precision="fp32", size=128, hardware=cpu),
            measured("vector_product", 0.001, precision="fp32", size=2**18, hardware=cpu),
        ]
    )
    assert table is not None
    assert list(table["product"]) == ["matrix", "vector"]
    assert not [column for column in table if str(column).startswith("published")]


@pytest.mark.parametrize("table", [layers, products])
def test_records_of_other_suites_are_left_out(table: Any) -> None:
    assert table([record()]) is None
    assert table([]) is None


def test_every_layer_and_direction_has_a_published_figure_per_device() -> None:
    assert set(LAYER_TFLOPS) == {(layer, direction) for layer in LAYERS for direction in DIRECTIONS}
    formats = [*MATRIX_PRODUCT_TFLOPS.values(), *THEORETICAL_TFLOPS.values()]
    figures = [*LAYER_TFLOPS.values(), *formats, VECTOR_PRODUCT_TFLOPS, THEORETICAL_GB_PER_S]
    assert {len(row) for row in figures} == {len(DEVICES)}
