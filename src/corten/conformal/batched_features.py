"""Features and depths of entries for many rounds at once on a device, for tensors whose axes are all ordered.

The depth is the lower envelope of parabolas along one axis after the other. The code runs with NumPy too, which the
tests use; every array has a leading axis of rounds.
"""

from __future__ import annotations

import numpy as np

from corten.conformal.local_scale import EntryFeatures, Fields, Layout, columns
from corten.engine.arrays import Array, Arrays

FAR = np.float32(1e30)  # squared distance where no training entry has been found yet


def features_of_rounds(
    arrays: Arrays,
    describe: EntryFeatures,
    *,
    entries: np.ndarray,
    known: Array,
    kept: Array,
    members: list[Array],
    estimate: Array,
    centre: np.ndarray,
    scale: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Features (rounds, entries, features) and depths (rounds, entries) of the flat `entries` of each round.

    known, members and estimate are standardised: `centre` and `scale`, one number for each round, undo that. `kept` is
    one at training entries.
    """
    ratio, level = ((one / describe.spread).astype(np.float32).reshape(-1, 1) for one in (scale, centre))
    with arrays.running():
        run = arrays.compiled(_features, layout=describe.layout)
        of = (arrays.put(one) for one in (entries.astype(np.int32), ratio, level))
        features, deep = run(*of, known, kept, tuple(members), estimate)
    return arrays.get(features), arrays.get(deep)


def _features(
    arrays: Arrays,
    entries: Array,
    ratio: Array,
    level: Array,
    known: Array,
    kept: Array,
    members: tuple[Array, ...],
    estimate: Array,
    *,
    layout: Layout,
) -> tuple[Array, Array]:
    deep = depth(arrays, kept, layout)
    whole = ratio.reshape(-1, *(1,) * (kept.ndim - 1))
    fields = Fields(deep, kept, known * whole, estimate * whole, members=members, unit=ratio)
    found = list(columns(arrays, layout, entries, fields))
    found[-1] = found[-1] + level
    return arrays.xp.stack(found, axis=2).astype(np.float32), arrays.at(deep, entries)


def depth(arrays: Arrays, kept: Array, layout: Layout) -> Array:
    """The distance of every entry to the nearest training entry, as `corten.conformal.depth.depth`."""
    xp, shape = arrays.xp, kept.shape[1:]
    squares = xp.where(kept > 0, np.float32(0), FAR)
    for k, (n, step, periodic) in enumerate(zip(shape, layout.change, layout.periodic)):
        place = np.arange(n, dtype=np.float32).reshape([-1 if j == k else 1 for j in range(len(shape))])
        before = squares

        def nearer(
            j: int, best: Array, place: np.ndarray = place, before: Array = before, k: int = k, n: int = n
        ) -> Array:
            apart = xp.abs(place - j)
            apart = xp.minimum(apart, n - apart) if periodic else apart  # noqa: B023
            plane = xp.expand_dims(xp.take(before, j, axis=k + 1), k + 1)
            return xp.minimum(best, plane + (np.float32(step) * apart) ** 2)  # noqa: B023

        squares = arrays.loop(n, nearer, squares)
    furthest = np.sqrt(sum((step * n) ** 2 for step, n in zip(layout.change, shape)))
    return xp.minimum(xp.sqrt(squares), np.float32(furthest))
