"""The report as plain text: the table, the report of a failing test, and the saved baselines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from tabulate import tabulate

from pytest_trainbench.hardware.environment import Difference, fact
from pytest_trainbench.judge.attribution import typical
from pytest_trainbench.judge.compare import GENERATED
from pytest_trainbench.judge.explain import PERHAPS_THE_CODE, exactly, movement, oddity
from pytest_trainbench.judge.outcome import OUTCOMES, SILENT, Change
from pytest_trainbench.judge.red_since import Turned
from pytest_trainbench.project.sources import differing
from pytest_trainbench.report import calibration
from pytest_trainbench.report.plain import cell
from pytest_trainbench.report.rows import Row, mib, ms, table
from pytest_trainbench.schema.conditions import CONDITIONS
from pytest_trainbench.schema.metrics import LEADING, METRICS, Counted, Exact, host_bound
from pytest_trainbench.schema.record import Record, as_stored
from pytest_trainbench.store.baseline import Saved

if TYPE_CHECKING:
    import pandas as pd

SUSPECTS_SHOWN = 12

FILES_SHOWN = 6

NOTHING_DIFFERS = "nothing in the recorded environment"

PARTS = ("compute_ms", "exposed_communication_ms", "host_ms")
"""Metrics that show which part of a step grew."""


def summary(rows: Sequence[Row]) -> str:
    """The table, then the notes on its rows."""
    lines = [grid(rows, "simple")]
    if said := notes(rows):
        lines += ["", *said]
    return "\n".join(lines)


def grid(rows: Sequence[Row], form: str) -> str:
    """The table in one of tabulate's forms."""
    columns = table(rows)
    if form == "pipe":
        columns = {name: list(map(cell, cells)) for name, cells in columns.items()}
    align = ["left" if name in ("case", "outcome") else "right" for name in columns]
    return tabulate(columns, headers="keys", tablefmt=form, disable_numparse=True, colalign=align)


def derived(title: str, cells: pd.DataFrame, form: str) -> str:
    """A table that a suite made from several cases. Columns of figures are right-aligned."""
    text = cells.astype(str).map(cell) if form == "pipe" else cells.astype(str)
    align = ["right" if text[name].str.match(r"^[-−+≥]?[\d.]|^$|^—$").all() else "left" for name in text]
    grid = tabulate(text.to_dict("list"), headers="keys", tablefmt=form, disable_numparse=True, colalign=align)
    return f"{title}\n\n{grid}"


def notes(rows: Sequence[Row]) -> list[str]:
    """One line per note on the rows, for example host-bound rows, and the reasons of rows that did not fail.

    Rows with the same reason share a line. :func:`failure` gives the reasons of rows that failed.
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.verdict.reason and not row.fails:
            labels.setdefault((row.verdict.outcome, row.verdict.reason), []).append(row.label)
    said = [f"{row.label} is the same case as {row.same_as}: measured once" for row in rows if row.same_as]
    stale: dict[str, list[str]] = {}
    for row in rows:
        if row.stale:
            stale.setdefault(row.stale, []).append(row.label)
    said += [
        f"renew the baseline of {', '.join(who)}: {why}; --save-baseline stores a new one" for why, who in stale.items()
    ]
    said += _of_other_code(rows)
    if disturbed := [row for row in rows if row.verdict.causes and not row.fails]:
        who = ", ".join(row.label for row in disturbed)
        example = disturbed[0].verdict.causes[0]
        said.append(f"the machine was in a worse state than for the baseline: {who}: for example {example}")
    if bound := [row.label for row in rows if row.record is not None and host_bound(row.record)]:
        said.append(f"host-bound: {', '.join(bound)}: the host's time to issue a step sets the step time")
    said += calibration.sentences([row.calibration for row in rows if row.calibration])
    unjudged: dict[str, list[str]] = {}
    for row in rows:
        for change in row.verdict.changes:
            if change.outcome == "not judged":
                counts = f" ({exactly(change.before)} → {exactly(change.now)})" if change.why == GENERATED else ""
                unjudged.setdefault(f"{METRICS[change.metric].title}, {change.why}", []).append(f"{row.label}{counts}")
    said += [f"not judged: {what}: {', '.join(who)}" for what, who in unjudged.items()]
    said += [
        f"odd launch: {row.label}: {METRICS[change.metric].title}: {oddity(change)}"
        for row in rows
        for change in row.verdict.changes
        if change.odd and not row.fails
    ]
    return said + [
        f"{outcome}: {who[0] if len(who) == 1 else f'{len(who)} rows'}: {reason}"
        for (outcome, reason), who in labels.items()
    ]


def _of_other_code(rows: Sequence[Row]) -> list[str]:
    """One line that names all rows that passed although their baseline was measured with other code."""
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
    return [f"baseline of other code: {', '.join(found)}: {files}; --stale --save-baseline measures these rows again"]


def counts(rows: Sequence[Row], cut_off: str = "") -> str:
    """For example ``8 ok, 1 noisy, 1 regression``. The text ``cut_off`` follows, if there is one."""
    found = ((outcome, sum(row.verdict.outcome == outcome for row in rows)) for outcome in OUTCOMES)
    told = ", ".join(f"{count} {outcome}" for outcome, count in found if count)
    return "; ".join(filter(None, (told, cut_off)))


def census(rows: Sequence[Row], *, most: float | None = None) -> str:
    """The first line of every report: how many rows judged what. Empty if no row had anything to judge.

    ``most``: the share of rows that may judge no time; ``None`` if the run does not fail for it.
    """
    found = [row.verdict.judged for row in rows if row.verdict.outcome not in SILENT]
    if not found:
        return ""
    theirs = "its" if len(found) == 1 else "their"
    words = {
        "time": f"judged {theirs} time",
        "device": f"only {theirs} device's time",
        "counts": "only counts and memory",
        "nothing": "nothing",
    }
    told = ", ".join(f"{found.count(what)} {said}" for what, said in words.items() if what in found or what == "time")
    line = f"{len(found)} {'row' if len(found) == 1 else 'rows'}: {told}"
    if most is not None and too_blind(rows, most):
        line += f"; more than {most:.0%} judged no time, so the run fails where CI is set (--unjudged-share)"
    return line


def too_blind(rows: Sequence[Row], most: float) -> bool:
    """Whether more than this share of the rows judged no time."""
    found = [row.verdict.judged for row in rows if row.verdict.outcome not in SILENT]
    return sum(what in ("counts", "nothing") for what in found) > most * len(found)


def failure(row: Row) -> str:
    """The report of a failed row: how much changed, compared with what, what else differs, and what to type."""
    lines = [f"{row.verdict.outcome}: {row.label}: {row.verdict.reason}"]
    lines += [f"  {name:<10}{text}" for name, text in facts_of(row)]
    if row.detail:
        lines += ["", textwrap.indent(row.detail, "    ")]
    return "\n".join(lines)


def facts_of(row: Row) -> list[tuple[str, str]]:
    """Lines on a row, each with its name. A line without a name continues the one before it."""
    facts = _listed("judged", _judged(row.verdict.changes))
    if row.against:
        facts.append(("against", f"{row.against}, measured in turns with this side"))
    if row.baseline is not None and row.baseline_path is not None:
        facts.append(("baseline", f"{row.baseline_path}, saved {row.baseline.created}"))
    if row.record is not None and row.baseline is not None:
        facts.append(("launches", f"{len(row.record.launches)} against {len(row.baseline.launches)}"))
        facts += _listed("parts", _parts(row.baseline, row.record))
        facts += _listed("machine", _conditions(row))
        facts += _listed("your code", _own_code(row, row.baseline, row.record))
        facts += _suspects(row)
    if row.turned:
        facts += _listed("since", _since(row.turned))
    if row.accept:
        facts.append(("accept", row.accept))
    if row.verdict.outcome == "environment":
        facts.append(("then", "first check the machine, then run this again; do not save a new baseline"))
        if any(change.why == PERHAPS_THE_CODE for change in row.verdict.changes):
            facts.append(("code", "--against=COMMIT compares two commits on this machine as it is"))
    if row.again:
        facts.append(("again", row.again))
        facts.append(("accept", "nothing to store: after the merge, runs are compared with the merged code"))
    if row.by_hand:
        facts.append(("by hand", row.by_hand))
    return facts


def _conditions(row: Row) -> list[str]:
    """The conditions of the machine that were worse than for the baseline, and those that the baseline did not record.

    Empty for a row that was not compared, and with ``--against``, where the conditions are not judged.
    """
    if row.against or not row.verdict.changes:
        return []
    now, before = (typical(of.launches) if of else {} for of in (row.record, row.baseline))
    told = [str(cause) for cause in row.verdict.causes]
    if now and before:
        told = told or ["no recorded condition is worse than for the baseline"]
        if unknown := [name for name, one in CONDITIONS.items() if one.rule and name in now and name not in before]:
            told.append(f"not recorded with the baseline: {', '.join(unknown)}")
    return told


def _own_code(row: Row, before: Record, now: Record) -> list[str]:
    """The project's files that the step imports and that changed. Empty if this run did not record its files."""
    if not now.code:
        return []
    theirs = row.against or "the baseline"
    if not before.code:
        return [f"{theirs} does not say which code made it"]
    files, differ = len({*before.code, *now.code}), differing(before.code, now.code)
    if not differ:
        return [f"all {files} files that this step imports are the same as for {theirs}"]
    verb = "differs" if len(differ) == 1 else "differ"
    return [f"{len(differ)} of {files} files that this step imports {verb} from {theirs}'s: {_files(differ)}"]


def _files(paths: Sequence[str]) -> str:
    more = len(paths) - FILES_SHOWN
    return ", ".join([*paths[:FILES_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _judged(changes: Sequence[Change]) -> list[str]:
    """One line per metric. Metrics that are judged exactly and did not change share one line."""
    same = [change for change in changes if change.outcome == "ok" and not (change.sees or change.odd)]
    told = [_spell(change) for change in changes if change not in same]
    return told + ([f"the same: {', '.join(METRICS[change.metric].title for change in same)}"] if same else [])


def _parts(before: Record, now: Record) -> list[str]:
    """The parts of a step's time before and now, in ms, and the collectives that changed."""
    lines = []
    for name in PARTS:
        old, new = before.figure(name), now.figure(name)
        if old is None or new is None:
            continue
        apart = abs(new - old)
        grown = f"{'−' if new < old else '+'}{f'{apart:,.2f}' if max(old, new) >= 1 else ms(apart)}"
        lines.append(f"{METRICS[name].title}: {ms(old)} → {ms(new)} ms ({grown})")
    return lines + _collectives(before, now)


def _collectives(before: Record, now: Record) -> list[str]:
    """The kinds of collectives whose calls or bytes per step changed, taken from the first launch of each record."""
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


def saved(saves: Sequence[Saved], *, wanted: int) -> str:
    """One line per baseline that ``--save-baseline`` stored, with the figure that it replaced, and one line if some
    have fewer launches than are ``wanted``."""
    lines = [f"saved {save.record.label}: {_replaced(save)} → {save.path}" for save in saves]
    if few := few_launches([save.record for save in saves], wanted=wanted):
        lines.append(few)
    return "\n".join(lines)


def few_launches(records: Sequence[Record], *, wanted: int) -> str:
    """A sentence on baselines with fewer launches than are ``wanted``; empty if there are none. Out of memory needs
    only one launch."""
    few = sum(record.outcome == "ok" and len(record.launches) < wanted for record in records)
    if not few:
        return ""
    return f"{few} of {len(records)} baselines have fewer than {wanted} launches, so that runs see less"


def _replaced(save: Saved) -> str:
    if save.record.outcome != "ok":
        old = save.replaced
        was = "new" if old is None else f"was {old.outcome}"
        if old is not None and old.outcome == "ok":
            figure = old.figure(LEADING)
            was = "was ok" if figure is None else f"was {ms(figure)} ms a step"
        return f"{save.record.outcome}, {was}"
    now = save.record.figure(LEADING)
    assert now is not None
    if save.replaced is None:
        return f"{ms(now)} ms a step, new"
    if save.replaced.outcome != "ok":
        return f"{ms(now)} ms a step, was {save.replaced.outcome}"
    before = save.replaced.figure(LEADING)
    assert before is not None
    how = "slower" if now > before else "faster"
    moved = f"{ms(before)} → {ms(now)} ms a step ({abs(now / before - 1):.1%} {how})"
    return moved if save.visits == 1 else f"{moved}, same code: kept as visit {save.visits}"


def _spell(change: Change) -> str:
    metric = METRICS[change.metric]
    before, now, unit = f"{change.before:,.6g}", f"{change.now:,.6g}", metric.unit
    if isinstance(metric.gate, Counted | Exact):
        before, now = exactly(change.before), exactly(change.now)
    elif unit == "B":
        before, now, unit = mib(change.before), mib(change.now), "MiB"
    amount = f"{now} {unit}".rstrip()
    outcome = "in doubt" if change.doubtful and change.outcome == "ok" else change.outcome
    odd = f"; {oddity(change)}" if change.odd else ""
    return f"{metric.title}: {before} → {amount}, {movement(change, full=True)}: {outcome}{odd}"


def _suspects(row: Row) -> list[tuple[str, str]]:
    if not row.verdict.suspects:
        return [("differs", NOTHING_DIFFERS)]
    return _listed("differs", _differing(row.verdict.suspects))


def _since(turned: Turned) -> list[str]:
    """When a row turned red, and what changed since its last green run."""
    first = "this run" if turned.first is None else f"{_minute(turned.first)}, {turned.runs} runs in a row"
    if turned.green is None:
        return [f"{first}; the history has no green run"]
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
