"""The table of metrics: how each is read from a launch, and which gate judges it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_trainbench.schema.record import Record, Trace


@dataclass(frozen=True, kw_only=True)
class Statistical:
    """The gate of a metric with noise between launches; its values are above 0.

    A change below ``floor`` is never a regression, however certain it is (``--floor`` replaces it). A row that could
    not detect a slowdown of ``tolerance`` is noisy. Both are fractions of the baseline's time. Reports convert them for
    a rate, which falls by 20 % if the time grows by 25 %.
    """

    floor: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Relative:
    """The gate of a metric that is deterministic up to ``floor``, a fraction of the baseline.

    If the baseline's own launches differ by more than that, the metric is judged as :class:`Statistical`, with the same
    ``floor`` and ``tolerance``.
    """

    floor: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The gate of a metric that describes the work. If it differs, the work differs, and the rows do not compare."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The gate of a count that is the same in every launch. Any difference from the baseline is better or worse, if
    most launches have it. See :func:`pytest_trainbench.judge.compare.compare_constant`.

    generated:
        Whether a compiler may choose the count. Inductor times candidates while it compiles, for example whether to pad
        a product, and may choose differently on another machine. A difference in a compiled step is then shown, not
        judged. If a compiled step is known to be the same on every machine, its case sets ``generated=False`` (marker
        ``gate``).
    """

    generated: bool = False


HOST_BOUND = 0.9
"""A step may be host-bound if the host needs at least this share of the step to issue it. See :func:`host_bound`."""

DEVICE_BOUND = 0.95
"""A step is never host-bound if its device computes for at least this share of the step."""

STARTING = ("starting", "opening", "joining", "building")
"""Phases of a rank before its first step."""

Gate = Statistical | Relative | Exact | Counted

Gates = Mapping[str, Mapping[str, Any]]
"""Changed fields of gates, by metric: what one case overrides."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steady window of one launch, from which metrics are read.

    step_ms:
        The slowest rank's time of each step, in ms.
    total_s:
        The slowest rank's time for the whole window, in seconds.
    traces:
        The traces of all ranks.
    peak_tflops:
        Dense peak of one device for the step's dtype; ``None`` if unknown.
    loss_deviation:
        See :func:`pytest_trainbench.judge.validity.loss_deviation`.
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
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, as a fraction of the devices' dense peak; ``None`` if either is unknown."""
        tflops = self.tflops_per_device
        return None if tflops is None or self.peak_tflops is None else tflops / self.peak_tflops

    @property
    def devices(self) -> int:
        """Number of devices that all ranks together drive."""
        return sum(trace.devices for trace in self.traces)

    @property
    def energy_j_per_sample(self) -> float | None:
        """Energy of all devices per sample, over all timed steps, in joules. ``None`` if a rank's device has no energy
        counter, or if the counter did not move."""
        taken_j = [trace.energy_j for trace in self.traces]
        if not all(taken_j):
            return None
        first = self.traces[0]
        return sum(one_j for one_j in taken_j if one_j) / (first.samples * len(first.step_ms))

    def part(self, name: str, pick: Callable[[Iterable[float]], float] = max) -> float | None:
        """The largest of the ranks' values of a part of the step time, or another ``pick`` of them; ``None`` on a
        CPU."""
        found = [trace.parts[name] for trace in self.traces if name in trace.parts]
        return pick(found) if found else None

    def compilations(self, name: str) -> float | None:
        """The largest count of any rank; ``None`` if nothing was compiled."""
        return max((trace.compilations[name] for trace in self.traces if name in trace.compilations), default=None)

    def collectives(self, figure: str) -> float | None:
        """``calls`` or ``bytes`` of one step, summed over all ranks; ``None`` if they were not counted."""
        kinds = counted_collectives(self.traces)
        return None if kinds is None else sum(kind[figure] for kind in kinds.values())

    def peak_bytes(self, kind: str) -> int | None:
        """The bytes of the rank that needs most; ``None`` if no rank reports them."""
        return max((trace.memory[kind] for trace in self.traces if kind in trace.memory), default=None)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One row of :data:`METRICS`.

    gate:
        The rule that judges the metric. ``None`` for a metric that is only shown and stored, because it follows from
        others or is not repeatable.
    read:
        Returns the metric's value; ``None`` if this launch has none.
    derived_from:
        The metric that this one mostly follows from. Without limits of its own, a case's wider floor and tolerance for
        that metric apply to this one too. If both regressed, the reason names only that metric.
    multiple_of:
        The metric of which this one is the same multiple in every launch.
    paced_by:
        For a judged time. ``host`` if a slow host may make it longer, ``device`` if only the device may.
    leads:
        Whether it is the leading metric, which is judged first. Exactly one metric leads.
    compiled:
        Whether only compiled steps have it.
    """

    title: str
    unit: str
    higher_is_better: bool
    gate: Gate | None
    read: Callable[[Window], float | None]
    derived_from: str | None = None
    multiple_of: str | None = None
    paced_by: Literal["host", "device"] | None = None
    leads: bool = False
    compiled: bool = False


def host_bound(record: Record) -> bool:
    """Whether a row is host-bound: the host needs nearly the whole step to issue it, or longer than the device works.

    The second condition finds steps in which the host and the device wait for each other. Such a step is longer than
    the host's work and longer than the device's work, but shorter than their sum.

    A step whose device computes for nearly all of it is never host-bound. For a step of many kernels ``host_ms`` may be
    too long: see :class:`pytest_trainbench.rank.breakdown.Parts`.
    """
    host, step, compute = map(record.median, ("host_ms", "step_ms", "compute_ms"))
    if host is None or step is None or (compute is not None and compute >= DEVICE_BOUND * step):
        return False
    works = step if compute is None else compute + (record.median("exposed_communication_ms") or 0.0)
    return host >= min(HOST_BOUND * step, works)


def counted_flops(traces: Sequence[Trace]) -> float | None:
    """Counted FLOPs of one step, summed over all ranks; ``None`` if any rank did not count."""
    counts = [trace.flops_counted for trace in traces]
    return None if None in counts else sum(count for count in counts if count is not None)


def counted_collectives(traces: Sequence[Trace]) -> dict[str, dict[str, float]] | None:
    """``calls`` and ``bytes`` of one step by kind, summed over all ranks. The sum changes if any rank changes. ``None``
    if any rank did not count."""
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
    """FLOPs of one step, as a whole number: files round fractions, and this metric is compared exactly."""
    flops = counted_flops(window.traces) or window.traces[0].flops
    return None if flops is None else round(flops)


def _exposed_communication(window: Window) -> float | None:
    """Minimum over ranks in ms; anything above it is waiting. It is capped at step time minus compute time, because the
    profiler slows hosts, and then ranks wait longer for each other."""
    found = window.part("exposed_communication_ms", min)
    if found is None:
        return None
    return min(found, max(0.0, statistics.median(window.step_ms) - (window.part("compute_ms") or 0.0)))


METRICS: dict[str, Metric] = {
    "step_ms": Metric(
        title="step time",
        unit="ms",
        higher_is_better=False,
        gate=Statistical(floor=0.01, tolerance=0.05),
        read=lambda window: statistics.median(window.step_ms),
        paced_by="host",
        leads=True,
    ),
    "samples_per_s": Metric(
        title="samples/s",
        unit="1/s",
        higher_is_better=True,
        # The median step time does not see what slows fewer than half of the steps. This rate contains every slow step,
        # so it is noisier.
        gate=Statistical(floor=0.02, tolerance=0.25),
        read=lambda window: window.per_s(window.traces[0].samples),
        derived_from="step_ms",
        paced_by="host",
    ),
    "tokens_per_s": Metric(
        title="tokens/s",
        unit="1/s",
        higher_is_better=True,
        gate=None,
        read=lambda window: window.per_s(window.traces[0].tokens),
        multiple_of="samples_per_s",
    ),
    "compute_ms": Metric(
        title="compute time of the device",
        unit="ms",
        higher_is_better=False,
        # The value comes from a few profiled steps, so it varies more than the step time. In launches of DDP on two
        # H200s, steps took 29.4 to 29.6 ms, and their kernels 27.5 to 28.4 ms. With the tolerance of the step time such
        # a row would be noisy.
        gate=Statistical(floor=0.01, tolerance=0.1),
        # A step that only communicates has a compute time of 0. A statistical gate needs values above 0.
        read=lambda window: window.part("compute_ms") or None,
        paced_by="device",
    ),
    "exposed_communication_ms": Metric(
        title="exposed communication",
        unit="ms",
        higher_is_better=False,
        gate=None,
        read=_exposed_communication,
    ),
    "host_ms": Metric(
        title="host time to issue a step",
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
        compiled=True,
    ),
    "recompiles": Metric(
        title="recompilations",
        unit="",
        higher_is_better=False,
        gate=Counted(),
        read=lambda window: window.compilations("recompiles"),
        compiled=True,
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
        multiple_of="samples_per_s",
    ),
    "mfu": Metric(
        title="MFU",
        unit="",
        higher_is_better=True,
        gate=None,
        read=lambda window: window.mfu,
        multiple_of="samples_per_s",
    ),
    "energy_j_per_sample": Metric(
        title="energy of the devices per sample",
        unit="J",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.energy_j_per_sample,
    ),
    "devices": Metric(
        title="devices, if a rank has several",
        unit="",
        higher_is_better=False,
        gate=None,
        read=lambda window: window.devices if window.devices > len(window.traces) else None,
    ),
    "loss_deviation": Metric(
        title="deviation of the losses from the reference's",
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


LEADING = next(name for name, metric in METRICS.items() if metric.leads)
"""The metric that is judged first. No row is judged without it."""


def gates(asked: Mapping[str, Mapping[str, object]]) -> Gates:
    """Return the fields of ``asked``, by metric, after checking them. Raises ``ValueError`` if one cannot be set.

    ``floor`` and ``tolerance`` are fractions above 0, for metrics whose gates have them. The tolerance must be above
    the floor, also if only one of the two is given. ``generated`` is true or false, for counts that a compiler may
    choose.
    """
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
            raise ValueError(f"{name!r} has no floor or tolerance to set: type one of {', '.join(judged)}")
        for field, value in fields.items():
            if field not in ("floor", "tolerance"):
                raise ValueError(f"the gate of {name} takes floor and tolerance, not {field!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"the {field} of {name} must be a fraction above 0, such as 0.05, not {value!r}")
            found.setdefault(name, {})[field] = float(value)
    for name, limits in found.items():
        gate = METRICS[name].gate
        assert isinstance(gate, (Statistical, Relative))
        limited = dataclasses.replace(gate, **limits)
        if limited.floor >= limited.tolerance:
            both = f"a floor of {limited.floor:g} and a tolerance of {limited.tolerance:g}"
            raise ValueError(
                f"{name} with {both} would always be noisy, because changes below the floor never count:"
                " give a tolerance above the floor"
            )
    return {**found, **chosen}


def check_figures(values: Mapping[str, float], path: Path) -> None:
    """Raise ``ValueError`` if a figure in the file ``path`` must be above 0 and is not.

    Gates that judge a ratio need it: the change from 0 is infinite.
    """
    for name, value in values.items():
        if name in METRICS and isinstance(METRICS[name].gate, Statistical | Relative) and not value > 0:
            raise ValueError(f"{path} cannot be compared: its {METRICS[name].title} ({name}) is {value:g}, not above 0")
