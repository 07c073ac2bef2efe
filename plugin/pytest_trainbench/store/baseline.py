"""Stored baselines, one readable file per case: ``<folder>/<hardware id>/<case>.json``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_trainbench.hardware.environment import Environment, fact
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.files import write
from pytest_trainbench.schema.metrics import check_figures
from pytest_trainbench.schema.record import Record, Saving, dump, read_record

KEPT_OUTCOMES = ("ok", "oom")
"""Outcomes of a record that may become a baseline. Out of memory is a result; a crash or an invalid run is not."""


VISITS_MOST = 10
"""Savings that a baseline holds at most. The oldest one leaves first."""

SAME_PLACE = {"commit"}
"""Facts that may differ between two savings of one baseline. The digests of the code tell more than its commit."""

OTHER_PLACE = {*SAME_PLACE, "driver", "kernel"}
"""The same for ``--add``, because machines of one kind may have other drivers and kernels."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One stored case: its file, the record that was measured, and the record that was stored before, if any.

    visits: number of savings in the file.
    """

    path: Path
    record: Record
    replaced: Record | None
    visits: int = 1


def path_of(folder: Path, hardware: str, case: Case) -> Path:
    return folder / hardware / f"{case.slug}.json"


def from_here(path: Path) -> Path:
    """``path`` relative to the current folder, if it lies inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def load(folder: Path, hardware: str, case: Case) -> Record | None:
    """The baseline of ``case``, or ``None``.

    Raises ``ValueError`` if the file exists but cannot be used.
    """
    path = path_of(folder, hardware, case)
    if not path.exists() and not path.is_symlink():
        return None
    try:
        record = _read(path, folder)
        if record.case.id != case.id:
            raise ValueError(f"{path} holds the case {record.case.id!r}: the file was renamed or edited by hand")
        if why := refusal(record, None):
            raise ValueError(f"{path} cannot be a baseline: {why}")
    except ValueError as error:
        raise ValueError(f"{error}; --save-baseline writes a new one") from error
    return record


def refusal(record: Record, replaced: Record | None, *, add: bool = False) -> str | None:
    """Why ``record`` must not become a baseline in place of ``replaced``, or beside its launches (``add``); ``None`` if
    it may."""
    if record.outcome not in KEPT_OUTCOMES:
        return f"it ended {record.outcome!r}: {record.reason}"
    ended = [launch.outcome for launch in record.launches]
    if record.outcome == "oom":
        # A baseline that ran out of memory by accident would let any later result pass, whether the case fits or not.
        cure = "make sure that nothing else uses the device's memory, and save it again"
        if fitted := ended.count("ok"):
            return f"memory ran out in launch {ended.index('oom') + 1}, and {fitted} fitted; {cure}: {record.reason}"
        if unconfirmed(record, replaced):
            return f"memory ran out in one launch alone, and the baseline fitted; {cure}: {record.reason}"
    if add and replaced is not None and (why := apart(replaced, record, may_differ=OTHER_PLACE)):
        return f"it cannot be added to the stored launches: {why}; leave out --add to replace them"
    return None


def unconfirmed(record: Record, replaced: Record | None) -> bool:
    """Whether memory ran out in only one launch, and the baseline fitted. One launch may be chance, two are not."""
    fitted = replaced is not None and replaced.outcome == "ok"
    return fitted and sum(launch.outcome == "oom" for launch in record.launches) == 1


def count(folder: Path, hardware: str) -> int:
    """Number of cases with a baseline on this hardware."""
    return sum(1 for _ in (folder / hardware).glob("*.json"))


def load_all(folder: Path, hardware: str) -> list[Record]:
    """All readable baselines of this hardware. The row that needs an unreadable baseline reports it."""
    found = []
    for path in sorted((folder / hardware).glob("*.json")):
        with contextlib.suppress(ValueError):
            found.append(_read(path, folder))
    return found


def _read(path: Path, folder: Path) -> Record:
    """A record whose judged figures can be compared. Raises ``ValueError`` with a sentence that names the file."""
    record = read_record(path, inside=folder)
    for launch in record.launches:
        check_figures(launch.metrics, path)
    return record


def apart(old: Record, new: Record, *, may_differ: Set[str]) -> str:
    """Why the launches of ``new`` cannot join those of ``old`` as another visit; empty if they can.

    They can if both are of the same code in the same environment, apart from the facts that ``may_differ``.
    """
    if (old.outcome, new.outcome) != ("ok", "ok"):
        return f"one of them ended {new.outcome if old.outcome == 'ok' else old.outcome!r}"
    if not old.code:
        return "the stored file does not say which code made it"
    if old.code != new.code:
        return "the code of this row changed since"
    then, now = (Environment.from_json(one.environment) for one in (old, new))
    facts = {"must_match": (then.must_match, now.must_match), "suspects": (then.suspects, now.suspects)}
    for before, after in facts.values():
        for name in sorted({*before, *after} - may_differ):
            if before.get(name) != after.get(name):
                return f"{name} was {fact(before.get(name))}, is {fact(after.get(name))}"
    return ""


def joined(old: Record, new: Record) -> Record:
    """The launches of ``old`` and of ``new`` as visits of one baseline, with the facts of ``new``."""
    visits = (*old.visits, *new.visits)[-VISITS_MOST:]
    return replace(
        new,
        launches=tuple(launch for visit in visits for launch in visit.launches),
        savings=tuple(
            Saving(launches=len(visit.launches), machine=visit.machine, created=visit.created) for visit in visits
        ),
    )


def merge(
    folder: Path, records: Mapping[str, Record], *, add: bool = False, disturbed: Set[str] = frozenset()
) -> list[Saved]:
    """Store ``records`` (by case id), and leave all other cases unchanged.

    Launches of the same code in the same environment join the stored launches as another visit. If either changed, the
    new launches replace the stored ones. So nobody keeps the nicer of two savings. With ``add``, launches that cannot
    join are refused instead, and the driver and the kernel may differ. ``disturbed``: ids of the cases whose stored
    launches are replaced anyway, because their machine was disturbed.

    Each file is replaced atomically, so other processes see either the whole old file or the whole new file.
    Raises ``ValueError``, before anything is written, if one of the records must not become a baseline.
    """
    olds = [_replaced(folder, record) for record in records.values()]
    for record, old in zip(records.values(), olds, strict=True):
        if why := refusal(record, old, add=add):
            raise ValueError(f"{record.label} cannot become a baseline: {why}")
    may_differ = OTHER_PLACE if add else SAME_PLACE
    kept = [
        record if old is None or id in disturbed or apart(old, record, may_differ=may_differ) else joined(old, record)
        for (id, record), old in zip(records.items(), olds, strict=True)
    ]
    texts = [dump(one.to_json()) for one in kept]
    return [
        replace(_save(folder, record, old, text), visits=len(one.visits))
        for record, old, text, one in zip(records.values(), olds, texts, kept, strict=True)
    ]


def _replaced(folder: Path, record: Record) -> Record | None:
    try:
        return load(folder, record.hardware, record.case)
    except ValueError:
        return None  # saving replaces a broken file


def _save(folder: Path, record: Record, replaced: Record | None, text: str) -> Saved:
    path = path_of(folder, record.hardware, record.case)
    write(path, text)
    return Saved(path=from_here(path), record=record, replaced=replaced)
