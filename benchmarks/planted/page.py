"""The page docs/planted.md, made from measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tabulate import tabulate

from benchmarks.planted.faults import FAULTS
from benchmarks.planted.runs import UNCHANGED, PlantedRow, PlantedRun
from pytest_trainbench.judge.outcome import OUTCOMES

HIT: Mapping[str, Sequence[str]] = {
    "synchronised": ["mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "full_precision": ["mixed_precision[tf32-dp1]"],
    # DDP on one device also reduces its buckets, with itself. The reductions are counted, but they take no time.
    "small_buckets": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "eager_attention": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
    "recomputed": ["mixed_precision[tf32-dp1]", "mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
}
"""Fault -> rows that it must turn red. Rows that need more devices than the machine has are not required."""

SPARED: Mapping[str, Sequence[str]] = {
    "full_precision": ["mixed_precision[bf16-dp1]", "mixed_precision[bf16-dp2]"],
}
"""Fault -> rows that it does not affect. The matrix product, which trains nothing, is never affected."""

RED = {outcome for outcome, ends in OUTCOMES.items() if ends == "fails"}

FOUND = {"regression", "incomparable", "invalid"}
"""Red outcomes that identify a slowdown: the step takes longer, or it does other work than before or than it should."""


def page(series: Sequence[Sequence[PlantedRun]]) -> Iterator[str]:
    """Parts of the page. ``series``: of each machine or part of its time, baselines and the runs against them."""
    runs = [run for one in series for run in one[1:]]
    nights = [run for run in runs if run.kind == UNCHANGED]

    def every(name: str) -> str:
        return ", ".join(sorted({getattr(run, name) for one in series for run in one}))

    yield "# Planted slowdowns"
    yield (
        "These runs try the verdict on real devices: with nothing changed, and with slowdowns as real code has them."
        f" `python -m benchmarks.planted run FILE` measured them on {every('hardware')}, machines {every('machine')},"
        f" torch {every('torch')}, commits {every('commit')}, in {len(series)} parts: baselines first, then"
        f" {len(nights)} runs in which nothing changed and {len(runs) - len(nights)} with one fault each of"
        " `benchmarks/planted/faults.py`. `python -m benchmarks.planted page benchmarks/planted/runs/*.jsonl` prints"
        " this page."
    )
    if nights:
        yield from unchanged(nights)
    if len(runs) > len(nights):
        yield from planted(series)


def unchanged(nights: Sequence[PlantedRun]) -> Iterator[str]:
    counted: dict[str, list[PlantedRow]] = {}
    for run in nights:
        for label, row in run.rows.items():
            counted.setdefault(label, []).append(row)
    red = sum(row.outcome in RED for found in counted.values() for row in found)
    yield f"## {len(nights)} runs without a change: {red} of {sum(map(len, counted.values()))} rows are red"
    yield tabulate(
        [
            {
                "row": label,
                "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in outcomes(found)),
                "launches": sum(row.launches for row in found),
            }
            for label, found in sorted(counted.items())
        ],
        headers="keys",
        tablefmt="pipe",
    )


def outcomes(rows: Sequence[PlantedRow]) -> list[tuple[str, int]]:
    return Counter(row.outcome for row in rows).most_common()


def planted(series: Sequence[Sequence[PlantedRun]]) -> Iterator[str]:
    yield "## Faults"
    yield (
        "*Should be* is *red* for rows that the fault makes slower or larger, and *not red* for rows that it does not"
        " touch. It is empty if either is right."
    )
    rows = []
    for before, *others in series:
        for run in others:
            if run.kind == UNCHANGED:
                continue
            for label, row in sorted(run.rows.items()):
                hit = label in HIT[run.kind]
                spared = label in SPARED.get(run.kind, ()) or label.startswith("matrix_product")
                right = row.outcome in FOUND if hit else row.outcome not in RED if spared else None
                rows.append(
                    {
                        "fault": run.kind,
                        "what it does": (FAULTS[run.kind].__doc__ or "").split(":")[0].rstrip("."),
                        "row": label,
                        "step time": slower(row, before.rows.get(label)),
                        "launches": row.launches,
                        "is": row.outcome,
                        "should be": "red" if hit else "not red" if spared else "",
                        "": "" if right is None else "yes" if right else "NO",
                    }
                )
    yield tabulate(rows, headers="keys", tablefmt="pipe")
    asked = [row for row in rows if row[""]]
    left = [fault for fault in FAULTS if all(row["fault"] != fault for row in rows)]
    still = f" Not planted yet: {', '.join(left)}." if left else ""
    yield f"{sum(row[''] == 'yes' for row in asked)} of {len(asked)} are as they should be.{still} Red rows say:"
    yield "\n".join(
        f"- {run.kind}: {row.said}"
        for _, *others in series
        for run in others
        for row in run.rows.values()
        if row.outcome in RED
    )


def slower(now: PlantedRow, before: PlantedRow | None) -> str:
    if now.step_ms is None or before is None or before.step_ms is None:
        return ""
    return f"{now.step_ms / before.step_ms - 1:+.1%}".replace("-", "−")
