"""Every combination of transform, calibration and kind of answer gives numbers where it should.

Bounds may be infinite, never NaN; estimates, draws and means are finite. The data have a long upper tail, so that
"box-cox" takes a negative power, whose plain inverse maps large values to infinity.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import corten
from corten.conformal.shaped import Joint

TRANSFORMS = [None, "log", "box-cox", "standardise", "standardise:axis_0"]
CALIBRATIONS = {
    "random": "random",
    "cross": corten.CrossCalibration(folds=2),
    "gaps": corten.GapCalibration(rounds=2, drawn=0.0),
}
LIMITS = (0.0, 12.0)
KINDS = [{}, {"groups": 0}, {"joint": 0}, {"odds_error": 1.5}, {"groups": 0, "joint": 1, "odds_error": 1.2}]


def long_tailed():
    rng = np.random.default_rng(0)
    x = 1 / (0.15 + np.abs(0.6 + 0.1 * rng.normal(size=(7, 1, 1)) + 0.35 * rng.normal(size=(7, 6, 4))))
    x[rng.random(x.shape) < 0.35] = np.nan
    return x


@cache
def fitted(transform, calibration, bounds):
    how = CALIBRATIONS[calibration]
    return corten.ConformalCompleter("smooth", "bernoulli", how, transform=transform, bounds=bounds).fit(long_tailed())


@pytest.mark.parametrize("bounds", [None, LIMITS], ids=["free", "limited"])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_answer_is_nan_and_all_keep_the_limits(transform, calibration, bounds):
    fit = fitted(transform, calibration, bounds)
    gap = fit.observed.missing
    least = 0.0 if bounds is not None or transform in ("log", "box-cox") else -np.inf
    most = np.inf if bounds is None else bounds[1]

    def inside(values):
        return bool(((values >= least) & (values <= most)).all())  # False where any is NaN

    assert np.isfinite(fit.estimate).all() and inside(fit.estimate[gap])
    for kind in KINDS if bounds is None else KINDS[:1]:
        result = fit.intervals(0.95, **kind)
        lower, upper = result.lower_array[gap], result.upper_array[gap]
        assert inside(lower) and inside(upper) and (lower <= upper).all(), kind
        assert np.array_equal(result.flag_array[gap] == 1, np.isfinite(result.width_array[gap]))
    result = fit.intervals(0.9)
    quantiles = [result.quantile(level)[gap] for level in (0.02, 0.98)]
    assert all(map(inside, quantiles)) and (np.diff(quantiles, axis=0) >= 0).all()
    drawn = result.draws(3)
    assert np.isfinite(drawn).all() and inside(drawn[:, gap])
    for over in ((), (0,), (0, 1)):
        mean = result.mean(*over)
        assert np.isfinite(mean.estimate).all()
        assert (np.asarray(mean.lower) <= mean.estimate).all() and (mean.estimate <= np.asarray(mean.upper)).all()
        if bounds is not None:
            assert inside(np.asarray(mean.lower)) and inside(np.asarray(mean.upper))
    for threshold in (-1.0, 2.0, np.inf):
        claims = result.exceedance(threshold), result.exceedance(threshold, above=False)
        assert not (claims[0] & claims[1]).any() and not (claims[0] | claims[1])[~gap].any()


def test_an_infinite_bound_that_is_extrapolated_stays_infinite():
    """Infinity minus infinity was a NaN flagged as filled; here an entry has no finite bound at either level."""
    band = object.__new__(Joint)
    bounds = np.array([[0.0, -np.inf], [1.0, -np.inf]])
    band._massless = SimpleNamespace(intervals=lambda entries, levels: (bounds, 5 - bounds))
    band.inner = SimpleNamespace(possible_range=lambda entries: (np.full(2, -np.inf), np.full(2, np.inf)))
    band._least, band._size, band._shares, band._heavier = 0.1, 50.0, np.array([0.0, 1.0]), np.ones(2)
    lower, upper = band._continued(np.arange(2), np.full(2, 0.01))
    assert lower[0] < 0 and upper[0] > 5 and lower[1] == -np.inf and upper[1] == np.inf


def test_bounds_of_some_entries_are_those_of_all_for_every_kind():
    """A joint band is as wide as the number of missing entries of a slice asks for, not the number of those asked."""
    for calibration in ("random", "cross"):
        fit = fitted("log", calibration, None)
        some = fit.missing_entries[::7]
        for kind in KINDS:
            source = fit.intervals(0.8, **kind).source
            whole, part = source.bounds(0.8), source.bounds(0.8, some)
            assert all(np.array_equal(a.reshape(-1)[some], b) for a, b in zip(whole, part)), kind


def test_box_cox_with_a_negative_power_reaches_every_value_and_is_undone():
    x = long_tailed()
    seen = corten.ObservedTensor.of(x)
    change = corten.data.transform.as_transform("box-cox").fit(seen.values, seen.mask, seen.axes)
    assert change.power < 0
    x = np.geomspace(1e-3, 1e6, 400)
    y = change.forward(x)
    np.testing.assert_allclose(change.backward(y), x, rtol=1e-9)
    slopes = np.diff(y) / np.diff(np.log(x))
    assert (slopes > 0).all() and (np.diff(slopes) < 1e-9).all()  # increasing, without a step where it is continued
    assert np.isfinite(change.backward(np.array([-50.0, 0.0, 50.0]))).all()
    assert list(change.backward(np.array([-np.inf, np.inf]))) == [0.0, np.inf]
