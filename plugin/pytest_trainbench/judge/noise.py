"""How far two sets of launches are apart, and how well that is known. Pure statistics on plain numbers.

The unit is one launch's figure, on the log scale. Launches have heavy tails: most agree within their noise, and now and
then one is 14 % slow with nothing changed. Three parts answer that, each from the literature:

* **Where the launches lie**: Huber's M-estimator. A launch further than :data:`CLIP` standard deviations from its
  set's middle still counts, with less weight the further it is. P. J. Huber, "Robust estimation of a location
  parameter", Annals of Mathematical Statistics 35(1), 1964.
* **How noisy one launch is**: one standard deviation for both sets, from the clipped residuals (Huber's proposal 2,
  same paper), shrunk towards the noise of similar rows. G. K. Smyth, "Linear models and empirical Bayes methods for
  assessing differential expression", Statistical Applications in Genetics and Molecular Biology 3(1), 2004. Not where
  its launches are too noisy to be one of these: B. Phipson et al., "Robust hyperparameter estimation protects against
  hypervariable genes", Annals of Applied Statistics 10(2), 2016.
* **How far chance reaches**: Student's t with the launches' degrees of freedom and the prior's.

``benchmarks/detection`` replays what this promises on real and made-up noise.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CLIP = 2.0
"""In standard deviations. Of launches without outliers the estimate then keeps 99 % of its efficiency (Huber 1964)."""

CLIPPED = 0.96
"""What clipping leaves of the mean square of normal launches, so that without outliers the noise is right: 0.92 of very
many (Huber's β at 2.0), 1 of three, of which none can lie that far out; from 3 launches to 20 this keeps the noise
within 3 %."""

ITERATIONS = 50
SETTLED = 1e-9

SPREAD_LEAST = 1e-4
"""Relative standard deviation below which launches count as equal: figures are stored with six digits."""

ROWS_LEAST = 3
"""Rows that a prior is read from at least."""

WORTH_MOST = 30.0
"""Launches that a prior is worth at most, however alike the rows look."""

ODD = 0.01
"""Chance that a row of a prior's kind is taken for a noisier one, about which the prior says nothing."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known of a row's noise before its launches are seen: the relative standard deviation of one launch, and
    how many launches (degrees of freedom) that knowledge is worth. What is only ``presumed`` makes nothing surer: it is
    there for launches that happen to agree."""

    noise: float
    worth: float
    presumed: bool = False

    def freedom(self, own: float) -> float:
        """Degrees of freedom of a row whose launches have so many of their own."""
        return max(self.worth, own) if self.presumed and own else self.worth + own


DEFAULT = Prior(noise=0.005, worth=2.0, presumed=True)
"""Where there are no similar rows to learn from. Three launches that happen to agree do not mean that there is no noise
(launches of one BERT step on an H200 differ by 0.3 to 0.5 %)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two sets of launches compared.

    before, now: where each set lies, in its own unit. change: log(now / before). noise: relative standard deviation of
    one launch. counted_before, counted_now: launches by their weight; an outlier counts for less than one.
    launches_now: how many there were. apart: standard deviation of ``change`` that no number of launches takes away.
    in_pairs: a launch more now is also one more before.
    """

    before: float
    now: float
    noise: float
    counted_before: float
    counted_now: float
    launches_now: int
    freedom: float
    apart: float = 0.0
    in_pairs: bool = False

    @property
    def change(self) -> float:
        return math.log(self.now / self.before)

    @property
    def error(self) -> float:
        """Standard error of ``change``."""
        return math.sqrt(self.noise**2 * self._share + self.apart**2)

    @property
    def _share(self) -> float:
        """Variance of ``change`` as a multiple of that of one launch."""
        return 1 / self.counted_before + 1 / self.counted_now

    def reach(self, chance: float) -> float:
        """How far above the truth ``change`` lies with this ``chance`` only; infinite for a chance of 0."""
        return quantile(1 - chance, self.freedom) * self.error

    def after(self, launches: int) -> Difference:
        """The same difference as it is expected to look with so many launches now."""
        more = launches / self.launches_now
        return dataclasses.replace(
            self,
            counted_before=self.counted_before * (more if self.in_pairs else 1),
            counted_now=self.counted_now * more,
            launches_now=launches,
            freedom=self.freedom + launches - self.launches_now,
        )

    def drift(self, launches: int, chance: float) -> float:
        """How far ``change`` still moves up, with this ``chance`` only, until there are so many launches: the variance
        of the mean of N less that of the mean of n of them is σ²(1/n − 1/N)."""
        left = self._share - self.after(launches)._share
        return quantile(1 - chance, self.freedom) * self.noise * math.sqrt(max(0.0, left))


def compare(
    before: Sequence[float], now: Sequence[float], *, prior: Prior = DEFAULT, apart: float = 0.0, lasting: float = 0.0
) -> Difference:
    """Difference of two sets of launches, each at least one figure above 0. NaN makes the result NaN.

    ``apart``: relative standard deviation of a set of launches beside that of each, and ``lasting``: the same as a
    multiple of the noise of a launch.
    """
    (middles, noise, counted), prior = _fitted((before, now), prior)
    return Difference(
        before=math.exp(middles[0]),
        now=math.exp(middles[1]),
        noise=noise,
        counted_before=counted[0],
        counted_now=counted[1],
        launches_now=len(now),
        freedom=prior.freedom(len(before) + len(now) - 2),
        apart=math.sqrt(2) * math.hypot(apart, lasting * noise),
    )


def expected(
    before: Sequence[float], *, stored: int, launches: int, prior: Prior = DEFAULT, lasting: float = 0.0
) -> Difference:
    """What will have been found when ``launches`` like those of ``before`` are held against ``stored`` of them, and
    nothing has changed."""
    ((middle,), noise, _), prior = _fitted((before,), prior)
    return unchanged(math.exp(middle), noise, stored=stored, launches=launches, prior=prior, lasting=lasting)


def unchanged(
    figure: float, noise: float, *, stored: int, launches: int, prior: Prior, lasting: float = 0.0
) -> Difference:
    """The same, of launches that lie at ``figure`` with this ``noise``."""
    return Difference(
        before=figure,
        now=figure,
        noise=noise,
        counted_before=stored,
        counted_now=launches,
        launches_now=launches,
        freedom=prior.freedom(stored + launches - 2),
        apart=math.sqrt(2) * lasting * noise,
    )


def paired(before: Sequence[float], now: Sequence[float], *, prior: Prior = DEFAULT) -> Difference:
    """Difference of launches that took turns, the first of one side with the first of the other and so on: at least two
    pairs. One sample of log(now / before), so that what moves both launches of a pair alike is no part of it.

    The noise of a pair, twice the variance of a launch, is what the pairs themselves show, and no less than what
    shrinking that towards similar rows gives. As surely as the pairs alone tell it: what other launches were like on
    another day says nothing about a machine that is busy now, and it is such machines that pairs are for.
    """
    logs = [math.log(after) - math.log(first) for first, after in zip(before, now, strict=True)]
    freedom = len(logs) - 1
    own = _huber([logs], squares=0.0, freedom=freedom)
    shrunk = _huber([logs], squares=prior.worth * 2 * prior.noise**2, freedom=prior.worth + freedom)
    (change,), noise, (counted,) = max(own, shrunk, key=lambda found: found[1])
    middle = statistics.fmean(map(math.log, [*before, *now]))
    return Difference(
        before=math.exp(middle - change / 2),
        now=math.exp(middle + change / 2),
        noise=noise / math.sqrt(2),
        counted_before=counted,
        counted_now=counted,
        launches_now=len(logs),
        freedom=freedom,
        in_pairs=True,
    )


def learned(rows: Sequence[Sequence[float]]) -> Prior | None:
    """The prior of rows like these; each holds the launches of one row, and those with fewer than two say nothing.

    Smyth's estimators: the mean and the variance of the log of the rows' variances. ``None`` where fewer than
    :data:`ROWS_LEAST` rows say something.
    """
    from scipy.special import digamma, polygamma

    rows = [row for row in rows if len(row) > 1]
    if len(rows) < ROWS_LEAST:
        return None
    logs, expected = [], []
    for row in rows:
        freedom = len(row) - 1
        _, noise, _ = _huber([[math.log(value) for value in row]], squares=0.0, freedom=freedom)
        logs.append(2 * math.log(max(noise, SPREAD_LEAST)) - float(digamma(freedom / 2)) + math.log(freedom / 2))
        expected.append(float(polygamma(1, freedom / 2)))
    excess = statistics.variance(logs) - statistics.mean(expected)
    # A few rows that happen to be alike do not make a law.
    most = min(WORTH_MOST, len(rows))
    worth = min(most, 2 * _trigamma_inverse(excess)) if excess > 0 else most
    noise = math.exp((statistics.mean(logs) + digamma(worth / 2) - math.log(worth / 2)) / 2)
    return Prior(noise=float(noise), worth=float(worth))


@cache
def quantile(probability: float, freedom: float) -> float:
    """Of Student's t distribution; infinite for a probability of 1."""
    # What scipy.stats itself calls: that takes three times as long to import, in every session that judges.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability)) if probability < 1 else math.inf


def _fitted(rows: Sequence[Sequence[float]], prior: Prior) -> tuple[tuple[list[float], float, list[float]], Prior]:
    """As :func:`_huber`, of figures and with what is known before; and that prior, worth nothing where launches are too
    noisy for it: by the F test that its own law gives, with a chance of :data:`ODD`. Else rows that agree would make an
    odd one among them look sure of what is its noise."""
    from scipy.special import fdtri

    sets = [[math.log(value) for value in values] for values in rows]
    own = sum(len(values) - 1 for values in rows)
    found = _huber(sets, squares=prior.worth * prior.noise**2, freedom=prior.worth + own)
    if not own or not prior.worth:
        return found, prior
    alone = _huber(sets, squares=0.0, freedom=own)
    if prior.presumed:
        return max(found, alone, key=lambda each: each[1]), prior
    _, noise, _ = alone
    odd = (noise / prior.noise) ** 2 > float(fdtri(own, prior.worth, 1 - ODD))
    return (alone, dataclasses.replace(prior, worth=0.0)) if odd else (found, prior)


def _huber(
    sets: Sequence[Sequence[float]], *, squares: float, freedom: float
) -> tuple[list[float], float, list[float]]:
    """Middle of each set, their common standard deviation, and the sum of the weights of each set.

    ``squares`` (of the prior) are added to the sum of squared residuals, which is divided by ``freedom``.
    """
    middles = [statistics.median(values) for values in sets]
    residuals = [[value - middle for value in values] for values, middle in zip(sets, middles, strict=True)]
    variance = (squares + sum(r * r for each in residuals for r in each)) / freedom if freedom else math.inf
    weights = [[1.0] * len(values) for values in sets]
    for _ in range(ITERATIONS):
        limit = CLIP * math.sqrt(variance)
        weights = [[min(1.0, limit / abs(r)) if r else 1.0 for r in each] for each in residuals]
        middles = [
            sum(map(float.__mul__, weight, values)) / sum(weight) for weight, values in zip(weights, sets, strict=True)
        ]
        residuals = [[value - middle for value in values] for values, middle in zip(sets, middles, strict=True)]
        clipped = sum(min(r * r, limit * limit) for each in residuals for r in each) / CLIPPED
        last, variance = variance, (squares + clipped) / freedom if freedom else math.inf
        if abs(variance - last) <= SETTLED * variance:
            break
    return middles, math.sqrt(variance), [sum(weight) for weight in weights]


def _trigamma_inverse(value: float) -> float:
    """x with trigamma(x) = ``value``: Newton's method, as in the appendix of Smyth (2004)."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(ITERATIONS):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < SETTLED:
            break
    return x
