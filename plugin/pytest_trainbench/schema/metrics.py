"""What is read off a launch, and how each figure is judged: one row a metric."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trainbench.schema.record import Record, Trace


@dataclass(frozen=True, kw_only=True)
class Statistical:
    """Judged against the noise between launches. A change under ``floor`` is never a regression, however
    certain (``--floor`` replaces it); where nothing under ``tolerance`` could have been seen, the row is noisy. Both
    are fractions of the baseline. Its values are above 0."""

    floor: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Relative:
    """Deterministic up to a fraction ``floor`` of the baseline. Where the baseline's own launches differ by more, it is
    not, and is judged against that noise as a :class:`Statistical` figure is, with ``floor`` for a floor."""

    floor: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Any difference is one of the work, and forbids a comparison."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The same in every launch; any difference from the baseline is better or worse. Where launches of one side differ
    it is no such count, and is not judged.

    ``generated``: a compiler may choose it. Inductor times candidates while it compiles, for example whether to pad a
    product, and chooses otherwise on another machine. A difference of a compiled step is then shown and not judged.
    A case whose compiled step is known to be the same on every machine sets it to False (marker ``gate``)."""

    generated: bool = False


HOST_BOUND = 0.9
"""Share of a step from which on the host that issues it is said to set the pace."""

DEVICE_BOUND = 0.95
"""Share of a step from which on the device that computes is."""

STARTING = ("starting", "opening", "joining", "building")
"""Phases of a rank before its first step."""

Gate = Statistical | Relative | Exact | Counted

Gates = Mapping[str, Mapping[str, Any]]
"""By metric, fields of its gate that one case has otherwise."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steady window of one launch, all ranks: what metrics are read from.

    step_ms: the slowest rank's time of each step. total_s: the slowest rank's time for the whole window.
    peak_tflops: dense peak of one device for the step's dtype; ``None`` where unknown. loss_deviation: see
    :func:`pytest_trainbench.judge.aggregate.loss_deviation`.
    """

    step_ms: Sequence[float]
    total_s: float
    traces: Sequence[Trace]
    peak_tflops: float | None
    loss_deviation: float | None = None

    def per_s(self, amount_per_step: float | None) -> float | None:
        return None if amount_per_step is None else amount_per_step * len(self.step_ms) / self.total_s

    @property
    def tflops_per_device(self) -> float | None:
        flops_per_s = self.per_s(self.traces[0].flops)
        return None if flops_per_s is None else flops_per_s / 1e12 / self.devices

    @property
    def devices(self) -> int:
        """That all ranks together keep busy."""
        return sum(trace.devices for trace in self.traces)

    @property
    def energy_j_per_sample(self) -> float | None:
        """Of all devices, over all timed steps; ``None`` where a rank's device has no counter, or it did not tick."""
        taken_j = [trace.energy_j for trace in self.traces]
        if not all(taken_j):
            return None
        first = self.traces[0]
        return sum(one_j for one_j in taken_j if one_j) / (first.samples * len(first.step_ms))

    def part(self, name: str, pick: Callable[[Iterable[float]], float] = max) -> float | None:
        """Of the ranks' figures the largest, or another ``pick``; ``None`` on a CPU."""
        found = [trace.parts[name] for trace in self.traces if name in trace.parts]
        return pick(found) if found else None

    def compilations(self, name: str) -> float | None:
        """Of the rank that has most; ``None`` where nothing was compiled."""
        return max((trace.compilations[name] for trace in self.traces if name in trace.compilations), default=None)

    def collectives(self, figure: str) -> float | None:
        """Of one step and all ranks together; ``None`` where they were not counted."""
        kinds = counted_collectives(self.traces)
        return None if kinds is None else sum(kind[figure] for kind in kinds.values())

    def peak_bytes(self, kind: str) -> int | None:
        """Of the rank that needs most."""
        return max((trace.memory[kind] for trace in self.traces if kind in trace.memory), default=None)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """``gate`` is ``None`` for a figure that is shown and stored but follows from others, or is not
    repeatable. ``shadows``: a metric that this one follows from, but for what it is judged for: asked for no more than
    that one is, and not said beside it."""

    title: str
    unit: str
    higher_is_better: bool
    gate: Gate | None
    read: Callable[[Window], float | None]
    shadows: str | None = None


def host_bound(record: Record) -> bool:
    """Whether the host sets the pace of a step: issuing it takes nearly as long as the step itself, or longer than the
    device works for it (a step that waits for the device now and then is shorter than its host's work and the device's
    together, and longer than either). Never where the device computes for nearly all of the step, whatever the host's
    time says: of a step of many launches it is too long (see :class:`pytest_trainbench.rank.breakdown.Parts`)."""
    host, step, compute = map(record.middle, ("host_ms", "step_ms", "compute_ms"))
    if host is None or step is None or (compute is not None and compute >= DEVICE_BOUND * step):
        return False
    works = step if compute is None else compute + (record.middle("exposed_communication_ms") or 0.0)
    return host >= min(HOST_BOUND * step, works)


def counted_flops(traces: Sequence[Trace]) -> float | None:
    """FLOPs of one step as the counter saw them, all ranks added up; ``None`` where any rank did not
    count."""
    counts = [trace.flops_counted for trace in traces]
    return None if None in counts else sum(count for count in counts if count is not None)


def counted_collectives(traces: Sequence[Trace]) -> dict[str, dict[str, float]] | None:
    """Calls and bytes of one step by kind, all ranks added up, so that none hides behind another; ``None`` where any
    rank did not count."""
    found: dict[str, dict[str, float]] = {}
    for trace in traces:
        if trace.collectives is None:
            return None
        for kind, figures in trace.collectives.items():
            total = found.setdefault(kind, dict.fromkeys(figures, 0.0))
            for figure, value in figures.items():
                total[figure] += value
    return found


def _flops(window: Window) -> int | None:
    """A whole number, so that storing it loses nothing and it can be compared exactly."""
    flops = counted_flops(window.traces) or window.traces[0].flops
    return None if flops is None else round(flops)


def _exposed_communication(window: Window) -> float | None:
    """Of the rank that waits least: what others have above it is waiting for that one. The profiler slows hosts, and so
    ranks wait longer for each other: it is no more than what the device's own work leaves of a timed step."""
    found = window.part("exposed_communication_ms", min)
    if found is None:
        return None
    return min(found, max(0.0, statistics.median(window.step_ms) - (window.part("compute_ms") or 0.0)))


def _mfu(window: Window) -> float | None:
    tflops = window.tflops_per_device
    return None if tflops is None or window.peak_tflops is None else tflops / window.peak_tflops


METRICS: dict[str, Metric] = {
    "step_ms": Metric(
        title="step time",
        unit="ms",
        higher_is_better=False,
        gate=Statistical(floor=0.01, tolerance=0.05),
        read=lambda window: statistics.median(window.step_ms),
    ),
    "samples_per_s": Metric(
        title="samples/s",
        unit="1/s",
        higher_is_better=True,
        # A median does not see what slows fewer than half of the steps. This does, hiccups and all, so it is noisier.
        gate=Statistical(floor=0.02, tolerance=0.25),
        read=lambda window: window.per_s(window.traces[0].samples),
        shadows="step_ms",
    ),
    "tokens_per_s": Metric(
        title="tokens/s",
        unit="1/s",
        higher_is_better=True,
        gate=None,
        read=lambda window: window.per_s(window.traces[0].tokens),
    ),
    "compute_ms": Metric(
        title="compute time of the device",
        unit="ms",
        higher_is_better=False,
        # Of a few profiled steps. The kernels of DDP on two H200s took 27.5 to 28.4 ms in launches whose steps were all
        # 29.4 to 29.6: with the tolerance of a step, a row of which that is known too well would be noisy.
        gate=Statistical(floor=0.01, tolerance=0.1),
        # A step that only communicates computes nothing, and nothing cannot be held against its noise.
        read=lambda window: window.part("compute_ms") or None,
    ),
    "exposed_communication_ms": Metric(
        title="communication that nothing hides",
        unit="ms",
        higher_is_better=False,
        gate=None,
        read=_exposed_communication,
    ),
    "host_ms": Metric(
        title="time of the host to issue a step",
        unit="ms",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.part("host_ms"),
    ),
    "kernels": Metric(
        title="kernels a step",
        unit="",
        higher_is_better=False,
        gate=Counted(generated=True),
        read=lambda window: window.part("kernels"),
    ),
    "collectives": Metric(
        title="collectives a step, all ranks",
        unit="",
        higher_is_better=False,
        gate=Counted(),
        read=lambda window: window.collectives("calls"),
    ),
    "collective_bytes": Metric(
        title="bytes into collectives a step, all ranks",
        unit="B",
        higher_is_better=False,
        gate=Counted(),
        read=lambda window: window.collectives("bytes"),
    ),
    "graph_breaks": Metric(
        title="graph breaks",
        unit="",
        higher_is_better=False,
        gate=Counted(),
        read=lambda window: window.compilations("graph_breaks"),
    ),
    "recompiles": Metric(
        title="recompilations",
        unit="",
        higher_is_better=False,
        gate=Counted(),
        read=lambda window: window.compilations("recompiles"),
    ),
    "peak_allocated_bytes": Metric(
        title="peak allocated memory",
        unit="B",
        higher_is_better=False,
        gate=Relative(floor=0.005, tolerance=0.05),
        read=lambda window: window.peak_bytes("peak_allocated_bytes"),
    ),
    "peak_reserved_bytes": Metric(
        title="peak reserved memory",
        unit="B",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.peak_bytes("peak_reserved_bytes"),
    ),
    "process_bytes": Metric(
        title="memory of the process",
        unit="B",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.peak_bytes("process_bytes"),
    ),
    "samples_per_step": Metric(
        title="samples a step",
        unit="",
        higher_is_better=True,
        gate=Exact(),
        read=lambda window: window.traces[0].samples,
    ),
    "tokens_per_step": Metric(
        title="tokens a step",
        unit="",
        higher_is_better=True,
        gate=Exact(),
        read=lambda window: window.traces[0].tokens,
    ),
    "flops_per_step": Metric(
        title="FLOPs",
        unit="FLOP",
        higher_is_better=False,
        gate=Exact(),
        read=_flops,
    ),
    "tflops_per_device": Metric(
        title="TFLOPS per device",
        unit="TFLOPS",
        higher_is_better=True,
        gate=None,
        read=lambda window: window.tflops_per_device,
    ),
    "mfu": Metric(title="MFU", unit="", higher_is_better=True, gate=None, read=_mfu),
    "energy_j_per_sample": Metric(
        title="energy of the devices a sample",
        unit="J",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.energy_j_per_sample,
    ),
    "devices": Metric(
        title="devices, where a rank has several",
        unit="",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.devices if window.devices > len(window.traces) else None,
    ),
    "loss_deviation": Metric(
        title="distance of the losses from the unsharded model's",
        unit="",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.loss_deviation,
    ),
    "start_s": Metric(
        title="start",
        unit="s",
        higher_is_better=False,
        gate=None,
        read=lambda window: max(sum(trace.phases_s.get(phase, 0.0) for phase in STARTING) for trace in window.traces),
    ),
}


def gates(asked: Mapping[str, Mapping[str, object]]) -> Gates:
    """``asked``, once it is known that it can be had: fractions above 0 for ``floor`` and ``tolerance`` of metrics
    that are judged by them, the tolerance above the floor, whichever of the two was asked for; true or false for
    ``generated`` of counts that a compiler may choose. Raises ``ValueError`` otherwise."""
    judged = [name for name, metric in METRICS.items() if isinstance(metric.gate, (Statistical, Relative))]
    counted = [name for name, metric in METRICS.items() if isinstance(metric.gate, Counted) and metric.gate.generated]
    found: dict[str, dict[str, float]] = {}
    chosen: dict[str, dict[str, bool]] = {}
    for name, fields in asked.items():
        if name in counted:
            if [*fields] != ["generated"] or not isinstance(fields["generated"], bool):
                raise ValueError(f"the gate of {name} takes generated=True or generated=False, not {dict(fields)}")
            chosen[name] = {"generated": fields["generated"]}
            continue
        if name not in judged:
            raise ValueError(f"{name!r} has no floor and no tolerance that could be set: only {', '.join(judged)} have")
        for field, value in fields.items():
            if field not in ("floor", "tolerance"):
                raise ValueError(f"a gate has a floor and a tolerance, and no {field!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"the {field} of {name} is a fraction above 0, such as 0.05, not {value!r}")
            found.setdefault(name, {})[field] = float(value)
    for name, limits in found.items():
        gate = METRICS[name].gate
        assert isinstance(gate, (Statistical, Relative))
        limited = dataclasses.replace(gate, **limits)
        if limited.floor >= limited.tolerance:
            both = f"a floor of {limited.floor:g} and a tolerance of {limited.tolerance:g}"
            raise ValueError(
                f"{name} with {both} would always be noisy, since nothing under the floor is ever found:"
                " give a tolerance above the floor"
            )
    return {**found, **chosen}
