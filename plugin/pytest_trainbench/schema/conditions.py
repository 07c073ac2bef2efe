"""What a launch may run under while its steps are timed: the host's cores, the devices' clocks, who else was there.

:data:`CONDITIONS` says which facts there are and how much of each may slow a step. A fact that cannot be read is
absent, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Conditions = Mapping[str, Sequence[float]]
"""Facts by name: one figure for the host, or one for each device, or for each rank."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A speed. Lower than the baseline's by more than ``margin`` (a fraction) counts, and lengthens a step by the ratio
    at most, or by its power ``share``."""

    margin: float
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A share of the window that was lost. Higher than the baseline's by more than ``margin`` (a difference) counts,
    and lengthens a step as what is left of the window got shorter. ``normal``: the share to hold it against where the
    baseline is older than conditions; ``None``: nothing then counts. ``cost``: the condition whose shares say better
    how much was lost, where it is known."""

    margin: float
    normal: float | None = None
    cost: str = ""


@dataclass(frozen=True, kw_only=True)
class Present:
    """A number of things that should not be there. More than in the baseline count, and may have cost anything."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """``text`` says it in words, with ``figure``, a value and its unit, at its ``{}``. ``of``: ``host``, ``device`` or
    ``rank``. ``rule`` is ``None`` for a fact that is stored and is never itself held to slow a step."""

    text: str
    of: str
    figure: str = "{:.0%}"
    rule: Rate | Lost | Present | None = None


CONDITIONS: dict[str, Condition] = {
    # Boost clocks of one H200 move by 1 to 2 % between launches of one step. At the power cap they fall from 1,980 to
    # 1,440 MHz within half a second and come back by a few percent: the mean of many samples is the same each time.
    "sm_mhz": Condition(text="SM clock {}", figure="{:,.0f} MHz", of="device", rule=Rate(margin=0.03)),
    "memory_mhz": Condition(text="memory clock {}", figure="{:,.0f} MHz", of="device", rule=Rate(margin=0.03)),
    # A setting: any other value is another one.
    "power_limit_w": Condition(text="power limit {}", figure="{:,.0f} W", of="device", rule=Rate(margin=0.005)),
    # As two of ten samples: one is chance.
    "hw_thermal": Condition(
        text="thermal slowdown by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "sw_thermal": Condition(
        text="thermal slowdown by the driver in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "hw_power_brake": Condition(
        text="power brake by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    "hw_slowdown": Condition(
        text="slowdown by the hardware in {} of the window", of="device", rule=Lost(margin=0.15, normal=0.0)
    ),
    # A large product runs at the power cap all the time, as it should: what that costs shows as the SM clock.
    "sw_power_cap": Condition(text="at the power cap in {} of the window", of="device"),
    "other_processes": Condition(text="other processes: {}", figure="{:.0f}", of="device", rule=Present()),
    "temperature_c": Condition(text="temperature {}", figure="{:.0f} °C", of="device"),
    "power_w": Condition(text="power {}", figure="{:,.0f} W", of="device"),
    # A machine that does nothing else still has its services: a few percent of few cores.
    "other_cores": Condition(
        text="other processes used {} of the cores", of="host", rule=Lost(margin=0.1, normal=0.0, cost="waiting")
    ),
    # Ranks that share cores wait too: it says what others cost, never that there were any.
    "waiting": Condition(text="a rank was ready and had no core in {} of the window", of="host"),
    "stolen": Condition(
        text="the host of this virtual machine withheld {} of its cores' time",
        of="host",
        rule=Lost(margin=0.05, normal=0.0),
    ),
    # A quota is part of a container, and a step that fills it may do so every night.
    "quota": Condition(text="the container's CPU quota ran out in {} of its periods", of="host", rule=Lost(margin=0.1)),
    # Whatever the kernel does not see: a neighbour on the other half of a core, a lower clock of a virtual one.
    # It notices more of that than a step does: benchmarks/host_rate.
    "host_rate": Condition(
        text="the host looks at {}", figure="{:,.3g} objects/µs", of="host", rule=Rate(margin=0.2, share=0.65)
    ),
    "cpu_mhz": Condition(text="clock of the fastest core {}", figure="{:,.0f} MHz", of="host", rule=Rate(margin=0.05)),
    # Ranks are held against each other: pytest_trainbench.judge.attribution.slow_rank.
    "rank_compute_ms": Condition(text="compute time of the device {}", figure="{:,.4g} ms", of="rank"),
}


def worst(name: str, values: Sequence[float]) -> float:
    """Of the devices or ranks, that which a step waits for."""
    return min(values) if name in CONDITIONS and isinstance(CONDITIONS[name].rule, Rate) else max(values)
