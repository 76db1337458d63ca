"""Symmetric or asymmetric intervals under pseudo-gaps: chosen by evidence, consistent, and the same after a file."""

from __future__ import annotations

import numpy as np
import pytest

import corten
from corten.calibration.gap_scale import choose_score
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import StackedCompletion
from corten.conformal.local_scale import BlockFolds, LearnedScale
from corten.conformal.scores import Absolute, Adaptive, Automatic, Signed
from corten.data.observed import ObservedTensor

SHAPE = (24, 24, 12)


def mean_everywhere(x):
    return np.full(x.shape, np.nanmean(x))


def with_box(values):
    x = values.copy()
    x[6:15, 8:17, 3:9] = np.nan
    return x


def fit(x, **options):
    calibration = corten.GapCalibration(rounds=6, drawn=0)
    return corten.ConformalCompleter(mean_everywhere, "uniform", calibration, **options).fit(x)


def shape_of(fitted):
    return next(one for one in fitted.choices if one.what == "shape of intervals")


def chosen(residuals, score=None):
    entries = np.random.default_rng(0).choice(np.prod(SHAPE), len(residuals), replace=False)
    learned = LearnedScale(np.ones(len(residuals)), {}, BlockFolds(SHAPE, 0))
    return choose_score(
        score or Automatic(),
        residuals,
        learned=learned,
        log_weights=np.zeros(len(residuals)),
        entries=entries,
        shape=SHAPE,
    )


def test_the_shape_follows_the_skewness_of_errors() -> None:
    rng = np.random.default_rng(1)
    skewed, plain = rng.gamma(1.5, size=4000) - 1.5, rng.standard_normal(4000)
    (score, (choice,)), (mirrored, (same,)) = chosen(skewed), chosen(-skewed)
    assert isinstance(score, Signed) and isinstance(mirrored, Signed) and choice.taken == "asymmetric"
    assert choice.values["gain"] == pytest.approx(same.values["gain"], rel=1e-9) and choice.values["gain"] > 0.02
    assert type(chosen(plain)[0]) is Absolute and type(chosen(skewed[:150])[0]) is Absolute
    assert chosen(skewed, Adaptive()) == (Adaptive(), ())


def test_tails_of_skewed_data_are_missed_equally_often() -> None:
    """Oracle: new values from the distribution of the data; symmetric intervals of skewed data miss above only."""
    rng = np.random.default_rng(2)
    truth = rng.gamma(1.5, size=SHAPE)
    x, new = with_box(truth), rng.gamma(1.5, size=20_000)
    missed = {}
    for score in ("absolute", "auto"):
        result = fit(x, score=score).intervals(0.9)
        low, high = (np.median(bound[result.missing]) for bound in (result.lower, result.upper))
        missed[score] = (new < low).mean(), (new > high).mean()
    assert missed["absolute"][0] < 0.01 and missed["absolute"][1] > 0.07
    assert all(0.03 < share < 0.07 for share in missed["auto"])


def test_quantiles_do_not_cross_and_are_the_bounds() -> None:
    fitted = fit(with_box(np.random.default_rng(3).gamma(1.5, size=SHAPE)))
    result = fitted.intervals(0.9)
    assert shape_of(fitted).taken == "asymmetric" and "asymmetric" in str(result.summary(full=True))
    levels = np.array([result.quantile(p)[result.missing] for p in (0.05, 0.2, 0.45, 0.5, 0.55, 0.8, 0.95)])
    assert (np.diff(levels, axis=0) >= 0).all()
    np.testing.assert_array_equal(levels[[0, -1]], [result.lower[result.missing], result.upper[result.missing]])


def test_a_change_of_unit_or_sign_changes_intervals_in_the_same_way() -> None:
    x = with_box(np.random.default_rng(4).gamma(1.5, size=SHAPE))
    plain, moved, turned = (fit(one).intervals(0.9) for one in (x, 2.0 * x + 16.0, -x))
    assert shape_of(turned.source).taken == "asymmetric"
    at = plain.missing
    for name, other in (("lower", "upper"), ("upper", "lower")):
        bound = getattr(plain, name)[at]
        np.testing.assert_allclose(getattr(moved, name)[at], 2.0 * bound + 16.0, rtol=1e-3)
        np.testing.assert_allclose(getattr(turned, other)[at], -bound, rtol=1e-3, atol=1e-3)


def test_symmetric_data_keep_the_bits_of_the_absolute_score() -> None:
    x = with_box(np.random.default_rng(5).standard_normal(SHAPE))
    auto, asked = fit(x), fit(x, score="absolute")
    assert shape_of(auto).taken == "symmetric"
    for one, other in zip(auto.bounds(0.9), asked.bounds(0.9)):
        np.testing.assert_array_equal(one, other)


def test_stations_learn_the_scale_from_neighbours_and_a_saved_fit_gives_the_same_bits(tmp_path) -> None:
    rng = np.random.default_rng(6)
    level = np.repeat(rng.gamma(2.0, size=(20, 1)), 8, axis=1) * rng.gamma(8.0, 1 / 8, size=(20, 8))
    x = level[:, :, None] * rng.gamma(4.0, 1 / 4, size=(20, 8, 10))
    x[4:8, 2, :] = x[12:15, 5, :] = np.nan
    stack = StackedCompletion({"pyramid": SmoothCompletion()})
    completer = corten.ConformalCompleter(stack, "constant", corten.GapCalibration(rounds=4, drawn=0))
    fitted = completer.fit(ObservedTensor.of(x, axis_kinds={0: "ordered", 1: "unordered", 2: "ordered"}))
    near = fitted.calibrated.local.neighbours
    assert isinstance(near, NeighbourFeatures) and set(near.nearest) == {1}
    again = corten.load(fitted.save(tmp_path / "fit.corten"))
    for one, other in zip(fitted.bounds(0.9), again.bounds(0.9)):
        np.testing.assert_array_equal(one, other)
    later = [one.fill(x[:, :, :8]).upper for one in (fitted, again)]
    np.testing.assert_array_equal(*later)
    renewed = again.update(x[:, :, :2], axis=2)
    assert np.isfinite(renewed.bounds(0.9)[0][np.isnan(renewed.observed.values)]).all()
