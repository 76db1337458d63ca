"""Old and new slices joined into a window, against a dictionary of slices by their position."""

from __future__ import annotations

import numpy as np
import pytest

from corten.data.axes import Axis
from corten.data.matching import joined
from corten.data.observed import ObservedTensor

OTHER = 3


def tensor(positions: np.ndarray | None, count: int, axis: int, seed: int) -> ObservedTensor:
    """Two axes; the slices along one of them have these positions."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, OTHER))
    values[rng.random(values.shape) < 0.3] = np.nan
    moving = Axis("time", count, positions)
    axes = (moving, Axis("place", OTHER))
    if axis:
        values, axes = np.ascontiguousarray(values.T), axes[::-1]
    return ObservedTensor(values, np.isfinite(values), None, axes)


def slices_of(one: ObservedTensor, axis: int) -> list[np.ndarray]:
    return list(np.moveaxis(one.values, axis, 0))


def same(one: np.ndarray, two: np.ndarray) -> bool:
    return np.array_equal(one, two, equal_nan=True)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_window_has_the_last_slices_each_the_newest_of_its_position(axis: int, falling: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, n_old, n_new, window = (int(rng.integers(*ends)) for ends in ((2, 9), (4, 8), (1, 7), (2, 12)))
    old_at, new_at = np.arange(n_old) * 2.0, np.arange(first, first + n_new) * 2.0
    if falling:
        old_at, new_at = -old_at, -new_at
    fit, new = tensor(old_at, n_old, axis, 2 * seed), tensor(new_at, n_new, axis, 2 * seed + 1)
    repeated = [at for at in new_at if at in old_at][:1]  # one slice that comes again as it was
    for at in repeated:
        for part in ("values", "mask"):
            to, of = (np.moveaxis(getattr(one, part), axis, 0) for one in (new, fit))
            to[list(new_at).index(at)] = of[list(old_at).index(at)]
    made = joined(fit, new, axis, window)

    before, after = (dict(zip(at, slices_of(one, axis))) for at, one in ((old_at, fit), (new_at, new)))
    positions = sorted({*before, *after}, reverse=falling)[-window:]
    assert made.observed.axes[axis].coordinates.tolist() == positions
    assert made.observed.axes[1 - axis].length == OTHER and made.observed.axes[axis].length == len(positions)
    found = slices_of(made.observed, axis)
    for k, at in enumerate(positions):
        assert same(found[k], after.get(at, before.get(at)))
        assert made.fresh[k] == (at in after and not (at in before and same(before[at], after[at])))
    assert np.array_equal(made.observed.mask, np.isfinite(made.observed.values))
    for old, at in enumerate(old_at):
        stays = at in positions and (at not in after or same(before[at], after[at]))
        assert made.place[old] == (positions.index(at) if stays else -1)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("window", [2, 5, 9])
def test_slices_without_positions_are_appended(axis: int, window: int) -> None:
    fit, new = tensor(None, 4, axis, 0), tensor(None, 3, axis, 1)
    made = joined(fit, new, axis, window)
    every = [*slices_of(fit, axis), *slices_of(new, axis)][-window:]
    assert all(map(same, slices_of(made.observed, axis), every)) and made.observed.shape[axis] == len(every)
    left = len(every) - 3  # places of old slices
    assert made.fresh.tolist() == [k >= left for k in range(len(every))]
    assert made.place.tolist() == [k - 4 + left if k - 4 + left >= 0 else -1 for k in range(4)]
