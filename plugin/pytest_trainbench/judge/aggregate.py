"""From the ranks' traces to one launch, and whether that launch may be believed. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

from pytest_trainbench.schema.conditions import Conditions
from pytest_trainbench.schema.metrics import METRICS, Window, counted_collectives, counted_flops
from pytest_trainbench.schema.record import Launch, Trace

FLOPS_AGREEMENT = 0.01
"""Largest fraction by which the formula and the counter may differ."""

LOSS_STEPS = (1, 12)
"""The first and the last step whose losses are held against the reference's. Wrong gradients show from the second
on."""


def steady_from(step_ms: Sequence[float]) -> int:
    """Index of the first step of the steady window; less than half of the steps are cut.

    The marginal standard error rule (MSER): cut where the standard error of the mean of what remains is
    smallest. Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", Simulation 69(6), 1997.

    It looks past single steps that hiccup: to be rid of one it would cut all that came before. (Batch means, as in
    MSER-5, do not help: they bring an outlier and the noise down alike.)
    """
    smooth = _without_hiccups(step_ms)
    best, best_score = 0, math.inf
    for start in range(max(1, len(smooth) // 2)):
        rest = smooth[start:]
        score = statistics.pvariance(rest) / len(rest)
        if score < best_score:
            best, best_score = start, score
    return best


def _without_hiccups(step_ms: Sequence[float]) -> list[float]:
    """Every step that is far from the median of itself and its two neighbours, replaced by that median.

    A start that gets faster from step to step stays as it is: there each step is that median. So does the very first
    step; the last one is held against the two before it. Source: the Hampel
    filter with the 3-sigma edit rule, R. K. Pearson, "Outliers in process modeling and identification", IEEE
    Transactions on Control Systems Technology 10(1), 2002; sigma is here that of all steps, from their median absolute
    deviation, because three are too few to tell it.
    """
    middle = statistics.median(step_ms)
    far = 3 * 1.4826 * statistics.median(abs(ms - middle) for ms in step_ms)
    before, after = [step_ms[0], *step_ms[:-1]], [*step_ms[1:], step_ms[-3:][0]]
    medians = map(statistics.median, zip(before, step_ms, after, strict=True))
    return [near if abs(ms - near) > far else ms for ms, near in zip(step_ms, medians, strict=True)]


def reduce(
    traces: Sequence[Trace],
    *,
    peak_tflops: float | None,
    reference: Sequence[float] | None = None,
    loss_tolerance: float = math.inf,
    loss_from: int = 1,
    devices: Conditions = MappingProxyType({}),
) -> Launch:
    """One launch from the traces of all its ranks, its losses held against those of the ``reference``, if any, from
    step ``loss_from`` on.

    A step takes as long as its slowest rank, so times are the element-wise maximum over ranks; rates come
    from the totals of the steady window. ``devices``: conditions of all devices that are here. A launch that fails a
    guard keeps its figures and is ``invalid``.
    """
    slowest_ms = [max(times) for times in zip(*(trace.step_ms for trace in traces), strict=True)]
    start = steady_from(slowest_ms)
    losses = _mean_losses(traces)
    window = Window(
        step_ms=slowest_ms[start:],
        total_s=max(sum(trace.step_ms[start:]) for trace in traces) / 1000,
        traces=traces,
        peak_tflops=peak_tflops,
        loss_deviation=None if reference is None else loss_deviation(losses, reference, loss_from),
    )
    readings = {name: metric.read(window) for name, metric in METRICS.items()}
    fault = _fault(traces, losses, readings["mfu"])
    if fault is None and reference is not None:
        fault = loss_fault(losses, reference, loss_tolerance, loss_from)
    return Launch(
        outcome="invalid" if fault else "ok",
        reason=fault,
        step_ms=slowest_ms,
        steady_from=start,
        losses=list(takewhile(math.isfinite, losses)),
        metrics={name: value for name, value in readings.items() if value is not None},
        figures={name: value for name, value in traces[0].figures.items() if math.isfinite(value)},
        collectives=counted_collectives(traces) or {},
        conditions=_conditions(traces, devices),
        phases_s={phase: max(trace.phases_s[phase] for trace in traces) for phase in traces[0].phases_s},
    )


def _conditions(traces: Sequence[Trace], devices: Conditions) -> dict[str, list[float]]:
    """What the launch ran under, of the devices that its ranks keep busy."""
    used = sum(trace.devices for trace in traces)
    nodes: dict[int, list[dict[str, float]]] = defaultdict(list)
    for trace in traces:
        nodes[trace.node].append(trace.host)
    found = hosts([nodes[node] for node in sorted(nodes)])
    found |= {name: list(values[:used]) for name, values in devices.items()}
    if all("compute_ms" in trace.parts for trace in traces):
        found["rank_compute_ms"] = [trace.parts["compute_ms"] for trace in traces]
    return found


def loss_deviation(losses: Sequence[float], reference: Sequence[float], since: int = 1) -> float | None:
    """Largest distance from the unsharded ``reference`` over the steps that both have, from step ``since`` on, as a
    fraction of how far the reference has fallen; ``None`` where that cannot be said.

    Not a fraction of the loss itself, which is large at the start whether or not anything is learned, and would hide
    a fault.
    """
    apart, fall = _apart(losses, reference, since)
    return max(apart) / fall if len(apart) > since and fall > 0 and all(map(math.isfinite, apart)) else None


def loss_fault(losses: Sequence[float], reference: Sequence[float], tolerance: float, since: int = 1) -> str | None:
    """Why ``losses`` are not those of the unsharded ``reference``, from step ``since`` on."""
    apart, fall = _apart(losses, reference, since)
    if len(apart) <= since:
        return f"only {max(0, len(apart) - since + 1)} of its losses can be held against the reference's"
    if not fall > 0 or not all(map(math.isfinite, reference)):
        seen = ", ".join(f"{loss:.4f}" for loss in reference)
        return f"the unsharded model learned nothing to compare with: its losses were {seen}"
    worst = max(range(len(apart)), key=apart.__getitem__)
    if apart[worst] <= tolerance * fall:
        return None
    return (
        f"it trains wrong: the loss of step {worst + 1} is {losses[worst]:.4f} where the unsharded model has"
        f" {reference[worst]:.4f}; {apart[worst] / fall:.1%} of the fall, and {tolerance:.1%} is allowed"
    )


def _apart(losses: Sequence[float], reference: Sequence[float], since: int) -> tuple[list[float], float]:
    """Distances step by step, none before step ``since``, and the reference's fall over all steps that both have."""
    pairs = enumerate(zip(losses, reference, strict=False), 1)
    apart = [abs(mine - true) if step >= since else 0.0 for step, (mine, true) in pairs]
    return apart, reference[0] - min(reference[: len(apart)]) if apart else 0.0


def _mean_losses(traces: Sequence[Trace]) -> list[float]:
    by_step = zip(*(trace.losses for trace in traces), strict=True)
    known = ([loss for loss in losses if loss is not None] for losses in by_step)
    return [statistics.fmean(losses) for losses in known if losses]


def _fault(traces: Sequence[Trace], losses: Sequence[float], mfu: float | None) -> str | None:
    """The first reason not to believe these figures."""
    trains = traces[0].trains
    if trains and not losses:
        return "no rank returned a loss: return the detached loss from Step.run"
    for step, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
    late = statistics.fmean(losses[len(losses) // 2 :]) if losses else math.nan
    if trains and late >= losses[0]:
        return f"nothing was learned: the loss began at {losses[0]:.4f}; its second half averages {late:.4f}"
    for trace in traces:
        if trace.digest_before == trace.digest_after:
            return f"no parameter of rank {trace.rank} changed" if trains else f"rank {trace.rank} wrote nothing"
    replicas = defaultdict(list)
    for trace in traces:
        if trace.replicated:
            replicas[tuple(at for axis, at in trace.coordinates.items() if axis != "dp")].append(trace)
    for group in replicas.values():
        for trace in group[1:]:
            if trace.digest_after != group[0].digest_after:
                pair = f"ranks {group[0].rank} and {trace.rank}"
                return f"data-parallel replicas differ: {pair} hold other parameters"
    formula, counted = traces[0].flops, counted_flops(traces)
    if formula is not None and counted is not None and abs(counted / formula - 1) > FLOPS_AGREEMENT:
        what = "computes something twice" if counted > formula else "leaves something out"
        return (
            f"the FLOP formula gives {formula:.4g} a step and the counter {counted:.4g}"
            f" ({counted / formula - 1:+.1%}): the step {what}, or one of them is wrong"
        )
    if mfu is not None and mfu > 1:
        return f"its {mfu:.0%} of the device's peak is impossible: the step does not do the work it claims"
    for name, value in traces[0].figures.items():
        if not math.isfinite(value):
            return f"{name}, which the step says of itself, is {value}"
    return None


CAPACITY_LEAST_S = 0.4
"""Seconds of all cores together below which shares of them are not said: the kernel counts in ticks of 10 ms, and each
rank and core may be one off."""


def host(ranks: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Conditions of one host from what each rank on it counted."""
    found: dict[str, float] = {}

    def known(*names: str) -> bool:
        return all(name in one for one in ranks for name in names)

    if known("busy_s", "stolen_s", "idle_s"):
        first = ranks[0]
        wanted_s = first["busy_s"] + first["stolen_s"]
        capacity_s = wanted_s + first["idle_s"]
        if capacity_s >= CAPACITY_LEAST_S:
            found["stolen"] = first["stolen_s"] / wanted_s if wanted_s else 0.0
            if known("own_s"):
                others_s = first["busy_s"] - sum(one["own_s"] for one in ranks)
                found["other_cores"] = min(1.0, max(0.0, others_s / capacity_s))
    if known("waited_s", "at_s"):
        # Ranks wait for each other, so that the step waits where any of them does: as often as independent ones do.
        found["waiting"] = 1 - math.prod(max(0.0, 1 - one["waited_s"] / one["at_s"]) for one in ranks)
    if known("periods", "throttled") and ranks[0]["periods"]:
        found["quota"] = ranks[0]["throttled"] / ranks[0]["periods"]
    if known("looking_s"):
        found["host_rate"] = 1e-6 / max(one["looking_s"] for one in ranks)
    if known("cpu_mhz"):
        found["cpu_mhz"] = max(one["cpu_mhz"] for one in ranks)
    return {name: [value] for name, value in found.items()}


def hosts(nodes: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """Conditions of several, in the order of the nodes, where all of them know; from what each rank counted."""
    found = list(map(host, nodes))
    known = [name for name in found[0] if all(name in one for one in found)]
    return {name: [value for one in found for value in one[name]] for name in known}
