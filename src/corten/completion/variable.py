"""The variable that the stack models: the values, or their square roots where a pseudo-gap shows smaller errors.

Errors of counts and concentrations grow with their level. In the values themselves large ones determine the settings of
all members and the weights of their mix; square roots give small values the same influence. Unlike a transform of the
whole fit, this changes the estimate only: residuals, scores and intervals stay in the variable of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corten.completion.axes_kinds import axis_kinds, pseudo_gap
from corten.completion.smooth import SmoothCompletion
from corten.data.axes import Axis
from corten.data.choices import Choice

MIN_SKEWNESS = 0.15  # mean minus median, in standard deviations
MIN_ROOT_GAIN = 0.05  # of the mean absolute error; with less, intervals of counts were as often wider as narrower
GAPS = 2
ROOT_HIDDEN_SHARE = 1 / 3  # of the observed entries at most, in a pseudo-gap
ROOT_SEED_STREAM = 0x5071


def roots_of(values: np.ndarray) -> np.ndarray:
    """The square roots; of negative values 0, and NaN stays."""
    return np.asarray(np.sqrt(np.maximum(values, 0)))


def squares_of(roots: np.ndarray) -> np.ndarray:
    """The inverse of `roots_of`; of negative roots 0."""
    return np.asarray(np.maximum(roots, 0) ** 2)


def is_skewed(known: np.ndarray) -> bool:
    """Whether the values have a long upper tail, as counts and concentrations do."""
    return bool(known.size and known.mean() - np.median(known) > MIN_SKEWNESS * known.std())


def choose_root(
    values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int
) -> tuple[bool, tuple[Choice, ...]]:
    """Whether square roots are modelled, with the record of the choice: by the errors of a pyramid in pseudo-gaps.

    Only for skewed values that are nowhere negative; else there is nothing to choose and no record.
    """
    known = values[mask]
    if not known.size or known.min() < 0 or not is_skewed(known):
        return False, ()
    rng, kinds = np.random.default_rng((seed, ROOT_SEED_STREAM)), axis_kinds(axes, mask.shape)
    gaps = [pseudo_gap(mask, kinds, rng, ROOT_HIDDEN_SHARE) for _ in range(GAPS)]
    gaps = [hidden for hidden in gaps if hidden.any() and hidden.sum() < known.size]
    if not gaps:
        return False, ()
    roots = roots_of(values)
    pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
    plain = rooted = 0.0
    for hidden in gaps:
        train, truth = mask & ~hidden, values[hidden]
        plain += float(np.abs(pyramid.fill(values, train).estimate[hidden] - truth).sum())
        rooted += float(np.abs(squares_of(pyramid.fill(roots, train).estimate[hidden]) - truth).sum())
    gain = 1 - rooted / plain if plain > 0 else 0.0
    used = gain >= MIN_ROOT_GAIN
    because = (
        f"for skewed values; square roots change the mean absolute error of kernel averages in {len(gaps)} "
        f"pseudo-gaps by {-gain:.1%}, and are used if they lower it by {MIN_ROOT_GAIN:.0%}"
    )
    code = "square_roots_modelled" if used else "values_modelled"
    taken = "square roots of the values" if used else "values"
    return used, (Choice("variable of the stack", taken, because, code=code, values={"gain": gain}),)
