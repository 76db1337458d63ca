"""The covariance of a field, learned by maximum likelihood from samples of its observed entries.

A covariance is a sum of one or two components plus noise. Inside a component the ordered axes are in groups: within a
group the covariance is a Matern function of one radius that all its axes share (an *elliptic* group), between groups
it is a product. An unordered axis multiplies it by the correlation that the data show. Lengths, smoothness, variances
and noise maximise the sum of the log-likelihoods of a few small samples; the grouping and the number of components
are chosen by the same likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.special
from numba import njit

from corten.completion.positions import Grid, grids_of
from corten.completion.units import UnitCorrelation
from corten.engine.threads import in_order

__all__ = ["Component", "Covariance", "Season", "circle_of", "fit_covariance", "groupings", "matern", "sample_entries"]

NOISE_FLOOR = 2e-5
"""Smallest noise variance, as a share of the variance of the data: the sampled matrices stay positive definite."""
SAMPLE_SIZE = 150
"""Entries in a sample. One likelihood costs the cube of it, so that many small samples see more for the same time."""
SCOUTS, SAMPLES = 8, 24
"""Samples on which groupings are compared, and on which the parameters are fitted in the end."""
SCOUT_ITERATIONS, FIT_ITERATIONS = 15, 40
"""Iterations of the fits that are compared, and of those to all samples."""
CLUSTER_STEPS = 15.0
"""Largest standard deviation of a cluster of a sample, in steps; 15 % of the axis where that is less."""
SMOOTHNESS = np.exp(np.linspace(np.log(0.25), np.log(4.0), 17))
TABLE_STEP = 1 / 1024  # of the square root of the radius: rough kernels are steep near zero
TABLE_REACH = 5.0
ROUNDING = 0.1
"""Fits stop when an iteration gains fewer units of log-likelihood than this."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Component:
    """One term of a covariance.

    groups: the ordered axes, each group elliptic; smoothness: the Matern parameter nu of each group; lengths: in
    steps along each axis of the tensor (nan along unordered ones), then along the circle of each season; own: the share
    of the variance that every position of an unordered axis has for itself (nan along ordered ones). An index in
    `groups` beyond the axes is that of a season.
    """

    variance: float
    groups: Groups
    smoothness: tuple[float, ...]
    lengths: tuple[float, ...]
    own: tuple[float, ...]


@dataclass(frozen=True)
class Season:
    """A cycle along one axis: its name and its period in steps of the grid of the axis.

    A component with a season is a product of a Matern function of the distance along the axis, over which the cycle
    changes, and one of the distance along the circle of the period: a quasi-periodic covariance.
    """

    axis: int
    name: str
    period: float

    def chord(self, distance: np.ndarray) -> np.ndarray:
        """Distance across the circle."""
        return np.asarray(self.period / np.pi * np.abs(np.sin(np.pi * distance / self.period)))

    def spectrum(self, component: Component, circle: tuple[int, ...], size: int) -> np.ndarray:
        """Eigenvalues of the component along its axis, in the Hartley basis of `size` points."""
        steps = np.arange(size)
        distance = np.minimum(steps, size - steps).astype(float)
        nu = dict(zip(component.groups, component.smoothness))
        change = matern(nu[(self.axis,)], distance / component.lengths[self.axis])[0]
        cycle = matern(nu[circle], self.chord(distance) / component.lengths[circle[0]])[0]
        # On a circle of finite length a few eigenvalues of a smooth kernel are slightly negative.
        values = np.maximum(np.fft.fft(change * cycle).real, 0.0)
        return values * (size / values.sum())


def circle_of(seasons: Sequence[Season], size: int) -> int:
    """Points of a circle of at least twice the length of an axis, about a multiple of every period along it."""
    points = 2.0 * size
    for period in sorted((season.period for season in seasons), reverse=True):
        points = period * (np.ceil(points / period) if points == 2.0 * size else np.round(points / period))
    return max(2 * size, round(points))


@dataclass(frozen=True)
class Covariance:
    """A sum of components plus noise, for data of variance about one."""

    components: tuple[Component, ...]
    noise: float
    seasons: tuple[Season, ...] = ()

    def rescaled(self, ratios: Sequence[float]) -> Covariance:
        """The same covariance in other steps: an old step is so many new ones along each axis."""
        every = [*ratios, *(ratios[season.axis] for season in self.seasons)]
        components = [replace(one, lengths=tuple(n * r for n, r in zip(one.lengths, every))) for one in self.components]
        seasons = [replace(one, period=one.period * ratios[one.axis]) for one in self.seasons]
        return replace(self, components=tuple(components), seasons=tuple(seasons))

    def spectrum(self, axes: Sequence[np.ndarray | None]) -> np.ndarray:
        """Eigenvalues in the basis of the axes; for each axis its frequencies, or eigenvalues of its correlation.

        `axes` has None along axes of length one. The basis of an axis with a season is that of a circle.
        """
        shape = tuple(1 if a is None else len(a) for a in axes)
        total = np.zeros(shape)
        for component in self.components:
            part = np.full((1,) * len(shape), component.variance)
            cycles = {self.seasons[g[0] - len(shape)]: g for g in component.groups if g[0] >= len(shape)}
            cycled = {season.axis for season in cycles}
            for group, smoothness in zip(component.groups, component.smoothness):
                if group[0] < len(shape) and not cycled & set(group):
                    part = part * _group_spectrum(group, smoothness, component.lengths, axes)
            for season, group in cycles.items():
                values = season.spectrum(component, group, shape[season.axis])
                part = part * _along(season.axis, len(shape), values)
            for k, own in enumerate(component.own):
                if not np.isnan(own):
                    part = part * _along(k, len(shape), (1 - own) * np.asarray(axes[k]) + own)
            total += part
        return total


def _along(axis: int, ndim: int, values: Any) -> np.ndarray:
    """A vector as an array that varies along one axis."""
    shape = [1] * ndim
    shape[axis] = -1
    return np.reshape(values, shape)


def _group_spectrum(
    group: tuple[int, ...], smoothness: float, lengths: Sequence[float], axes: Sequence[np.ndarray | None]
) -> np.ndarray:
    """(1 + sum of (l w)^2)^-(nu + d/2) with w^2 = 2 (1 - cos f), scaled so that an unbounded grid has variance one."""
    power = -(smoothness + len(group) / 2)
    inside: Any = 1.0
    for k in group:
        inside = inside + _along(k, len(axes), (2 * lengths[k] * np.sin(np.asarray(axes[k]) / 2)) ** 2)
    return inside**power / _mean_power(-power, [lengths[k] for k in group])


def _mean_power(power: float, lengths: Sequence[float]) -> float:
    """The mean of (1 + sum of (2 l sin(f / 2))^2)^-power over all frequencies f in [0, pi]^d.

    x^-p is the integral of t^(p-1) exp(-t x) / Gamma(p), and the mean of exp(-4 t l^2 sin(f/2)^2) over f is a scaled
    Bessel function: one integral for any number of axes, by the trapezoid rule in log t.
    """
    log_t = np.linspace(-60.0 / min(power, 1.0), 6.0, 1000)
    t = np.exp(log_t)
    values = np.exp(power * log_t - t - scipy.special.gammaln(power))
    for length in lengths:
        values = values * scipy.special.ive(0, 2 * t * length**2)
    return float(values.sum() * (log_t[1] - log_t[0]))


def matern(smoothness: float, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Matern correlation r^nu K_nu(r) / (2^(nu-1) Gamma(nu)), and minus r times its derivative."""
    r = np.maximum(radius, 1e-12)
    scale = 2 ** (1 - smoothness) / scipy.special.gamma(smoothness)
    value = scale * r**smoothness * scipy.special.kv(smoothness, r)
    slope = scale * r ** (smoothness + 1) * scipy.special.kv(abs(smoothness - 1), r)
    return np.where(radius > 0, value, 1.0), np.where(radius > 0, slope, 0.0)


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """`matern` for all values of `SMOOTHNESS` on a grid of square roots of the radius."""
    radius = (np.arange(round(TABLE_REACH / TABLE_STEP) + 2) * TABLE_STEP) ** 2
    value, slope = zip(*(matern(nu, radius) for nu in SMOOTHNESS))
    return np.maximum(value, 1e-14), np.array(slope)


def _tables_at(log_smoothness: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kernel, slope and derivative in log nu. Between two tables kernels are mixed, so they stay kernels."""
    values, slopes = _tables()
    step = np.log(SMOOTHNESS[1] / SMOOTHNESS[0])
    place = np.clip((log_smoothness - np.log(SMOOTHNESS[0])) / step, 0, len(SMOOTHNESS) - 1 - 1e-9)
    i, t = int(place), place - int(place)
    return (1 - t) * values[i] + t * values[i + 1], (1 - t) * slopes[i] + t * slopes[i + 1], (
        values[i + 1] - values[i]
    ) / step  # fmt: skip


def groupings(axes: Sequence[int]) -> Iterator[Groups]:
    """All ways to put axes into groups, one group of all first.

    Examples
    --------
    >>> list(groupings([0, 1]))
    [((0, 1),), ((0,), (1,))]
    """
    if not axes:
        yield ()
        return
    for rest in groupings(axes[:-1]):
        for i, group in enumerate(rest):
            yield (*rest[:i], (*group, axes[-1]), *rest[i + 1 :])
        yield (*rest, (axes[-1],))


def sample_entries(mask: np.ndarray, kinds: Sequence[str], size: int, rng: np.random.Generator) -> np.ndarray:
    """Observed entries for the fit, (n, K): half at random, half in clusters of many widths."""
    observed = np.flatnonzero(mask)
    if observed.size <= size:
        return np.stack(np.unravel_index(observed, mask.shape), axis=1)
    shape = np.array(mask.shape)
    wanted, per_cluster = size // 2, 20
    centres = np.stack(np.unravel_index(rng.choice(observed, 4 * (wanted // per_cluster) + 1), mask.shape), 1)
    widest = np.minimum(0.15 * shape, CLUSTER_STEPS)
    spread = np.maximum(1.0, widest * 10 ** -rng.random((len(centres), 1, 1)))
    steps = np.rint(rng.standard_normal((len(centres), 2 * per_cluster, mask.ndim)) * spread).astype(int)
    entries = centres[:, None, :] + steps
    for k, kind in enumerate(kinds):
        if kind == "periodic":
            entries[..., k] %= shape[k]
        elif kind == "unordered":
            other = rng.integers(shape[k], size=entries.shape[:2])
            same = rng.random(entries.shape[:2]) < 0.5
            entries[..., k] = np.where(same, centres[:, None, k], other)
    inside = np.all((entries >= 0) & (entries < shape), axis=-1)
    flat = np.ravel_multi_index(tuple(entries[inside].T), mask.shape)
    flat = flat[mask.ravel()[flat]]
    clustered = flat[np.sort(np.unique(flat, return_index=True)[1])][:wanted]
    alone = rng.choice(observed, size - wanted, replace=False)
    return np.stack(np.unravel_index(np.union1d(clustered, alone), mask.shape), axis=1)


@njit(cache=True, nogil=True)
def _assemble(squares, pairs, variances, scales, group, kernels, own, matrix):  # type: ignore[no-untyped-def]
    """The lower triangle of the covariance between all pairs of a sample."""
    last = kernels.shape[2] - 2
    radius = np.empty(kernels.shape[1])
    for i in range(matrix.shape[0]):
        for j in range(i + 1):
            total = 0.0
            for c in range(kernels.shape[0]):
                radius[:] = 0.0
                for k in range(squares.shape[0]):
                    radius[group[c, k]] += squares[k, i, j] * scales[c, k]
                value = variances[c]
                for g in range(kernels.shape[1]):
                    if radius[g] > 0:
                        x = min(np.sqrt(np.sqrt(radius[g])) / TABLE_STEP, last - 1e-6)
                        a = int(x)
                        value *= kernels[c, g, a] + (x - a) * (kernels[c, g, a + 1] - kernels[c, g, a])
                for u in range(pairs.shape[0]):
                    if pairs[u, i, j] < 1 - 1e-12:
                        value *= (1 - own[c, u]) * pairs[u, i, j]
                total += value
            matrix[i, j] = total


@njit(cache=True, nogil=True)
def _collect(  # type: ignore[no-untyped-def]
    squares, pairs, variances, scales, group, kernels, slopes, bends, own, weight,
    by_variance, by_length, by_smoothness, by_own,
):  # fmt: skip
    """Add weight times the derivative of the covariance by every log parameter, over all pairs."""
    last = kernels.shape[2] - 2
    radius = np.empty(kernels.shape[1])
    slope = np.empty(kernels.shape[1])
    bend = np.empty(kernels.shape[1])
    for i in range(weight.shape[0]):
        for j in range(i + 1):
            for c in range(kernels.shape[0]):
                radius[:] = 0.0
                for k in range(squares.shape[0]):
                    radius[group[c, k]] += squares[k, i, j] * scales[c, k]
                value = variances[c] * (weight[i, j] if i == j else 2 * weight[i, j])
                for g in range(kernels.shape[1]):
                    slope[g] = 0.0
                    bend[g] = 0.0
                    if radius[g] > 0:
                        x = min(np.sqrt(np.sqrt(radius[g])) / TABLE_STEP, last - 1e-6)
                        a = int(x)
                        t = x - a
                        kernel = kernels[c, g, a] + t * (kernels[c, g, a + 1] - kernels[c, g, a])
                        value *= kernel
                        slope[g] = (slopes[c, g, a] + t * (slopes[c, g, a + 1] - slopes[c, g, a])) / kernel / radius[g]
                        bend[g] = (bends[c, g, a] + t * (bends[c, g, a + 1] - bends[c, g, a])) / kernel
                for u in range(pairs.shape[0]):
                    if pairs[u, i, j] < 1 - 1e-12:
                        value *= (1 - own[c, u]) * pairs[u, i, j]
                by_variance[c] += value
                for k in range(squares.shape[0]):
                    by_length[c, k] += value * slope[group[c, k]] * squares[k, i, j] * scales[c, k]
                for g in range(kernels.shape[1]):
                    by_smoothness[c, g] += value * bend[g]
                for u in range(pairs.shape[0]):
                    if pairs[u, i, j] < 1 - 1e-12:
                        by_own[c, u] -= value * own[c, u]


@dataclass(frozen=True)
class _Sample:
    """Entries of a sample: their values, squared distances along ordered axes and correlations along unordered ones."""

    values: np.ndarray
    squares: np.ndarray
    pairs: np.ndarray

    @staticmethod
    def of(
        values: np.ndarray, entries: np.ndarray, kinds: Sequence[str], units: dict[int, UnitCorrelation],
        grids: Sequence[Grid], seasons: Sequence[Season] = (),
    ) -> _Sample:  # fmt: skip
        squares, pairs = [], []
        for k, grid in enumerate(grids):
            first, second = entries[:, None, k], entries[None, :, k]
            if grid.size == 1:
                continue
            if kinds[k] == "unordered":
                pairs.append(units[k].between(first, second))
                continue
            if grid.positions is not None:
                first, second = grid.positions[first], grid.positions[second]
            distance = np.abs(first - second).astype(float)
            if kinds[k] == "periodic":  # the chord of the circle: radii stay distances in a Euclidean space
                distance = grid.size / np.pi * np.sin(np.pi * distance / grid.size)
            squares.append(distance**2)
        for season in seasons:
            positions = grids[season.axis].positions
            place = entries[:, season.axis] if positions is None else positions[entries[:, season.axis]]
            squares.append(season.chord(np.subtract.outer(place, place)) ** 2)
        empty = np.zeros((0, len(entries), len(entries)))
        return _Sample(
            values[tuple(entries.T)].astype(float),
            np.stack(squares) if squares else empty,
            np.stack(pairs) if pairs else empty,
        )


class _Likelihood:
    """Minus the log-likelihood of samples, with gradient, as a function of log parameters of given groups.

    The parameters of a component are its log variance, log ranges (length times sqrt(8 nu), where the correlation is
    about 0.14: better determined than the length), log nu of each group, logit of the own shares; then the log noise.
    """

    def __init__(
        self,
        samples: Sequence[_Sample],
        kinds: Sequence[str],
        shape: tuple[int, ...],
        components: Sequence[Groups],
        seasons: tuple[Season, ...] = (),
    ) -> None:
        self.samples, self.components, self.seasons = samples, components, seasons
        self.shape = (*shape, *(season.period for season in seasons))
        self.ordered = [k for k, n in enumerate(shape) if n > 1 and kinds[k] != "unordered"]
        self.ordered += [len(shape) + i for i in range(len(seasons))]
        self.unordered = [k for k, n in enumerate(shape) if n > 1 and kinds[k] == "unordered"]
        self.entries = sum(len(sample.values) for sample in samples)
        self.group = np.zeros((len(components), len(self.ordered)), np.int64)
        self.idle = np.array([[k not in {j for g in groups for j in g} for k in self.ordered] for groups in components])
        self.idle = self.idle.reshape(self.group.shape)
        for c, groups in enumerate(components):
            for g, group in enumerate(groups):
                self.group[c, [self.ordered.index(k) for k in group]] = g
        self.most_groups = max(len(groups) for groups in components)

    def start(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First guess, and centre and width of the weak prior, of the parameters."""
        lengths = np.array([self.shape[k] for k in self.ordered], float)
        guess, centre, width = [], [], []
        for c in range(len(self.components)):
            ranges = np.log(np.maximum(2.0, lengths * (0.6 if c == 0 else 0.15)))
            guess += [np.log(0.7 if c == 0 else 0.15), *ranges, *[0.0] * self.most_groups]
            guess += [-2.0 if c == 0 else 0.0] * len(self.unordered)
            centre += [np.log(0.5), *ranges, *[0.0] * self.most_groups, *[-1.0] * len(self.unordered)]
            width += [1.5, *[1.5] * len(ranges), *[0.5] * self.most_groups, *[2.0] * len(self.unordered)]
        return np.array([*guess, np.log(0.01)]), np.array([*centre, np.log(0.01)]), np.array([*width, 2.5])

    def count(self) -> int:
        """Number of parameters that the likelihood depends on."""
        idle = sum(self.most_groups - len(groups) for groups in self.components) + int(self.idle.sum())
        return len(self.start()[0]) - idle

    def _unpack(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """Variances, log lengths, log smoothness, own shares, noise above its floor."""
        d, g = len(self.ordered), self.most_groups
        block = theta[:-1].reshape(len(self.components), -1)
        log_smoothness = block[:, 1 + d : 1 + d + g]
        shift = np.take_along_axis(log_smoothness, self.group, axis=1) if d else 0.0
        log_lengths = np.where(self.idle, np.inf, block[:, 1 : 1 + d] - 0.5 * (np.log(8) + shift))
        own = 1 / (1 + np.exp(-block[:, 1 + d + g :]))
        return np.exp(block[:, 0]), log_lengths, log_smoothness, own, float(np.exp(theta[-1]))

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        variances, log_lengths, log_smoothness, own, noise = self._unpack(theta)
        scales = np.exp(-2 * log_lengths)
        tables = np.empty((3, len(variances), self.most_groups, _tables()[0].shape[1]))
        for place, x in np.ndenumerate(log_smoothness):
            tables[(slice(None), *place)] = _tables_at(float(x))
        kernels, slopes, bends = tables
        gradient = np.zeros_like(theta)
        by_variance, by_length = np.zeros(len(variances)), np.zeros_like(log_lengths)
        by_smoothness, by_own = np.zeros_like(log_smoothness), np.zeros_like(own)
        total = 0.0
        for sample in self.samples:
            n = len(sample.values)
            matrix = np.zeros((n, n))
            fixed = (sample.squares, sample.pairs, variances, scales, self.group, kernels)
            _assemble(*fixed, own, matrix)
            matrix[np.diag_indices(n)] += NOISE_FLOOR + noise
            try:
                factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                return 1e10, np.zeros_like(theta)
            alpha = scipy.linalg.cho_solve((factor, True), sample.values, check_finite=False)
            total += 0.5 * float(sample.values @ alpha) + float(np.log(np.diag(factor)).sum())
            inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
            weight = 0.5 * (inverse - np.outer(alpha, alpha))
            _collect(*fixed, slopes, bends, own, weight, by_variance, by_length, by_smoothness, by_own)
            gradient[-1] += np.trace(weight) * noise
        for c in range(len(variances)):  # a smoother group of the same range is shorter
            np.subtract.at(by_smoothness[c], self.group[c], 0.5 * by_length[c])
        blocks = np.concatenate([by_variance[:, None], by_length, by_smoothness, by_own], axis=1)
        gradient[:-1] = blocks.ravel()
        return total, gradient

    def starts(self, simpler: _Likelihood, theta: np.ndarray) -> Iterator[np.ndarray]:
        """First guesses from the fit of the first component alone, with a second one that is short in some groups.

        A second component may be noise of the whole field (short everywhere), or persist along some axes: pixels that
        differ from their neighbours every season.
        """
        d, g = len(self.ordered), simpler.most_groups
        base = self.start()[0]
        block = base[:-1].reshape(len(self.components), -1)
        block[0, : 1 + d + g] = theta[: 1 + d + g]
        block[0, 1 + d + self.most_groups :] = theta[1 + d + g : -1]
        block[1, 0] = np.log(0.1)
        base[-1] = theta[-1]
        groups = self.components[1]
        for short in dict.fromkeys((groups, *((group,) for group in groups))):
            guess = base.copy()
            inside = [k for group in short for k in group]
            for p, k in enumerate(self.ordered):
                guess[:-1].reshape(len(self.components), -1)[1, 1 + p] = np.log(2.0 if k in inside else self.shape[k])
            yield guess

    def fit(self, iterations: int, guess: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """The parameters with the highest penalised likelihood, and the log-likelihood there."""
        first, centre, width = self.start()
        first = first if guess is None else guess

        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            off = (theta - centre) / width
            value, gradient = self(theta)
            return (value + 0.5 * float(off @ off)) / self.entries, (gradient + off / width) / self.entries

        bounds: list[Any] = [(c - 4 * w, c + 4 * w) for c, w in zip(centre, width)]
        options = {"maxiter": iterations, "ftol": ROUNDING / self.entries, "gtol": 1e-6}
        found = scipy.optimize.minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return found.x, -self(found.x)[0]

    def covariance(self, theta: np.ndarray) -> Covariance:
        variances, log_lengths, log_smoothness, own, noise = self._unpack(theta)
        components = []
        for c, groups in enumerate(self.components):
            lengths = np.full(len(self.shape), np.nan)
            shares = np.full(len(self.shape) - len(self.seasons), np.nan)
            lengths[self.ordered] = np.exp(log_lengths[c])
            shares[self.unordered] = own[c]
            low, high = SMOOTHNESS[0], SMOOTHNESS[-1]
            smoothness = np.clip(np.exp(log_smoothness[c, : len(groups)]), low, high)
            components.append(
                Component(
                    float(variances[c]), groups, tuple(smoothness.tolist()), tuple(lengths.tolist()),
                    tuple(shares.tolist()),
                )
            )  # fmt: skip
        return Covariance(tuple(components), NOISE_FLOOR + noise, self.seasons)

    def season_starts(self, simpler: _Likelihood, theta: np.ndarray) -> Iterator[np.ndarray]:
        """First guesses from a fit without the last season: its cycle changes slowly, and is smooth or sharp."""
        old, new = len(simpler.ordered), len(self.ordered)
        for share in (0.6, 0.2):
            guess = self.start()[0]
            block = guess[:-1].reshape(len(self.components), -1)
            before = theta[:-1].reshape(len(simpler.components), -1)
            groups = simpler.most_groups
            block[:-1, : 1 + old] = before[:, : 1 + old]
            block[:-1, 1 + new : 1 + new + groups] = before[:, 1 + old : 1 + old + groups]
            block[:-1, 1 + new + self.most_groups :] = before[:, 1 + old + groups :]
            block[-1, 0] = np.log(0.3)
            block[-1, 1 : 1 + old] = before[0, 1 : 1 + old]
            at = 1 + self.ordered.index(self.seasons[-1].axis)
            block[-1, at] = np.log(self.shape[self.seasons[-1].axis])
            block[-1, new] = np.log(max(2.0, share * self.seasons[-1].period))
            guess[-1] = theta[-1]
            yield guess


def _candidates(ordered: Sequence[int]) -> list[Groups]:
    """Groupings that are compared: all of them for up to three axes, else neighbouring axes joined."""
    if len(ordered) <= 3:
        return list(groupings(ordered))
    joined = [((a, b), *((k,) for k in ordered if k not in (a, b))) for a, b in pairwise(ordered)]
    return [(tuple(ordered),), tuple((k,) for k in ordered), *joined]


def fit_covariance(
    values: np.ndarray,
    mask: np.ndarray,
    kinds: Sequence[str],
    units: dict[int, UnitCorrelation],
    seed: int,
    grids: Sequence[Grid] = (),
    seasons: Sequence[Season] = (),
) -> tuple[Covariance, tuple[dict[str, object], ...]]:
    """The covariance of standardised `values` where `mask` is True, and the log-likelihoods of what was compared.

    Groupings are compared with one component on a few samples, then second components from several starts. The best
    of each kind is fitted to more samples. The second component is kept where it gains more than half the logarithm
    of the number of entries for each of its parameters; so is a component for each of the `seasons`.
    """
    grids = grids or grids_of(None, mask.shape)
    shape = tuple(grid.size for grid in grids)
    rng = np.random.default_rng((seed, 0xC0F))
    count = int(np.clip(mask.sum() // SAMPLE_SIZE, 1, SAMPLES))
    drawn = [sample_entries(mask, kinds, SAMPLE_SIZE, rng) for _ in range(count)]
    samples = [_Sample.of(values, entries, kinds, units, grids) for entries in drawn]
    tried: list[dict[str, object]] = []

    def attempts(models: Sequence[_Likelihood], iterations: int, guesses: Sequence[Sequence[Any]]) -> list[Any]:
        """Penalised log-likelihood, parameters and model of the best fit of each model from its guesses."""
        todo = [(model, guess) for model, own in zip(models, guesses) for guess in own]
        fits = list(in_order(lambda one: one[0].fit(iterations, one[1]), todo, pool="settings"))
        found = []
        for model in models:
            own = [fit for (other, _), fit in zip(todo, fits) if other is model]
            theta, value = max(own, key=lambda fit: fit[1])
            score = value - 0.5 * model.count() * float(np.log(max(model.entries, 2)))
            tried.append(
                {"components": [list(map(list, groups)) for groups in model.components], "entries": model.entries,
                 "seasons": [season.name for season in model.seasons], "log-likelihood": round(value, 1),
                 "penalised": round(score, 1)}
            )  # fmt: skip
            found.append((score, theta, model))
        return found

    def better(found: Sequence[Any]) -> Any:
        return max(found, key=lambda one: one[0])

    ordered = [k for k, n in enumerate(mask.shape) if n > 1 and kinds[k] != "unordered"]
    apart = tuple((k,) for k in ordered)
    scouts = samples[:SCOUTS]
    single = [_Likelihood(scouts, kinds, shape, [groups]) for groups in _candidates(ordered)]
    one = better(attempts(single, SCOUT_ITERATIONS, [(None,)] * len(single)))
    first = one[2].components[0]
    double = [_Likelihood(scouts, kinds, shape, [first, other]) for other in dict.fromkeys((first, apart))]
    starts = [tuple(model.starts(one[2], one[1])) for model in double]
    two = better(attempts(double, SCOUT_ITERATIONS, starts))
    last = [_Likelihood(samples, kinds, shape, found[2].components) for found in (one, two)]
    best = better(attempts(last, FIT_ITERATIONS, [(one[1],), (two[1],)]))
    for season in seasons:
        known = (*best[2].seasons, season)
        with_cycle = [_Sample.of(values, entries, kinds, units, grids, known) for entries in drawn]
        components = [*best[2].components, _cycle(best[2].components[0], season, len(shape) + len(known) - 1)]
        few, every = (_Likelihood(s, kinds, shape, components, known) for s in (with_cycle[:SCOUTS], with_cycle))
        guess = attempts([few], SCOUT_ITERATIONS, [tuple(few.season_starts(best[2], best[1]))])[0][1]
        best = better([best, *attempts([every], FIT_ITERATIONS, [(guess,)])])
    _, theta, model = best
    return model.covariance(theta), tuple(tried)


def _cycle(groups: Groups, season: Season, circle: int) -> Groups:
    """Groups with the axis of a season alone, and the circle of the season beside it."""
    others = (tuple(k for k in group if k != season.axis) for group in groups)
    return (*(group for group in others if group), (season.axis,), (circle,))
