"""The stored baselines of the suite, by hardware."""

from __future__ import annotations

from pathlib import Path

from pytest_trainbench.hardware.resolve import rows

FOLDER = Path(__file__).parent.parent.parent / "baselines"


def stored(name: str) -> dict[str, list[Path]]:
    """Key of a kind of hardware -> its baseline files. ``name`` is a family or an exact key.

    Kinds without files are left out, so an unknown name gives an empty mapping.
    """
    found = {row.key: sorted((FOLDER / row.key).glob("*.json")) for row in rows(name)}
    return {key: paths for key, paths in found.items() if paths}
