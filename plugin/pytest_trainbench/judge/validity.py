"""Whether the figures of a launch can be trusted: checks of its losses, its parameters and its FLOPs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pytest_trainbench.schema.metrics import counted_flops
from pytest_trainbench.schema.record import Trace

FLOPS_AGREEMENT = 0.01
"""Largest fraction by which the formula and the counter may differ."""

LOSS_STEPS = (1, 12)
"""The first and the last step whose losses are compared with the reference's. Wrong gradients show from the second step
on."""


def loss_deviation(losses: Sequence[float], reference: Sequence[float], since: int = 1) -> float | None:
    """Largest distance from the unsharded ``reference`` over the steps that both have, from step ``since`` on.

    The distance is a fraction of the fall of the reference; ``None`` if the reference does not fall, or if too few
    steps can be compared. A fraction of the loss itself would hide a fault, because the loss is large at the start
    whether or not the model learns.
    """
    apart, fall = _apart(losses, reference, since)
    return max(apart) / fall if len(apart) > since and fall > 0 and all(map(math.isfinite, apart)) else None


def loss_fault(losses: Sequence[float], reference: Sequence[float], tolerance: float, since: int = 1) -> str | None:
    """A sentence on how ``losses`` differ from those of the unsharded ``reference``, from step ``since`` on; ``None``
    if they agree within ``tolerance``."""
    apart, fall = _apart(losses, reference, since)
    if len(apart) <= since:
        return f"only {max(0, len(apart) - since + 1)} of its losses can be compared with the reference's"
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
    """The distance of each step, 0 before step ``since``; and the fall of the reference over all steps that both
    have."""
    pairs = enumerate(zip(losses, reference, strict=False), 1)
    apart = [abs(mine - expected) if step >= since else 0.0 for step, (mine, expected) in pairs]
    return apart, reference[0] - min(reference[: len(apart)]) if apart else 0.0


def launch_fault(traces: Sequence[Trace], losses: Sequence[float], mfu: float | None) -> str | None:
    """The first reason not to trust these figures; ``None`` if there is none."""
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
            return f"the step's own figure {name} is {value}"
    return None
