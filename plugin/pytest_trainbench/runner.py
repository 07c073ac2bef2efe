"""Turns a case into a row of the report: launches, record, baseline, verdict. Knows nothing of pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, cached_property
from importlib.metadata import version
from itertools import count, cycle
from pathlib import Path
from typing import Any, Protocol

from pytest_trainbench.hardware.environment import Environment, differences, mismatches
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.judge.compare import learn
from pytest_trainbench.judge.explain import disturbance, eased, far_apart, sight
from pytest_trainbench.judge.middle import both_judged
from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.judge.policy import Policy, Priors
from pytest_trainbench.judge.validity import LOSS_STEPS
from pytest_trainbench.judge.verdict import enough_stored, foreseen, judge
from pytest_trainbench.judge.visits import Visit
from pytest_trainbench.launch.launcher import launch
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.project import sources
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import BUILDING, Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import METRICS, Counted, Gates, host_bound
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Launch, Record
from pytest_trainbench.settings import LAUNCHES, Settings
from pytest_trainbench.store import baseline

UNSETTLED = "it may be slower, and the run had no time left for the launches that would have told"

UNCONFIRMED = "not confirmed: --confirm 0"
"""Note on a row that is red by its first launches alone."""

UNPLANNED = Plan()
"""The plan of a reference. It has no effect, because a reference times nothing."""

Progress = Callable[[str], AbstractContextManager[Callable[[str], None]]]
"""Takes the name of a launch. Its context manager gives a function that takes the current phase of the launch."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The unsharded reference of a case: the same builder on one rank, with some parameters replaced.

    params: values that replace parameters of the case. A parameter with the value ``None`` is left out: the builder's
    default holds, and cases that differ only in this parameter share one reference.
    loss_tolerance: largest distance of a loss from the reference's loss, as a fraction of the fall of the reference's
    loss.
    loss_steps: the first and the last step whose losses are compared. Steps are counted from 1.
    """

    params: Mapping[str, Any]
    loss_tolerance: float
    loss_steps: tuple[int, int] = LOSS_STEPS

    def __post_init__(self) -> None:
        first, last = self.loss_steps
        if not 1 <= first < last:
            raise ValueError(
                f"losses are compared from one step to a later one, the first being 1, not {first} to {last}"
            )

    def of(self, case: Case) -> Case:
        """The case that is launched as the reference of ``case``."""
        kept = {name: value for name, value in case.params.items() if name not in self.params}
        replaced = {name: value for name, value in self.params.items() if value is not None}
        return dataclasses.replace(case, mesh=MeshShape(), params={**kept, **replaced}, memory_cap_gb=None)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One case as a test asks for it.

    case: what is measured.
    label: name of its row.
    plan: how long each launch measures.
    reference: the reference for its losses; ``None`` if they are not compared.
    gates: see :class:`~pytest_trainbench.judge.policy.Policy`.
    """

    case: Case
    label: str
    plan: Plan
    reference: Reference | None = None
    gates: Gates = field(default_factory=dict)

    def alike(self, other: Request) -> bool:
        """Whether one measurement serves both requests. Both must have the same case id."""
        mine, theirs = ((one.case.builder, one.plan, one.reference, one.gates) for one in (self, other))
        return mine == theirs


class Side(Protocol):
    """A place where launches are started.

    name: which side of a comparison it is; empty if there is only one side.
    environment: facts about its machine and its software.
    environment_of: the environment of one case. A case on several machines has its own environment.
    import_path: folders from which ranks import what this process can import.
    root: root of the project's files on this side.
    launch: runs one job and returns its result.
    """

    @property
    def name(self) -> str: ...

    @property
    def environment(self) -> Environment: ...

    def environment_of(self, case: Case) -> Environment: ...

    @property
    def import_path(self) -> tuple[str, ...]: ...

    @property
    def root(self) -> Path: ...

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult: ...


@dataclass(frozen=True, kw_only=True)
class Here:
    """The side whose ranks this process starts itself. There is no other side."""

    environment: Environment
    import_path: tuple[str, ...]
    root: Path
    name: str = ""

    def environment_of(self, case: Case) -> Environment:
        return self.environment

    def launch(self, job: Job, *, progress: Callable[[str], None]) -> LaunchResult:
        return launch(job, progress=progress)


Ran = tuple[Launch, LaunchResult]


class Runner:
    """Runs the cases of one session, one after the other.

    now: the side that is judged.
    before: the other side, if there is one. Then each launch of one side is paired with a launch of the other side, and
    rows are not compared with stored baselines.
    folder: where the ranks write their files.
    progress: shows what runs.
    cases: number of cases that share the error budget of the run.
    nights: gives the green nights of the given baselines, by case id.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        hardware: Hardware,
        now: Side,
        before: Side | None = None,
        folder: Path,
        progress: Progress,
        cases: int = 1,
        nights: Callable[[Sequence[Record]], Mapping[str, Sequence[Visit]]] = lambda baselines: {},
    ) -> None:
        self.settings = settings
        self.hardware = hardware
        self.now = now
        self.before = before
        self.folder = folder
        self.progress = progress
        self.nights = nights
        self.policy = Policy(
            error=settings.night_error / cases,
            first=settings.launches,
            last=settings.launches + settings.confirm,
            floor=settings.floor,
            fail_on_improvement=settings.fail_on_improvement,
        )
        self._references: dict[tuple[str, str, str, int], LaunchResult] = {}
        self._rows: dict[str, tuple[Request, Row]] = {}
        self._jobs = 0
        self._deadline = None if settings.run_timeout is None else time.monotonic() + settings.run_timeout

    def row(self, request: Request, *, accept: str) -> Row:
        """Measure and judge one case. If another test of this session had the same case, return its row again.

        Raises ``ValueError`` for a baseline file that cannot be used, unless it is about to be replaced. Raises
        ``ValueError`` for a case with the name and the parameters of a different case, because both would share a
        baseline. ``accept`` is the command that stores the row. If there is another side, it is the command that
        compares only this row again.
        """
        case_id = request.case.id
        if case_id in self._rows:
            first, row = self._rows[case_id]
            if not request.alike(first):
                raise ValueError(
                    f"{request.label} and {row.label} would share the baseline of {case_id}, and differ in their"
                    " builder's module, their plan, their reference or their gates: give one of them another name or"
                    " another version"
                )
            return dataclasses.replace(row, label=request.label, same_as=row.label)
        row = self._judged(request, accept=accept)
        self._rows[case_id] = request, row
        return row

    def is_stored(self, case: Case) -> bool:
        """Whether ``case`` had a baseline before this run. Raises ``ValueError`` for a baseline that cannot be read,
        unless it is about to be replaced."""
        return case.id not in self._rows and self._stored(case) is not None

    def _judged(self, request: Request, *, accept: str) -> Row:
        case, saves = request.case, self.settings.save_baseline
        stored = self._stored(case) if self.before is None else None
        row = self.measure(request, before=stored, saves=saves)
        record, verdict = row.record, row.verdict
        assert record is not None
        refused = baseline.refusal(record, stored, add=self.settings.add)
        if saves and refused and record.outcome in baseline.KEPT_OUTCOMES:
            verdict = dataclasses.replace(verdict, outcome="invalid", reason=f"nothing is stored: {refused}")
        elif saves and not refused:
            # A row that is saved needs no comparison, so in CI it does not fail without a baseline.
            outcome = "saved" if record.outcome == "ok" else "oom"
            reason = record.reason
            if stored is not None and (beside := self._another_visit(stored, record, verdict)):
                reason = beside
            elif record.outcome == "ok":
                reason = self._warning(record, request.gates) or None
            elif disturbed := disturbance(record):
                reason = f"{reason}; stored all the same, though {disturbed}"
            verdict = dataclasses.replace(verdict, outcome=outcome, reason=reason, compared=True)
        elif not verdict.compared and (other := self._called(request.label, case)):
            verdict = dataclasses.replace(verdict, reason=f"{verdict.reason}; {other}")
        row = dataclasses.replace(row, verdict=verdict)
        moved = verdict.outcome in ("regression", "incomparable", "improvement")
        if self.before is not None:
            return dataclasses.replace(row, against=self.before.name, again=accept if moved else "")
        return dataclasses.replace(
            row,
            baseline_path=baseline.from_here(baseline.path_of(self.settings.baseline_dir, self.hardware.id, case)),
            accept=accept if moved or not verdict.compared else "",
            stale="" if stored is None or saves else self._stale(stored, record, verdict),
        )

    def _another_visit(self, stored: Record, record: Record, verdict: Verdict) -> str:
        """A note that the launches differ from stored launches of the same code; empty if they do not. Both are kept in
        one baseline."""
        may_differ = baseline.OTHER_PLACE if self.settings.add else baseline.SAME_PLACE
        if verdict.outcome not in ("regression", "improvement", "environment") or disturbance(stored):
            return ""
        if baseline.apart(stored, record, may_differ=may_differ):
            return ""
        return (
            f"stored beside the launches of {stored.created[:10]}, which are of the same code and differ:"
            f" {verdict.reason}; if one of these visits was disturbed, delete the file and save again"
        )

    def _called(self, label: str, case: Case) -> str:
        """A note on how ``case`` differs from the stored case with the same label; empty if there is none. A baseline
        may be missing because its case was changed."""
        apart = [one.case.apart(case) for one in self._baselines if one.label == label]
        if not apart:
            return ""
        nearest = min(apart, key=lambda facts: len(facts))
        return f"the stored {label} is another case: {', '.join(nearest)}"

    def measure(self, request: Request, *, before: Record | None, saves: bool = False, delay_ms: float = 0.0) -> Row:
        """Launch a case and judge it against ``before``, or against the other side.

        The row is judged after its first launches. A row in doubt gets one further launch at a time, and is judged
        again after each of them.

        ``saves`` means that the launches are stored, or stand for a stored baseline. Further launches because the row
        looks slow would bias the baseline. So there are only two reasons for further launches. The launches may differ
        too much for a later run to see what it should. Or memory ran out in the only launch, and the stored baseline
        fitted; then there is one more. ``delay_ms``: see :class:`Job`.
        """
        case, label, gates = request.case, request.label, request.gates
        first = self.settings.stored_launches if saves else self.settings.launches
        mine, theirs = [], []
        failed: Ran | None = None
        for now, then in self._rounds(request, first=first, delay_ms=delay_ms):
            mine += [now] if now else []
            theirs += [then] if then else []
            # The outcome of the launch counts. Its ranks may have ended well with figures that cannot be trusted.
            failed = failed or next((ran for ran in (now, then) if ran and ran[0].outcome != "ok"), None)
            latest = failed or now
            assert latest is not None
            _, ended = latest
            if failed is None and len(mine) < first:
                continue
            record = self._record(self.now, case, label=label, launches=mine)
            if now and now[0].outcome == "ok" and then and (missing := self._missing(case, then[1])):
                before, verdict = None, Verdict(outcome="new", reason=missing)
                _, ended = now
                break
            if self.before is not None:
                there = self._case_on(self.before, case)
                before = self._record(self.before, there, label=label, launches=theirs)
            verdict = self._verdict(record, before, gates)
            if not (self._helps(record, before, gates) if saves else verdict.doubtful):
                break
        else:
            if verdict.doubtful and not verdict.fails(ci=False):
                # The run had no time left for the launches that would have settled the row.
                verdict = dataclasses.replace(verdict, outcome="noisy", reason=UNSETTLED)
        record, before = both_judged(verdict, record, before)
        return Row(
            label=label, verdict=verdict, record=record, baseline=before, by_hand=ended.by_hand, detail=ended.detail
        )

    def _missing(self, case: Case, there: LaunchResult) -> str:
        """A sentence if the commit on the other side does not have ``case``; else empty. ``there`` is the result of its
        launch on that side. If the other side is only another environment, it has the same code and thus the case."""
        if self.before is None or self.before.root == self.now.root or not lacks(case, there.reason or ""):
            return ""
        return f"{self.before.name} does not have this case, so it is compared with nothing: {there.reason}"

    def _helps(self, record: Record, before: Record | None, gates: Gates) -> bool:
        """Whether a baseline to be stored needs one more launch. The launch must be able to let a later run see what it
        should, or tell whether memory ran out by chance."""
        if record.outcome != "ok":
            return len(record.launches) == 1 and baseline.unconfirmed(record, before)
        stored, most = len(record.launches), self.settings.stored_launches + self.settings.confirm
        if stored < 2:  # one launch shows no noise, so nothing says that more would help
            return False
        return stored < most and self._blind(record, stored, gates) and not self._blind(record, most, gates)

    def _warning(self, record: Record, gates: Gates) -> str:
        """What is wrong with a baseline of these launches, and what the next run will see with it; empty if nothing is
        wrong."""
        policy, priors = dataclasses.replace(self.policy, gates=gates), self.priors(record)
        night = foreseen(record, stored=len(record.launches), launches=LAUNCHES, policy=policy, priors=priors)
        if disturbed := disturbance(record):
            sees = next(sight(change) for change in night if METRICS[change.metric].leads)
            return f"stored all the same, though {disturbed}: the next run {sees}; save it again when that is over"
        blind = next((change for change in night if change.outcome == "noisy"), None)
        if blind is None or len(record.launches) < 2:  # the saved line says that one launch is too few
            return ""
        enough = enough_stored(record, launches=LAUNCHES, policy=policy, priors=priors)
        return far_apart(blind, enough=enough, host=host_bound(record))

    def _blind(self, record: Record, stored: int, gates: Gates) -> bool:
        """Whether a later run would be noisy against a baseline of ``stored`` launches like those of ``record``."""
        policy = dataclasses.replace(self.policy, gates=gates)
        found = foreseen(record, stored=stored, launches=LAUNCHES, policy=policy, priors=self.priors(record))
        return any(change.outcome == "noisy" for change in found)

    def _rounds(self, request: Request, *, first: int, delay_ms: float) -> Iterator[tuple[Ran | None, Ran | None]]:
        """One launch after the other. If there is another side, one pair of launches after the other. A launch has no
        partner if there is no other side, or if the launch failed."""
        mine = self._launches(self.now, request, first=first, delay_ms=delay_ms)
        if self.before is None:
            return ((ran, None) for ran in mine)
        there = dataclasses.replace(request, case=self._case_on(self.before, request.case))
        return abba(mine, self._launches(self.before, there, first=first, delay_ms=delay_ms))

    def _case_on(self, side: Side, case: Case) -> Case:
        """``case`` as it is on ``side``. Its builder may have moved to another module since the commit of that side. A
        baseline that was stored at that commit names the old module."""
        folder = self.settings.baseline_dir
        if not folder.is_relative_to(self.now.root):
            return case
        with contextlib.suppress(ValueError):  # a file that this version cannot read says nothing about the builder
            stored = baseline.load(side.root / folder.relative_to(self.now.root), self.hardware.id, case)
            if stored is not None:
                return dataclasses.replace(case, builder=stored.case.builder)
        return case

    def _verdict(self, record: Record, stored: Record | None, gates: Gates) -> Verdict:
        now = Environment.from_json(record.environment)
        then = now if stored is None else Environment.from_json(stored.environment)
        # One rank may keep several devices busy (nn.DataParallel).
        devices = round(max([record.case.mesh.world_size, *record.values("devices")]))
        verdict = judge(
            record,
            stored,
            against=self.before.name if self.before else "",
            must_match=mismatches(then, now, devices=devices),
            suspects=[*_moved(record, stored), *differences(then, now)],
            policy=dataclasses.replace(self.policy, gates=gates),
            priors=self.priors(record if stored is None else stored),
        )
        by_noise = any(change.outcome == "regression" and change.interval for change in verdict.changes)
        if by_noise and not self.settings.confirm:
            verdict = dataclasses.replace(verdict, reason=f"{verdict.reason}; {UNCONFIRMED}")
        return verdict

    def priors(self, record: Record) -> Priors:
        """What baselines and green nights teach about the noise of rows on the machine of ``record``."""
        return self._learned(record.machine)

    @cached_property
    def _baselines(self) -> list[Record]:
        """The baselines of this hardware, as they were before the first row was judged."""
        return baseline.load_all(self.settings.baseline_dir, self.hardware.id)

    @cached_property
    def _learned(self) -> Callable[[str], Priors]:
        """The priors of a machine, by its id."""
        nights = self.nights(self._baselines)
        return cache(lambda machine: learn(self._baselines, machine, nights))

    def _stale(self, stored: Record, record: Record, verdict: Verdict) -> str:
        days = (datetime.now(timezone.utc) - datetime.fromisoformat(stored.created)).days
        if days > self.settings.stale_days:
            return f"it is more than {self.settings.stale_days} days old"
        if disturbance(stored):
            return "it was measured on a disturbed machine"
        counted = {name: one.title for name, one in METRICS.items() if isinstance(one.gate, Counted)}
        lacks = [title for name, title in counted.items() if record.values(name) and not stored.values(name)]
        if stored.outcome == "ok" and lacks:
            return f"it lacks what is counted now, so that a change of that stays silent: {', '.join(lacks)}"
        if worse := eased(record, stored):
            return f"it was measured under worse conditions, which may hide slower code: {worse}"
        return "it is beaten" if verdict.outcome == "improvement" else ""

    def _stored(self, case: Case) -> Record | None:
        try:
            return baseline.load(self.settings.baseline_dir, self.hardware.id, case)
        except ValueError:
            if self.settings.save_baseline:
                return None
            raise

    def _launches(self, side: Side, request: Request, *, first: int, delay_ms: float) -> Iterator[Ran]:
        """One launch after the other. Each is started when the caller asks for it.

        After the ``first`` launches, a launch is started only if the run has time left for it. If the reference failed,
        its failure is the only launch.
        """
        case, reference = request.case, request.reference
        label = f"{request.label}, {side.name}:" if side.name else request.label
        unsharded = self._reference_of(side, case, reference, label) if reference else LaunchResult()
        if unsharded.outcome != "ok":
            # If the reference does not fit in memory, nothing is known of the case: "oom" would be a result of its own.
            outcome = "invalid" if unsharded.outcome == "oom" else unsharded.outcome
            yield Launch(outcome=outcome, reason=f"the unsharded reference failed: {unsharded.reason}"), unsharded
            return
        longest_s = 0.0
        for number in count(1):
            if number > first and self._left_s() < longest_s:
                return  # the end of the run would cut off a further launch
            began = time.monotonic()
            asked = f"/{first}" if number <= first else ", to be sure"
            ended = self._launch(side, f"{label} launch {number}{asked}", case, plan=request.plan, delay_ms=delay_ms)
            longest_s = max(longest_s, time.monotonic() - began)
            if ended.outcome == "timeout" and number > first and self._left_s() <= 0:
                return  # the end of the run cut it off: the row is not settled, and the launch need not have hung
            if ended.outcome != "ok":
                yield Launch(outcome=ended.outcome, reason=ended.reason), ended
                continue
            one = reduce(
                ended.traces,
                peak_tflops=self.hardware.peak_tflops(ended.traces[0].dtype),
                reference=_losses(unsharded) if reference else None,
                loss_tolerance=reference.loss_tolerance if reference else math.inf,
                loss_from=reference.loss_steps[0] if reference else 1,
                devices=ended.devices,
            )
            yield one, ended

    def _record(self, side: Side, case: Case, *, label: str, launches: Sequence[Ran]) -> Record:
        return Record(
            case=case,
            label=label,
            hardware=self.hardware.id,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            launches=tuple(launch for launch, _ in launches),
            environment=side.environment_of(case).to_json(),
            plugin_version=version("pytest-trainbench"),
            code=sources.of_record(side.root, sources.union(ended.code for _, ended in launches), case.params),
        )

    def _reference_of(self, side: Side, case: Case, reference: Reference, label: str) -> LaunchResult:
        """The result of the reference's launch. It is launched once per session and side, for all cases that share
        it."""
        unsharded = reference.of(case)
        _, steps = reference.loss_steps
        key = side.name, unsharded.builder, unsharded.id, steps  # the id leaves out the builder's module
        if key not in self._references:
            self._references[key] = self._launch(side, f"{label} reference", unsharded, reference_steps=steps)
        return self._references[key]

    def _left_s(self) -> float:
        """Time that the run has left, in seconds; infinite without ``--run-timeout``."""
        return math.inf if self._deadline is None else self._deadline - time.monotonic()

    def _launch(
        self,
        side: Side,
        name: str,
        case: Case,
        *,
        plan: Plan = UNPLANNED,
        delay_ms: float = 0.0,
        reference_steps: int | None = None,
    ) -> LaunchResult:
        left_s = self._left_s()
        one_s = min(self.settings.launch_timeout, left_s)
        # A reference does the work of all ranks on one rank. So each of its steps may take as long as a launch, and so
        # may its start.
        limit_s = min(self.settings.launch_timeout * (1 + (reference_steps or 0)), left_s)
        total = f"the run's {self.settings.run_timeout or 0:g} s (--run-timeout)"
        if limit_s <= 0:
            return LaunchResult(outcome="timeout", reason=f"{total} were used up before it")
        self._jobs += 1
        folder = self.folder / f"{self._jobs:03d}"
        with self.progress(name) as tell:
            ended = side.launch(
                Job(
                    case=case,
                    plan=plan,
                    delay_ms=delay_ms,
                    device_kind=self.hardware.kind,
                    folder=folder,
                    limit_s=limit_s,
                    collective_limit_s=one_s / 2,
                    reference_steps=reference_steps,
                    step_limit_s=None if reference_steps is None else one_s,
                    import_path=side.import_path,
                    root=side.root,
                    device_uuids=self.hardware.uuids,
                ),
                progress=tell,
            )
        if ended.outcome == "timeout" and (one_s == left_s or self._left_s() <= 0):
            # The launch need not have been slow: the run had little time left. But a collective that hung for half of
            # the limit also ends so. Therefore the reason names both.
            return dataclasses.replace(ended, reason=f"{limit_s:.3g} s of {total} were left for it: {ended.reason}")
        return ended


def lacks(case: Case, reason: str) -> bool:
    """Whether a launch ended for this ``reason`` because its code does not have ``case``: the builder is missing, or it
    refuses the parameters. A missing import of another module does not count, because it means a broken commit."""
    _, failed, message = reason.partition(f"failed while {BUILDING}: ")
    kind, _, text = message.partition(": ")
    if kind == "ModuleNotFoundError":
        module = case.builder.partition(":")[0]
        name = text.partition("'")[2].partition("'")[0]
        return bool(name) and f"{module}.".startswith(f"{name}.")
    return bool(failed) and kind in ("AttributeError", "KeyError", "TypeError", "ValueError")


def _moved(record: Record, stored: Record | None) -> list[tuple[str, Any, Any]]:
    """The builder as a difference, if its module is not that of the stored baseline; else nothing. The builder was
    moved, or it is another builder."""
    if stored is None or stored.case.builder == record.case.builder:
        return []
    return [("builder", stored.case.builder, record.case.builder)]


def abba(now: Iterator[Ran], before: Iterator[Ran]) -> Iterator[tuple[Ran | None, Ran | None]]:
    """Pairs of a launch now and a launch before, in the order before now, now before, before now, …

    A steady drift favours one side in the first pair and the other side in the next pair, so it cancels over two pairs.
    The pairs end when a launch cannot be started. Its partner is then dropped, unless the partner failed.
    """
    for before_first in cycle((True, False)):
        sides = (before, now) if before_first else (now, before)
        if (first := next(sides[0], None)) is None:
            return
        second = next(sides[1], None)
        if second is not None or first[0].outcome != "ok":
            yield (second, first) if before_first else (first, second)
        if second is None:
            return


def _losses(reference: LaunchResult) -> list[float]:
    """Losses of a reference launch (one rank)."""
    return [loss for loss in reference.traces[0].losses if loss is not None]
