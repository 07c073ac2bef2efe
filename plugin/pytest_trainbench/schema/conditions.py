"""Conditions of a launch while its steps are timed: the host's cores, the devices' clocks, other processes.

:data:`CONDITIONS` lists the conditions, and says how much each may slow a step. A condition that cannot be read is
absent, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Conditions = Mapping[str, Sequence[float]]
"""Values by the name of the condition: one value per host, per device or per rank."""


@dataclass(frozen=True, kw_only=True)
class LostSpeed:
    """The rule for a speed. It counts if it is below the baseline's by more than ``margin``, a fraction. It may then
    lengthen a step by the ratio of the two speeds, raised to the power ``share``."""

    margin: float
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LostShare:
    """The rule for a share of the window that was lost. It counts if it is above the baseline's by more than
    ``margin``, a difference of shares. It may then lengthen a step by the ratio of the remaining shares.

    normal:
        The share to compare with if the baseline is older than conditions and stores none. ``None``: then the condition
        does not count.
    cost:
        Name of another condition. If it is known, its shares are used to compute how much longer a step takes.
    """

    margin: float
    normal: float | None = None
    cost: str = ""


@dataclass(frozen=True, kw_only=True)
class Present:
    """The rule for a count of disturbances. It counts if it is above the baseline's. It may lengthen a step by any
    amount."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One row of :data:`CONDITIONS`.

    text:
        What reports say. Its ``{}`` stands for the value.
    of:
        What a value belongs to: ``host``, ``device`` or ``rank``.
    figure:
        Format of a value, with its unit.
    rule:
        When the condition may slow a step, and how much. ``None`` for a condition that is stored but never blamed.
    """

    text: str
    of: str
    figure: str = "{:.0%}"
    rule: LostSpeed | LostShare | Present | None = None


CONDITIONS: dict[str, Condition] = {
    # Boost clocks of one H200 move by 1 to 2 % between launches of one step. At the power cap they fall from 1,980 to
    # 1,440 MHz within half a second and rise again by a few percent. The mean of many samples is the same each time.
    "sm_mhz": Condition(text="SM clock {}", figure="{:,.0f} MHz", of="device", rule=LostSpeed(margin=0.03)),
    "memory_mhz": Condition(text="memory clock {}", figure="{:,.0f} MHz", of="device", rule=LostSpeed(margin=0.03)),
    # A setting has no noise, so any other value counts.
    "power_limit_w": Condition(text="power limit {}", figure="{:,.0f} W", of="device", rule=LostSpeed(margin=0.005)),
    # 15 points are two of ten samples. One sample may be chance.
    "hw_thermal": Condition(
        text="thermal slowdown by the hardware in {} of the window",
        of="device",
        rule=LostShare(margin=0.15, normal=0.0),
    ),
    "sw_thermal": Condition(
        text="thermal slowdown by the driver in {} of the window", of="device", rule=LostShare(margin=0.15, normal=0.0)
    ),
    "hw_power_brake": Condition(
        text="power brake by the hardware in {} of the window", of="device", rule=LostShare(margin=0.15, normal=0.0)
    ),
    "hw_slowdown": Condition(
        text="slowdown by the hardware in {} of the window", of="device", rule=LostShare(margin=0.15, normal=0.0)
    ),
    # A large matrix product always runs at the power cap. The SM clock shows what that costs.
    "sw_power_cap": Condition(text="at the power cap in {} of the window", of="device"),
    "other_processes": Condition(text="other processes: {}", figure="{:.0f}", of="device", rule=Present()),
    "temperature_c": Condition(text="temperature {}", figure="{:.0f} °C", of="device"),
    "power_w": Condition(text="power {}", figure="{:,.0f} W", of="device"),
    # The services of an idle machine use a few percent of few cores.
    "other_cores": Condition(
        text="other processes used {} of the cores", of="host", rule=LostShare(margin=0.1, normal=0.0, cost="waiting")
    ),
    # Ranks that share cores with each other wait too. So waiting shows how much other processes cost, but does not
    # prove that there were any.
    "waiting": Condition(text="a rank was ready but had no core in {} of the window", of="host"),
    "stolen": Condition(
        text="the hypervisor withheld {} of the cores' time",
        of="host",
        rule=LostShare(margin=0.05, normal=0.0),
    ),
    # A step may use up its container's quota every night. So without the baseline's share there is no normal one.
    "quota": Condition(
        text="the container's CPU quota ran out in {} of its periods", of="host", rule=LostShare(margin=0.1)
    ),
    # The kernel does not see every disturbance: a neighbour on the other hardware thread of a core, or a lower clock of
    # a virtual core. The host rate does. It falls further than a step slows down: see benchmarks/host_rate.py.
    "host_rate": Condition(
        text="the host reads {}", figure="{:,.3g} objects/µs", of="host", rule=LostSpeed(margin=0.2, share=0.65)
    ),
    "cpu_mhz": Condition(
        text="clock of the fastest core {}", figure="{:,.0f} MHz", of="host", rule=LostSpeed(margin=0.05)
    ),
    # pytest_trainbench.judge.attribution.slow_rank compares ranks with each other, so there is no rule here.
    "rank_compute_ms": Condition(text="compute time of the device {}", figure="{:,.4g} ms", of="rank"),
}


def worst(name: str, values: Sequence[float]) -> float:
    """The value of the device or rank that a step waits for: the lowest speed, the highest share or count."""
    return min(values) if name in CONDITIONS and isinstance(CONDITIONS[name].rule, LostSpeed) else max(values)
