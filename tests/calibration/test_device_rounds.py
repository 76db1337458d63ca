"""Rounds on a device: features against those of the host, and a whole fit against one on threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import corten
from corten.calibration.device_rounds import rounds_on_device
from corten.completion.axes_kinds import standardise
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import PreparedStack
from corten.completion.unfoldings import UnfoldingCompletion
from corten.conformal.batched_features import features_of_rounds
from corten.conformal.depth import depth
from corten.conformal.local_scale import EntryFeatures
from corten.data.axes import Axis
from corten.engine.accelerator import Accelerator
from corten.engine.arrays import HostArrays, device_arrays


def on_jax() -> Any:
    pytest.importorskip("jax")
    return device_arrays(Accelerator("any"))


def field(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A smooth field far from zero, with noise."""
    rng = np.random.default_rng(seed)
    x = 0.05 * rng.standard_normal(shape)
    for k, n in enumerate(shape):
        x += np.sin(np.arange(n) * 5 / n + k).reshape([-1 if j == k else 1 for j in range(len(shape))])
    return 280 + 4 * x


@pytest.mark.parametrize("make", [HostArrays, on_jax])
def test_features_of_rounds_are_those_of_single_rounds(make: Any) -> None:
    shape, rng = (11, 1, 8, 9), np.random.default_rng(1)
    axes = tuple(Axis(f"a{k}", n, None, "ordered", periodic=k == 2) for k, n in enumerate(shape))
    x = field(shape)
    masks = [rng.random(shape) < share for share in (0.5, 0.15)]
    masks[1][3:9] = False
    describe = EntryFeatures.of(x, masks[0] | masks[1], axes)
    data = [standardise(x, mask, ("ordered",) * 4) for mask in masks]
    entries = np.stack([rng.permutation(x.size)[:60] for _ in masks])
    members = [x + 0.3 * rng.standard_normal(shape) for _ in range(3)]
    std = [np.stack([(m - one.centre) / one.scale for one in data]).astype(np.float32) for m in members]
    arrays = make()
    known = np.stack([one.values for one in data]).astype(np.float32)
    kept = np.stack(masks).astype(np.float32)
    centre, scale = (np.array([float(getattr(one, side).item()) for one in data]) for side in ("centre", "scale"))
    features, deep = features_of_rounds(
        arrays, describe, entries=entries, known=arrays.put(known), kept=arrays.put(kept),
        members=[arrays.put(m) for m in std], estimate=arrays.put(std[0]), centre=centre, scale=scale,
    )  # fmt: skip
    for b, mask in enumerate(masks):
        named = {str(k): m for k, m in enumerate(members)}
        wanted = describe.at(entries[b], values=x, train=mask, estimate=members[0], members=named)
        np.testing.assert_allclose(deep[b], depth(mask, axes, describe.change).reshape(-1)[entries[b]], rtol=1e-5)
        np.testing.assert_allclose(features[b], wanted, rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("unordered", [False, True])
def test_a_fit_on_a_device_agrees_with_one_on_threads(unordered: bool) -> None:
    pytest.importorskip("jax")
    x = field((14, 12, 10), 3)
    x[4:9, 3:9, 2:7] = np.nan
    kinds: Any = {2: "unordered"} if unordered else None
    # The covariance of a process takes long to choose; its solver has tests of its own.
    members: Any = {"pyramid": SmoothCompletion(), "low rank": UnfoldingCompletion("mean", 30)}
    settings: Any = {"calibration": corten.GapCalibration(rounds=4, drawn=0.0), "propensity": "constant"}
    fits = [
        corten.ConformalCompleter(completion=corten.StackedCompletion(members), engine=engine, **settings).fit(
            x, axis_kinds=kinds
        )
        for engine in ("threads", "jax")
    ]
    host, device = (fit.intervals(0.9) for fit in fits)
    gap = np.isnan(x)
    assert np.abs(device.estimate - host.estimate)[gap].max() < 1e-3 * np.nanstd(x)
    np.testing.assert_allclose(fits[1].calibrated.scores, fits[0].calibrated.scores, rtol=0.05, atol=0.01)
    np.testing.assert_allclose((device.upper - device.lower)[gap], (host.upper - host.lower)[gap], rtol=0.05)
    (where,) = (one for one in fits[1].choices if one.what == "rounds run on")
    assert where.code == "rounds_on_device" and where.values["rounds_at_once"] == 5
    assert not [one for one in fits[0].choices if one.what == "rounds run on"]


def test_what_a_device_cannot_fill_runs_on_the_host_with_a_reason() -> None:
    pytest.importorskip("jax")
    x = field((6, 5, 4))
    prepared = SmoothCompletion().prepare(x, np.ones(x.shape, bool), (), 0)
    device, (choice,) = rounds_on_device("jax", prepared, x.shape, 4)
    assert device is None and choice.code == "rounds_on_host" and "PreparedSmooth" in choice.because
    stack = PreparedStack({"pyramid": prepared}, {"pyramid": 1.0})
    large, rounds = (10**6, 10**4, 10**3), corten.GapCalibration(rounds=4)
    assert rounds_on_device("jax", stack, large, 4)[1][0].code == "rounds_on_host"
    (choice,) = rounds_on_device("jax", stack, x.shape, 4)[1]
    assert choice.code == "rounds_on_device"
    # The same bytes are said before a fit.
    assert choice.values["device_bytes"] == rounds.device_bytes("jax", x.shape) == 5 * 120 * x.size
    assert rounds.device_bytes("threads", x.shape) is None and rounds.device_bytes("jax", large) is None
    assert rounds_on_device("threads", stack, x.shape, 4) == (None, ())
