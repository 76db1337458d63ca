"""The likelihood of a covariance on small samples of the observed entries, with its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.optimize
from numba import njit

from corten.completion.covariance import Component, Covariance, Groups, Season, matern
from corten.completion.positions import Grid
from corten.completion.unordered import PositionCorrelation
from corten.engine.arithmetic import NO_ENTRY
from corten.engine.lapack import addresses, call_at, numbers_of
from corten.engine.threads import in_order

NOISE_FLOOR = 2e-5
"""Smallest noise variance, as a share of the variance of the data: the sampled matrices stay positive definite."""
CLUSTER_STEPS = 15.0
"""Largest standard deviation of a cluster of a sample, in steps; 15 % of the axis where that is less."""
SAME_SHARE = 1 / 3
"""Share of the axes along which all entries of a cluster have the same position."""
SMOOTHNESS = np.exp(np.linspace(np.log(0.25), np.log(4.0), 17))
TABLE_STEP = 1 / 1024  # of the square root of the radius: rough kernels are steep near zero
TABLE_REACH = 5.0
SHARE_OF_RANGE, SMOOTHNESS_OF_TREND = 1 / 8, 2.0
"""First guesses of the range of a field without its trend, as a share of that with it, and of nu of the trend."""
ROUNDING = 0.1
"""Fits stop when an iteration gains fewer units of log-likelihood than this."""


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


def sample_entries(mask: np.ndarray, kinds: Sequence[str], size: int, rng: np.random.Generator) -> np.ndarray:
    """Observed entries for the fit, (n, K): half at random, half in clusters of many widths and shapes.

    The widths of a cluster along different axes do not depend on each other, and along some axes it has none: a pixel
    that differs from its neighbours every year shows in entries with the same place and different years.
    """
    observed = np.flatnonzero(mask)
    if observed.size <= size:
        return np.stack(np.unravel_index(observed, mask.shape), axis=1)
    shape = np.array(mask.shape)
    wanted, per_cluster = size // 2, 20
    centres = np.stack(np.unravel_index(rng.choice(observed, 4 * (wanted // per_cluster) + 1), mask.shape), 1)
    widest = np.minimum(0.15 * shape, CLUSTER_STEPS)
    spread = np.maximum(1.0, widest * 10 ** -rng.random((len(centres), 1, mask.ndim)))
    same = rng.random(spread.shape) < SAME_SHARE
    spread[same & ~same.all(axis=-1, keepdims=True)] = 0.0
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


@njit(cache=True, **NO_ENTRY)
def _assemble(squares, pairs, variances, scales, group, tables, own, parts):  # type: ignore[no-untyped-def]
    """Fill `parts` for every component and pair of a sample.

    It has the covariance of the component in row 0, then for each group the slope in the squared radius, then for each
    group the derivative in log nu, both relative to the kernel. Loops over pairs are innermost, without branches: they
    become vector instructions.
    """
    count, last = squares.shape[1], tables.shape[2] - 2
    groups = tables.shape[1]
    for c in range(tables.shape[0]):
        value = parts[c, 0]
        value[:] = variances[c]
        for g in range(groups):
            slope, bend, table = parts[c, 1 + g], parts[c, 1 + groups + g], tables[c, g]
            slope[:] = 1e-200
            for k in range(squares.shape[0]):
                if group[c, k] == g:
                    scale, square = scales[c, k], squares[k]
                    for p in range(count):
                        slope[p] += square[p] * scale
            for p in range(count):
                bend[p] = min(np.sqrt(np.sqrt(slope[p])) / TABLE_STEP, last - 1e-6)
            for p in range(count):
                a = np.uint64(bend[p])
                t = bend[p] - a
                b = a + np.uint64(1)
                kernel = table[a, 0] + t * (table[b, 0] - table[a, 0])
                value[p] *= kernel
                slope[p] = (table[a, 1] + t * (table[b, 1] - table[a, 1])) / (kernel * slope[p])
                bend[p] = (table[a, 2] + t * (table[b, 2] - table[a, 2])) / kernel
        for u in range(pairs.shape[0]):
            for p in range(count):
                if pairs[u, p] < 1 - 1e-12:
                    value[p] *= (1 - own[c, u]) * pairs[u, p]


@njit(cache=True, **NO_ENTRY)
def _fill_lower(parts, noise, matrix):  # type: ignore[no-untyped-def]
    """The lower triangle of the covariance matrix of a sample, from the components of its pairs."""
    p = 0
    for i in range(len(matrix)):
        for j in range(i + 1):
            total = 0.0
            for c in range(len(parts)):
                total += parts[c, 0, p]
            matrix[i, j] = total
            p += 1
        matrix[i, i] += noise


@njit(cache=True, **NO_ENTRY)
def _weights(inverse, alpha, weight):  # type: ignore[no-untyped-def]
    """Fill the derivatives of minus the log-likelihood by the covariance of each pair, and return their trace."""
    p, trace = 0, 0.0
    for i in range(len(inverse)):
        for j in range(i + 1):
            weight[p] = inverse[i, j] - alpha[i] * alpha[j]
            p += 1
        weight[p - 1] *= 0.5
        trace += weight[p - 1]
    return trace


@njit(cache=True, fastmath={"reassoc", "contract"}, **NO_ENTRY)
def _collect(  # type: ignore[no-untyped-def]
    squares, pairs, group, parts, own, weight, by_variance, by_square, by_smoothness, by_own
):  # fmt: skip
    """Add weight times the derivative of the covariance by every log parameter, over all pairs.

    `by_square` is the derivative by the inverse squares of the lengths. `parts` is used up.
    """
    groups, count = by_smoothness.shape[1], len(weight)
    for c in range(parts.shape[0]):
        value = parts[c, 0]
        total = 0.0
        for p in range(count):
            value[p] *= weight[p]
            total += value[p]
        by_variance[c] += total
        for k in range(squares.shape[0]):
            slope, square = parts[c, 1 + group[c, k]], squares[k]
            total = 0.0
            for p in range(count):
                total += value[p] * slope[p] * square[p]
            by_square[c, k] += total
        for g in range(groups):
            bend = parts[c, 1 + groups + g]
            total = 0.0
            for p in range(count):
                total += value[p] * bend[p]
            by_smoothness[c, g] += total
        for u in range(pairs.shape[0]):
            total = 0.0
            for p in range(count):
                if pairs[u, p] < 1 - 1e-12:
                    total += value[p]
            by_own[c, u] -= total * own[c, u]


# Two calls for a sample: with one for each step, threads wait for each other to release the lock of the interpreter.
@njit(cache=True, nogil=True)
def _solve(  # type: ignore[no-untyped-def]
    routines, squares, pairs, variances, scales, group, tables, own, noise, parts, matrix, alpha
):  # fmt: skip
    """Fill `parts`, replace `matrix` by the factor of the covariance and `alpha` by the solution; False if it fails."""
    _assemble(squares, pairs, variances, scales, group, tables, own, parts)
    _fill_lower(parts, noise, matrix)
    lower, size, one, failed = numbers_of(len(matrix))
    call_at(routines[0], (lower, size, matrix, size, failed))
    if failed[0] != 0:
        return False
    call_at(routines[1], (lower, size, one, matrix, size, alpha, size, failed))
    return True


@njit(cache=True, nogil=True)
def _differentiate(  # type: ignore[no-untyped-def]
    routines, matrix, alpha, squares, pairs, group, parts, own, by_variance, by_square, by_smoothness, by_own
):  # fmt: skip
    """Add the derivatives of minus the log-likelihood, from the factor; returns that by the noise."""
    lower, size, _, failed = numbers_of(len(matrix))
    call_at(routines[2], (lower, size, matrix, size, failed))
    weight = np.empty(squares.shape[1])
    trace = _weights(matrix, alpha, weight)
    _collect(squares, pairs, group, parts, own, weight, by_variance, by_square, by_smoothness, by_own)
    return trace


@dataclass(frozen=True)
class Sample:
    """Entries of a sample: their values, and of each pair (i, j <= i) the squared distances and correlations.

    squares, pairs: (ordered axes, pairs) and (unordered axes, pairs).
    """

    values: np.ndarray
    squares: np.ndarray
    pairs: np.ndarray

    @staticmethod
    def of(
        values: np.ndarray, entries: np.ndarray, *, kinds: Sequence[str], units: dict[int, PositionCorrelation],
        grids: Sequence[Grid], seasons: Sequence[Season] = (),
    ) -> Sample:  # fmt: skip
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
        lower = np.tril_indices(len(entries))
        empty = np.zeros((0, len(lower[0])))
        return Sample(
            values[tuple(entries.T)].astype(float),
            np.stack([one[lower] for one in squares]) if squares else empty,
            np.stack([one[lower] for one in pairs]) if pairs else empty,
        )


class Likelihood:
    """Minus the log-likelihood of samples, with gradient, as a function of log parameters of given groups.

    The parameters of a component are its log variance, log ranges (length times sqrt(8 nu), where the correlation is
    about 0.14: better determined than the length), log nu of each group, logit of the own shares; then the log noise.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        kinds: Sequence[str],
        *,
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
        scales, noise, routines = np.exp(-2 * log_lengths), noise + NOISE_FLOOR, addresses("dpotrf", "dpotrs", "dpotri")
        tables = np.empty((len(variances), self.most_groups, _tables()[0].shape[1], 3))
        for place, x in np.ndenumerate(log_smoothness):
            tables[place] = np.stack(_tables_at(float(x)), axis=1)

        def one(sample: Sample) -> tuple[float, list[np.ndarray]] | None:
            """Minus the log-likelihood of one sample and its derivatives; None if its matrix cannot be factored."""
            n, pairs = len(sample.values), sample.squares.shape[1]
            parts = np.empty((len(variances), 1 + 2 * self.most_groups, pairs))
            matrix, alpha = np.empty((n, n)), sample.values.copy()
            distances, kernels = (sample.squares, sample.pairs), (variances, scales, self.group, tables, own, noise)
            if not _solve(routines, *distances, *kernels, parts, matrix, alpha):
                return None
            value = 0.5 * float(sample.values @ alpha) + float(np.log(np.diag(matrix)).sum())
            sums = [np.zeros(len(variances)), *(np.zeros_like(one) for one in (log_lengths, log_smoothness, own))]
            trace = _differentiate(routines, matrix, alpha, *distances, self.group, parts, own, *sums)
            return value, [*sums, trace]

        total, gradient = 0.0, np.zeros_like(theta)
        by_variance, by_length, by_smoothness, by_own, by_noise = np.zeros(5, object)
        for found in in_order(one, self.samples):
            if found is None:
                return 1e10, np.zeros_like(theta)
            total += found[0]
            variance, square, smoothness, share, of_noise = found[1]
            by_variance, by_smoothness, by_own = by_variance + variance, by_smoothness + smoothness, by_own + share
            by_length, by_noise = by_length + square * scales, by_noise + of_noise
        for c in range(len(variances)):  # a smoother group of the same range is shorter
            np.subtract.at(by_smoothness[c], self.group[c], 0.5 * by_length[c])
        gradient[:-1] = np.concatenate([by_variance[:, None], by_length, by_smoothness, by_own], axis=1).ravel()
        gradient[-1] = by_noise * (noise - NOISE_FLOOR)
        return total, gradient

    def starts(self, simpler: Likelihood, theta: np.ndarray) -> Iterator[np.ndarray]:
        """First guesses from the fit of the first component alone, with a second one that is short in some groups.

        A second component may be noise of the whole field (short everywhere), or persist along some axes: pixels that
        differ from their neighbours every season. Or the first becomes a trend of the whole field, and the second is
        the field without its trend: it differs from place to place as the fit of both together did, over a part of the
        range.
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
        if groups == self.components[0]:
            trend, rest = base[:-1].reshape(len(self.components), -1)
            rest[:] = trend
            # Below the range, differences grow with the distance to the power of nu, of one if it is larger.
            log_power = min(0.0, trend[1 + d : 1 + d + g].max(initial=-np.inf))
            rest[0] += 2 * np.exp(log_power) * np.log(SHARE_OF_RANGE)
            rest[1 : 1 + d] += np.log(SHARE_OF_RANGE)
            trend[1 + d : 1 + d + g] = np.log(SMOOTHNESS_OF_TREND)
            yield base

    def fit(self, iterations: int, guess: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """The parameters with the highest penalised likelihood, and the log-likelihood there."""
        first, centre, width = self.start()
        first = first if guess is None else guess

        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            off = (theta - centre) / width
            value, gradient = self(theta)
            return (value + 0.5 * float(off @ off)) / self.entries, (gradient + off / width) / self.entries

        bounds: list[tuple[float, float]] = [(c - 4 * w, c + 4 * w) for c, w in zip(centre, width)]
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

    def season_starts(self, simpler: Likelihood, theta: np.ndarray) -> Iterator[np.ndarray]:
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
