"""The lines at the top of a run and of its reports: hardware, libraries, what it compares with, how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.store.baseline import from_here


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the top of a report says about a run: ``device`` and ``machine`` where it ran, and the ``commit`` that it
    measured. Texts are empty if they are not known."""

    project: str
    device: str
    machine: str
    commit: str
    started: datetime
    ended: datetime


def header(hardware: Hardware, *, nodes: int, launches: int, versions: Mapping[str, str], compared_with: str) -> str:
    """``versions``: library -> its version. ``compared_with``: the text of :func:`against` or :func:`stored`."""
    unknown = "" if hardware.accelerator or hardware.kind == "cpu" else " (not in the hardware table: no MFU)"
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{devices(hardware, nodes)} [{hardware.id}]{unknown}, {libraries}; {compared_with};"
        f" launches of each case: {launches}"
    )


def where(facts: Facts) -> str:
    """One sentence: on what, when, for how long, and of which commit."""
    machine = f" (machine {facts.machine})" if facts.machine else ""
    commit = f", commit {facts.commit}" if facts.commit else ""
    started = f"{facts.started.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    return f"Measured on {facts.device}{machine}, {started}, in {duration(facts.ended - facts.started)}{commit}."


CALIBRATES = "calibrating, so compared with launches of this run alone"
"""What a run with ``--calibrate`` compares with."""


def length(launch_s: Sequence[float], *, cases: int, launches: int) -> str:
    """How long a run takes. ``launch_s``: the seconds of a launch of each known case. Empty if less than half of the
    ``cases`` are known."""
    if not launch_s or 2 * len(launch_s) < cases:
        return ""
    seconds = sum(launch_s) / len(launch_s) * cases * launches
    time = duration(timedelta(seconds=seconds))
    return f"this run takes about {time}, by the last runs of these rows; rows in doubt take longer"


def duration(time: timedelta) -> str:
    """``3 h 12 min``, ``4 min``, ``12 s``."""
    seconds = round(time.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def against(name: str) -> str:
    return f"against {name}, measured in turns"


def stored(count: int, folder: Path, *, guessed_root: Path | None) -> str:
    """``folder``: holds the ``count`` baselines. ``guessed_root``: the project's root as pytest guessed it; ``None`` if
    pytest found an ini file."""
    text = f"{count} baseline{'' if count == 1 else 's'} in {from_here(folder)}"
    if not count and guessed_root is not None and folder.is_relative_to(guessed_root):
        text += f" (pytest found no ini file, so {guessed_root} is the project's root)"
    return text


def devices(hardware: Hardware, nodes: int) -> str:
    """The devices of a run in words, for example ``4 × NVIDIA H200``."""
    several = f"{nodes} nodes of " if nodes > 1 else ""
    if hardware.kind == "cpu":
        return f"{several}{hardware.device_name}, {hardware.count} cores"
    return f"{several}{hardware.count} × {hardware.device_name}"
