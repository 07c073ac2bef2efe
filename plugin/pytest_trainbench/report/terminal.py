"""The report as plain text: the table, the text of one failing test, what was saved."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime, timezone
from statistics import median
from typing import TYPE_CHECKING

from tabulate import tabulate

from pytest_trainbench.hardware.environment import Difference
from pytest_trainbench.judge.attribution import typical
from pytest_trainbench.judge.red_since import Turned
from pytest_trainbench.judge.verdict import GENERATED, OUTCOMES, Change, exactly, fact, movement
from pytest_trainbench.project.sources import differing
from pytest_trainbench.report import calibration
from pytest_trainbench.report.rows import Row, mib, table
from pytest_trainbench.schema.conditions import CONDITIONS
from pytest_trainbench.schema.metrics import METRICS, Counted, Exact, host_bound
from pytest_trainbench.schema.record import Record, as_stored
from pytest_trainbench.store.baseline import Saved

if TYPE_CHECKING:
    import pandas as pd

SUSPECTS_SHOWN = 12

FILES_SHOWN = 6

NOTHING_DIFFERS = "nothing that is recorded of the environment"

PARTS = ("compute_ms", "exposed_communication_ms", "host_ms")
"""Metrics that say which part of a step grew."""


def summary(rows: Sequence[Row]) -> str:
    """The table, then why rows ended as they did."""
    lines = [grid(rows, "simple")]
    if said := notes(rows):
        lines += ["", *said]
    return "\n".join(lines)


def grid(rows: Sequence[Row], form: str) -> str:
    """The table in one of tabulate's forms."""
    columns = table(rows)
    align = ["left" if name in ("case", "outcome") else "right" for name in columns]
    return tabulate(columns, headers="keys", tablefmt=form, disable_numparse=True, colalign=align)


def derived(title: str, cells: pd.DataFrame, form: str) -> str:
    """A table that a suite made of several cases. A column of figures stands to the right."""
    text = cells.astype(str)
    align = ["right" if text[name].str.match(r"^[-−+≥]?[\d.]|^$|^—$").all() else "left" for name in text]
    grid = tabulate(text.to_dict("list"), headers="keys", tablefmt=form, disable_numparse=True, colalign=align)
    return f"{title}\n\n{grid}"


def notes(rows: Sequence[Row]) -> list[str]:
    """What is to be known of a row besides its figures, and why rows ended as they did where they did not fail (see
    :func:`failure`); each reason once."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.verdict.reason and not row.fails:
            labels.setdefault((row.verdict.outcome, row.verdict.reason), []).append(row.label)
    said = [f"{row.label} is the same case as {row.same_as}: measured once" for row in rows if row.same_as]
    stale: dict[str, list[str]] = {}
    for row in rows:
        if row.stale:
            stale.setdefault(row.stale, []).append(row.label)
    said += [f"stale baseline: {', '.join(who)}: {why}; --save-baseline makes a new one" for why, who in stale.items()]
    said += _of_other_code(rows)
    if disturbed := [row for row in rows if row.verdict.causes and not row.fails]:
        who = ", ".join(row.label for row in disturbed)
        said.append(f"the machine was not as for the baseline: {who}: for example {disturbed[0].verdict.causes[0]}")
    if bound := [row.label for row in rows if row.record is not None and host_bound(row.record)]:
        said.append(f"host-bound: {', '.join(bound)}: the host takes the whole step to issue it and sets its pace")
    said += calibration.said([row.calibration for row in rows if row.calibration])
    unjudged: dict[str, list[str]] = {}
    for row in rows:
        for change in row.verdict.changes:
            if change.outcome == "not judged":
                counts = f" ({exactly(change.before)} → {exactly(change.now)})" if change.why == GENERATED else ""
                unjudged.setdefault(f"{METRICS[change.metric].title}, {change.why}", []).append(f"{row.label}{counts}")
    said += [f"not judged: {what}: {', '.join(who)}" for what, who in unjudged.items()]
    return said + [
        f"{outcome}: {who[0] if len(who) == 1 else f'{len(who)} rows'}: {reason}"
        for (outcome, reason), who in labels.items()
    ]


def _of_other_code(rows: Sequence[Row]) -> list[str]:
    """The rows that did not fail, although their baseline is of other code: one line for all."""
    differ = {
        row.label: differing(row.baseline.code, row.record.code)
        for row in rows
        if not (row.fails or row.against or row.same_as or row.verdict.outcome == "saved")
        and row.record is not None
        and row.baseline is not None
        and row.record.code
        and row.baseline.code
    }
    found = {label: files for label, files in differ.items() if files}
    if not found:
        return []
    files = _files(sorted({path for paths in found.values() for path in paths}))
    return [f"baseline of other code: {', '.join(found)}: {files}; --stale --save-baseline measures such rows anew"]


def counts(rows: Sequence[Row], cut_off: str = "") -> str:
    """For example ``8 ok, 1 noisy, 1 regression``, and that a run was ``cut_off``."""
    found = ((outcome, sum(row.verdict.outcome == outcome for row in rows)) for outcome in OUTCOMES)
    told = ", ".join(f"{count} {outcome}" for outcome, count in found if count)
    return "; ".join(filter(None, (told, cut_off)))


def failure(row: Row) -> str:
    """What the person who finds this test red reads: how much, against what, what differs, what to type."""
    lines = [f"{row.verdict.outcome}: {row.label}: {row.verdict.reason}"]
    facts = _listed("judged", _judged(row.verdict.changes))
    if row.against:
        facts.append(("against", f"{row.against}, measured in turns with this side"))
    if row.baseline is not None and row.baseline_path is not None:
        facts.append(("baseline", f"{row.baseline_path}, saved {row.baseline.created}"))
    if row.record is not None and row.baseline is not None:
        facts.append(("launches", f"{len(row.record.launches)} against {len(row.baseline.launches)}"))
        facts += _listed("parts", _parts(row, row.baseline, row.record))
        facts += _listed("machine", _conditions(row))
        facts += _listed("your code", _own_code(row, row.baseline, row.record))
        facts += _suspects(row)
    if row.turned:
        facts += _listed("since", _since(row.turned))
    if row.accept:
        facts.append(("accept", row.accept))
    if row.verdict.outcome == "environment":
        facts.append(("then", "look at the machine before the commit, and run this again; nothing is to be accepted"))
    if row.again:
        facts.append(("again", row.again))
        facts.append(("accept", "nothing is stored: what is merged is what the next run is compared with"))
    if row.by_hand:
        facts.append(("by hand", row.by_hand))
    lines += [f"  {name:<10}{text}" for name, text in facts]
    if row.detail:
        lines += ["", textwrap.indent(row.detail, "    ")]
    return "\n".join(lines)


def _conditions(row: Row) -> list[str]:
    """What the launches ran under, where it was worse than the baseline's or is known not to have been, and what nobody
    knows of the baseline; nothing where that was not looked at: of two sides that took turns, and of a row that was not
    compared."""
    if row.against or not row.verdict.changes:
        return []
    now, before = (typical(of.launches) if of else {} for of in (row.record, row.baseline))
    told = [str(cause) for cause in row.verdict.causes]
    if now and before:
        told = told or ["as for the baseline, in all that is watched"]
        if unknown := [name for name, one in CONDITIONS.items() if one.rule and name in now and name not in before]:
            told.append(f"not known of the baseline: {', '.join(unknown)}")
    return told


def _own_code(row: Row, before: Record, now: Record) -> list[str]:
    """Which of the project's files that the step imports are others than before; nothing where this run does not
    know."""
    if not now.code:
        return []
    theirs = row.against or "the baseline"
    if not before.code:
        return [f"{theirs} does not say which code made it"]
    files, differ = len({*before.code, *now.code}), differing(before.code, now.code)
    if not differ:
        return [f"all {files} files that this step imports are as for {theirs}"]
    verb = "differs" if len(differ) == 1 else "differ"
    return [f"{len(differ)} of {files} files that this step imports {verb} from {theirs}'s: {_files(differ)}"]


def _files(paths: Sequence[str]) -> str:
    more = len(paths) - FILES_SHOWN
    return ", ".join([*paths[:FILES_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _judged(changes: Sequence[Change]) -> list[str]:
    """A line for each metric, and one for all that are judged exactly and are the same."""
    same = [change for change in changes if change.outcome == "ok" and not change.sees]
    told = [_spell(change) for change in changes if change not in same]
    return told + ([f"the same: {', '.join(METRICS[change.metric].title for change in same)}"] if same else [])


def _parts(row: Row, before: Record, now: Record) -> list[str]:
    """Where a step's time goes, then and now, in ms, and which collectives changed."""
    lines = []
    for name in PARTS:
        # One that is judged has one figure, not a median besides.
        if change := row.verdict.change(name):
            old, new = change.before, change.now
        elif (then := before.values(name)) and (since := now.values(name)):
            old, new = median(then), median(since)
        else:
            continue
        grown = f"{new - old:+,.2f}".replace("-", "−")
        lines.append(f"{METRICS[name].title}: {old:,.2f} → {new:,.2f} ms ({grown})")
    return lines + _collectives(before, now)


def _collectives(before: Record, now: Record) -> list[str]:
    """Those of which a step makes more or fewer, or larger ones, by the first launch of each."""
    if not (before.values("collectives") and now.values("collectives")):
        return []
    old, new = (as_stored(record.launches[0].collectives) for record in (before, now))
    nothing = {"calls": 0.0, "bytes": 0.0}
    pairs = [(kind, old.get(kind, nothing), new.get(kind, nothing)) for kind in sorted({*old, *new})]
    return [
        f"{kind}: {exactly(was['calls'])} → {exactly(has['calls'])} a step,"
        f" {exactly(was['bytes'])} → {exactly(has['bytes'])} B"
        for kind, was, has in pairs
        if was != has
    ]


def saved(saves: Sequence[Saved]) -> str:
    """What ``--save-baseline`` stored, and what each case was before."""
    return "\n".join(f"saved {save.record.label}: {_replaced(save)} → {save.path}" for save in saves)


def _replaced(save: Saved) -> str:
    if save.record.outcome != "ok":
        old = save.replaced
        was = "new" if old is None else f"was {old.outcome}"
        if old is not None and old.outcome == "ok":
            was = f"was {median(old.values('step_ms')):,.2f} ms a step"
        return f"{save.record.outcome}, {was}"
    now = median(save.record.values("step_ms"))
    if save.replaced is None:
        return f"{now:,.2f} ms a step, new"
    if save.replaced.outcome != "ok":
        return f"{now:,.2f} ms a step, was {save.replaced.outcome}"
    before = median(save.replaced.values("step_ms"))
    how = "slower" if now > before else "faster"
    return f"{before:,.2f} → {now:,.2f} ms a step ({abs(now / before - 1):.1%} {how})"


def _spell(change: Change) -> str:
    metric = METRICS[change.metric]
    before, now, unit = f"{change.before:,.6g}", f"{change.now:,.6g}", metric.unit
    if isinstance(metric.gate, Counted | Exact):
        before, now = exactly(change.before), exactly(change.now)
    elif unit == "B":
        before, now, unit = mib(change.before), mib(change.now), "MiB"
    amount = f"{now} {unit}".rstrip()
    outcome = "in doubt" if change.doubtful and change.outcome == "ok" else change.outcome
    return f"{metric.title}: {before} → {amount}, {movement(change, full=True)}: {outcome}"


def _suspects(row: Row) -> list[tuple[str, str]]:
    if not row.verdict.suspects:
        return [("differs", NOTHING_DIFFERS)]
    return _listed("differs", _differing(row.verdict.suspects))


def _since(turned: Turned) -> list[str]:
    """When a row turned red, and what changed there."""
    first = "this run" if turned.first is None else f"{_minute(turned.first)}, {turned.runs} runs in a row"
    if turned.green is None:
        return [f"{first}; no green run is kept"]
    return [
        f"{first}; green at {_minute(turned.green)}; between them:",
        *(_differing(turned.differs) or [NOTHING_DIFFERS]),
    ]


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _differing(differences: Sequence[Difference]) -> list[str]:
    texts = [f"{name}: {fact(before)} → {fact(now)}" for name, before, now in differences]
    more = len(texts) - SUSPECTS_SHOWN
    return [*texts[:SUSPECTS_SHOWN], f"and {more} more"] if more > 0 else texts


def _listed(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if number == 0 else "", text) for number, text in enumerate(texts)]
