"""The correlation of the errors of different entries, learned from hidden entries, and fields that have it.

Errors are mapped to normal scores by rank. Their correlation is a sum of products of correlations along the axes, with
shares that fit products of the normal scores of pairs of entries hidden in the same round. The members of the sum have
different lengths along each axis: zero (independent positions), a Gaussian correlation of some length (sums of which
decay slowly or fast), or no end (an error that all positions share). What is left is independent noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product

import numpy as np
import scipy.fft
from scipy.optimize import nnls
from scipy.special import ndtri

from corten.completion.positions import Grid, grids_of
from corten.data.arrays import Entries, Floats
from corten.data.axes import Axis

MIN_LENGTH_STEPS = 0.7  # the shortest length that is tried along an axis
LENGTH_RATIO = 1.8  # of two neighbouring lengths
MAX_LENGTHS = 7  # of them, besides independent and shared errors
MAX_MEMBERS = 1100  # that are tried
PAIR_PARTS = (1, 2, 4, 8, 16, 32, 64)  # parts of every axis; both entries of a pair lie in one part
PAIR_OFFSETS = 4  # pairs of an entry in each part
MAX_EXACT_POSITIONS = 1000  # positions; a longer axis is simulated on a circle of twice its length
MIN_ERROR_PAIRS = 200  # fewer say nothing about dependence: errors are then independent
MIN_PAIR_WEIGHT = 1e-9  # of the largest possible; errors of zero have no scale
MAX_MISFIT = 0.03  # of a correlation, by which the best sum may differ from the true one
SUM_ROW_FACTOR = 100.0  # of the row that makes the sum of all shares one, to the heaviest other row
NEGLIGIBLE = 1e-9  # eigenvalues of a correlation along an axis, relative to the largest
MIN_SHARE = 0.01  # of the variance; smaller members are left out


@dataclass(frozen=True)
class Dependence:
    """Shares of the variance of errors, and their lengths along each axis in usual steps, (members, axes)."""

    shares: Floats
    lengths: Floats

    @staticmethod
    def none(axes: int) -> Dependence:
        """Independent errors."""
        return Dependence(np.empty(0), np.empty((0, axes)))

    def draw(self, axes: Sequence[Axis], rng: np.random.Generator) -> Floats:
        """A field of standard normal numbers with this correlation."""
        shape = tuple(axis.length for axis in axes)
        places = [positions_of(axis) for axis in axes]
        left = max(0.0, 1.0 - float(self.shares.sum()))
        total = np.sqrt(left) * rng.standard_normal(shape)
        for share, lengths in zip(self.shares, self.lengths):
            sizes = [_noise_length(at, axis.periodic, float(one)) for at, axis, one in zip(places, axes, lengths)]
            part = rng.standard_normal(sizes)
            for k, (axis, length) in enumerate(zip(axes, lengths)):
                if 0.0 < length < np.inf:
                    part = _smoothed(part, k, places[k], axis.periodic, float(length))
            total += np.sqrt(share) * part
        return np.asarray(total)


def correlation_along(steps: Floats, length: float) -> Floats:
    """The Gaussian correlation; of equal positions only if the length is 0, one if it has no end."""
    if length == 0.0:
        return (np.asarray(steps) == 0).astype(np.float64)
    return np.asarray(np.exp(-0.5 * (np.asarray(steps) / length) ** 2))


def positions_of(axis: Axis) -> Floats:
    """The positions of an ordered axis, in its usual steps."""
    grid: Grid = grids_of([axis], (axis.length,))[0]
    return np.arange(float(axis.length)) if grid.positions is None else grid.positions / grid.usual_step


def _noise_length(places: Floats, periodic: bool, length: float) -> int:
    """Positions of the noise that one member of the sum is made of, along one axis."""
    size = len(places)
    if np.isinf(length):
        return 1
    if length == 0.0:
        return size
    return _root(tuple(places), periodic, length).shape[1] if size <= MAX_EXACT_POSITIONS else 2 * size


def _smoothed(noise: Floats, k: int, places: Floats, periodic: bool, length: float) -> Floats:
    """Independent noise made correlated along axis k, with variance one."""
    size = len(places)
    if size <= MAX_EXACT_POSITIONS:
        moved = np.tensordot(_root(tuple(places), periodic, length), noise, axes=(1, k))
        return np.moveaxis(moved, 0, k)
    circle = 2 * size
    steps = np.minimum(np.arange(circle), circle - np.arange(circle))
    spectrum = np.maximum(scipy.fft.rfft(correlation_along(steps, length)).real, 0.0)
    spectrum *= circle / (2.0 * spectrum.sum() - spectrum[0] - spectrum[-1])
    along = [-1 if j == k else 1 for j in range(noise.ndim)]
    waves = scipy.fft.rfft(noise, axis=k) * np.sqrt(spectrum).reshape(along)
    first = [slice(size) if j == k else slice(None) for j in range(noise.ndim)]
    return np.asarray(scipy.fft.irfft(waves, circle, axis=k)[tuple(first)])


@lru_cache(maxsize=64)
def _root(places: tuple[float, ...], periodic: bool, length: float) -> Floats:
    """A matrix whose product with its transpose is the correlation of positions.

    Long correlations have few eigenvalues that are not negligible, and need as few columns.
    """
    at = np.array(places)
    steps = np.abs(at[:, None] - at[None, :])
    if periodic:
        steps = np.minimum(steps, at[-1] + 1.0 - steps)
    values, vectors = np.linalg.eigh(correlation_along(steps, length))
    kept = values > NEGLIGIBLE * values.max()  # on a circle a few eigenvalues can be negative
    root = vectors[:, kept] * np.sqrt(values[kept])
    return np.asarray(root / np.linalg.norm(root, axis=1, keepdims=True))


def learn_dependence(
    entries: Entries, scores: Floats, *, log_weights: Floats, scale: Floats, rounds: Entries, axes: Sequence[Axis],
    seed: int = 0,
) -> Dependence:  # fmt: skip
    """The dependence of signed scores of hidden entries, from pairs of one round.

    A pair has the weights of both entries, which make them resemble missing ones, times both scales: the variance of a
    mean is the sum of correlations with these factors, and large errors are more correlated than small ones.
    """
    first, second = pairs_of(entries, rounds, tuple(axis.length for axis in axes), seed)
    size = np.abs(scale) / max(float(np.abs(scale).max(initial=0.0)), np.finfo(np.float64).tiny)
    weight = np.exp(log_weights - log_weights.max(initial=-np.inf)) * size
    own = weight[first] * weight[second]
    used = own > MIN_PAIR_WEIGHT
    first, second, own = first[used], second[used], own[used]
    if len(first) < MIN_ERROR_PAIRS:
        return Dependence.none(len(axes))
    z = normal_scores(scores, log_weights)
    steps = steps_between(entries[first], entries[second], axes)
    bin_ = np.zeros(len(first), np.intp)
    for column in steps.T:  # steps in powers of the square root of two
        bin_ = bin_ * 64 + np.rint(2.0 * np.log2(1.0 + column)).astype(np.intp)
    bin_ = np.unique(bin_, return_inverse=True)[1].ravel()
    total = np.bincount(bin_, own)
    spread = float((own * (z[first] ** 2 + z[second] ** 2)).sum() / (2.0 * own.sum()))
    found = np.bincount(bin_, own * z[first] * z[second]) / (total * spread)
    centre = np.stack([np.bincount(bin_, own * column) / total for column in steps.T], axis=1)
    # Products of two normal numbers have variance one; beyond many pairs the form of the correlation is what errs.
    root = 1.0 / np.sqrt(np.bincount(bin_, own**2) / total**2 + MAX_MISFIT**2)
    tried = _members(axes)
    along = [{length: correlation_along(centre[:, k], length) for length in np.unique(tried[:, k])}
             for k in range(len(axes))]  # fmt: skip
    design = np.stack([np.prod([along[k][one] for k, one in enumerate(row)], axis=0) for row in tried], axis=1)
    # The last unknown is the share of independent noise; a heavy row makes the sum of all shares one.
    rows = np.pad(design * root[:, None], ((0, 1), (0, 1)))
    rows[-1] = SUM_ROW_FACTOR * root.max()
    shares = nnls(rows, np.append(found * root, rows[-1, 0]), maxiter=30 * len(tried))[0][:-1]
    shares = shares / max(1.0, float(shares.sum()))
    kept = shares >= MIN_SHARE
    return Dependence(shares[kept], tried[kept])


def _members(axes: Sequence[Axis]) -> Floats:
    """The lengths of the members that are tried, (members, axes): with many axes fewer along each."""
    most = MAX_LENGTHS
    lengths = [_lengths_of(axis, most) for axis in axes]
    while np.prod([float(len(one)) for one in lengths]) > MAX_MEMBERS and most > 0:
        most -= 1
        lengths = [_lengths_of(axis, most) for axis in axes]
    tried = np.array(list(islice(product(*lengths), MAX_MEMBERS)))
    return np.asarray(tried[(tried > 0).any(axis=1)])


def _lengths_of(axis: Axis, most: int) -> list[float]:
    """Lengths that are tried along an axis, in usual steps: at most so many besides independent and shared errors."""
    if axis.length == 1:
        return [np.inf]
    longest = max(float(np.ptp(positions_of(axis))) / 2.0, 1.0)
    count = min(most, 1 + int(np.ceil(np.log(longest / MIN_LENGTH_STEPS) / np.log(LENGTH_RATIO))))
    if axis.kind == "unordered" or count == 0:
        return [0.0, np.inf]
    return [0.0, *np.geomspace(MIN_LENGTH_STEPS, longest, max(count, 2)).tolist()[-count:], np.inf]


def normal_scores(scores: Floats, log_weights: Floats) -> Floats:
    """Scores mapped by weighted rank to standard normal numbers."""
    order = np.argsort(scores, kind="stable")
    weight = np.exp(log_weights - log_weights.max())[order]
    z = np.empty(scores.size)
    z[order] = ndtri((np.cumsum(weight) - 0.5 * weight) / weight.sum())
    return z


def pairs_of(entries: Entries, rounds: Entries, shape: tuple[int, ...], seed: int) -> tuple[Entries, Entries]:
    """Random pairs of different entries of one round, near and far: in parts of the tensor of several sizes."""
    rng = np.random.default_rng(seed)
    index = np.unravel_index(entries, shape)
    found = []
    for parts in PAIR_PARTS:
        block = rounds.astype(np.intp)
        for place, n in zip(index, shape):
            block = block * min(parts, n) + place * min(parts, n) // n
        order = np.lexsort((rng.permutation(len(entries)), block))
        for offset in range(1, PAIR_OFFSETS + 1):
            first, second = order[:-offset], order[offset:]
            same = (block[first] == block[second]) & (entries[first] != entries[second])
            found.append((first[same], second[same]))
    return tuple(np.concatenate(side) for side in zip(*found))  # type: ignore[return-value]


def steps_between(first: Entries, second: Entries, axes: Sequence[Axis]) -> Floats:
    """Usual steps between the entries of pairs along each axis, (pairs, axes)."""
    shape = tuple(axis.length for axis in axes)
    columns = []
    for axis, one, other in zip(axes, np.unravel_index(first, shape), np.unravel_index(second, shape)):
        at = positions_of(axis)
        steps = np.abs(at[one] - at[other])
        columns.append(np.minimum(steps, at[-1] + 1.0 - steps) if axis.periodic else steps)
    return np.stack(columns, axis=1).astype(np.float64)
