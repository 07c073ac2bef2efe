"""What training costs: time, money and energy of each case, and which case is the best choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.report.rows import devices, mib
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

MILLION = 1_000_000
J_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost figures of one case, ``None`` for a figure that was not measured.

    devices: how many devices the case keeps busy; all of them are paid for. memory_bytes: peak memory of the device (on
    a CPU, of the process) that needs most. work: cases with equal ``work`` train the same model on samples of the same
    length; ``None`` if the case has no parameter ``model``.
    """

    label: str
    work: tuple[object, ...] | None
    devices: int
    samples_per_s: float
    tokens_per_s: float | None
    energy_j_per_sample: float | None
    memory_bytes: float | None

    def hours(self, samples: float) -> float:
        return samples / self.samples_per_s / 3600

    def money(self, samples: float, price: Price) -> float:
        """Cost of this many samples, in the currency of ``price``."""
        return self.hours(samples) * self.devices * price.amount

    def kwh(self, samples: float) -> float | None:
        return None if self.energy_j_per_sample is None else self.energy_j_per_sample * samples / J_PER_KWH

    @property
    def samples_per_token(self) -> float | None:
        return None if self.tokens_per_s is None else self.samples_per_s / self.tokens_per_s


AMOUNTS: dict[str, Callable[[Cost], float | None]] = {
    "fastest": lambda one: one.hours(MILLION),
    # All devices cost the same, so device-hours give the order without a price.
    "cheapest": lambda one: one.hours(MILLION) * one.devices,
    "least energy": lambda one: one.energy_j_per_sample,
    "least memory": lambda one: one.memory_bytes,
}
"""Title -> the amount that is smallest for the case with that title."""


def costs(records: Sequence[Record]) -> list[Cost]:
    """The cost of each record with outcome ``ok``, in the order of the records.

    Two cases do the same work if they have the same builder, the same parameter ``model`` and the same number of tokens
    per sample. A case without a ``model``, such as a layer, does the same work as no other case.
    """
    return [_cost(record) for record in records if record.outcome == "ok" and record.values("samples_per_s")]


def table(records: Sequence[Record], *, price: Price | None, task_samples: int | None) -> pd.DataFrame:
    """One line per case. Every cell is text, and empty columns are left out.

    The table shows money only if the price is per hour. ``task_samples`` adds the time, money and energy of a task of
    that many samples. The column *best* names the amounts that are smallest for a case among all cases that do the same
    work. It is empty if no other case does the same work.
    """
    import pandas as pd

    found = costs(records)
    titles = best(found)
    hourly = price if price is not None and price.per == "hour" else None
    lines = [
        {
            "case": one.label,
            "devices": str(one.devices),
            "samples/s": f"{one.samples_per_s:,.2f}",
            **_money_columns(one, hourly),
            "J per sample": _spell(one.energy_j_per_sample),
            **(_task_columns(one, task_samples, hourly) if task_samples is not None else {}),
            "memory MiB": "" if one.memory_bytes is None else mib(one.memory_bytes),
            "best": ", ".join(titles[index]),
        }
        for index, one in enumerate(found)
    ]
    text = pd.DataFrame(lines)
    return text[[name for name in text if (text[name] != "").any()]]


def title(*, price: Price | None, hardware: str, task_samples: int | None) -> str:
    """The table's title: the price with its date and source, or how to give a price."""
    what = "Cost" if task_samples is None else f"Cost, also of a task of {task_samples:,} samples"
    if price is None:
        return f"{what}; no price is known for {hardware}: type, for example, --price 2.5USD (per device and hour)"
    when = "" if price.date is None else f", {price.date}"
    amount = f"{price.amount:,g} {price.currency}"
    if price.per == "device":
        return (
            f"{what}; for {hardware} only a purchase price is known ({amount} per device, {price.source}{when}): type,"
            " for example, --price 2.5USD (per device and hour)"
        )
    return f"{what}, at {amount} per device and hour ({price.source}{when})"


def _cost(record: Record) -> Cost:
    samples_per_s, tokens_per_s = record.figure("samples_per_s"), record.figure("tokens_per_s")
    assert samples_per_s is not None
    model = record.case.params.get("model")
    tokens = None if tokens_per_s is None else round(tokens_per_s / samples_per_s)
    return Cost(
        label=record.label,
        work=None if model is None else (record.case.function, model, tokens),
        devices=devices(record),
        samples_per_s=samples_per_s,
        tokens_per_s=tokens_per_s,
        energy_j_per_sample=record.figure("energy_j_per_sample"),
        memory_bytes=record.figure("peak_allocated_bytes", "process_bytes"),
    )


def _money_columns(one: Cost, price: Price | None) -> dict[str, str]:
    if price is None:
        return {}
    tokens = one.samples_per_token
    return {
        f"{price.currency} per million samples": _spell(one.money(MILLION, price)),
        f"{price.currency} per million tokens": "" if tokens is None else _spell(one.money(MILLION * tokens, price)),
    }


def _task_columns(one: Cost, samples: int, price: Price | None) -> dict[str, str]:
    money = {} if price is None else {f"task {price.currency}": _spell(one.money(samples, price))}
    return {"task hours": _spell(one.hours(samples)), **money, "task kWh": _spell(one.kwh(samples))}


def best(found: Sequence[Cost]) -> list[list[str]]:
    """The titles that each case wins among the cases that do the same work."""
    titles: list[list[str]] = [[] for _ in found]
    groups = defaultdict(list)
    for index, one in enumerate(found):
        if one.work is not None:
            groups[one.work].append(index)
    for group in groups.values():
        for name, amount_of in AMOUNTS.items():
            amounts = {index: amount for index in group if (amount := amount_of(found[index])) is not None}
            if len(amounts) > 1:
                titles[min(amounts, key=amounts.__getitem__)].append(name)
    return titles


def _spell(amount: float | None) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if amount is None:
        return ""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
