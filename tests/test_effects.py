"""The effect of a single change, between cases that differ in nothing else."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from samples import MIB, case, failed, launch, record

from pytest_trainbench.report import one_change
from pytest_trainbench.schema.record import Record


def of(samples_per_s: float, *, mesh: str = "dp1", mib: int = 100, **params: Any) -> Record:
    known = {"precision": "fp32", "batch": 4, **params}
    one = launch(samples_per_s=samples_per_s, peak_allocated_bytes=mib * MIB)
    return record(one, of=case(mesh=mesh, **known))


def lines(*records: Record) -> list[dict[Hashable, Any]]:
    return one_change.table(records).to_dict("records")


def test_a_change_is_shown_between_cases_that_share_everything_else() -> None:
    """A word is compared with the word measured first, a number with the next smaller number."""
    assert lines(
        of(100.0),
        of(130.0, batch=16, mib=300),
        of(120.0, batch=8, mib=180),
        of(200.0, precision="bf16", mib=60),
        of(360.0, precision="bf16", mesh="dp2", mib=60),
    ) == [
        {
            "change": "precision fp32 → bf16", "pairs": "1", "samples/s": "+100.0%", "per device": "+100.0%",
            "memory": "−40.0%",
        },
        {"change": "batch 4 → 8", "pairs": "1", "samples/s": "+20.0%", "per device": "+20.0%", "memory": "+80.0%"},
        {"change": "batch 8 → 16", "pairs": "1", "samples/s": "+8.3%", "per device": "+8.3%", "memory": "+66.7%"},
        {"change": "mesh dp1 → dp2", "pairs": "1", "samples/s": "+80.0%", "per device": "−10.0%", "memory": "0.0%"},
    ]  # fmt: skip


def test_a_missing_parameter_is_a_change() -> None:
    """A value is compared with the case without the parameter, in any order. ``None`` counts as without."""
    assert [(line["change"], line["samples/s"]) for line in lines(
        of(150.0, graph="inductor"), of(100.0, graph=None), of(120.0, graph="ort-all"),
        of(40.0, batch=8), of(60.0, batch=8, steps=4), of(80.0, batch=8, steps=16),
    )] == [
        ("batch 4 → 8", "−60.0%"),
        ("graph none → inductor", "+50.0%"),
        ("graph none → ort-all", "+20.0%"),
        ("steps none → 4", "+50.0%"),
        ("steps 4 → 16", "+33.3%"),
    ]  # fmt: skip


def test_a_parameter_of_none_equals_a_missing_parameter() -> None:
    assert lines(of(100.0), of(110.0, graph=None)) == []


def test_samples_per_device_count_all_devices_of_a_rank() -> None:
    four = record(launch(samples_per_s=200.0, devices=4.0), of=case(mesh="dp1", precision="fp32", batch=8))
    assert [line["per device"] for line in lines(of(100.0), four)] == ["−50.0%"]


def test_a_change_is_the_median_over_its_pairs() -> None:
    pairs = [(100.0, 150.0), (100.0, 160.0), (100.0, 290.0)]
    records = [
        of(rate, batch=batch, steps=steps)
        for steps, (small, large) in enumerate(pairs)
        for batch, rate in ((4, small), (8, large))
    ]
    (line,) = [line for line in lines(*records) if line["change"].startswith("batch")]
    assert (line["pairs"], line["samples/s"]) == ("3", "+60.0%")


def test_cases_that_differ_in_two_things_or_failed_show_nothing() -> None:
    other_builder = record(launch(samples_per_s=1.0), of=case(builder="suite:other", precision="fp32", batch=4))
    broken = record(failed("oom"), of=case(mesh="dp1", precision="fp32", batch=8))
    assert lines(of(100.0), of(100.0, batch=8, precision="bf16"), other_builder, broken) == []
