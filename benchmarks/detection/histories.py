"""Histories to replay, with one figure a night, and the methods that watch them for a drift.

Methods of other tools are called through their own libraries. Where a library leaves a choice, the choice favours the
method.
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
"""Range of the number of nights of a history."""

DECK_LEAST = 5
"""Least number of real launches of a case. With fewer launches the noise of the case is unknown."""

FLOOR = 0.01
"""A smaller rise does not count as a drift, for any method with a floor."""


@dataclass(frozen=True, kw_only=True)
class History:
    """One row over many nights.

    ``figures`` are logarithms of step times, one a night, oldest first. ``machine`` is the number of each night's
    machine.
    """

    figures: Floats
    machine: NDArray[np.int_]

    def until(self, night: int) -> History:
        return History(figures=self.figures[:night], machine=self.machine[:night])


Watcher = Callable[[History], bool]


def ours(history: History) -> bool:
    """The plugin's own drift check, on the nights of tonight's machine."""
    here = history.figures[history.machine == history.machine[-1]]
    return rise(here.tolist(), error=METRIC_ERROR, floor=FLOOR) is not None


def student(history: History) -> bool:
    """The splits of our drift check, judged by Student's t. Median and noise are the robust ones of the verdict."""
    here = np.exp(history.figures[history.machine == history.machine[-1]]).tolist()
    for last in (last for last in SPLITS if len(here) - last >= SPLITS[0]):
        found = compare([here[:-last]], here[-last:], prior=Prior(noise=0.0, prior_df=0.0))
        if found.change > max(np.log1p(FLOOR), found.reach(METRIC_ERROR / len(SPLITS))):
            return True
    return False


def otava(history: History, *, chance: float = 0.001, least: float = 0.0) -> bool:
    """Apache Otava (Hunter; Fleming et al., ICPE 2023): E-divisive, then a t-test that merges points.

    A drift is reported if the last change point is upwards. 0.001 and no minimum magnitude are the library's defaults.
    One window contains all nights, because version 0.8.0 may find a point twice in overlapping windows and then raises.
    """
    from otava.analysis import compute_change_points

    figures = np.exp(history.figures)
    points, _ = compute_change_points(figures, window_len=2 * len(figures), max_pvalue=chance, min_magnitude=least)
    return bool(points) and bool(points[-1].stats.mean_2 > points[-1].stats.mean_1)


def strict_otava(history: History) -> bool:
    """Otava with the error and the floor of our drift check."""
    return otava(history, chance=METRIC_ERROR / len(SPLITS), least=FLOOR)


def pelt(history: History) -> bool:
    """ruptures: PELT (Killick et al., 2012) with squared errors (its linear kernel), the BIC penalty for a mean and a
    place, and our floor.

    PELT needs to know the noise. It gets the noise of differences between neighbouring nights, which a jump does not
    affect.
    """
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
    """Histories of one machine, of the given ``length`` or of random lengths.

    A night's figure is the median of its launches. ``night`` (logarithms, one a night) shifts all launches of a night.
    """
    rng = np.random.default_rng(seed)
    most = length or LONGEST
    rows = np.median(noise(rng, (count, most * FIRST)).reshape(count, most, FIRST), axis=2)
    if night is not None:
        rows += np.stack([night(rng, most) for _ in rows])
    if length:
        return [History(figures=row, machine=np.zeros(length, dtype=int)) for row in rows]
    return [_cut(row, rng) for row in rows]


def suites(count: int, traces: Sequence[Trace]) -> list[History]:
    """Histories of rows as noisy as the real ones. One launch in fifty is an outlier (see :func:`fleet`)."""
    rng = np.random.default_rng(7)
    launches = np.log(fleet(count, traces, stored=LONGEST * FIRST, seed=7).before / 100)
    return [_cut(row, rng) for row in np.median(launches.reshape(count, LONGEST, FIRST), axis=2)]


def dealt(count: int, traces: Sequence[Trace]) -> list[History]:
    """Histories of real launches, drawn with replacement. Each launch is a fraction of the median of its record."""
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
    """A random number of nights, all on one machine."""
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    return History(figures=figures[:length], machine=np.zeros(length, dtype=int))


def own(sd: float) -> Callable[[np.random.Generator, int], Floats]:
    """Each night has an effect of its own."""
    return lambda rng, count: tailed(sd)(rng, (1, count))[0]


def sometimes(by: float, chance: float) -> Callable[[np.random.Generator, int], Floats]:
    """Some nights are slower, independently of each other."""
    return lambda rng, count: np.asarray((rng.random(count) < chance) * np.log1p(by))


def lasting(by: float, chance: float, stay: float) -> Callable[[np.random.Generator, int], Floats]:
    """Two moods that each last ``stay`` nights on average, so the order of the nights is not random."""

    def draw(rng: np.random.Generator, count: int) -> Floats:
        slow = np.empty(count, dtype=bool)
        slow[0] = rng.random() < chance
        for number in range(1, count):
            slow[number] = slow[number - 1] if rng.random() >= 1 / stay else rng.random() < chance
        return np.asarray(slow * np.log1p(by))

    return draw


def wandering(sd: float, keeps: float) -> Callable[[np.random.Generator, int], Floats]:
    """Each night keeps a share of the previous night's effect (autoregression)."""

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
    """The histories after a slower machine replaced the old one."""
    since = [np.arange(len(one.figures)) >= len(one.figures) - nights_ago for one in found]
    return [
        History(figures=one.figures + new * np.log1p(slower), machine=new.astype(int))
        for one, new in zip(found, since, strict=True)
    ]


def changed(found: list[History], *, after: int, jump: float = 0.0, drift: float = 0.0) -> list[History]:
    """The histories with code that is slower from night ``after`` on: at once, or a little more every night."""
    made = []
    for one in found:
        since = np.maximum(0, np.arange(len(one.figures)) - after + 1)
        made.append(
            History(figures=one.figures + (since > 0) * np.log1p(jump) + np.log1p(drift * since), machine=one.machine)
        )
    return made


def found_after(watcher: Watcher, changes: list[History], *, after: int) -> Floats:
    """For each history, the nights from the change until a drift is reported. The first night is 1; infinite if none is
    reported."""
    nights = np.full(len(changes), np.inf)
    for number, history in enumerate(changes):
        for night in range(after + 1, len(history.figures) + 1):
            if watcher(history.until(night)):
                nights[number] = night - after
                break
    return nights
