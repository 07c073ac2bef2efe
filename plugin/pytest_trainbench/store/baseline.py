"""Stored baselines, one readable file per case: ``<folder>/<hardware id>/<case>.json``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.files import write
from pytest_trainbench.schema.metrics import check_figures
from pytest_trainbench.schema.record import Record, dump, read_record

KEPT_OUTCOMES = ("ok", "oom")
"""Outcomes of a record that may become a baseline. Out of memory is a result; a crash or an invalid run is not."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One stored case: its file, its record, and the record that it replaced, if any."""

    path: Path
    record: Record
    replaced: Record | None


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


def refusal(record: Record, replaced: Record | None) -> str | None:
    """Why ``record`` must not become a baseline and replace ``replaced``; ``None`` if it may."""
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


def merge(folder: Path, records: Mapping[str, Record]) -> list[Saved]:
    """Store ``records`` (by case id), and leave all other cases unchanged.

    Each file is replaced atomically, so other processes see either the whole old file or the whole new file.
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
        return None  # saving replaces a broken file


def _save(folder: Path, record: Record, replaced: Record | None, text: str) -> Saved:
    path = path_of(folder, record.hardware, record.case)
    write(path, text)
    return Saved(path=from_here(path), record=record, replaced=replaced)
