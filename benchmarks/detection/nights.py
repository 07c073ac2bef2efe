"""Nights to replay: the stored launches of many rows, and more launches that a judge may ask for.

All nights except those of :func:`real` are synthetic. The noise of one launch is drawn from Student's t with
:data:`TAILS` degrees of freedom, scaled to the requested standard deviation. A launch is sometimes an outlier. The
differences in noise between rows are fitted to the stored traces (:func:`fleet`). The tails cannot be fitted, because
five launches do not show them. They are an assumption, on the heavy side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.traces import Trace
from pytest_trainbench.judge.noise import DEFAULT, learned
from pytest_trainbench.judge.visits import BETWEEN_VISITS

Floats = NDArray[np.float64]

TAILS = 5.0
"""Degrees of freedom of one launch's noise."""

OUTLIER = 0.14
"""Slowdown of an outlier: of 17 launches of BERT on H200s one took 14 % longer without any change."""

STEPS, STEP_NOISE = 60, 0.003
"""Steps of a launch, and their relative standard deviation, within the range of steady launches on H200s (0.1 to 3
%)."""

MORE = 7
"""Launches available beyond the first ones."""

FIRST = 3

EARLIER, EARLIER_ROWS = 30, 400
"""Number of earlier nights, and of rows that have them. The rows are few, because judges that use earlier nights are
slow."""


@dataclass(frozen=True, kw_only=True)
class Nights:
    """One row a night: ``before`` (nights × stored launches) and ``now`` (nights × available launches), in ms.

    ``group`` is the number of a group of similar rows from which a judge may learn; group 1 is the host-bound rows.
    ``truth`` is the true slowdown. ``block`` consecutive nights are the rows of one suite. ``step_noise`` and
    ``step_outliers`` describe the steps within a launch. ``before`` holds the launches of ``visits`` visits one after
    the other, each on another machine if ``machines`` is true. ``green`` (nights × earlier nights × launches) are
    known nights of the row without a change. ``earlier`` holds the first :data:`EARLIER_ROWS` rows in the
    :data:`EARLIER` earlier nights without a change; each figure is a median of :data:`FIRST` launches.
    """

    before: Floats
    now: Floats
    group: NDArray[np.int_]
    truth: float = 0.0
    block: int = 100
    step_noise: float = STEP_NOISE
    step_outliers: float = 0.0
    visits: int = 1
    machines: bool = False
    green: Floats | None = None
    earlier: Floats = field(default_factory=lambda: np.empty((0, EARLIER)))

    def steps(self, side: str, launches: int) -> Floats:
        """Step times in ms, nights × launches × :data:`STEPS`, of the first ``launches`` launches of ``before`` or
        ``now``."""
        middles: Floats = getattr(self, side)[:, :launches]
        draw = np.random.default_rng([launches, side == "now"])
        noise = draw.standard_normal((*middles.shape, STEPS)) * self.step_noise
        if self.step_outliers:
            noise += (draw.random(noise.shape) < self.step_outliers) * np.log(1.5)
        return np.asarray(middles[..., None] * np.exp(noise))


Noise = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""A function that draws logarithms of launches around 0, nights × launches."""


def tailed(sd: float | Floats, *, outliers: float = 0.0, tails: float = TAILS) -> Noise:
    """Synthetic noise. ``sd`` is one value, or one a night. ``outliers`` is the chance that a launch is :data:`OUTLIER`
    slower."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        spread = np.broadcast_to(np.reshape(sd, (-1, 1)), (shape[0], 1)) * np.sqrt((tails - 2) / tails)
        noise = rng.standard_t(tails, shape) * spread
        return np.asarray(noise + (rng.random(shape) < outliers) * np.log1p(OUTLIER))

    return draw


def bimodal(sd: float, *, by: float, chance: float) -> Noise:
    """Synthetic noise of a bimodal host. In one mode a launch is ``by`` slower."""
    core = tailed(sd)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        return np.asarray(core(rng, shape) + (rng.random(shape) < chance) * np.log1p(by))

    return draw


def slowest_of(ranks: int, sd: float, *, slow: float) -> tuple[Noise, Noise]:
    """Synthetic noise of a step that waits for its slowest rank: first for equal ranks, then with one rank ``slow``
    slower."""
    core = tailed(sd)

    def draw(by: float) -> Noise:
        def one(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
            each = np.stack([core(rng, shape) for _ in range(ranks)])
            each[0] += np.log1p(by)
            return np.asarray(each.max(axis=0))

        return one

    return draw(0.0), draw(slow)


def nights(
    count: int,
    noise: Noise,
    *,
    slower: float = 0.0,
    stored: int = 5,
    seed: int = 1,
    now: Noise | None = None,
    step_outliers: float = 0.0,
    visit: float = 0.0,
) -> Nights:
    """Synthetic nights of equally noisy rows, each with a baseline of its own.

    For host-bound rows ``visit`` is the standard deviation between two visits of a host.
    """
    rng = np.random.default_rng(seed)
    found = Nights(
        before=100 * np.exp(noise(rng, (count, stored)) + _visits(count, visit, seed)),
        now=100 * (1 + slower) * np.exp((now or noise)(rng, (count, FIRST + MORE))),
        group=np.full(count, int(visit > 0)),
        truth=slower,
        step_outliers=step_outliers,
        earlier=_earlier(noise, count, seed),
    )
    if not step_outliers:
        return found
    # The figure of a launch is the median of its steps.
    return dataclasses.replace(
        found,
        before=np.median(found.steps("before", stored), axis=2),
        now=np.median(found.steps("now", FIRST + MORE), axis=2),
    )


def visited(
    count: int,
    noise: Noise,
    *,
    apart: Noise,
    visits: int = 1,
    green: int = 0,
    machines: bool = False,
    slower: float = 0.0,
    stored: int = 5,
    seed: int = 1,
) -> Nights:
    """Synthetic nights of device-bound rows whose visits differ, or whose machines do (``machines``).

    ``apart`` draws the logarithm of each visit of a row. A baseline has ``visits`` visits of ``stored`` launches each,
    and ``green`` earlier nights of :data:`FIRST` launches are known.
    """
    rng = np.random.default_rng(seed)
    lasting = apart(rng, (count, visits + green + 1))

    def launches(first: int, many: int, each: int) -> Floats:
        drawn = noise(rng, (count, many * each)).reshape(count, many, each)
        return np.asarray(100 * np.exp(drawn + lasting[:, first : first + many, None]))

    return Nights(
        before=launches(0, visits, stored).reshape(count, -1),
        green=launches(visits, green, FIRST) if green else None,
        now=(1 + slower) * launches(visits + green, 1, FIRST + MORE)[:, 0],
        group=np.zeros(count, dtype=int),
        truth=slower,
        visits=visits,
        machines=machines,
    )


def fleet(
    count: int,
    traces: Sequence[Trace],
    *,
    slower: float = 0.0,
    stored: int = 5,
    outliers: float = 0.02,
    seed: int = 1,
    tonight: int = 0,
) -> Nights:
    """Synthetic suites of 100 rows. One launch in fifty is an outlier. ``tonight`` is the number of another night of
    the same rows and baselines.

    The noise of a row is drawn from the law that was fitted to the real traces. Host-bound rows and other rows have a
    law each. The share of host-bound rows is that of the traces, and their visits differ.
    """
    rng = np.random.default_rng(seed)
    real = [trace for trace in traces if trace.metric == "step_ms"]
    group = (rng.random(count) < np.mean([trace.host_bound for trace in real])).astype(int)
    sd: Floats = np.empty(count)
    for bound in (0, 1):
        law = learned([trace.values for trace in real if trace.host_bound == bool(bound)]) or DEFAULT
        # Scaled inverse χ², as the law has it; no row is noisier than 10 %.
        drawn = law.noise * np.sqrt(law.prior_df / rng.chisquare(law.prior_df, count))
        sd = np.where(group == bound, np.minimum(drawn, 0.1), sd)
    noise = tailed(sd, outliers=outliers)
    before = noise(rng, (count, stored))
    rng = np.random.default_rng([seed, tonight, 1]) if tonight else rng
    return Nights(
        before=100 * np.exp(before + _visits(count, BETWEEN_VISITS * sd * group, seed)),
        now=100 * (1 + slower) * np.exp(noise(rng, (count, FIRST + MORE))),
        group=group,
        truth=slower,
        earlier=_earlier(noise, count, seed),
    )


def _visits(count: int, visit: float | Floats, seed: int) -> Floats:
    """Difference between two visits of a host, nights × 1, from a random generator of its own."""
    return np.asarray(np.random.default_rng([seed, 0]).normal(0, math.sqrt(2) * visit, count)[:, None])


def _earlier(noise: Noise, count: int, seed: int) -> Floats:
    """Earlier nights of the same rows, from a random generator of their own, so that no other figure depends on
    them."""
    launches = noise(np.random.default_rng([seed, EARLIER]), (count, EARLIER * FIRST))[:EARLIER_ROWS]
    return np.asarray(100 * np.exp(np.median(launches.reshape(len(launches), EARLIER, FIRST), axis=2)))


def real(count: int, traces: Sequence[Trace], *, slower: float = 0.0, stored: int = 5, seed: int = 1) -> Nights:
    """Real launches, each at most once in a night.

    Every night, the launches of one case are shuffled and split into a baseline and a rest. Each launch is a fraction
    of the median of its record. There are few cases, so the nights are similar.
    """
    rng = np.random.default_rng(seed)
    decks: dict[str, list[float]] = {}
    bound = {trace.case: int(trace.host_bound) for trace in traces}
    for trace in traces:
        if trace.metric == "step_ms":
            decks.setdefault(trace.case, []).extend(value / float(np.median(trace.values)) for value in trace.values)
    cases = sorted(case for case, deck in decks.items() if len(deck) >= stored + FIRST)
    launches = min(FIRST + MORE + stored, *(len(decks[case]) for case in cases))
    chosen = [cases[number % len(cases)] for number in range(count)]
    dealt = np.stack([rng.permutation(decks[case])[:launches] for case in chosen])
    drawn = [rng.choice(decks[case], (EARLIER, FIRST)) for case in chosen[:EARLIER_ROWS]]
    return Nights(
        before=100 * dealt[:, :stored],
        now=100 * (1 + slower) * dealt[:, stored:],
        group=np.array([bound[case] for case in chosen]),
        truth=slower,
        block=len(cases),
        earlier=100 * np.median(np.stack(drawn), axis=2),
    )
