"""The line at the top of a run: its hardware, its libraries, and what it compares with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.store.baseline import from_here


def header(hardware: Hardware, *, nodes: int, launches: int, versions: Mapping[str, str], compared_with: str) -> str:
    """``versions``: library -> its version. ``compared_with``: the text of :func:`against` or :func:`stored`."""
    unknown = "" if hardware.accelerator or hardware.kind == "cpu" else " (not in the hardware table: no MFU)"
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{_devices(hardware, nodes)} [{hardware.id}]{unknown}, {libraries}; {compared_with};"
        f" launches of each case: {launches}"
    )


CALIBRATES = "calibrating, so compared with launches of this run alone"
"""What a run with ``--calibrate`` compares with."""


def against(name: str) -> str:
    return f"against {name}, measured in turns"


def stored(count: int, folder: Path, *, guessed_root: Path | None) -> str:
    """``folder``: holds the ``count`` baselines. ``guessed_root``: the project's root as pytest guessed it; ``None`` if
    pytest found an ini file."""
    text = f"{count} baseline{'' if count == 1 else 's'} in {from_here(folder)}"
    if not count and guessed_root is not None and folder.is_relative_to(guessed_root):
        text += f" (pytest found no ini file, so {guessed_root} is the project's root)"
    return text


def _devices(hardware: Hardware, nodes: int) -> str:
    several = f"{nodes} nodes of " if nodes > 1 else ""
    if hardware.kind == "cpu":
        return f"{several}{hardware.device_name}, {hardware.count} cores"
    return f"{several}{hardware.count} × {hardware.device_name}"
