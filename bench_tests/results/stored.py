"""Where the baselines of the suite are stored, by the hardware that they are of."""

from __future__ import annotations

from pathlib import Path

from pytest_trainbench.hardware.resolve import rows

FOLDER = Path(__file__).parent.parent.parent / "baselines"


def stored(name: str) -> dict[str, list[Path]]:
    """Files of every kind of hardware that a family or an exact key names and that has any, by its key; nothing for
    any other word."""
    found = {row.key: sorted((FOLDER / row.key).glob("*.json")) for row in rows(name)}
    return {key: paths for key, paths in found.items() if paths}
