"""How far two sets of launches are apart, and how well that is known. Pure statistics on plain numbers.

The unit is one launch's figure, on the log scale. Launches have heavy tails: most agree within their noise, and now and
then one is 14 % slow with nothing changed. Three parts answer that, each from the literature:

* **Where the launches lie**: Huber's M-estimator. A launch further than :data:`CLIP` standard deviations from its
  set's location still counts, with less weight the further it is. P. J. Huber, "Robust estimation of a location
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
from functools import lru_cache

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

PRIOR_DF_MOST = 30.0
"""Launches that a prior is worth at most, however alike the rows look."""

PER_VISIT = 5.0
"""Degrees of freedom that each further visit of a project adds at most to what is known of its visits."""

MANY = 1e6
"""Degrees of freedom from which a standard deviation counts as known."""

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution as a multiple of its median absolute deviation."""

COLD, COLD_LEAST, COLD_REST = 10.0, 0.02, 3
"""A first pair is cold if it lies further from the others than this many standard deviations of theirs and than this
logarithm. There must be this many others."""

ODD = 0.01
"""Chance that a row of a prior's kind is taken for a noisier one, about which the prior says nothing."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known of a row's noise before its launches are seen: the relative standard deviation of one launch, and
    how many launches (degrees of freedom) that knowledge is worth. What is only ``presumed`` makes nothing surer: it is
    there for launches that happen to agree."""

    noise: float
    prior_df: float
    presumed: bool = False

    def freedom(self, own: float) -> float:
        """Degrees of freedom of a row whose launches have so many of their own."""
        return max(self.prior_df, own) if self.presumed and own else self.prior_df + own


DEFAULT = Prior(noise=0.005, prior_df=2.0, presumed=True)
"""Where there are no similar rows to learn from. Three launches that happen to agree do not mean that there is no noise
(launches of one BERT step on an H200 differ by 0.3 to 0.5 %)."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far visits differ beyond what their launches explain. A visit is one run on one machine.

    sd: relative standard deviation of one visit. df: degrees of freedom of ``sd``; infinite if it is presumed.
    of_noise: the standard deviation as a multiple of the noise of a launch, if only that is presumed.
    """

    sd: float = 0.0
    df: float = math.inf
    of_noise: float = 0.0


NO_SPREAD = Spread()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sets of launches compared.

    before, now: where each set lies, in its own unit. change: log(now / before). noise: relative standard deviation of
    one launch, with ``noise_df`` degrees of freedom. core: the noise of the better half of the launches, which
    outliers do not reach; infinite if not known. counted_before, counted_now: effective number of launches; an
    outlier counts for less than one. launches_now: number of launches now. apart: standard deviation of ``change``
    between visits, which more launches do not reduce, with ``apart_df`` degrees of freedom. lasting: variance of
    ``change`` between visits as a multiple of the variance of a launch. in_pairs: a launch more now is also a launch
    more before. cold: how far a first pair that was left out lay from the others, as a logarithm; else 0. shown: the
    noise that these launches show, where ``noise`` is larger to be on the safe side.
    """

    before: float
    now: float
    noise: float
    counted_before: float
    counted_now: float
    launches_now: int
    noise_df: float
    apart: float = 0.0
    apart_df: float = math.inf
    lasting: float = 0.0
    core: float = math.inf
    in_pairs: bool = False
    cold: float = 0.0
    shown: float | None = None

    @property
    def change(self) -> float:
        return math.log(self.now / self.before)

    @property
    def error(self) -> float:
        """Standard error of ``change``."""
        return math.sqrt(sum(self._variances))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of ``error``. Each variance has its own; Satterthwaite's formula combines them (F. E.
        Satterthwaite, Biometrics Bulletin 2(6), 1946)."""
        launches, visits = self._variances
        if not visits or not math.isfinite(launches + visits):
            return self.noise_df
        if not launches:
            return self.apart_df
        return (launches + visits) ** 2 / (launches**2 / self.noise_df + visits**2 / self.apart_df)

    @property
    def _variances(self) -> tuple[float, float]:
        """Variance of ``change`` by launches and by visits."""
        return self.noise**2 * (self._share + self.lasting), self.apart**2

    @property
    def _share(self) -> float:
        """Variance of ``change`` by launches alone, as a multiple of the variance of one launch."""
        return 1 / self.counted_before + 1 / self.counted_now

    def reach(self, chance: float) -> float:
        """How far above its expected value ``change`` lies with this ``chance`` only; infinite for a chance of 0."""
        return quantile(1 - chance, self.freedom) * self.error

    def interval(self) -> tuple[float, float]:
        """The true change lies between these logarithms with 95 % confidence."""
        # Pairs are judged by the larger of two noises. An interval of that would be too wide.
        paired_noise = self.shown if self.in_pairs and self.shown else self.noise
        told = dataclasses.replace(self, noise=paired_noise)
        return self.change - told.reach(0.025), self.change + told.reach(0.025)

    def worse(self, chance: float) -> float:
        """The factor, at least 1, by which the true ``error`` is larger with this ``chance`` only."""
        shown = 1.0 if self.shown is None or not self.noise else self.shown / self.noise
        return max(1.0, shown * doubt(chance, self.freedom))

    def quieter(self, chance: float) -> Comparison:
        """The same difference, if a launch has the lowest noise that it may have with this ``chance``, or if the worse
        half of the launches are outliers."""
        return dataclasses.replace(
            self, noise=min(self.noise * doubt(1 - chance, self.noise_df), self.core), shown=None
        )

    def after(self, launches: int) -> Comparison:
        """The same difference as it is expected to look with so many launches now."""
        more = launches / self.launches_now
        return dataclasses.replace(
            self,
            counted_before=self.counted_before * (more if self.in_pairs else 1),
            counted_now=self.counted_now * more,
            launches_now=launches,
            noise_df=self.noise_df + launches - self.launches_now,
        )

    def drift(self, launches: int, chance: float) -> float:
        """How far ``change`` still moves up, with this ``chance`` only, until there are so many launches: the variance
        of the mean of N less that of the mean of n of them is σ²(1/n − 1/N)."""
        left = self._share - self.after(launches)._share
        return quantile(1 - chance, self.noise_df) * self.noise * math.sqrt(max(0.0, left))


def compare(
    before: Sequence[Sequence[float]], now: Sequence[float], *, prior: Prior = DEFAULT, spread: Spread = NO_SPREAD
) -> Comparison:
    """Comparison of stored launches, grouped by visit, with the launches of one visit now.

    Every visit has at least one launch, and every figure is above 0. NaN makes the result NaN. ``spread``: how far
    visits differ, of the same machine or of several machines, whichever the comparison is between.
    """
    sets = (*before, now)
    (locations, noise, counted), shown, prior = _fitted(sets, prior)
    visits = spread.sd**2 + (spread.of_noise * noise) ** 2
    # Each visit weighs by the inverse of its variance.
    sure = 0 < visits + noise**2 < math.inf
    weights = [1 / (visits + noise**2 / count) if sure else count for count in counted[:-1]]
    parts = [weight / sum(weights) for weight in weights]
    squares = 1 + sum(part * part for part in parts)
    return Comparison(
        before=math.exp(sum(map(float.__mul__, parts, locations))),
        now=math.exp(locations[-1]),
        noise=noise,
        counted_before=1 / sum(part * part / count for part, count in zip(parts, counted, strict=False)),
        counted_now=counted[-1],
        launches_now=len(now),
        noise_df=prior.freedom(sum(map(len, before)) - len(before) + len(now) - 1),
        apart=spread.sd * math.sqrt(squares),
        apart_df=spread.df,
        lasting=spread.of_noise**2 * squares,
        shown=shown,
        core=_core([[math.log(value) for value in values] for values in sets]),
    )


def expected(
    before: Sequence[float], *, stored: int, launches: int, prior: Prior = DEFAULT, spread: Spread = NO_SPREAD
) -> Comparison:
    """The comparison to expect if ``launches`` like those of ``before`` are compared with ``stored`` of them, and
    nothing has changed."""
    ((location,), noise, _), shown, prior = _fitted((before,), prior)
    found = unchanged(math.exp(location), noise, stored=stored, launches=launches, prior=prior, spread=spread)
    return dataclasses.replace(found, shown=shown)


def unchanged(
    figure: float, noise: float, *, stored: int, launches: int, prior: Prior, spread: Spread = NO_SPREAD
) -> Comparison:
    """The same for launches that lie at ``figure`` with this ``noise``."""
    return Comparison(
        before=figure,
        now=figure,
        noise=noise,
        counted_before=stored,
        counted_now=launches,
        launches_now=launches,
        noise_df=prior.freedom(stored + launches - 2),
        apart=math.sqrt(2) * spread.sd,
        apart_df=spread.df,
        lasting=2 * spread.of_noise**2,
    )


def spread_of(visits: Sequence[Sequence[float]], law: Prior) -> Spread:
    """How far these visits of one row differ, beyond what their launches explain.

    ``law``: what visits of similar rows differ by. The variance of the visits' locations, less that of the mean of a
    visit's launches, is shrunk towards it.
    """
    own = len(visits) - 1
    excess = _excess(visits) if own > 0 else 0.0
    df = law.freedom(own)
    variance = (law.prior_df * law.noise**2 + own * excess) / (law.prior_df + own)
    return Spread(sd=math.sqrt(variance), df=df)


def learned_spread(rows: Sequence[Sequence[Sequence[float]]], *, visits: int) -> Prior | None:
    """What visits of rows like these differ by; each row holds its visits, and each visit its launches.

    Smyth's estimators, as for launches, with the location of a visit in place of a launch. ``visits`` is the number of
    different visits of all rows. Rows of one visit may be slow together, so few visits do not make the knowledge sure,
    however many rows they have.
    """
    rows = [row for row in rows if len(row) > 1]
    found = learned([[math.exp(_location(visit)) for visit in row] for row in rows], most=PER_VISIT * (visits - 1))
    if found is None:
        return None
    launches = statistics.fmean(_of_launches(row) for row in rows)
    return dataclasses.replace(found, noise=math.sqrt(max(SPREAD_LEAST**2, found.noise**2 - launches)))


def _excess(visits: Sequence[Sequence[float]]) -> float:
    """Variance of the visits' locations beyond that of the mean of a visit's launches, at least 0."""
    return max(0.0, statistics.variance(map(_location, visits)) - _of_launches(visits))


def _of_launches(visits: Sequence[Sequence[float]]) -> float:
    """Variance that the launches alone give the location of a visit; 0 where no visit has two launches."""
    own = sum(len(visit) - 1 for visit in visits)
    if not own:
        return 0.0
    _, noise, counted = _huber([[math.log(ms) for ms in visit] for visit in visits], squares=0.0, freedom=own)
    return noise**2 * statistics.fmean(1 / count for count in counted)


def _location(visit: Sequence[float]) -> float:
    (location,), _, _ = _huber([[math.log(ms) for ms in visit]], squares=0.0, freedom=len(visit) - 1)
    return location


def paired(before: Sequence[float], now: Sequence[float], *, prior: Prior = DEFAULT) -> Comparison:
    """Comparison of launches that took turns, the first of one side with the first of the other and so on: at least two
    pairs. One sample of log(now / before), so that what moves both launches of a pair alike is no part of it.

    The noise of a pair, twice the variance of a launch, is what the pairs themselves show, and no less than what
    shrinking that towards similar rows gives. As surely as the pairs alone tell it: what other launches were like on
    another day says nothing about a machine that is busy now, and it is such machines that pairs are for.
    """
    logs = [math.log(after) - math.log(first) for first, after in zip(before, now, strict=True)]
    if cold := _cold(logs):
        return dataclasses.replace(paired(before[1:], now[1:], prior=prior), cold=cold)
    freedom = len(logs) - 1
    own = _huber([logs], squares=0.0, freedom=freedom)
    shrunk = _huber([logs], squares=prior.prior_df * 2 * prior.noise**2, freedom=prior.prior_df + freedom)
    (change,), noise, (counted,) = max(own, shrunk, key=lambda found: found[1])
    location = statistics.fmean(map(math.log, [*before, *now]))
    return Comparison(
        before=math.exp(location - change / 2),
        now=math.exp(location + change / 2),
        noise=noise / math.sqrt(2),
        counted_before=counted,
        counted_now=counted,
        launches_now=len(logs),
        noise_df=freedom,
        core=min(_core([each]) for each in (logs, logs[1:])) / math.sqrt(2),  # the first pair may be cold
        shown=own[1] / math.sqrt(2),
        in_pairs=True,
    )


def _cold(logs: Sequence[float]) -> float:
    """How far the first pair lies from the others, if that is too far for chance; else 0. Caches are cold in it."""
    rest = logs[1:]
    if len(rest) < COLD_REST:
        return 0.0
    (location,), noise, _ = _huber([rest], squares=0.0, freedom=len(rest) - 1)
    far = logs[0] - location
    return far if abs(far) > max(COLD_LEAST, COLD * noise) else 0.0


def learned(rows: Sequence[Sequence[float]], *, most: float = PRIOR_DF_MOST) -> Prior | None:
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
    most = min(PRIOR_DF_MOST, most, len(rows))
    prior_df = min(most, 2 * _trigamma_inverse(excess)) if excess > 0 else most
    noise = math.exp((statistics.mean(logs) + digamma(prior_df / 2) - math.log(prior_df / 2)) / 2)
    return Prior(noise=float(noise), prior_df=float(prior_df))


def doubt(chance: float, freedom: float) -> float:
    """The factor by which a true standard deviation exceeds its estimate with this ``chance`` only.

    ``freedom``: degrees of freedom of the estimate, whose square follows χ²."""
    from scipy.special import chdtri

    return math.sqrt(freedom / float(chdtri(freedom, 1 - chance))) if 0 < freedom < MANY else 1.0


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """Of Student's t distribution; infinite for a probability of 1."""
    # What scipy.stats itself calls: that takes three times as long to import, in every session that judges.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability)) if probability < 1 else math.inf


def _fitted(
    rows: Sequence[Sequence[float]], prior: Prior
) -> tuple[tuple[list[float], float, list[float]], float | None, Prior]:
    """What :func:`_huber` finds of these figures with what is known before, the noise that the launches alone show
    where a presumed noise is larger, and the prior.

    The prior has no weight where the launches are too noisy for it, by the F test of its own law, with a chance of
    :data:`ODD`. Else rows that agree would make an odd row among them look sure of its noise.
    """
    from scipy.special import fdtri

    sets = [[math.log(value) for value in values] for values in rows]
    own = sum(len(values) - 1 for values in rows)
    found = _huber(sets, squares=prior.prior_df * prior.noise**2, freedom=prior.prior_df + own)
    if not own or not prior.prior_df:
        return found, None, prior
    alone = _huber(sets, squares=0.0, freedom=own)
    if prior.presumed:
        return max(found, alone, key=lambda each: each[1]), alone[1], prior
    _, noise, _ = alone
    odd = (noise / prior.noise) ** 2 > float(fdtri(own, prior.prior_df, 1 - ODD))
    return (alone, None, dataclasses.replace(prior, prior_df=0.0)) if odd else (found, None, prior)


def _core(sets: Sequence[Sequence[float]]) -> float:
    """Noise of the better half of these logarithms: their median absolute deviation, as a standard deviation."""
    return NORMAL_MAD * statistics.median(abs(x - statistics.median(values)) for values in sets for x in values)


def _huber(
    sets: Sequence[Sequence[float]], *, squares: float, freedom: float
) -> tuple[list[float], float, list[float]]:
    """Middle of each set, their common standard deviation, and the sum of the weights of each set.

    ``squares`` (of the prior) are added to the sum of squared residuals, which is divided by ``freedom``.
    """
    locations = [statistics.median(values) for values in sets]
    residuals = [[value - location for value in values] for values, location in zip(sets, locations, strict=True)]
    variance = (squares + sum(r * r for each in residuals for r in each)) / freedom if freedom else math.inf
    weights = [[1.0] * len(values) for values in sets]
    for _ in range(ITERATIONS):
        limit = CLIP * math.sqrt(variance)
        weights = [[min(1.0, limit / abs(r)) if r else 1.0 for r in each] for each in residuals]
        locations = [
            sum(map(float.__mul__, weight, values)) / sum(weight) for weight, values in zip(weights, sets, strict=True)
        ]
        residuals = [[value - location for value in values] for values, location in zip(sets, locations, strict=True)]
        clipped = sum(min(r * r, limit * limit) for each in residuals for r in each) / CLIPPED
        last, variance = variance, (squares + clipped) / freedom if freedom else math.inf
        if abs(variance - last) <= SETTLED * variance:
            break
    return locations, math.sqrt(variance), [sum(weight) for weight in weights]


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
