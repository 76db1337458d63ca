"""Costs stay near-linear for long axes and many axes: no matrix as large as the square of an axis."""

from __future__ import annotations

import tracemalloc

import numpy as np

from corten.completion.covariance import _mean_power
from corten.completion.smooth import PreparedSmooth
from corten.conformal.depth import depth
from corten.data.axes import Axis


def test_a_long_unordered_axis_needs_no_square_matrix() -> None:
    x = np.random.default_rng(0).standard_normal((3, 30_000))
    mask = x > -1
    tracemalloc.start()
    estimate = PreparedSmooth(("ordered", "unordered"), (1.0, 1.0)).fill(x, mask).estimate
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(estimate).all()
    assert peak < 200 * x.size  # bytes; a matrix of the long axis would take 7 GB


def test_the_mean_of_a_power_is_that_of_a_grid_of_frequencies() -> None:
    f = np.pi * (np.arange(400) + 0.5) / 400
    first, second = ((2 * length * np.sin(f / 2)) ** 2 for length in (1.5, 0.7))
    assert np.isclose(_mean_power(1.7, [1.5]), np.mean((1 + first) ** -1.7), rtol=1e-9)
    expected = np.mean((1 + first[:, None] + second[None, :]) ** -2.2)
    assert np.isclose(_mean_power(2.2, [1.5, 0.7]), expected, rtol=1e-9)
    # For a long length it falls with the length; the Bessel function of a huge argument was not a number once.
    assert np.isclose(_mean_power(1.1, [1e5]), _mean_power(1.1, [1e2]) / 1e3, rtol=1e-3)


def test_depth_inside_slices_of_unordered_axes() -> None:
    rng = np.random.default_rng(0)
    for kinds, periodic in (("uoo", 1), ("ouo", 0), ("oou", 2), ("uuo", 2)):
        train = rng.random((5, 6, 4)) < 0.08
        axes = [Axis(str(k), n, kind={"u": "unordered", "o": "ordered"}[kind], periodic=k == periodic and kind == "o")
                for k, (n, kind) in enumerate(zip(train.shape, kinds))]  # fmt: skip
        change = np.array([0.3, 0.7, 0.4])
        ordered = [k for k, kind in enumerate(kinds) if kind == "o"]
        furthest = np.sqrt(sum((change[k] * train.shape[k]) ** 2 for k in ordered))
        at = np.argwhere(train)
        expected = np.empty(train.shape)
        for place in np.ndindex(train.shape):
            step = np.abs(at - place)
            step = np.array([np.minimum(step[:, k], train.shape[k] - step[:, k]) if axes[k].periodic else step[:, k]
                             for k in range(3)])  # fmt: skip
            same = ~step[[k for k in range(3) if k not in ordered]].any(axis=0)
            near = np.sqrt(sum((change[k] * step[k]) ** 2 for k in ordered))[same]
            expected[place] = near.min() if near.size else furthest
        np.testing.assert_allclose(depth(train, axes, change), expected, rtol=1e-5, err_msg=kinds)
