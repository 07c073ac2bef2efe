"""Aggregates the traces of all ranks into one launch: times, rates, losses and conditions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

from pytest_trainbench.judge.validity import launch_fault, loss_deviation, loss_fault
from pytest_trainbench.schema.conditions import Conditions
from pytest_trainbench.schema.metrics import METRICS, Window, counted_collectives
from pytest_trainbench.schema.record import Launch, Trace


def steady_from(step_ms: Sequence[float]) -> int:
    """Index of the first step of the steady window. Less than half of the steps are cut.

    The rule is the marginal standard error rule (MSER): cut where the standard error of the mean of the remaining steps
    is smallest. Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69(6), 1997.

    Single slow steps are smoothed first, or the rule would cut all steps before such a step. Batch means, as in MSER-5,
    do not help, because they reduce an outlier and the noise alike.
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
    """The step times. A step that is far from the median of itself and its two neighbours is replaced by that median.

    A start that gets faster from step to step is unchanged, because each of its steps is that median. The first step is
    unchanged too. The last step is compared with the two steps before it.

    Source: the Hampel filter with the 3-sigma edit rule, R. K. Pearson, "Outliers in process modeling and
    identification", IEEE Transactions on Control Systems Technology 10(1), 2002. Here sigma comes from the median
    absolute deviation of all steps, because three steps are too few to estimate it.
    """
    median_ms = statistics.median(step_ms)
    far = 3 * 1.4826 * statistics.median(abs(ms - median_ms) for ms in step_ms)
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
    """One launch from the traces of all its ranks.

    A step takes as long as its slowest rank, so times are the element-wise maximum over ranks. Rates come from the
    totals of the steady window. Losses are compared with those of the ``reference``, if there is one, from step
    ``loss_from`` on. ``devices``: conditions of all devices of the machine. A launch that fails a guard keeps its
    figures and is ``invalid``.
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
    fault = launch_fault(traces, losses, window.mfu)
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
    """The conditions of the launch. Of the devices, only those that its ranks keep busy."""
    used = sum(trace.devices for trace in traces)
    nodes: dict[int, list[dict[str, float]]] = defaultdict(list)
    for trace in traces:
        nodes[trace.node].append(trace.host)
    found = hosts([nodes[node] for node in sorted(nodes)])
    found |= {name: list(values[:used]) for name, values in devices.items()}
    computes_ms = [trace.compute_ms for trace in traces if trace.compute_ms is not None]
    if len(computes_ms) == len(traces):
        found["rank_compute_ms"] = computes_ms
    return found


def _mean_losses(traces: Sequence[Trace]) -> list[float]:
    by_step = zip(*(trace.losses for trace in traces), strict=True)
    known = ([loss for loss in losses if loss is not None] for losses in by_step)
    return [statistics.fmean(losses) for losses in known if losses]


CAPACITY_LEAST_S = 0.4
"""Minimum core-seconds of a window for shares of the cores. The kernel counts in ticks of 10 ms, and the count of each
rank and core may be off by one tick."""


def host(ranks: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Conditions of one host, from the counters of each rank on it."""
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
        # Ranks wait for each other, so the step waits if any rank does. The ranks count as independent.
        found["waiting"] = 1 - math.prod(max(0.0, 1 - one["waited_s"] / one["at_s"]) for one in ranks)
    if known("periods", "throttled") and ranks[0]["periods"]:
        found["quota"] = ranks[0]["throttled"] / ranks[0]["periods"]
    if known("looking_s"):
        found["host_rate"] = 1e-6 / max(one["looking_s"] for one in ranks)
    if known("cpu_mhz"):
        found["cpu_mhz"] = max(one["cpu_mhz"] for one in ranks)
    return {name: [value] for name, value in found.items()}


def hosts(nodes: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """Conditions of several hosts, in the order of the nodes, from the counters of each rank. A condition that one host
    lacks is left out."""
    found = list(map(host, nodes))
    known = [name for name in found[0] if all(name in one for one in found)]
    return {name: [value for one in found for value in one[name]] for name in known}
