"""Histories to replay, one figure a night, and what watches them for a drift.

Others' methods are called through their own libraries; where one leaves a choice it is made in its favour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.judges import METRIC_ERROR
from benchmarks.detection.nights import FIRST, Floats, Noise, fleet, tailed
from benchmarks.detection.traces import Trace
from pytest_trainbench.judge.drift import SPLITS, rise
from pytest_trainbench.judge.noise import SPREAD_LEAST, Prior, compare

SHORTEST, LONGEST = 20, 90
"""Nights of a history."""

DECK_LEAST = 5
"""Real launches of a case, without which its noise is not seen."""

FLOOR = 0.01
"""Less is no drift, whoever says it."""


@dataclass(frozen=True, kw_only=True)
class History:
    """``figures``: logarithms of step times, one a night, the oldest first. ``machine``: a number for the one that each
    night ran on."""

    figures: Floats
    machine: NDArray[np.int_]

    def until(self, night: int) -> History:
        return History(figures=self.figures[:night], machine=self.machine[:night])


Watcher = Callable[[History], bool]


def ours(history: History) -> bool:
    """The plugin's own code, on the nights of tonight's machine."""
    here = history.figures[history.machine == history.machine[-1]]
    return rise(here.tolist(), error=METRIC_ERROR, floor=FLOOR) is not None


def student(history: History) -> bool:
    """The same splits by Student's t, with the robust middle and noise of the night's verdict."""
    here = np.exp(history.figures[history.machine == history.machine[-1]]).tolist()
    for last in (last for last in SPLITS if len(here) - last >= SPLITS[0]):
        found = compare(here[:-last], here[-last:], prior=Prior(noise=0.0, worth=0.0))
        if found.change > max(np.log1p(FLOOR), found.reach(METRIC_ERROR / len(SPLITS))):
            return True
    return False


def otava(history: History, *, chance: float = 0.001, least: float = 0.0) -> bool:
    """Apache Otava (Hunter; Fleming et al., ICPE 2023): E-divisive, points merged by a t-test. Its last change point
    is upwards. 0.001 and no least magnitude are its library's defaults. One window holds all nights: where windows
    overlap, 0.8.0 may find a point twice, and raises."""
    from otava.analysis import compute_change_points

    figures = np.exp(history.figures)
    points, _ = compute_change_points(figures, window_len=2 * len(figures), max_pvalue=chance, min_magnitude=least)
    return bool(points) and bool(points[-1].stats.mean_2 > points[-1].stats.mean_1)


def strict_otava(history: History) -> bool:
    """The same with the error and the floor that ours has."""
    return otava(history, chance=METRIC_ERROR / len(SPLITS), least=FLOOR)


def pelt(history: History) -> bool:
    """ruptures: PELT (Killick et al., 2012) with squared errors (its linear kernel), and the penalty of BIC for a mean
    and a place. The noise that it has to be told is that of differences between neighbours, which no jump spoils. With
    our floor."""
    import ruptures

    figures = history.figures
    noise = max(SPREAD_LEAST, 1.4826 * float(np.median(np.abs(np.diff(figures)))) / np.sqrt(2))
    fitted = ruptures.KernelCPD(kernel="linear", min_size=SPLITS[0]).fit(figures / noise)
    ends = fitted.predict(pen=2 * np.log(len(figures)))
    if len(ends) == 1:
        return False
    start = ends[-3] if len(ends) > 2 else 0
    return bool(figures[ends[-2] :].mean() - figures[start : ends[-2]].mean() > np.log1p(FLOOR))


WATCHERS: dict[str, Watcher] = {
    "ours": ours,
    "Student's t": student,
    **({"Otava": otava, "Otava, as strict as ours": strict_otava} if find_spec("otava") else {}),
    **({"ruptures PELT, BIC": pelt} if find_spec("ruptures") else {}),
}


def histories(
    count: int,
    noise: Noise,
    *,
    length: int | None = None,
    night: Callable[[np.random.Generator, int], Floats] | None = None,
    seed: int = 1,
) -> list[History]:
    """Histories of one machine, as long as said or as drawn; a night's figure is the median of its launches, all of
    which ``night`` (logarithms, one a night) moves."""
    rng = np.random.default_rng(seed)
    most = length or LONGEST
    rows = np.median(noise(rng, (count, most * FIRST)).reshape(count, most, FIRST), axis=2)
    if night is not None:
        rows += np.stack([night(rng, most) for _ in rows])
    if length:
        return [History(figures=row, machine=np.zeros(length, dtype=int)) for row in rows]
    return [_cut(row, rng) for row in rows]


def suites(count: int, traces: Sequence[Trace]) -> list[History]:
    """Rows as noisy as the real ones; one launch in fifty is an outlier (:func:`fleet`)."""
    rng = np.random.default_rng(7)
    launches = np.log(fleet(count, traces, stored=LONGEST * FIRST, seed=7).before / 100)
    return [_cut(row, rng) for row in np.median(launches.reshape(count, LONGEST, FIRST), axis=2)]


def dealt(count: int, traces: Sequence[Trace]) -> list[History]:
    """Real launches, each as a fraction of the median of its record, drawn with replacement."""
    rng = np.random.default_rng(8)
    decks: dict[str, list[float]] = {}
    for trace in traces:
        if trace.metric == "step_ms":
            middle = float(np.median(trace.values))
            decks.setdefault(trace.case, []).extend(float(np.log(value / middle)) for value in trace.values)
    dealt_from = [deck for deck in decks.values() if len(deck) >= DECK_LEAST]
    drawn = [rng.choice(dealt_from[number % len(dealt_from)], (LONGEST, FIRST)) for number in range(count)]
    return [_cut(np.median(one, axis=1), rng) for one in drawn]


def _cut(figures: Floats, rng: np.random.Generator) -> History:
    """As many nights as drawn, all of one machine."""
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    return History(figures=figures[:length], machine=np.zeros(length, dtype=int))


def own(sd: float) -> Callable[[np.random.Generator, int], Floats]:
    """Each night has a mood of its own."""
    return lambda rng, count: tailed(sd)(rng, (1, count))[0]


def sometimes(by: float, chance: float) -> Callable[[np.random.Generator, int], Floats]:
    """Some nights are slower, each by itself."""
    return lambda rng, count: np.asarray((rng.random(count) < chance) * np.log1p(by))


def lasting(by: float, chance: float, stay: float) -> Callable[[np.random.Generator, int], Floats]:
    """Two moods that stay for so many nights on average: nights that could not have come in any order."""

    def draw(rng: np.random.Generator, count: int) -> Floats:
        slow = np.empty(count, dtype=bool)
        slow[0] = rng.random() < chance
        for number in range(1, count):
            slow[number] = slow[number - 1] if rng.random() >= 1 / stay else rng.random() < chance
        return np.asarray(slow * np.log1p(by))

    return draw


def wandering(sd: float, keeps: float) -> Callable[[np.random.Generator, int], Floats]:
    """Each night keeps a share of the mood of the one before (autoregression)."""

    def draw(rng: np.random.Generator, count: int) -> Floats:
        mood = np.empty(count)
        mood[0] = rng.normal() * sd
        for number in range(1, count):
            mood[number] = keeps * mood[number - 1] + rng.normal() * sd * np.sqrt(1 - keeps**2)
        return mood

    return draw


def weekly(by: float) -> Callable[[np.random.Generator, int], Floats]:
    """Five nights of seven are slower."""
    return lambda rng, count: np.asarray(((np.arange(count) + rng.integers(7)) % 7 < 5) * np.log1p(by))


def replaced(found: list[History], *, nights_ago: int, slower: float) -> list[History]:
    """The machine was replaced by a slower one."""
    since = [np.arange(len(one.figures)) >= len(one.figures) - nights_ago for one in found]
    return [
        History(figures=one.figures + new * np.log1p(slower), machine=new.astype(int))
        for one, new in zip(found, since, strict=True)
    ]


def changed(found: list[History], *, after: int, jump: float = 0.0, drift: float = 0.0) -> list[History]:
    """The code became slower after so many nights: at once, or a little more every night."""
    made = []
    for one in found:
        since = np.maximum(0, np.arange(len(one.figures)) - after + 1)
        made.append(
            History(figures=one.figures + (since > 0) * np.log1p(jump) + np.log1p(drift * since), machine=one.machine)
        )
    return made


def found_after(watcher: Watcher, changes: list[History], *, after: int) -> Floats:
    """For each history the nights from the change until it was said, the first being 1; infinite where it never was."""
    nights = np.full(len(changes), np.inf)
    for number, history in enumerate(changes):
        for night in range(after + 1, len(history.figures) + 1):
            if watcher(history.until(night)):
                nights[number] = night - after
                break
    return nights
