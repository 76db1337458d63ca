"""The additive propensity model: log-odds are a sum of one effect per slice of each axis, shrunk towards zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from corten.data.choices import Choice
from corten.engine import MaskPass, Model
from corten.engine.lazy import Planes, is_lazy
from corten.engine.memory import parts
from corten.engine.passes import PlainFrame
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Zero
from corten.propensity.fitted import FitsMasks, FittedPropensity, TrainingMask, model_of
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve

MAX_LOG_ODDS = 14.0  # beyond it a probability is 0 or 1 in single precision
MAX_PASSES = 40  # over the mask, in one descent
MAX_RESCALING = 2.0  # factor of the effects after the fit


class Tally(NamedTuple):
    """Counts of the entries in the likelihood: those that train, and all of them in each slice of each axis."""

    training: int
    slices: tuple[np.ndarray, ...]

    @property
    def entries(self) -> int:
        """The number of entries in the likelihood."""
        return int(self.slices[0].sum())


@dataclass(frozen=True)
class AdditivePropensity(FitsMasks):
    """Independent missingness whose log-odds are a sum of one effect per slice of each axis.

    Use it where whole rows, stations or days are observed less often than others. It has no parameters.

    Notes
    -----
    The model is that of equation (Bernoulli-model) with an additive parameter, a tensor train of rank 2. The effects of
    an axis have a normal distribution around zero, whose variance is estimated from the mask; the variance is zero for
    an axis without influence. The effects are shrunk accordingly and then multiplied by the number between 1 and 2 that
    minimises the loss, so that the weights are not flattened.

    Examples
    --------
    >>> rows = np.linspace(0.2, 0.9, 30)[:, None]
    >>> mask = np.random.default_rng(0).random((30, 40)) < rows
    >>> fitted = AdditivePropensity().fit(mask, train_share=1.0)
    >>> bool(fitted.log_odds(mask)[-1].mean() > fitted.log_odds(mask)[0].mean() + 2)
    True
    """

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        spins = given.spins
        passes = given.runner.mask_pass(spins, independent(spins.shape), given.train_share)
        train, spreads, loss = fit_additive(passes, tally(spins), rescale=True)
        names = given.axis_names or [f"axis {k}" for k in range(len(spins.shape))]
        words = ", ".join(f"{name} {spread:.3g}" for name, spread in zip(names, spreads))
        because = "standard deviation of the log-odds, estimated for each axis from the training mask"
        values = {str(name): spread for name, spread in zip(names, spreads)}
        choice = Choice("spread of slice effects", words, because, code="slice_effects_estimated", values=values)
        around = resolve("adjacent", spins.shape, given.axis_names, given.periodic)
        ended = "variances estimated"
        fitted = FittedPropensity(train, Zero(), as_link("logit"), around, loss=loss, stopped_because=ended)
        return given.completed(replace(fitted, passes=passes.passes, choices=(choice,)))


def frame_of(train: TensorTrain) -> PlainFrame:
    """A tensor train in the form that passes read. Contractions with its cores as they are give sums over slices."""
    return PlainFrame(train.cores, train.cores)


def independent(shape: Sequence[int]) -> Model:
    """The model without coupling whose parameter is the log-odds."""
    return model_of(Zero(), as_link("logit"), resolve("adjacent", shape))


def tally(spins: Planes) -> Tally:
    """Counts of entries with spin +1 or -1; held-out entries (+-2) and entries outside the domain (0) do not count."""
    axes = range(len(spins.shape))
    if is_lazy(spins):
        import dask

        inside = abs(spins) == 1
        found = [inside.sum(axis=tuple(j for j in axes if j != k)) for k in axes]
        training, *slices = dask.compute((spins == 1).sum(), *found)
        return Tally(int(training), tuple(np.asarray(one, np.float64) for one in slices))
    training, counts = 0, [np.zeros(n) for n in spins.shape]
    for start, stop, part in parts(np.asanyarray(spins)):
        inside = np.abs(part) == 1
        training += int(np.count_nonzero(part == 1))
        counts[0][start:stop] += inside.reshape(len(part), -1).sum(axis=1)
        for k in list(axes)[1:]:
            counts[k] += inside.sum(axis=tuple(j for j in axes if j != k))
    return Tally(training, tuple(counts))


def constant_train(shape: Sequence[int], counted: Tally, train_share: float) -> TensorTrain:
    """A constant tensor train: the log-odds of the overall share of observed entries."""
    share = float(np.clip(counted.training / (train_share * max(counted.entries, 1)), 1e-6, 1 - 1e-6))
    cores = [np.ones((1, d, 1)) for d in shape]
    cores[0] = cores[0] * float(np.log(share / (1 - share)))
    return TensorTrain(tuple(cores))


def additive_train(level: float, effects: Sequence[np.ndarray]) -> TensorTrain:
    """level + the sum of one effect per axis, as a tensor train of rank 2."""
    first, *middle, last = [np.asarray(one, np.float64) for one in effects]
    cores = [np.stack([level + first, np.ones_like(first)], -1)[None]]
    for one in middle:
        core = np.zeros((2, len(one), 2))
        core[0, :, 0], core[1, :, 0], core[1, :, 1] = 1.0, one, 1.0
        cores.append(core)
    return TensorTrain((*cores, np.stack([np.ones_like(last), last])[..., None]))


def fit_additive(passes: MaskPass, counted: Tally, rescale: bool = False) -> tuple[TensorTrain, list[float], float]:
    """The log-odds, the standard deviation of the effects of each axis, and the unpenalised loss.

    Effects are first fitted with a standard deviation of one. One scoring step removes that shrinkage. The variance of
    each axis is the moment estimate of Paule and Mandel (as in meta-analysis) from these effects and their sampling
    variances, and the effects are fitted again with it. The likelihood is that of the thinned mask: an entry trains
    with probability q p.

    `rescale` multiplies the effects by the number that minimises the unpenalised loss. Shrunk effects predict best, but
    flatten the weights, which costs coverage where errors are larger in slices that are observed less: 1.6 points
    (standard error 0.3) on 40 x 60 masks with effects from -1.5 to 1.5, and 0.1 points (0.3) with the effects rescaled.
    """
    q, shape = passes.train_share, [len(one) for one in counted.slices]
    level = float(constant_train(shape, counted, q).cores[0][0, 0, 0])
    effects = [np.zeros(n) for n in shape]
    spreads = [1.0 if n > 1 else 0.0 for n in shape]
    for _ in range(2):
        level, effects, loss = _descend(passes, counted, level, effects, spreads)
        spreads = [_spread(one, level, n, s, q) for one, n, s in zip(effects, counted.slices, spreads)]
    level, effects, loss = _descend(passes, counted, level, effects, spreads)
    if rescale and any(spreads):
        from scipy.optimize import minimize_scalar

        def scaled(factor: float) -> TensorTrain:
            return additive_train(level, [factor * one for one in effects])

        found = minimize_scalar(
            lambda factor: passes.loss_and_contractions(frame_of(scaled(factor)))[0],
            bounds=(1.0, MAX_RESCALING), method="bounded", options={"xatol": 0.02},
        )  # fmt: skip
        return scaled(float(found.x)), spreads, float(found.fun)
    return additive_train(level, effects), spreads, loss


def _information(level: float, effect: np.ndarray, entries: np.ndarray, q: float) -> np.ndarray:
    """Fisher information on the effects of slices, with the other axes at their mean."""
    p = 1 / (1 + np.exp(-np.clip(level + effect, -MAX_LOG_ODDS, MAX_LOG_ODDS)))
    return np.asarray(entries * q * p * (1 - p) ** 2 / (1 - q * p) + 1e-9)


def _spread(effect: np.ndarray, level: float, entries: np.ndarray, spread: float, q: float) -> float:
    """Standard deviation of the effects of an axis, from the effects without shrinkage."""
    if spread == 0:
        return 0.0
    information = _information(level, effect, entries, q)
    free = effect * (1 + 1 / (spread**2 * information))
    variance = 1 / information

    def excess(between: float) -> float:
        weight = 1 / (between + variance)
        return float(np.sum(weight * (free - np.sum(weight * free) / weight.sum()) ** 2)) - (len(free) - 1)

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, float(MAX_LOG_ODDS**2)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return float(np.sqrt(high))


def _descend(
    passes: MaskPass, counted: Tally, level: float, effects: list[np.ndarray], spreads: Sequence[float]
) -> tuple[float, list[np.ndarray], float]:
    """Level and effects with the lowest penalised loss, and their unpenalised loss; L-BFGS in standard errors."""
    from scipy.optimize import minimize

    q, places = passes.train_share, np.cumsum([1, *map(len, effects)])[:-1]
    scales = [np.ones(1)]
    penalty = [np.zeros(1)]
    for one, entries, spread in zip(effects, counted.slices, spreads):
        strength = 1 / spread**2 if spread > 0 else 0.0
        own_scale = 1 / np.sqrt(_information(level, one, entries, q) + strength)
        scales.append(own_scale if spread > 0 else np.zeros(len(one)))
        penalty.append(np.full(len(one), strength))
    scales[0] = 1 / np.sqrt(_information(level, np.zeros(1), np.array([counted.entries]), q))
    scale, rate = np.concatenate(scales), np.concatenate(penalty)
    here = np.concatenate([[level], *[np.where(s > 0, one, 0.0) for one, s in zip(effects, spreads)]])
    loss = np.nan

    def objective(step: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal loss
        at = here + scale * step
        train = additive_train(at[0], np.split(at, places)[1:])
        loss, found = passes.loss_and_contractions(frame_of(train))
        sums = [found[0][0, :, 0], *(one[1, :, 0] for one in found[1:])]
        slope = np.concatenate([[np.sum(sums[0])], *sums]) + rate * at
        return loss + 0.5 * float(np.sum(rate * at**2)), np.asarray(scale * slope, np.float64)

    range_left = np.where(scale > 0, (MAX_LOG_ODDS - np.abs(here)) / np.where(scale > 0, scale, 1.0), 0.0)
    limits = list(zip(-np.maximum(range_left, 0.0), np.maximum(range_left, 0.0)))
    done = minimize(
        objective, np.zeros(len(here)), jac=True, method="L-BFGS-B", bounds=limits,
        options={"maxfun": MAX_PASSES, "gtol": 0.01, "ftol": 1e-9},
    )  # fmt: skip
    objective(done.x)
    at = here + scale * done.x
    return float(at[0]), np.split(at, places)[1:], float(loss)
