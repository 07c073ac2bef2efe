"""How far the figures of one row differ between visits of one machine, and between machines of one kind.

A visit is one run of a row on one machine. Launches of one visit do not show these differences. A baseline of several
visits shows them, and so do the green nights of the history. Without both, the verdict presumes them
(:data:`PRESUMED`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pytest_trainbench.judge.noise import Prior, Spread, learned_spread, spread_of

VISIT, MACHINE = "visit", "machine"
"""What a comparison is between: visits of one machine, or machines."""

BETWEEN_VISITS = 0.7
"""Standard deviation of a host between one visit and the next, as a multiple of the noise of a launch: whatever keeps a
host busy stays for minutes. Fourteen host-bound rows were compared with baselines of some minutes before, on two
machines with H200s, without any change. They were 0.4 and 1.0 of it apart."""

MACHINE_NOISE, HOST_NOISE = 0.005, 0.3
"""Relative standard deviation of one machine among others of its kind. A BERT step took 28.7, 28.7 and 28.9 ms on three
H200 machines. A host-bound step took 42, 49, 61, 63, 78 and 93 ms on six of them (GPT-1.3B under FSDP2, four devices),
while its kernels took 37 to 38 ms on all."""

PRESUMED = {
    ("device", VISIT): Spread(),
    ("host", VISIT): Spread(of_noise=BETWEEN_VISITS),
    ("device", MACHINE): Spread(sd=MACHINE_NOISE),
    ("host", MACHINE): Spread(sd=HOST_NOISE, of_noise=BETWEEN_VISITS),
}
"""By what paces a metric, and what a comparison is between: the spread while no visits of the project show it."""

VISIT_NOISE = 0.002
"""Relative standard deviation between visits of a device that the visits of a single row start from."""

PRESUMED_DF = 8.0
"""Degrees of freedom of what is presumed, once a row has visits of its own and similar rows have none."""


class Visit(Protocol):
    """One run of a row on one machine: a record, or an entry of the history."""

    @property
    def machine(self) -> str:
        """Id of the machine; empty if unknown."""

    def values(self, metric: str) -> list[float]:
        """The metric's value in each launch that has one."""


def between(visits: Iterable[Visit], machine: str) -> str:
    """What a run on ``machine`` is compared with: visits of the same machine where there are any, else machines."""
    return VISIT if machine and any(visit.machine == machine for visit in visits) else MACHINE


def grouped(visits: Iterable[Visit], metric: str, machine: str) -> list[list[float]]:
    """The launches of each visit of ``machine`` or, if it has none, of each machine. An unknown machine is another
    one."""
    measured = [visit for visit in visits if visit.values(metric)]
    if between(measured, machine) == VISIT:
        return [visit.values(metric) for visit in measured if visit.machine == machine]
    machines: dict[object, list[float]] = {}
    for number, visit in enumerate(measured):
        machines.setdefault(visit.machine or number, []).extend(visit.values(metric))
    return list(machines.values())


def spread(paced_by: str, kind: str, visits: Sequence[Sequence[float]], law: Prior | None, noise: float) -> Spread:
    """How far a visit of a row lies from others. ``visits``: the launches of each visit, or machine, that is known of
    the row. ``law``: what similar rows show. ``noise``: of one launch of the row."""
    presumed = PRESUMED[paced_by, kind]
    if law is None and len(visits) < 2:
        return presumed
    start = presumed.sd or presumed.of_noise * noise or VISIT_NOISE
    return spread_of(visits, law or Prior(noise=start, prior_df=PRESUMED_DF))


def laws(rows: Iterable[Sequence[Visit]], metric: str) -> dict[str, Prior]:
    """What the visits of similar rows differ by, for each kind of comparison that enough of them have."""
    rows = list(rows)
    of_one = [
        grouped(visits, metric, machine) for visits in rows for machine in {visit.machine for visit in visits} - {""}
    ]
    of_many = [grouped(visits, metric, "") for visits in rows]
    found = {}
    for kind, groups in ((VISIT, of_one), (MACHINE, of_many)):
        most = max(map(len, groups), default=0)
        if law := learned_spread(groups, visits=most):
            found[kind] = law
    return found
