"""Entries in groups: slices of the tensor, labels of one's own, and calibration entries that stand for missing
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corten.conformal.split import CalibratedSplit
from corten.data.observed import ObservedTensor

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

__all__ = ["DRAWS", "axes_of", "group_numbers", "hidden_groups", "like_missing", "lists_of"]

DRAWS = 20
"""How often calibration entries are drawn by weight."""
CAP = 0.95


def group_numbers(observed: ObservedTensor, groups: Any) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """The group of every entry as a number, and the groups' names.

    groups: the name (or position) of an axis, several of them, or an array of labels that fits the tensor's shape
    (lengths of 1 are repeated).
    """
    if isinstance(groups, str | int):
        groups = (groups,)
    if isinstance(groups, tuple | list) and groups and all(isinstance(one, str | int) for one in groups):
        places = [observed.axis(one) for one in groups]
        number = np.zeros((1,) * len(observed.shape), np.intp)
        for place in places:
            along = [-1 if k == place else 1 for k in range(len(observed.shape))]
            number = number * observed.shape[place] + np.arange(observed.shape[place]).reshape(along)
        count = int(np.prod([observed.shape[place] for place in places]))
        return np.broadcast_to(number, observed.shape), tuple(str(one) for one in range(count))
    labels = np.asarray(groups)
    if labels.ndim != len(observed.shape):
        raise ValueError(
            f"groups has shape {labels.shape}: give an axis name, or one label per entry of {observed.shape} "
            "(lengths of 1 are repeated)"
        )
    names, codes = np.unique(np.broadcast_to(labels, observed.shape), return_inverse=True)
    return codes.reshape(observed.shape), tuple(str(one) for one in names)


def axes_of(observed: ObservedTensor, names: Sequence[str | int]) -> tuple[int, ...]:
    """Positions of axes; all of them where none is named."""
    return tuple(observed.axis(one) for one in names) if names else tuple(range(len(observed.shape)))


def lists_of(fitted: Fitted) -> Sequence[CalibratedSplit]:
    """The lists of scores behind a fit: one, or one for each of merged splits."""
    lists = fitted.calibrated.lists if fitted.calibrated is not None else ()
    if not lists:
        raise ValueError(
            "this result was given another promise (groups, joint or odds_error), for which this question is not "
            "defined: ask it of a result without one, fitted.intervals(coverage)"
        )
    return lists


def hidden_groups(fitted: Fitted, slices: NDArray[np.intp]) -> NDArray[np.intp]:
    """A number for every slice of every round, per calibration entry: what was hidden together."""
    assert fitted.calibrated is not None
    flat = np.ravel(slices)
    place = flat[fitted.entries] + fitted.calibrated.round_numbers * (int(flat.max(initial=0)) + 1)
    return np.unique(place, return_inverse=True)[1]


def like_missing(logs: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """A random part of the calibration entries that follows the law of the missing ones: kept in proportion to
    weight.

    The heaviest twentieth is always kept: it cannot be kept more than once.
    """
    chance = np.exp(np.minimum(logs - np.quantile(logs, CAP), 0.0))
    return rng.random(logs.size) < chance
