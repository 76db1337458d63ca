"""The learned correction of the stack: it is used where it lowers the errors of other blocks, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import corten
from corten.completion.axes_kinds import standardise
from corten.completion.correction import PreparedCorrected, learn_correction
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.stack import PreparedStack
from corten.conformal.local_scale import EntryFeatures
from corten.conformal.trees import Trees
from corten.data.axes import Axis

SHAPE = (400, 8)
EVERYWHERE = np.ones(SHAPE, bool)
AXES = (
    Axis("time", 400, np.datetime64("2020-01-01T00") + np.arange(400) * np.timedelta64(1, "h"), "ordered", False, None),
    Axis("station", 8, np.array([f"s{i}" for i in range(8)]), "unordered", False, None),
)


def network(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hourly values at eight stations that move together, and which of them train."""
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.standard_normal(400))[:, None] + rng.standard_normal(SHAPE)
    return x, rng.random(SHAPE) < 0.6


def features_of(x: np.ndarray, train: np.ndarray, estimate: np.ndarray) -> tuple[NeighbourFeatures, np.ndarray]:
    describe = EntryFeatures.of(x, train, AXES)
    near = NeighbourFeatures.of(x, train, describe)
    entries = np.flatnonzero(~train)
    return near, near.at(entries, x, train=train, estimate=estimate, members={"one": estimate})


def test_features_are_the_nearest_values_relative_to_the_estimate() -> None:
    x, train = network(0)
    estimate = np.full(SHAPE, 2.5)
    near, found = features_of(np.where(train, x, np.nan), train, estimate)
    spread = near.describe.spread
    for row, entry in zip(found, np.flatnonzero(~train)):
        t, s = np.unravel_index(entry, SHAPE)
        before, after = np.flatnonzero(train[:t, s])[::-1], t + 1 + np.flatnonzero(train[t + 1 :, s])
        wanted = [0.0, 2.5 / spread]
        for side in (before, after):
            values = [*(x[side[:2], s] - 2.5) / spread, 0.0, 0.0][:2]
            wanted += [values[0], abs(int(side[0]) - int(t)) if len(side) else 800, values[1]]
        np.testing.assert_allclose(row[:8], wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(row[8:12], 0)  # slopes of a constant estimate
        others, wanted = near.nearest[1][s, :6], []
        for lag in range(-3, 4):
            u = min(max(t + lag, 0), SHAPE[0] - 1)
            seen = [x[u, o] - 2.5 for o in others if train[u, o]]
            wanted.append(np.mean(seen) / spread if seen else 0.0)
        for side in (before, after):
            if len(side):
                both = [x[t, o] - x[side[0], o] for o in others if train[t, o] and train[side[0], o]]
                wanted.append((x[side[0], s] + (np.mean(both) if both else 0.0) - 2.5) / spread)
            else:
                wanted.append(0.0)
        np.testing.assert_allclose(row[-11:-2], wanted, rtol=1e-4, atol=1e-4)
        assert row[-2] == t % 24
        assert row[-1] == t // 24


def test_features_hold_the_nearest_observed_stations_and_averages_by_correlation() -> None:
    x, train = network(4)
    train[:, 1:5] &= (np.arange(400) % 10 > 4)[:, None]  # half of the stations are often silent at the same hours
    estimate = np.full(SHAPE, 1.5)
    near, found = features_of(np.where(train, x, np.nan), train, estimate)
    data = standardise(np.where(train, x, 0.0), train, ("ordered", "unordered"))
    known, likeness = data.values, near.correlations[1]
    level = ((1.5 - data.centre) / data.scale)[0]
    weights = 1 / (1.02 - np.clip(likeness, 0, 1))
    np.fill_diagonal(weights, 0)
    average = (known @ weights.T) / np.maximum(train @ weights.T, 1e-9)
    for row, entry in zip(found[::7], np.flatnonzero(~train)[::7]):
        t, s = np.unravel_index(entry, SHAPE)
        there = [o for o in near.nearest[1][s] if train[t, o]][:6]
        empty = [0.0] * (6 - len(there))
        wanted = [*(known[t, there] - level[s]), *empty, *likeness[s, there], *empty]
        np.testing.assert_allclose(row[12:24], wanted, rtol=1e-4, atol=1e-4)
        if there:
            np.testing.assert_allclose(row[24], average[t, s] - level[s], rtol=1e-4, atol=1e-4)
            ready = train[:, s] & (train @ weights[s] > 0)
            decay = np.exp(-np.abs(np.arange(400) - t) / 3) * ready
            offset = decay @ (known[:, s] - average[:, s]) / (decay.sum() + 0.2)
            np.testing.assert_allclose(row[26:28], [row[24] + offset, offset], rtol=1e-3, atol=1e-3)


def test_an_error_that_neighbours_show_is_corrected_and_noise_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corten.completion.correction.MIN_CORRECTION_ENTRIES", 500)
    x, train = network(1)
    estimate = np.broadcast_to(x.mean(axis=0), SHAPE)  # all that the other stations know is left in the residual
    near, features = features_of(x, train, estimate)
    entries = np.flatnonzero(~train)
    residuals = (x - estimate)[~train]
    options = {"entries": entries, "observed": EVERYWHERE, "seed": 0}
    correction, choice = learn_correction(near, features, residuals=residuals, **options)
    assert correction is not None
    assert choice.code == "correction_used"
    left = np.abs(residuals - correction.predict(features, entries))
    assert left.mean() < 0.5 * np.abs(residuals).mean()
    # What was never observed is corrected by the mean of all trees.
    each = [near.describe.spread * trees.sum(features) for trees in correction.models.values()]
    missing = replace(correction, observed=~EVERYWHERE).predict(features, entries)
    np.testing.assert_allclose(missing, np.mean(each, axis=0), atol=1e-9)
    shuffled = np.random.default_rng(2).permutation(residuals)
    nothing, choice = learn_correction(near, features, residuals=shuffled, **options)
    assert nothing is None
    assert choice.code == "correction_not_used"


def test_a_corrected_stack_changes_missing_entries_only_and_skips_other_stations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, train = network(3)
    stack = PreparedStack({"pyramid": PreparedSmooth(("ordered", "unordered"), (1.0, 1.0))}, {"pyramid": 1.0})
    describe = EntryFeatures.of(x, train, AXES)
    near = NeighbourFeatures.of(x, train, describe)
    entries = np.flatnonzero(~train)
    fill = stack.fill(x, train)
    features = np.hstack(
        [one.at(entries, x, train=train, estimate=fill.estimate, members=fill.members) for one in (describe, near)]
    )
    monkeypatch.setattr("corten.completion.correction.MIN_CORRECTION_ENTRIES", 500)
    correction, choice = learn_correction(
        near, features, residuals=(x - fill.estimate)[~train], entries=entries, observed=EVERYWHERE, seed=0
    )
    assert correction is not None
    corrected = PreparedCorrected(stack, stack, correction, choice)
    added = corrected.fill(x, train).estimate - fill.estimate
    assert (added[train] == 0).all()
    np.testing.assert_allclose(added[~train], correction.predict(features, entries))
    fewer = replace(corrected, stack=stack).fill(x[:, :5], train[:, :5])
    np.testing.assert_array_equal(fewer.estimate, stack.fill(x[:, :5], train[:, :5]).estimate)
    time = AXES[0].coordinates
    later = (replace(AXES[0], length=800, coordinates=time[0] + np.arange(800) * np.timedelta64(1, "h")), AXES[1])
    longer = corrected.on_axes(later).fill(np.tile(x, (2, 1)), np.tile(train, (2, 1)))
    assert np.isfinite(longer.estimate).all()


def test_trees_add_up_as_in_the_library() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((600, 3)).astype(np.float32)
    model = ensemble.HistGradientBoostingRegressor(loss="absolute_error", max_iter=20)
    model.fit(rows, rows[:, 0] * rows[:, 1])
    np.testing.assert_allclose(Trees.of(model).sum(rows), model.predict(rows), atol=1e-9)


def test_a_fit_uses_records_and_saves_the_correction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("corten.completion.lagged.MIN_STEPS", 300)
    monkeypatch.setattr("corten.completion.correction.MIN_CORRECTION_ENTRIES", 500)
    x, mask = network(5)
    data = xr.DataArray(
        np.where(mask, x, np.nan), dims=("time", "station"), coords={a.name: a.coordinates for a in AXES}
    )
    completion = corten.StackedCompletion({"pyramid": SmoothCompletion()})
    completer = corten.ConformalCompleter(completion, calibration=corten.GapCalibration(rounds=4, drawn=0.0))
    fitted = completer.fit(data)
    assert "correction_used" in {choice.code for choice in fitted.choices}
    assert isinstance(fitted.completion, PreparedCorrected)
    assert fitted.completion.correction.describe.lagged is not None
    assert fitted.residuals is not None
    plain = completion.prepare(x, mask, AXES, 0).fill(x, mask).estimate
    errors = [np.abs(np.asarray(estimate) - x)[~mask].mean() for estimate in (fitted.estimate, plain)]
    assert errors[0] < 0.9 * errors[1]
    assert np.abs(fitted.residuals).mean() == pytest.approx(errors[0], rel=0.3)
    fitted.save(tmp_path / "fit.npz")
    again = corten.load(tmp_path / "fit.npz")
    one, other = (f.completion.fill(x, mask).estimate for f in (fitted, again))
    np.testing.assert_array_equal(one, other)
