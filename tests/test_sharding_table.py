"""The table of sharding strategies shows only the published model, in the order of the registry."""

from __future__ import annotations

from typing import Any

from samples import MIB, capped, case, failed, launch, record

from bench_tests.tables.sharding import sharding
from pytest_trainbench.schema.record import Record


def stored(strategy: str, *, model: str = "gpt-1.3b", mesh: str = "dp4", fits: bool = True) -> Record:
    params = {"model": model, "precision": "tf32" if strategy == "ddp-fp32" else "bf16"}
    of = case(mesh=mesh, builder="bench_tests.steps.train:train_step", strategy=strategy, **params)
    memory = {"peak_allocated_bytes": 24_948 * MIB, "peak_reserved_bytes": 26_100 * MIB}
    metrics: dict[str, Any] = {"samples_per_s": 77.2, "mfu": 0.169, **memory}
    return record(launch(51.8, **metrics) if fits else failed("oom"), of=of)


def test_rows_show_published_figures_for_the_same_number_of_devices() -> None:
    others = [stored("zero1", model="gpt-tiny"), capped(stored("zero3")), record(of=case(strategy="zero1"))]
    table = sharding(
        [stored("fsdp2"), stored("ddp"), stored("ddp-fp32", fits=False), stored("ddp", mesh="dp2"), *others]
    )
    assert table is not None
    assert table.drop(columns="what it is").to_numpy().tolist() == [
        ["ddp", "bf16", "2", "77.2", "24,948", "26,100", "16.9%", "", ""],
        ["ddp-fp32", "tf32", "4", "OOM", "", "", "", "OOM", "OOM"],
        ["ddp", "bf16", "4", "77.2", "24,948", "26,100", "16.9%", "9.57 ± 0.26", "25,061"],
        ["fsdp2", "bf16", "4", "77.2", "24,948", "26,100", "16.9%", "N/A", "N/A"],
    ]


def test_without_records_of_the_published_model_there_is_no_table() -> None:
    assert sharding([record(of=case(strategy="zero1"))]) is None
