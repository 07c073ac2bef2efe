"""Charts that the plugin makes from rows and from the history. A suite adds its own through a hook."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from statistics import median

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.judge.drift import Drift
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.report.chart import AnyChart, Chart, Dot, Launches, Series, Spread
from pytest_trainbench.report.cost import AMOUNTS, MILLION, Cost, best, costs
from pytest_trainbench.report.rows import Row, mib
from pytest_trainbench.schema.metrics import LEADING, METRICS
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store.history import Run

CHOICES_LEAST = 4
"""A chart that compares choices needs as many of them."""

FEWEST_RUNS = 2
"""A history with fewer runs of a row is no picture."""

Charts = Mapping[str, Sequence[AnyChart]]
"""Title of a group -> its charts."""


def of_row(row: Row, earlier: Sequence[Run], drifts: Sequence[Drift]) -> list[AnyChart]:
    """The charts of one row: the step times of each launch beside those of the baseline, and the history.

    ``earlier``: the runs of the history, the oldest first. ``drifts``: the reported drifts of all rows.
    """
    made = (_launches(row), _history(row, earlier, drifts), _losses(row))
    return [chart for chart in made if chart is not None]


def of_run(records: Sequence[Record], *, price: Price | None) -> dict[str, list[AnyChart]]:
    """Charts of cases that do the same work: throughput against memory, and cost against time.

    ``price``: of a device and hour. Without it the cost is in device-hours.
    """
    priced = costs(records)
    groups: dict[tuple[object, ...], list[tuple[Cost, list[str]]]] = defaultdict(list)
    for one, won in zip(priced, best(priced), strict=True):
        if one.work is not None:
            groups[one.work].append((one, won))
    several = {work: group for work, group in groups.items() if len(group) >= CHOICES_LEAST}
    hourly = price if price is not None and price.per == "hour" else None
    made: dict[str, list[AnyChart | None]] = {
        "Throughput against memory": [_frontier(work, group) for work, group in several.items()],
        "Cost against time": [_cost(work, group, hourly) for work, group in several.items()],
    }
    found = {title: [chart for chart in charts if chart is not None] for title, charts in made.items()}
    return {title: charts for title, charts in found.items() if charts}


def _launches(row: Row) -> AnyChart | None:
    if row.record is None:
        return None
    now, before = (
        tuple(Spread.of(launch.steady_ms) for launch in record.launches if launch.steady_ms) if record else ()
        for record in (row.record, row.baseline)
    )
    return Launches(title="Step times of each launch", before=before, now=now) if now else None


def _history(row: Row, earlier: Sequence[Run], drifts: Sequence[Drift]) -> AnyChart | None:
    """Step time of each run on this machine; ``None`` with too few runs."""
    if row.record is None or not row.record.values(LEADING):
        return None
    case_id, machine = row.record.case.id, row.record.machine
    dots, since, baseline = [], [], None
    for run in earlier:
        entry = run.entries.get(case_id)
        if entry is None or run.machine_of(case_id) != machine or not entry.values(LEADING):
            continue
        red = entry.fails or (entry.fails is None and OUTCOMES.get(entry.outcome) == "fails")
        dots.append(_night(run.started, median(entry.values(LEADING)), entry.outcome, red=bool(red)))
        if baseline is not None and entry.baseline not in ("", baseline):
            since.append((_second(run.started), "new baseline"))
        baseline = entry.baseline or baseline
    today = datetime.fromisoformat(row.record.created)
    dots.append(_night(today, median(row.record.values(LEADING)), row.verdict.outcome, red=row.fails))
    if len(dots) < FEWEST_RUNS:
        return None
    if row.turned and row.turned.first:
        since.append((_second(row.turned.first), "red since"))
    for one in drifts:
        if (one.id, one.metric) == (case_id, LEADING):
            start = datetime(one.since.year, one.since.month, one.since.day, tzinfo=timezone.utc)
            since.append((_second(start), "drift since"))
    return Chart(
        title="History",
        across="day (UTC)",
        up=f"{METRICS[LEADING].title}, {METRICS[LEADING].unit}",
        series=(Series(name="", dots=tuple(dots), line=True),),
        since=tuple(since),
        dates=True,
        from_zero=False,
    )


def _losses(row: Row) -> AnyChart | None:
    """Losses of an invalid row beside those of its baseline; ``None`` for other rows, whose losses agree."""
    if row.verdict.outcome != "invalid" or row.record is None:
        return None
    series = tuple(
        Series(
            name=name,
            dots=tuple(
                Dot(x=step, y=loss, name=f"{name}, step {step}: {loss:.4g}") for step, loss in enumerate(losses)
            ),
            line=True,
        )
        for name, record in (("now", row.record), ("baseline", row.baseline))
        if record is not None and (losses := next((one.losses for one in record.launches if one.losses), None))
    )
    return Chart(title="Losses", across="step", up="loss", series=series, from_zero=False) if series else None


def _night(started: datetime, step_ms: float, outcome: str, *, red: bool) -> Dot:
    when = f"{started.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    return Dot(x=_second(started), y=step_ms, name=f"{when}: {step_ms:.4g} ms, {outcome}", tone="bad" if red else "")


def _second(moment: datetime) -> float:
    return moment.timestamp()


def _frontier(work: tuple[object, ...], group: Sequence[tuple[Cost, list[str]]]) -> AnyChart | None:
    """Throughput over memory: one colour for each number of devices. The line joins the cases that no other case of as
    many devices beats in both."""
    by_devices: dict[int, list[Cost]] = defaultdict(list)
    for one, _ in group:
        if one.memory_bytes:
            by_devices[one.devices].append(one)
    series = []
    for devices in sorted(by_devices):
        costs = sorted(by_devices[devices], key=lambda one: (one.memory_bytes or 0.0, -one.samples_per_s))
        front = _front(costs)
        named = f"{devices} device{'s' * (devices > 1)}"
        dots = tuple(_place(one, label=_short(one.label) if one in front else "") for one in costs)
        series.append(Series(name=named, dots=dots))
        if len(front) > 1:
            series.append(Series(name="", dots=tuple(_place(one) for one in front), ideal=True))
    if max(map(len, by_devices.values()), default=0) < CHOICES_LEAST:
        return None
    return Chart(
        title=_named(work),
        across="peak memory of the device that needs most, GiB (further left is better)",
        up="samples/s (higher is better)",
        series=tuple(series),
    )


def _front(costs: Iterable[Cost]) -> list[Cost]:
    """The cases that are faster than each case with less memory. ``costs``: by memory, least first."""
    front: list[Cost] = []
    for one in costs:
        if not front or one.samples_per_s > front[-1].samples_per_s:
            front.append(one)
    return front


def _place(one: Cost, *, label: str = "") -> Dot:
    size = one.memory_bytes or 0.0
    name = f"{one.label}: {one.samples_per_s:,.4g} samples/s, {mib(size)} MiB"
    return Dot(x=size / 2**30, y=one.samples_per_s, name=name, label=label)


def _cost(work: tuple[object, ...], group: Sequence[tuple[Cost, list[str]]], price: Price | None) -> AnyChart:
    """Cost over time of a million samples. Cases that win one of :data:`AMOUNTS` have labels."""
    unit = price.currency if price else "device-hours"
    series: dict[int, list[Dot]] = defaultdict(list)
    for one, won in group:
        amount = one.money(MILLION, price) if price else one.hours(MILLION) * one.devices
        named = f"{_short(one.label)} ({', '.join(won)})" if won else ""
        name = f"{one.label}: {one.hours(MILLION):.3g} h, {amount:.3g} {unit}"
        series[one.devices].append(Dot(x=one.hours(MILLION), y=amount, name=name, label=named))
    return Chart(
        title=_named(work),
        across="hours for a million samples",
        up=f"{unit} for a million samples; named: {', '.join(AMOUNTS)}",
        series=tuple(
            Series(name=f"{devices} device{'s' * (devices > 1)}", dots=tuple(series[devices]))
            for devices in sorted(series)
        ),
    )


def _named(work: tuple[object, ...]) -> str:
    function, model, tokens = work
    return f"{model} in {function}" + (f", {tokens} tokens a sample" if tokens else "")


def _short(label: str) -> str:
    """``zero2-dp4`` of ``sharding[zero2-dp4]``; the whole label if it has no parameters."""
    return label.partition("[")[2].removesuffix("]") or label
