"""Stored records, one readable file a case: ``<folder>/<hardware id>/<case>.json``."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.record import Record, dump, read_record

KEPT_OUTCOMES = ("ok", "oom")
"""What may become a baseline. Running out of memory is a result; a crash or an invalid run is none."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One case that was stored: where, and what it replaced."""

    path: Path
    record: Record
    replaced: Record | None


def path_of(folder: Path, hardware: str, case: Case) -> Path:
    return folder / hardware / f"{case.slug}.json"


def from_here(path: Path) -> Path:
    """``path`` as a person in the current folder would type it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def load(folder: Path, hardware: str, case: Case) -> Record | None:
    """The baseline of ``case``, or ``None``.

    Raises ``ValueError`` for a file that is there but cannot be used.
    """
    path = path_of(folder, hardware, case)
    if not path.exists():
        return None
    try:
        record = read_record(path)
        if record.case.id != case.id:
            raise ValueError(f"{path} holds {record.case.id!r}: it was renamed or edited by hand")
        if why := refusal(record, None):
            raise ValueError(f"{path} is no baseline: {why}")
    except ValueError as error:
        raise ValueError(f"{error}; --save-baseline writes it anew") from error
    return record


def refusal(record: Record, replaced: Record | None) -> str | None:
    """Why ``record`` must not become a baseline in the place of the one ``replaced``, if it must not."""
    if record.outcome not in KEPT_OUTCOMES:
        return f"it ended {record.outcome!r}: {record.reason}"
    ended = [launch.outcome for launch in record.launches]
    if record.outcome == "oom":
        # Out of memory by chance: against that, what never fits would pass, and so would anything that fits.
        cure = "see that nothing else takes the device's memory, and save it again"
        if fitted := ended.count("ok"):
            return f"memory ran out in launch {ended.index('oom') + 1}, and {fitted} fitted; {cure}: {record.reason}"
        if unconfirmed(record, replaced):
            return f"memory ran out in one launch alone, and the baseline fitted; {cure}: {record.reason}"
    return None


def unconfirmed(record: Record, replaced: Record | None) -> bool:
    """Whether memory ran out in one launch where the baseline fitted: that may be chance, and of two it is none."""
    fitted = replaced is not None and replaced.outcome == "ok"
    return fitted and sum(launch.outcome == "oom" for launch in record.launches) == 1


def count(folder: Path, hardware: str) -> int:
    """How many cases have a baseline on this hardware."""
    return sum(1 for _ in (folder / hardware).glob("*.json"))


def load_all(folder: Path, hardware: str) -> list[Record]:
    """Every baseline of this hardware that can be read. One that cannot is said by the row that needs it."""
    found = []
    for path in sorted((folder / hardware).glob("*.json")):
        with contextlib.suppress(ValueError):
            found.append(read_record(path))
    return found


def merge(folder: Path, records: Mapping[str, Record]) -> list[Saved]:
    """Store ``records`` (by case id) and leave every other case as it is.

    Each file is replaced in one move, so a reader or a second saver sees the old one or the new one, whole.
    Raises ``ValueError``, before anything is written, if one of the records must not become a baseline.
    """
    olds = [_replaced(folder, record) for record in records.values()]
    for record, old in zip(records.values(), olds, strict=True):
        if why := refusal(record, old):
            raise ValueError(f"{record.label} cannot become a baseline: {why}")
    texts = [dump(record.to_json()) for record in records.values()]
    return [_save(folder, *one) for one in zip(records.values(), olds, texts, strict=True)]


def _replaced(folder: Path, record: Record) -> Record | None:
    try:
        return load(folder, record.hardware, record.case)
    except ValueError:
        return None  # a broken file is what saving anew is the cure for


def _save(folder: Path, record: Record, replaced: Record | None, text: str) -> Saved:
    path = path_of(folder, record.hardware, record.case)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Saved(path=from_here(path), record=record, replaced=replaced)
