"""The difference between two sets of launches, and its standard error. Pure statistics on plain numbers.

The unit of evidence is the figure of one launch, on the logarithmic scale. Launches have heavy tails: most agree within
their noise, but an occasional launch is 14 % slow with nothing changed. Three methods from the literature handle this:

* **Location of a set**: Huber's M-estimator. A launch further than :data:`CLIP` standard deviations from the location
  of its set still counts. Its weight falls with its distance. P. J. Huber, "Robust estimation of a location parameter",
  Annals of Mathematical Statistics 35(1), 1964.
* **Noise of one launch**: one standard deviation for all sets, from the clipped residuals (Huber's proposal 2, same
  paper). It is shrunk towards the noise of similar rows: G. K. Smyth, "Linear models and empirical Bayes methods for
  assessing differential expression", Statistical Applications in Genetics and Molecular Biology 3(1), 2004. A row that
  is too noisy to be similar is not shrunk: B. Phipson et al., "Robust hyperparameter estimation protects against
  hypervariable genes", Annals of Applied Statistics 10(2), 2016.
* **Confidence limits**: Student's t, with the degrees of freedom of the launches, of the prior and of the visits.

``benchmarks/detection`` checks these promises on real and synthetic noise.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CLIP = 2.0
"""In standard deviations. Without outliers, the estimate then keeps 99 % of its efficiency (Huber 1964)."""

CLIPPED = 0.96
"""Share of the mean square of normal launches that clipping leaves. The noise is divided by its root, so that the noise
is right without outliers. The share is 0.92 for very many launches (Huber's β at 2.0). It is 1 for three launches,
because none of three can lie that far out. For 3 to 20 launches, 0.96 keeps the error of the noise within 3 %."""

ITERATIONS = 50
SETTLED = 1e-9

SPREAD_LEAST = 1e-4
"""Relative standard deviation below which launches count as equal, because figures are stored with six digits."""

ROWS_LEAST = 3
"""Minimum number of rows for a prior."""

PRIOR_DF_MOST = 30.0
"""Maximum degrees of freedom of a prior, however alike the rows look."""

PER_VISIT = 5.0
"""Maximum degrees of freedom that each further visit of a project adds to the prior of its visits."""

MANY = 1e6
"""Degrees of freedom from which a standard deviation counts as known."""

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution as a multiple of its median absolute deviation."""

COLD, COLD_LEAST, COLD_REST = 10.0, 0.02, 3
"""A first pair of launches is cold if its distance from the other pairs is more than ``COLD`` of their standard
deviations, and more than ``COLD_LEAST`` (a logarithm). There must be at least ``COLD_REST`` other pairs."""

ODD = 0.01
"""Significance level of the F test that a row is noisier than similar rows. The prior is not used for such a row."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The noise of a row, as known before its launches are seen.

    noise: relative standard deviation of one launch.
    prior_df: degrees of freedom of ``noise``.
    presumed: whether ``noise`` was not measured. A presumed prior protects against launches that happen to agree. It
    adds no degrees of freedom to those of the launches.
    """

    noise: float
    prior_df: float
    presumed: bool = False

    def freedom(self, own: float) -> float:
        """Degrees of freedom of a row whose launches have ``own``. A presumed prior only sets the minimum."""
        return max(self.prior_df, own) if self.presumed and own else self.prior_df + own


DEFAULT = Prior(noise=0.005, prior_df=2.0, presumed=True)
"""The prior of a row without similar rows. Three launches that happen to agree do not prove that there is no noise:
launches of one BERT step on an H200 differ by 0.3 to 0.5 %."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far visits differ beyond what their launches explain. A visit is one run on one machine.

    sd: relative standard deviation of one visit.
    df: degrees of freedom of ``sd``; infinite if ``sd`` is presumed.
    of_noise: a presumed standard deviation, as a multiple of the noise of one launch. Its variance adds to that of
    ``sd``.
    """

    sd: float = 0.0
    df: float = math.inf
    of_noise: float = 0.0


NO_SPREAD = Spread()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two sets of launches. Its property ``change`` is log(now / before).

    before, now: location of each set, in the metric's unit.
    noise: relative standard deviation of one launch.
    counted_before, counted_now: effective number of launches; an outlier counts for less than one.
    launches_now: number of launches now.
    noise_df: degrees of freedom of ``noise``.
    apart: standard deviation of ``change`` between visits. More launches do not reduce it.
    apart_df: degrees of freedom of ``apart``.
    lasting: a further variance of ``change`` between visits, as a multiple of the variance of one launch. More launches
    do not reduce it.
    core: noise of the better half of the launches, without outliers; infinite if unknown.
    in_pairs: whether each further launch now brings a further launch before.
    cold: distance between a first pair that was left out and the other pairs, as a logarithm; else 0.
    shown: the noise that these launches show, if a safety rule may have raised ``noise`` above it; else ``None``.
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
        """Degrees of freedom of ``error``. Each of its two variances has degrees of freedom. Satterthwaite's formula
        combines them (F. E. Satterthwaite, Biometrics Bulletin 2(6), 1946)."""
        launches, visits = self._variances
        if not visits or not math.isfinite(launches + visits):
            return self.noise_df
        if not launches:
            return self.apart_df
        return (launches + visits) ** 2 / (launches**2 / self.noise_df + visits**2 / self.apart_df)

    @property
    def _variances(self) -> tuple[float, float]:
        """Variance of ``change`` due to launches, and due to visits."""
        return self.noise**2 * (self._share + self.lasting), self.apart**2

    @property
    def _share(self) -> float:
        """Variance of ``change`` due to launches alone, as a multiple of the variance of one launch."""
        return 1 / self.counted_before + 1 / self.counted_now

    def reach(self, chance: float) -> float:
        """The distance by which ``change`` exceeds its expected value with probability ``chance``. It is infinite for a
        chance of 0."""
        return quantile(1 - chance, self.freedom) * self.error

    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the true change: two logarithms."""
        # Pairs are judged by the larger of two estimates of noise. With that noise, the interval would be too wide.
        paired_noise = self.shown if self.in_pairs and self.shown else self.noise
        told = dataclasses.replace(self, noise=paired_noise)
        return self.change - told.reach(0.025), self.change + told.reach(0.025)

    def worse(self, chance: float) -> float:
        """The factor by which the true standard error exceeds ``error`` with probability ``chance``; at least 1."""
        shown = 1.0 if self.shown is None or not self.noise else self.shown / self.noise
        return max(1.0, shown * doubt(chance, self.freedom))

    def quieter(self, chance: float) -> Comparison:
        """This comparison with the lowest plausible noise: the lower confidence limit of the noise at ``chance``, or
        ``core`` if it is lower. ``core`` is right if the worse half of the launches are outliers."""
        return dataclasses.replace(
            self, noise=min(self.noise * doubt(1 - chance, self.noise_df), self.core), shown=None
        )

    def after(self, launches: int) -> Comparison:
        """This comparison as expected with this number of launches now."""
        more = launches / self.launches_now
        return dataclasses.replace(
            self,
            counted_before=self.counted_before * (more if self.in_pairs else 1),
            counted_now=self.counted_now * more,
            launches_now=launches,
            noise_df=self.noise_df + launches - self.launches_now,
        )

    def drift(self, launches: int, chance: float) -> float:
        """The distance by which ``change`` still rises with probability ``chance`` until there are ``launches`` now.
        The mean of n launches differs from the mean of all N with variance σ²(1/n − 1/N)."""
        left = self._share - self.after(launches)._share
        return quantile(1 - chance, self.noise_df) * self.noise * math.sqrt(max(0.0, left))


def compare(
    before: Sequence[Sequence[float]], now: Sequence[float], *, prior: Prior = DEFAULT, spread: Spread = NO_SPREAD
) -> Comparison:
    """Compare stored launches, grouped by visit, with the launches of one visit now.

    Every visit must have at least one launch, and every figure must be above 0. NaN makes the result NaN. ``spread``:
    how far visits differ. If the comparison is between machines, each group is a machine, and ``spread`` is that of
    machines.
    """
    sets = (*before, now)
    (locations, noise, counted), shown, prior = _fitted(sets, prior)
    visits = spread.sd**2 + (spread.of_noise * noise) ** 2
    # The weight of each visit is the inverse of its variance.
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
    """The comparison to expect between ``stored`` launches and ``launches`` of now, if nothing changes and all of them
    are like the launches ``before``."""
    ((location,), noise, _), shown, prior = _fitted((before,), prior)
    found = unchanged(math.exp(location), noise, stored=stored, launches=launches, prior=prior, spread=spread)
    return dataclasses.replace(found, shown=shown)


def unchanged(
    figure: float, noise: float, *, stored: int, launches: int, prior: Prior, spread: Spread = NO_SPREAD
) -> Comparison:
    """The comparison to expect if nothing changes. All launches have the location ``figure`` and this ``noise``."""
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
    """How far the visits of one row differ beyond what their launches explain.

    The estimate is the variance of the visits' locations, minus the variance that their launches explain. It is shrunk
    towards ``law``, the prior from the visits of similar rows.
    """
    own = len(visits) - 1
    excess = _excess(visits) if own > 0 else 0.0
    df = law.freedom(own)
    variance = (law.prior_df * law.noise**2 + own * excess) / (law.prior_df + own)
    return Spread(sd=math.sqrt(variance), df=df)


def learned_spread(rows: Sequence[Sequence[Sequence[float]]], *, visits: int) -> Prior | None:
    """The prior of how far visits of similar rows differ; ``None`` if too few rows have two visits. ``rows`` holds the
    figures of launches, by row and by visit.

    The estimators are Smyth's, as for launches. The location of a visit takes the place of a launch. ``visits`` is the
    number of different visits of all rows. It limits the degrees of freedom, because rows of one visit may be slow
    together.
    """
    rows = [row for row in rows if len(row) > 1]
    found = learned([[math.exp(_location(visit)) for visit in row] for row in rows], most=PER_VISIT * (visits - 1))
    if found is None:
        return None
    launches = statistics.fmean(_of_launches(row) for row in rows)
    return dataclasses.replace(found, noise=math.sqrt(max(SPREAD_LEAST**2, found.noise**2 - launches)))


def _excess(visits: Sequence[Sequence[float]]) -> float:
    """Variance of the visits' locations, minus the variance that their launches explain; at least 0."""
    return max(0.0, statistics.variance(map(_location, visits)) - _of_launches(visits))


def _of_launches(visits: Sequence[Sequence[float]]) -> float:
    """Variance of a visit's location that its launches explain; 0 if no visit has two launches."""
    own = sum(len(visit) - 1 for visit in visits)
    if not own:
        return 0.0
    _, noise, counted = _huber([[math.log(ms) for ms in visit] for visit in visits], squares=0.0, freedom=own)
    return noise**2 * statistics.fmean(1 / count for count in counted)


def _location(visit: Sequence[float]) -> float:
    (location,), _, _ = _huber([[math.log(ms) for ms in visit]], squares=0.0, freedom=len(visit) - 1)
    return location


def paired(before: Sequence[float], now: Sequence[float], *, prior: Prior = DEFAULT) -> Comparison:
    """Compare at least two pairs of launches. The sides took turns, and each launch is paired with the launch of the
    same number on the other side.

    The pairs are one sample of log(now / before). So a disturbance that affects both launches of a pair cancels.

    The variance of a pair is twice the variance of a launch. The noise is the larger of two estimates: the noise that
    the pairs show, and this noise shrunk towards similar rows. Its degrees of freedom come from the pairs alone. Pairs
    are for busy machines, and launches of another day say nothing about a machine that is busy now.

    A cold first pair is left out (:data:`COLD`).
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
    """Distance of the first pair from the others, as a logarithm, if it is too large for chance; else 0. The first pair
    runs with cold caches."""
    rest = logs[1:]
    if len(rest) < COLD_REST:
        return 0.0
    (location,), noise, _ = _huber([rest], squares=0.0, freedom=len(rest) - 1)
    far = logs[0] - location
    return far if abs(far) > max(COLD_LEAST, COLD * noise) else 0.0


def learned(rows: Sequence[Sequence[float]], *, most: float = PRIOR_DF_MOST) -> Prior | None:
    """The prior from similar rows; ``None`` if fewer than :data:`ROWS_LEAST` rows have two launches. ``rows`` holds the
    figures of the launches of each row. ``most`` is the maximum of its degrees of freedom.

    Smyth's estimators use the mean and the variance of the logarithms of the rows' variances.
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
    # A few rows may be alike by chance. So a prior has at most one degree of freedom per row.
    most = min(PRIOR_DF_MOST, most, len(rows))
    prior_df = min(most, 2 * _trigamma_inverse(excess)) if excess > 0 else most
    noise = math.exp((statistics.mean(logs) + digamma(prior_df / 2) - math.log(prior_df / 2)) / 2)
    return Prior(noise=float(noise), prior_df=float(prior_df))


def doubt(chance: float, freedom: float) -> float:
    """The factor by which a true standard deviation exceeds its estimate with probability ``chance``.

    ``freedom``: degrees of freedom of the estimate. The estimated variance follows χ²."""
    from scipy.special import chdtri

    return math.sqrt(freedom / float(chdtri(freedom, 1 - chance))) if 0 < freedom < MANY else 1.0


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution; infinite for a probability of 1."""
    # scipy.stats calls this function too, but takes three times as long to import, in every session that judges.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability)) if probability < 1 else math.inf


def _fitted(
    rows: Sequence[Sequence[float]], prior: Prior
) -> tuple[tuple[list[float], float, list[float]], float | None, Prior]:
    """The result of :func:`_huber` with the prior, the noise that the launches alone show, and the prior to use.

    With a presumed prior, the noise is the larger of the estimates with it and without it. Only then is the second
    result not ``None``.

    With a learned prior, an F test at the level :data:`ODD` tells whether the row is noisier than similar rows. If so,
    the prior gets no weight. Otherwise similar rows that agree would make the noise of an odd row look too certain.
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
    """Noise of the better half of these logarithms: their median absolute deviation, scaled to a standard deviation."""
    return NORMAL_MAD * statistics.median(abs(x - statistics.median(values)) for values in sets for x in values)


def _huber(
    sets: Sequence[Sequence[float]], *, squares: float, freedom: float
) -> tuple[list[float], float, list[float]]:
    """The location of each set, their common standard deviation, and the sum of the weights of each set.

    The variance is the sum of the squared residuals and ``squares`` (the prior's part), divided by ``freedom``.
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
    """The x with trigamma(x) = ``value``, by Newton's method as in the appendix of Smyth (2004)."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(ITERATIONS):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < SETTLED:
            break
    return x
