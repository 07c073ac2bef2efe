"""Is a record still what its baseline was? Pure: nothing here reads a file or a clock."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pytest_trainbench.hardware import environment
from pytest_trainbench.judge import attribution
from pytest_trainbench.judge.attribution import Cause
from pytest_trainbench.judge.noise import DEFAULT, Difference, Prior, compare, expected, learned, paired
from pytest_trainbench.schema.metrics import METRICS, Counted, Exact, Gate, Gates, Relative, Statistical, host_bound
from pytest_trainbench.schema.record import Launch, Record, as_stored

OUTCOMES: dict[str, str] = {
    "ok": "passes",
    "saved": "passes",
    "calibrated": "passes",
    "improvement": "passes",
    "no-baseline": "warns",
    "noisy": "warns",
    "oom": "passes",
    "skipped": "skips",
    "regression": "fails",
    "environment": "fails",
    "incomparable": "fails",
    "invalid": "fails",
    "timeout": "fails",
    "crash": "fails",
}
"""How each outcome ends its test. Where ``CI`` is set, what was compared with nothing fails as well."""

ERROR_MOST = 0.005
"""Chance of a false regression that one metric of one row has at most, however few rows share the night's."""

FRESH_LEAST = 2
"""Launches beyond the first ones without which there is no regression, where there may be any. What slows the first few
may be over a minute later; and of 3 launches all are outliers once in 5,000 times where one in 17 is."""

CALM_LEAST = 2
"""Undisturbed launches whose figures say something of a slowdown's cause: one alone may be an outlier."""

EARLY = 0.1
"""Share of a metric's error that all looks before the last have together."""

POWER = 0.9
"""A change of the size that a row "sees" makes it suspicious with this probability, and is confirmed with this
probability: found at least eight times in ten."""

HOPELESS = 0.01
"""A row gets no more launches where the chance that they make it a regression is below this."""

BLIND = math.log(1000)
"""Larger changes are not told apart: a row that sees no less than a thousandfold sees nothing. (Two pairs of launches
of which one in a million may err would see, by Student's t, no less than e to the thousandth power.)"""

MACHINE_NOISE, HOST_NOISE = 0.005, 0.3
"""Relative standard deviation of one machine among others of its kind, which no number of launches on it shows: added
to a comparison between two machines. A BERT step took 28.7, 28.7 and 28.9 ms on three H200 machines. A step that the
host sets the pace of took 42, 49, 61, 63, 78 and 93 ms on six of them (GPT-1.3B under FSDP2, four devices), while its
kernels took 37 to 38 ms on all."""

MOOD = 0.7
"""Standard deviation of a host between one visit and the next, as a multiple of what launches of one visit differ by:
what a host is busy with stays for minutes. Fourteen rows that their host sets the pace of, compared with baselines of
some minutes before on two machines with H200s where nothing had changed, were 0.4 and 1.0 of it apart."""

ANOTHER_HOST = "its host sets the pace, and the baseline is another machine's: store one of this, or use --against"

COMPILED = {"graph_breaks", "recompiles"}
"""Metrics that only a compiled step has."""

UNSTEADY = "not the same in every launch"
GENERATED = "torch.compile generated the step, and what it generates may differ between machines and runs"
"""Why a count is not judged."""

Priors = Mapping[tuple[str, bool], Prior]
"""Noise by metric and by whether the row is host-bound."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How sure a verdict must be, and how often it may look.

    error: chance of a false regression that all metrics of a row have together, over all looks. first, last: launches
    at the first look and at the last; in between a row in doubt is looked at after every launch. floor: replaces that
    of every :class:`Statistical` gate, whose tolerance is twice as much at least. gates: limits of single metrics,
    which replace both. fail_on_improvement: what fails is confirmed, so improvements are too. left_out: launches that
    were started and are not judged; each was a look all the same.
    """

    error: float = ERROR_MOST
    first: int = 1
    last: int = 1
    floor: float | None = None
    gates: Gates = field(default_factory=dict)
    fail_on_improvement: bool = False
    left_out: int = 0

    def gate(self, name: str) -> Gate:
        """Of a metric."""
        gate, shadows = METRICS[name].gate, METRICS[name].shadows
        if gate is None:
            raise ValueError(f"{name} is not judged")
        if isinstance(gate, Statistical) and self.floor is not None:
            # Nothing under the floor is ever found: with a tolerance there, every row would be noisy.
            gate = dataclasses.replace(gate, floor=self.floor, tolerance=max(gate.tolerance, 2 * self.floor))
        limits: Mapping[str, Any] = self.gates.get(name, {})
        if shadows and not limits:
            limits = {each: max(limit, getattr(gate, each)) for each, limit in self.gates.get(shadows, {}).items()}
        if "tolerance" in limits and "floor" not in limits and isinstance(gate, Statistical) and self.floor is not None:
            limits = {**limits, "tolerance": max(limits["tolerance"], 2 * self.floor)}  # a marker knows no --floor
        return dataclasses.replace(gate, **limits)

    def error_of(self, metrics: int) -> float:
        """What each of a row's ``metrics`` has of it. Where better fails too, half of that is for each side."""
        each = min(ERROR_MOST, self.error / max(1, metrics))
        return each / 2 if self.fail_on_improvement else each

    def share(self, launches: int) -> float:
        """Of a metric's error, what the look at so many launches may use.

        The looks' shares add up to 1 at most, so that together they keep the error whatever their correlation
        (Bonferroni). Nearly all of it is kept for the last, as in Haybittle's and Peto's rule for trials: R. Peto
        et al., British Journal of Cancer 34, 1976.
        """
        early = max(0, self.last - self.first - FRESH_LEAST)
        started = launches + self.left_out
        if started >= self.last:
            return 1 - EARLY if early else 1.0
        return EARLY / early if started >= self.first + FRESH_LEAST else 0.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One metric against its baseline.

    ``change`` is a fraction of the baseline, positive meaning better, and ``interval`` holds the true one with 95 %
    confidence; ``None`` for what is not judged by its noise. ``sees`` is the smallest change, as a fraction, that would
    have been found at least eight times in ten. ``outcome``: ok, regression, environment, improvement, noisy,
    incomparable, or not judged; ``why`` says then why it is not.
    ``doubtful``: it may be a regression yet, if there were more launches. ``tolerance``: what it must be able to see.
    """

    metric: str
    before: float
    now: float
    change: float
    sees: float
    outcome: str
    interval: tuple[float, float] | None = None
    doubtful: bool = False
    tolerance: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``reason`` is one sentence for every outcome but ok, and for an ok that left launches out; ``changes`` holds the
    judged metrics; ``suspects`` what differs in the environment; ``causes`` what the launches ran under that was worse
    than the baseline's; ``compared`` is false where a baseline was wanted and missing."""

    outcome: str
    reason: str | None = None
    changes: tuple[Change, ...] = ()
    suspects: tuple[environment.Difference, ...] = ()
    causes: tuple[Cause, ...] = ()
    compared: bool = True

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is unknown; known: {', '.join(OUTCOMES)}")

    def change(self, metric: str) -> Change | None:
        return next((change for change in self.changes if change.metric == metric), None)

    @property
    def doubtful(self) -> bool:
        """Whether another launch may change how the test ends, or tell of a row that is red for something else if its
        step takes longer."""
        if OUTCOMES[self.outcome] != "fails":
            return any(change.doubtful for change in self.changes)
        step = self.change("step_ms")
        return self.outcome == "regression" and step is not None and step.doubtful

    def fails(self, *, ci: bool, on_improvement: bool = False) -> bool:
        """``ci``: what was compared with nothing fails too."""
        beaten = on_improvement and self.outcome == "improvement"
        return OUTCOMES[self.outcome] == "fails" or beaten or (ci and not self.compared)


def judge(
    record: Record,
    baseline: Record | None,
    *,
    against: str = "",
    must_match: Sequence[environment.Difference] = (),
    suspects: Sequence[environment.Difference] = (),
    policy: Policy = Policy(),
    priors: Priors = MappingProxyType({}),
) -> Verdict:
    """Verdict of ``record`` against ``baseline``. ``against`` names another side whose launches took turns with those
    of ``record``: that is the baseline then, and they are judged in pairs.

    ``must_match`` lists the differences between the two environments that forbid a comparison, ``suspects``
    those that may explain a change. ``priors``: see :func:`learn`.
    """
    listed = tuple(suspects)
    theirs = against or "the baseline"
    if record.outcome in ("invalid", "timeout", "crash"):
        reason = record.reason
        if against and baseline is not None:
            too = f"not {against}" if baseline.outcome in ("ok", "oom") else f"and {against} too"
            reason = f"this side, {too}: {reason}"
        return Verdict(outcome=record.outcome, reason=reason, suspects=listed)
    if baseline is None:
        reason = "there is no baseline for this case on this hardware; --save-baseline stores one"
        if record.outcome == "oom":  # where CI is set this row is red, and not for having run out of memory
            told = "; ".join(filter(None, (record.reason, reason)))
            return Verdict(outcome="oom", reason=told, compared=False)
        return Verdict(outcome="no-baseline", reason=reason, compared=False)
    if baseline.outcome in ("invalid", "timeout", "crash"):
        reason = f"nothing to compare with: {theirs}: {baseline.reason}"
        return Verdict(outcome=baseline.outcome, reason=reason, suspects=listed)
    if must_match:
        what = "; ".join(f"{name} was {fact(before)}, is {fact(now)}" for name, before, now in must_match)
        reason = f"{theirs} is of other conditions: {what}"
        return Verdict(outcome="incomparable", reason=reason, suspects=listed)
    if record.outcome == "oom" or baseline.outcome == "oom":
        if record.outcome == baseline.outcome:
            return Verdict(outcome="oom", reason=f"out of memory, as in {theirs}", suspects=listed)
        if record.outcome == "oom":
            reason = f"out of memory where {theirs} fitted: {record.reason}"
            return Verdict(outcome="regression", reason=reason, suspects=listed)
        reason = f"fits in memory where {theirs} did not"
        return Verdict(outcome="improvement", reason=reason, suspects=listed)
    judged = _judged(baseline)
    if "step_ms" not in judged:
        return Verdict(outcome="incomparable", reason=f"{theirs} has no step time", suspects=listed)
    early = False
    note: str | None = None
    unlike: tuple[Cause, ...] = ()
    calm: tuple[Launch, ...] = ()
    if not against:  # sides that took turns on one machine differ by what is theirs, whatever that does to its clocks
        calm = attribution.calm(record, baseline)
        if len(calm) == len(record.launches):
            calm = ()  # what slowed them, if anything, was not of single launches
        else:
            record, policy, early, note = _undisturbed(record, calm, baseline, policy)
        unlike = tuple(attribution.of_record(record, baseline))
    if lost := [name for name in judged if not record.values(name)]:
        reason = _went_missing(lost, theirs)
        return Verdict(outcome="incomparable", reason=reason, suspects=listed)
    if against and (odd := [name for name in judged if len(record.values(name)) != len(baseline.values(name))]):
        reason = f"not every launch has {_titles(odd)}, so that there are no pairs"
        return Verdict(outcome="incomparable", reason=reason, suspects=listed)

    chances, error = _chances(baseline, policy)
    moved = any(name == "machine" for name, _, _ in suspects)
    paced = any("host" in attribution.places(one) for one in (baseline, record))

    def compared(name: str) -> Change:
        before, now = baseline.values(name), record.values(name)
        if name not in chances:
            return _compare(name, before, now, policy=policy, compiled=_is_compiled(record))
        prior = priors.get((name, host_bound(baseline)), DEFAULT)
        if against:
            return weigh(name, paired(before, now, prior=prior), error=error, policy=policy)
        machine = HOST_NOISE if paced and name != "compute_ms" else MACHINE_NOISE
        apart = machine if moved and isinstance(METRICS[name].gate, Statistical) else 0.0
        found = compare(before, now, prior=prior, apart=apart, lasting=mood(name, baseline, record))
        # A launch that does not have the metric was a look all the same, or looks would never end.
        without = policy.left_out + len(record.launches) - len(now)
        return weigh(name, found, error=error, policy=dataclasses.replace(policy, left_out=without))

    changes = tuple(_blamed(compared(name), unlike, calm, early=early, gate=policy.gate(name)) for name in judged)
    for outcome in ("incomparable", "regression", "environment", "noisy", "improvement"):
        if found := [change for change in changes if change.outcome == outcome]:
            seen = {change.metric for change in found}
            found = [change for change in found if METRICS[change.metric].shadows not in seen]
            reason = "; ".join(describe(change, unlike, theirs) for change in found)
            step = changes[0]  # METRICS begins with it, and it is always judged
            if outcome == "regression" and step not in found:
                reason += f"; {_beside(step, unlike)}"
            if outcome == "noisy" and step in found:
                kernels = next((change for change in changes if change.metric == "compute_ms"), None)
                if kernels is not None and kernels.outcome == "ok":
                    reason += f"; its kernels take as long as before (sees ≥ {percent(kernels.sees)})"
                if moved and paced:
                    reason += f"; {ANOTHER_HOST}"
            if note is not None:
                reason += f"; {note}"
            return Verdict(outcome=outcome, reason=reason, changes=changes, suspects=listed, causes=unlike)
    return Verdict(outcome="ok", reason=note, changes=changes, suspects=listed, causes=unlike)


def foreseen(
    record: Record, *, stored: int, launches: int, policy: Policy, priors: Priors = MappingProxyType({})
) -> tuple[Change, ...]:
    """What a night of at least so many ``launches`` will have to say where nothing changes, of each metric that varies,
    if ``stored`` launches like those of ``record`` are its baseline: ``ok``, or ``noisy``."""
    bound = host_bound(record)
    chances, error = _chances(record, policy)
    night = dataclasses.replace(policy, first=launches, last=launches + policy.last - policy.first)

    def seen(name: str) -> Change:
        prior = priors.get((name, bound), DEFAULT)
        found = expected(record.values(name), stored=stored, launches=launches, prior=prior, lasting=mood(name, record))
        return weigh(name, found, error=error, policy=night)

    return tuple(map(seen, chances))


def mood(name: str, *records: Record) -> float:
    """:data:`MOOD` of a metric that the host of any of these sets the pace of; 0 for others. A device computes as long
    whatever its host does."""
    timed = isinstance(METRICS[name].gate, Statistical) and name != "compute_ms"
    return MOOD if timed and any(map(host_bound, records)) else 0.0


def _is_compiled(record: Record) -> bool:
    """Whether ``torch.compile`` generated any part of the step."""
    return any(record.values(name) for name in COMPILED)


def _judged(baseline: Record) -> list[str]:
    """The metrics that a row is held to."""
    return [name for name, metric in METRICS.items() if metric.gate is not None and baseline.values(name)]


def _chances(baseline: Record, policy: Policy) -> tuple[list[str], float]:
    """The metrics of a row that may be red by chance, and the error that each of them has."""
    varying = [name for name in _judged(baseline) if _varies(policy.gate(name), baseline.values(name))]
    return varying, policy.error_of(len(varying))


def _went_missing(names: Sequence[str], theirs: str) -> str:
    """Of metrics that this run should have, and what to do."""
    lost = f"{theirs} has {_titles(names)} and this run has not"
    if not COMPILED.isdisjoint(names):
        return f"{lost}: its step was compiled and this one was not; compile it again, or accept it as another step"
    return f"{lost}; bring that back, or accept its loss"


def _titles(names: Sequence[str]) -> str:
    return ", ".join(METRICS[name].title for name in names)


def _undisturbed(
    record: Record, calm: tuple[Launch, ...], baseline: Record, policy: Policy
) -> tuple[Record, Policy, bool, str | None]:
    """What to judge of a record of which only some launches, or none, were ``calm``: those alone, as soon as there are
    enough for a regression.

    Then: whether it is too early for red, because some launches were disturbed and some were not, so that fresh ones
    may tell; and what was left out, in words.
    """
    if len(calm) < policy.first + FRESH_LEAST:
        return record, policy, bool(calm) and len(record.launches) < policy.last, None
    left_out = len(record.launches) - len(calm)
    first = next(filter(None, attribution.of_launches(record, baseline)))[0]
    note = f"{left_out} of {len(record.launches)} launches left out for what they ran under: {first}"
    calmed = dataclasses.replace(record, launches=calm)
    return calmed, dataclasses.replace(policy, left_out=left_out), False, note


def disturbance(record: Record) -> str:
    """What the launches ran under that is not normal, whatever a baseline says; empty where there is nothing."""
    found = attribution.unlike(attribution.typical(record.launches), {}, places=attribution.places(record))
    return ", ".join(cause.what for cause in found)


def eased(record: Record, baseline: Record) -> str:
    """What the baseline ran under that was worse than what ``record`` did, so that slower code may hide behind it;
    empty where there is nothing."""
    now, before = attribution.typical(record.launches), attribution.typical(baseline.launches)
    if not now:
        return ""
    found = attribution.unlike(before, now, places=attribution.places(baseline))
    return ", ".join(f"{cause.what}, now {cause.usual}" for cause in found)


def _blamed(change: Change, unlike: Sequence[Cause], calm: Sequence[Launch], *, early: bool, gate: Gate) -> Change:
    """A slowdown that the conditions account for is the environment's, unless launches that were ``calm`` have it too.
    While it is ``early``, what may be one is in doubt, be it red or lost in the noise that disturbed launches made."""
    if not isinstance(gate, Statistical) or change.outcome not in ("regression", "noisy"):
        return change
    if early and -change.change > gate.floor:
        return dataclasses.replace(change, outcome="noisy", doubtful=True)
    if change.outcome == "noisy":
        return change
    explained = attribution.explained(_slowdown(change), change.metric, unlike) and not _slow_when_calm(change, calm)
    return dataclasses.replace(change, outcome="environment") if explained else change


def _slow_when_calm(change: Change, calm: Sequence[Launch]) -> bool:
    """Whether launches that nothing disturbed are as slow, or more than half of it: too few for a verdict of their own,
    and enough not to send anyone to the machine."""
    values = [launch.metrics[change.metric] for launch in calm if change.metric in launch.metrics]
    if len(values) < CALM_LEAST:
        return False
    # Towards the change, since launches that are faster than the baseline are not as slow.
    shared = math.log(statistics.median(values) / change.before) / math.log(change.now / change.before)
    return shared > attribution.EXPLAINS_LEAST


def _slowdown(change: Change) -> float:
    """Logarithm of how many times as long; NaN stays NaN, which nothing explains."""
    return abs(math.log(change.now / change.before))


def describe(change: Change, unlike: Sequence[Cause] = (), theirs: str = "the baseline") -> str:
    """One change in words: what, by how much, how little could have been seen, and the conditions that explain it.

    ``theirs``: against what.
    """
    title = METRICS[change.metric].title
    if change.outcome == "incomparable":
        # In full: a difference that counts must also be seen.
        return f"{title}: {change.before:,.17g}, now {change.now:,.17g}: the step does other work than {theirs}'s"
    if isinstance(METRICS[change.metric].gate, Counted):
        return f"{title}: {exactly(change.before)} → {exactly(change.now)}"
    if change.outcome == "noisy":
        wanted = "" if change.tolerance is None else f", not one of {percent(change.tolerance)}"
        return f"{title}: only a change of {percent(change.sees)} or more could have been seen{wanted}"
    said = f"{title} {movement(change)}"
    if change.outcome == "environment":
        slowdown = _slowdown(change)
        explained = attribution.explained(slowdown, change.metric, unlike)
        # Half of it is enough to blame the machine: what is left may still be the code's.
        most = max(cause.slows for cause in explained)
        part = f"the machine first, which may make it {percent(math.expm1(most))} longer"
        whose = "the machine, not the code" if most >= slowdown else part
        return f"{said}; {whose}: {', and '.join(map(str, explained))}"
    return said


def _beside(step: Change, unlike: Sequence[Cause]) -> str:
    """What is to be said of the time of a step where something else is red."""
    if step.outcome in ("noisy", "environment"):
        return describe(step, unlike)
    if step.outcome == "improvement":
        return f"the step time is {movement(step)}"
    if step.doubtful:
        return f"the step time may be {movement(step)} too"
    return f"the step time did not change (sees ≥ {percent(step.sees)})"


def exactly(value: float) -> str:
    """A count, in full: a difference that counts must also be seen."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"


def movement(change: Change, *, full: bool = False) -> str:
    """For example ``8.3% worse (sees ≥ 1.3%)``, ``full`` with the interval; what is judged exactly sees everything."""
    if change.outcome == "not judged":
        return change.why
    if isinstance(METRICS[change.metric].gate, Counted) and change.change:
        return f"{exactly(abs(change.now - change.before))} {'more' if change.now > change.before else 'fewer'}"
    if change.outcome == "incomparable":
        way = "more" if change.now > change.before else "less"
    else:
        way = "better" if change.change > 0 else "worse"
    moved = f"{percent(abs(change.change))} {way}"
    facts = [f"sees ≥ {percent(change.sees)}"] if change.sees else []
    if full and change.interval:
        low, high = (f"{end:+.1%}".replace("-", "−") for end in change.interval)
        facts.append(f"95 % sure: {low} … {high}")
    return (moved if change.change else "unchanged") + (f" ({'; '.join(facts)})" if facts else "")


def percent(fraction: float) -> str:
    """One decimal, or what shows that a fraction is not 0."""
    if round(fraction, 3) or not fraction:
        return f"{fraction:.1%}"
    return f"{fraction:.2%}" if round(fraction, 4) else "under 0.01%"


def fact(value: object) -> str:
    """A fact of an environment in words."""
    return "not known" if value is None else str(value)


def learn(baselines: Sequence[Record], machine: str = "") -> dict[tuple[str, bool], Prior]:
    """What the baselines of one kind of hardware teach about the noise of rows on one ``machine``. A metric without
    rows enough is left out.

    Host-bound rows are apart, and of these the machine's own go first: such noise is the host's. Those of six machines
    with H200s differed by 0.2 to 10 % between launches (medians of their rows), other rows by 0.1 to 0.2 % on all.
    Where there are too few of a sort, what more of them teach together.
    """
    bound = [one for one in baselines if host_bound(one)]
    others = [one for one in baselines if not host_bound(one)]
    own = [one for one in bound if machine and one.machine == machine]
    alike = {False: (others, baselines), True: (own, bound, baselines)}
    found = {}
    for name, metric in METRICS.items():
        if isinstance(metric.gate, Statistical):
            for sort, sets in alike.items():
                priors = (learned([one.values(name) for one in rows]) for rows in sets)
                if prior := next(filter(None, priors), None):
                    found[name, sort] = prior
    return found


def _varies(gate: Gate, before: Sequence[float]) -> bool:
    """Whether a metric is judged by the noise of its launches."""
    match gate:
        case Statistical():
            return True
        case Relative(floor=floor):
            # Launches of FairScale's ShardedDataParallel on 4 H200s needed 16.4 to 21.3 GB, as the timing of its
            # reductions has it: a gate of 0.5 % would be red on most nights.
            return max(before) > (1 + floor) * min(before)
    return False


def weigh(name: str, found: Difference, *, error: float, policy: Policy) -> Change:
    """A change held against the noise of its launches. All is compared as logarithms, "worse" being above 0."""
    metric = METRICS[name]
    match policy.gate(name):
        case Statistical(floor=floor, tolerance=tolerance) | Relative(floor=floor, tolerance=tolerance):
            floor = math.log1p(floor)
        case _:
            raise ValueError(f"{name} is not judged by its noise")
    launches, last = found.launches_now, max(policy.last - policy.left_out, found.launches_now)
    final = found.after(last)
    worse = -found.change if metric.higher_is_better else found.change
    red = max(floor, found.reach(error * policy.share(launches)))
    red_at_last = max(floor, final.reach(error * policy.share(last)))
    green = red if policy.fail_on_improvement else max(floor, found.reach(error))

    hurdles = [red_at_last + final.reach(1 - POWER)]
    if launches < last:
        hurdles.append(floor + found.reach(1 - POWER))
    sees = math.expm1(min(BLIND, max(hurdles)))

    def doubtful(by: float) -> bool:
        return launches < last and by > floor and by + found.drift(last, HOPELESS) > red_at_last

    if not worse <= red:  # so written, NaN is a regression
        outcome, doubt = "regression", False
    elif -worse > green:
        outcome, doubt = "improvement", False
    else:
        outcome = "noisy" if sees > tolerance else "ok"
        doubt = doubtful(worse) or (policy.fail_on_improvement and doubtful(-worse))
    low, high = (math.expm1(found.change + way * min(BLIND, found.reach(0.025))) for way in (-1, 1))
    better = 1 if metric.higher_is_better else -1
    return Change(
        metric=name,
        before=found.before,
        now=found.now,
        change=round(better * (found.now / found.before - 1), 9) + 0.0,  # past what a logarithm rounds, and no −0
        sees=sees,
        outcome=outcome,
        interval=(low, high) if metric.higher_is_better else (-high, -low),
        doubtful=doubt,
        tolerance=tolerance,
    )


def _compare(
    name: str, before: Sequence[float], now: Sequence[float], *, policy: Policy, compiled: bool = False
) -> Change:
    """A change of what does not vary between launches. ``compiled``: whether ``torch.compile`` generated the step."""
    metric, gate = METRICS[name], policy.gate(name)
    match gate:
        case Relative(floor=floor):
            sees = floor
        case Exact():
            sees = 0.0
        case Counted():
            sees = 0.0
            before, now = as_stored(before), as_stored(now)  # as the baseline was, when its file was written
        case Statistical():
            raise ValueError(f"{name} is judged by its noise")
    old, new = statistics.median(before), statistics.median(now)
    if isinstance(gate, Exact):
        new = max(now, key=lambda value: abs(value - old))  # a median hides a launch that did other work
    grown = 0.0 if new == old else math.inf if old == 0 else new / old - 1
    better = grown if metric.higher_is_better else -grown
    outcome, why = "ok", ""
    if isinstance(gate, Counted) and not _agree(before, now):
        outcome, why = "not judged", UNSTEADY
    elif isinstance(gate, Counted) and gate.generated and compiled and new != old:
        outcome, why = "not judged", GENERATED
    elif not abs(better) <= sees:  # so written, NaN is a regression
        outcome = "improvement" if better > 0 else "regression"
        # A step that does less work is not a faster one.
        outcome = "incomparable" if isinstance(gate, Exact) else outcome
    return Change(metric=name, before=old, now=new, change=better, sees=sees, outcome=outcome, why=why)


def _agree(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether a count was the same in every launch, and is more in every launch now, or fewer, or the same.

    A launch may fall on a step that does something besides, such as ending an epoch: a change of the code is in all.
    """
    return len(set(before)) == 1 and len({(value > before[0]) - (value < before[0]) for value in now}) == 1
