"""The cost of a case is devices × hours × price, in the currency of the price. The best case of each work is named."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from samples import MIB, case, failed, launch, record

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.report import cost
from pytest_trainbench.schema.record import Record

HOURLY = Price(amount=3.0, currency="EUR", per="hour", date="2026-09-20", source="https://example.org/prices")
TO_BUY = Price(amount=16_000.0, currency="USD", per="device", date=None, source="https://example.org/shop")


def of(label: str, samples_per_s: float, *, mesh: str = "dp1", model: str = "gpt", **metrics: Any) -> Record:
    params: dict[str, Any] = {"model": model, "strategy": label}
    return record(launch(samples_per_s=samples_per_s, **metrics), of=case(mesh=mesh, **params), label=label)


ONE = of("one", 100.0, tokens_per_s=51_200.0, energy_j_per_sample=6.0, peak_allocated_bytes=900 * MIB)
FOUR = of("four", 200.0, mesh="dp4", tokens_per_s=102_400.0, energy_j_per_sample=12.0, peak_allocated_bytes=400 * MIB)
"""Four devices, twice as fast: twice as dear, and hungry."""


def lines(*records: Record, price: Price | None = HOURLY, task_samples: int | None = None) -> list[dict[Hashable, Any]]:
    return cost.table(records, price=price, task_samples=task_samples).to_dict("records")


def test_the_cost_is_devices_times_hours_times_the_price() -> None:
    """A million samples at 100 per second take 10,000 s. At 3 EUR per hour they cost 8.33 EUR."""
    assert lines(ONE, FOUR) == [
        {
            "case": "one", "devices": "1", "samples/s": "100.00", "EUR per million samples": "8.33",
            "EUR per million tokens": "0.0163", "J per sample": "6", "memory MiB": "900",
            "best": "cheapest, least energy",
        },
        {
            "case": "four", "devices": "4", "samples/s": "200.00", "EUR per million samples": "16.7",
            "EUR per million tokens": "0.0326", "J per sample": "12", "memory MiB": "400",
            "best": "fastest, least memory",
        },
    ]  # fmt: skip


def test_a_task_takes_hours_money_and_energy() -> None:
    """36 million samples at 100 per second take 100 hours and 300 EUR. At 6 J each they take 60 kWh."""
    (line,) = lines(ONE, task_samples=36_000_000)
    assert {name: text for name, text in line.items() if str(name).startswith("task")} == {
        "task hours": "100", "task EUR": "300", "task kWh": "60",
    }  # fmt: skip


def test_without_an_hourly_price_the_table_shows_no_money() -> None:
    for price in (None, TO_BUY):
        (line,) = lines(of("one", 100.0), price=price, task_samples=3600)
        assert line == {"case": "one", "devices": "1", "samples/s": "100.00", "task hours": "0.01"}


def test_all_devices_of_a_rank_are_paid_for() -> None:
    (line,) = lines(of("data parallel", 100.0, devices=4))
    assert (line["devices"], line["EUR per million samples"]) == ("4", "33.3")


def test_only_cases_of_the_same_work_are_compared() -> None:
    """Cases with another model or another sample length are not compared, and a single case is not called best."""
    other_model = of("other model", 1000.0, tokens_per_s=512_000.0, model="bert")
    other_length = of("other length", 1000.0, tokens_per_s=128_000.0)
    best = {line["case"]: line["best"] for line in lines(ONE, FOUR, other_model, other_length)}
    assert (best["other model"], best["other length"], best["four"]) == ("", "", "fastest, least memory")
    assert "best" not in lines(other_model)[0]


def test_cases_without_a_model_are_not_compared() -> None:
    """The forward pass of one layer is no alternative to the forward and backward pass of another."""
    passes = [
        record(launch(samples_per_s=rate), of=case(builder="suite:layer_pass", layer=layer, direction=direction))
        for layer, direction, rate in (("bert", "fwd", 900.0), ("t5", "fwd_bwd", 100.0))
    ]
    assert ["best" in line for line in lines(*passes)] == [False, False]


def test_a_case_that_failed_is_not_in_the_table() -> None:
    assert cost.costs([record(failed("oom")), record(launch())]) == []


@pytest.mark.parametrize(
    ("price", "task_samples", "title"),
    [
        (HOURLY, None, "Cost, at 3 EUR per device and hour (https://example.org/prices, 2026-09-20)"),
        (
            HOURLY, 2048, "Cost, also of a task of 2,048 samples, at 3 EUR per device and hour"
            " (https://example.org/prices, 2026-09-20)",
        ),
        (None, None, "Cost; no price is known for h200: type, for example, --price 2.5USD (per device and hour)"),
        (
            TO_BUY, None, "Cost; for h200 only a purchase price is known (16,000 USD per device, https://example.org/shop):"
            " type, for example, --price 2.5USD (per device and hour)",
        ),
    ],
)  # fmt: skip
def test_the_title_gives_the_prices_date_and_source_or_asks_for_a_price(
    price: Price | None, task_samples: int | None, title: str
) -> None:
    assert cost.title(price=price, hardware="h200", task_samples=task_samples) == title
