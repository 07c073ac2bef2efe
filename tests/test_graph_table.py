"""The table of graph optimisation: which eager row a gain is compared with, and whose memory is known."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pandas as pd
import samples

from bench_tests.graphs import GRAPHS
from bench_tests.tables.graph_optimisation import PUBLISHED, graph_optimisation
from pytest_trainbench.schema.record import Record

MIB = samples.MIB


def record(
    samples_per_s: float, *, mesh: str = "dp4", graph: str | None = None, precision: str = "tf32", **replaced: object
) -> Record:
    params = {"model": "bert-base", "strategy": "ddp", "precision": precision, "sequence": 128, "micro_batch": 16}
    case = samples.case(
        mesh=mesh,
        builder="bench_tests.steps.train:train_step",
        **{**params, **({} if graph is None else {"graph": graph}), **replaced},
    )
    launch = samples.launch(samples_per_s=samples_per_s, peak_allocated_bytes=2000 * MIB, process_bytes=3000 * MIB)
    return samples.record(launch, of=case)


def cells(*records: Record) -> list[dict[Hashable, Any]]:
    table = graph_optimisation(records)
    assert isinstance(table, pd.DataFrame)
    return table.to_dict("records")


def test_a_graph_is_shown_with_its_eager_record_and_published_figures() -> None:
    common = {"model": "bert-base", "precision": "single (tf32)", "sequence": "128", "mesh": "dp4"}
    assert cells(record(1000.0), record(1250.0, graph="ort-all")) == [
        {
            **common,
            "graph": "eager",
            "samples/s": "1,000.00",
            "peak MiB": "2,000",
            "gain": "",
            "published samples/s": "479.15 ± 1.67",
            "published MiB": "2,112",
            "published gain": "",
        },
        {
            **common,
            "graph": "ONNX Runtime graph optimisation",
            "samples/s": "1,250.00",
            "peak MiB": "3,000 (process)",
            "gain": "+25.0%",
            "published samples/s": "554.24 ± 1.98",
            "published MiB": "2,430",
            "published gain": "+15.7%",
        },
    ]


def test_a_gain_compares_only_the_same_work() -> None:
    others = [
        record(500.0, precision="fp16"),
        record(400.0, sequence=512),
        record(300.0, mesh="dp1"),
        record(200.0, micro_batch=4),
    ]
    assert ["gain" in row for row in cells(*others, record(1000.0, graph="inductor"))] == [False]
    both = cells(*others, record(1000.0, graph="inductor"), record(1100.0, graph="inductor", precision="fp16"))
    assert [row["gain"] for row in both] == ["", "", "+120.0%"]


def test_a_gain_over_an_eager_row_of_another_machine_is_marked() -> None:
    there = replace(record(110, graph="inductor"), environment={"machine": "4567abcd"})
    assert [row["gain"] for row in cells(record(100), there)] == ["", "+10.0% †"]


def test_an_out_of_memory_row_shows_oom_and_gives_no_gain() -> None:
    too_large = samples.failed("oom")
    rows = cells(
        samples.record(too_large, of=record(1.0, precision="fp32").case),
        record(1250.0, precision="fp32", graph="ort-all"),
        record(1000.0),
        samples.record(too_large, of=record(1.0, graph="ort-all").case),
        record(1100.0, graph="inductor"),
    )
    eager, ort, inductor = "eager", GRAPHS["ort-all"].title, GRAPHS["inductor"].title
    fp32, tf32 = ("single (fp32)", "128", "dp4"), ("single (tf32)", "128", "dp4")
    assert [tuple(row.values()) for row in rows] == [
        ("bert-base", eager, *fp32, "OOM", "", "", *PUBLISHED[None, "single"]),
        ("bert-base", ort, *fp32, "1,250.00", "3,000 (process)", "", *PUBLISHED["ort-all", "single"]),
        ("bert-base", eager, *tf32, "1,000.00", "2,000", "", *PUBLISHED[None, "single"]),
        ("bert-base", ort, *tf32, "OOM", "", "", *PUBLISHED["ort-all", "single"]),
        ("bert-base", inductor, *tf32, "1,100.00", "2,000", "+10.0%", "", "", ""),
    ]


def test_a_row_of_torchs_compiler_shows_the_allocators_peak_memory() -> None:
    assert [row["peak MiB"] for row in cells(record(1000.0, graph="inductor"))] == ["2,000"]


def test_published_figures_are_shown_only_for_the_published_configuration() -> None:
    rows = cells(record(100.0, graph="ort-all", mesh="dp1"), record(90.0, graph="ort-all", model="bert-tiny"))
    assert ["published samples/s" in row for row in rows] == [False, False]


def test_formats_without_a_published_comparison_are_left_out() -> None:
    """A compiled row of mixed precision in bf16 or fp8 is neither its "AMP" nor its "single"."""
    others = [record(900.0, graph=graph, precision=name) for name in ("bf16", "fp8") for graph in (None, "inductor")]
    assert graph_optimisation(others) is None
    known = [record(900.0, graph="inductor", precision=name) for name in ("fp32", "tf32", "fp16")]
    assert [row["precision"] for row in cells(*others, *known)] == ["single (fp32)", "single (tf32)", "AMP (fp16)"]


def test_without_a_graph_there_is_no_table() -> None:
    failed = samples.record(samples.failed("crash"), of=record(1.0, graph="ort-all").case)
    gpt = record(100.0, graph="inductor", model="gpt-1.3b")
    assert graph_optimisation([record(100.0), failed, gpt, samples.record()]) is None
