"""Blocks from the stored results of H200s: what a page says of them is never typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, stdev
from typing import TYPE_CHECKING

from bench_tests.engines import ENGINES
from bench_tests.pages.reference import table
from bench_tests.results.stored import stored
from bench_tests.tables.parallel_3d import parallel_3d
from bench_tests.tables.sharding import sharding
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.judge.explain import least
from pytest_trainbench.judge.middle import stored_judged
from pytest_trainbench.schema.metrics import host_bound
from pytest_trainbench.schema.record import Record, read_record

if TYPE_CHECKING:
    import pandas as pd

FAMILY = "h200"

HEADLINE = 4
"""Devices of the rows that the README shows."""

NOTHING = "*No stored row has these figures.*"


def with_page() -> list[str]:
    """What has a page of results: each family with baselines or, of a family with several kinds, each kind."""
    keys = {family: list(stored(family)) for family in dict.fromkeys(row.family for row in TABLE.values())}
    return [name for family, kinds in keys.items() for name in ([family] if len(kinds) == 1 else kinds)]


def records() -> list[Record]:
    return [
        record for paths in stored(FAMILY).values() for record in stored_judged([read_record(path) for path in paths])
    ]


def blocks(found: Sequence[Record]) -> dict[str, str]:
    """The content of every block that comes from stored results, by the name of the block."""
    return {name: make(found) or NOTHING for name, make in BLOCKS.items()}


def sharded(found: Iterable[Record], devices: int = HEADLINE) -> list[Record]:
    """The rows of the sharding suite on so many devices that ended well."""
    return [
        one
        for one in found
        if one.label.startswith("sharding[") and one.case.mesh.world_size == devices and one.outcome == "ok"
    ]


def sharding_table(found: Sequence[Record]) -> str:
    """Throughput and memory of each strategy, and what they were measured on."""
    lines = sharding([one for one in found if one.label.startswith("sharding[")])
    if lines is None:
        return ""
    columns = ["strategy", "what it is", "samples/s", "peak MiB", "MFU", "published samples/s"]
    rows = lines[lines["devices"] == str(HEADLINE)].reindex(columns=columns, fill_value="")
    named = table({**row, "strategy": f"`{row['strategy']}`"} for row in cells(rows))
    return f"{named}\n\n{measured_on(found)}" if named else ""


def measured_on(found: Sequence[Record]) -> str:
    """One sentence of the sharding rows, of which there is at least one."""
    rows = sharded(found)
    suspects = [one.environment["suspects"] for one in rows]
    versions = [
        f"{title} {' and '.join(sorted({str(one[name]) for one in suspects if name in one}))}"
        for name, title in (("torch", "torch"), ("deepspeed", "DeepSpeed"), ("fairscale", "FairScale"))
        if any(name in one for one in suspects)
    ]
    machines = len({one.machine for one in rows})
    launches = sorted({len(one.launches) for one in rows})
    device = " and ".join(sorted({str(one.environment["must_match"]["device"]) for one in rows}))
    return (
        f"{', '.join([f'{HEADLINE} × {device}', *versions])}; judged figures of {span(launches, '{:d}')} launches a"
        f" row, on {machines} machine{'s' * (machines > 1)}."
    )


def host_bound_sharding(found: Sequence[Record]) -> str:
    """Step time, compute time and the spread between launches, with which rows wait for their host."""
    return table(
        {
            "strategy": f"`{one.case.params['strategy']}`",
            "step ms": figure(one.figure("step_ms"), "{:.1f}"),
            "compute ms": figure(one.figure("compute_ms"), "{:.1f}"),
            "spread between launches": percent(spread(one)),
            "host-bound": "yes" if host_bound(one) else "no",
        }
        for one in sharded(found)
    )


def recorded(found: Sequence[Record]) -> str:
    """Rows that also exist as a CUDA graph: step time and spread of both."""
    by_label = {one.label: one for one in found if one.outcome == "ok"}
    pairs = [
        (by_label[eager], graph)
        for label, graph in sorted(by_label.items())
        if (eager := label.replace("-recorded", "")) != label and eager in by_label
    ]
    return table(
        {
            "row": f"`{eager.label}`",
            "eager, ms": figure(eager.figure("step_ms"), "{:.1f}"),
            "spread": percent(spread(eager)),
            "as a CUDA graph, ms": figure(graph.figure("step_ms"), "{:.1f}"),
            "spread ": percent(spread(graph)),
        }
        for eager, graph in pairs
    )


def tensor_parallel_host(found: Sequence[Record]) -> str:
    """By engine, how many times the device's compute time the host needs to issue a step."""
    times: dict[str, list[float]] = {}
    for one in found:
        host, compute, step = map(one.figure, ("host_ms", "compute_ms", "step_ms"))
        if one.case.mesh.tp > 1 and host and compute and step:
            engine = ENGINES[one.case.params["engine"]]
            if not engine.recorded:
                times.setdefault(engine.title, []).append(min(host, step) / compute)
    return table(
        {"engine": title, "host time ÷ compute time": span(values, "{:.1f}"), "rows": str(len(values))}
        for title, values in times.items()
    )


def pipeline_idle(found: Sequence[Record]) -> str:
    """What PyTorch's GPipe and 1F1B leave idle, ideally and on the devices."""
    lines = parallel_3d([one for one in found if one.label.startswith("parallel_3d[")])
    if lines is None:
        return ""
    columns = ["schedule", "PP", "DP", "ideal bubble", "idle or waiting"]
    simple = lines.reindex(columns=["engine", *columns], fill_value="")
    simple = simple[simple["schedule"].isin(["GPipe", "1F1B"]) & simple["engine"].str.startswith("PyTorch")]
    return table(cells(simple[columns]))


def scaling_losses(found: Sequence[Record]) -> str:
    """How far the losses of the scaling suite are from their reference's."""
    return table(
        {"row": f"`{one.label}`", "distance of the losses": percent(median(values), digits=2)}
        for one in found
        if one.label.startswith("scaling[") and (values := one.values("loss_deviation"))
    )


def products(found: Sequence[Record]) -> str:
    """What a power cap takes from matrix products that run for the whole window."""
    lines = []
    for one in found:
        compute_ms, clocks = one.figure("compute_ms"), [launch.conditions.get("sm_mhz") for launch in one.launches]
        if one.label.startswith("matrix_product[") and compute_ms and all(clocks):
            flops = median(one.values("flops_per_step"))
            lines.append(
                {
                    "row": f"`{one.label}`",
                    "SM clock, MHz": span([mhz[0] for mhz in clocks if mhz], "{:,.0f}"),
                    "at the power cap": percent(capped(one)),
                    "TFLOPS over the window": figure(one.figure("tflops_per_device"), "{:.0f}"),
                    "TFLOPS of the profiled kernels": f"{flops / compute_ms / 1e9:.0f}",
                }
            )
    return table(lines)


def capped(record: Record) -> float | None:
    """Share of the window that the device spent at its power cap."""
    shares = [share for launch in record.launches for share in launch.conditions.get("sw_power_cap", [])]
    return median(shares) if shares else None


def unequal_kernels(found: Sequence[Record]) -> str:
    """Rows whose launches do not all run the same number of kernels."""
    lines = []
    for one in found:
        kernels = one.values("kernels")
        if len(set(kernels)) > 1:
            lines.append({"row": f"`{one.label}`", "kernels a step": span(kernels, "{:,g}")})
    return table(lines)


def expected_sight(found: Sequence[Record]) -> str:
    """What a run of all stored rows sees on the baseline's machine, on another one, and with three known machines."""
    from benchmarks.detection.sight import UNKNOWN, elsewhere

    rows_ok = [one for one in found if one.outcome == "ok"]
    lines = []
    for where, machines, machine in (
        ("the machine of its baseline", 1, None),
        ("another machine; one is known", 1, UNKNOWN),
        ("another machine; three are known, 0.25 % apart (synthetic)", 3, UNKNOWN),
    ):
        night = list(elsewhere(rows_ok, machines=machines, machine=machine))
        for bound, sort in ((False, "device-bound"), (True, "host-bound")):
            rows = [(judged, sees) for is_bound, judged, sees in night if is_bound == bound]
            if rows:
                able = sum(judged == "time" for judged, _ in rows)
                lines.append(
                    {
                        "a row runs on": where,
                        "rows": sort,
                        "can judge their time": f"{able} of {len(rows)}",
                        "median `sees`": least(median(sees for _, sees in rows)),
                    }
                )
    return table(lines)


def cells(lines: pd.DataFrame) -> list[dict[str, str]]:
    return [{str(name): str(cell) for name, cell in line.items()} for line in lines.to_dict("records")]


def spread(record: Record) -> float | None:
    """Relative standard deviation of step time between launches."""
    step_ms = record.values("step_ms")
    return stdev(step_ms) / (sum(step_ms) / len(step_ms)) if len(step_ms) > 1 else None


def figure(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def percent(fraction: float | None, *, digits: int = 1) -> str:
    return "" if fraction is None else f"{100 * fraction:.{digits}f} %"


def span(values: Sequence[float], form: str) -> str:
    """``3 to 5``, or one figure where both ends are spelled alike."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


BLOCKS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "sharding-table": sharding_table,
    "host-bound-sharding": host_bound_sharding,
    "recorded": recorded,
    "tensor-parallel-host": tensor_parallel_host,
    "pipeline-idle": pipeline_idle,
    "scaling-losses": scaling_losses,
    "products": products,
    "unequal-kernels": unequal_kernels,
    "expected-sight": expected_sight,
}
"""A block is a function of all stored records and its row here."""
