"""What a machine can see, as it was tried there: see :mod:`pytest_trainbench.calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TITLE = "What a run on this machine can see"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A slowdown of every step, as a fraction: whether it was found, and after how many launches it was clear."""

    planted: float
    found: bool
    launches: int


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Of one case.

    noise: relative standard deviation of a launch's step time. sees: the smallest change that is found at least eight
    times in ten, as a fraction, by launches on either side. red: whether launches with nothing changed were red.
    """

    label: str
    noise: float
    sees: Mapping[int, float]
    red: bool
    trials: tuple[Trial, ...]


def table(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "case": one.label,
            "noise of a launch": f"{one.noise:.2%}",
            **{f"sees with {launches}": f"≥{sees:.1%}" for launches, sees in one.sees.items()},
            "nothing changed": "RED" if one.red else "ok",
            **{f"{trial.planted:.0%} slower": _spell(trial) for trial in one.trials},
        }
        for one in calibrations
    )


def said(calibrations: Sequence[Calibration]) -> list[str]:
    """The table in sentences."""
    if not calibrations:
        return []
    red = [one.label for one in calibrations if one.red]
    lines = [f"nothing changed: {len(red)} of {len(calibrations)} rows red{_named(red)}"]
    for planted in dict.fromkeys(trial.planted for one in calibrations for trial in one.trials):
        tried = {one.label: trial for one in calibrations for trial in one.trials if trial.planted == planted}
        missed = [label for label, trial in tried.items() if not trial.found]
        found = f"found in {len(tried) - len(missed)} of {len(tried)} rows"
        lines.append(f"{planted:.0%} slower: {found}{_named(missed, 'not in ')}")
    return lines


def _named(labels: Sequence[str], how: str = "") -> str:
    return f": {how}{', '.join(labels)}" if labels else ""


def _spell(trial: Trial) -> str:
    return f"found ({trial.launches})" if trial.found else f"missed ({trial.launches})"
