"""The report of ``--calibrate``: the slowdowns that this machine detects. See :mod:`pytest_trainbench.calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_trainbench.judge.explain import least

if TYPE_CHECKING:
    import pandas as pd

TITLE = "What a run on this machine can detect"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One planted slowdown of every step.

    planted: the slowdown, as a fraction of the step time. found: whether the row was red. launches: how many launches
    the verdict took.
    """

    planted: float
    found: bool
    launches: int


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The calibration of one case.

    noise: relative standard deviation of a launch's step time. sees: the minimum detectable effect as a fraction, by
    the number of launches on each side. red: whether launches with nothing changed were red.
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
            **{f"sees with {launches}": least(sees) for launches, sees in one.sees.items()},
            "nothing changed": "RED" if one.red else "ok",
            **{f"{trial.planted:.0%} slower": _spell(trial) for trial in one.trials},
        }
        for one in calibrations
    )


def sentences(calibrations: Sequence[Calibration]) -> list[str]:
    """The table's results as sentences, for the terminal."""
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
