"""The imputer is an estimator like those of scikit-learn, and fills as `corten.complete` does."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import corten
from corten.sklearn import ConformalImputer

QUICK = {"completion": corten.TuckerCompletion(rank=1), "propensity": "constant", "calibration": "random"}
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks([ConformalImputer(**QUICK)], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def table(count=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 1)) * np.array([1.0, 2.0, -1.0, 30.0, 0.1]) + 5
    x += 0.1 * rng.normal(size=x.shape) * np.array([1.0, 2.0, 1.0, 30.0, 0.1])
    gappy = x.copy()
    gappy[rng.random(x.shape) < 0.25] = np.nan
    return x, gappy


def test_training_rows_and_new_rows_are_filled_and_covered():
    x, gappy = table(160)
    train, new = gappy[:120], gappy[120:]
    imputer = ConformalImputer(0.8, **QUICK)
    filled = imputer.fit_transform(train)
    np.testing.assert_array_equal(filled, imputer.transform(train))
    np.testing.assert_array_equal(filled, imputer.result_.estimate)
    covered = []
    for truth, rows in ((x[:120], train), (x[120:], new)):
        gap, estimate = np.isnan(rows), imputer.transform(rows)
        lower, upper = imputer.intervals(rows)
        np.testing.assert_array_equal(estimate[~gap], rows[~gap])
        np.testing.assert_array_equal(lower[~gap], upper[~gap])
        errors = np.abs(estimate - truth) / x.std(axis=0)
        assert np.median(errors[gap]) < 0.15  # the mean of a feature has a median error of 0.7 of its spread
        covered.append(((lower <= truth) & (truth <= upper))[gap])
    assert 0.68 < np.concatenate(covered).mean() < 0.92  # 200 entries: four standard errors


def test_it_is_cloned_and_works_in_a_pipeline():
    x, gappy = table()
    target = x @ np.arange(5.0)
    pipeline = make_pipeline(ConformalImputer(**QUICK), Ridge())
    assert clone(pipeline)[0].get_params() == pipeline[0].get_params()
    pipeline = clone(pipeline).fit(gappy[:40], target[:40])
    guess = pipeline.predict(gappy[40:])
    assert np.corrcoef(guess, target[40:])[0, 1] > 0.95
    assert list(pipeline[0].get_feature_names_out(list("abcde"))) == list("abcde")
    frame = ConformalImputer(**QUICK).set_output(transform="pandas").fit_transform(gappy)
    assert frame.shape == gappy.shape and frame.notna().all().all()


def test_mistakes_are_named_when_it_is_fitted():
    with pytest.raises(ValueError, match="coverage is 90"):
        ConformalImputer(90, **QUICK).fit(table()[1])
    with pytest.raises(ValueError, match="no observed value"):
        ConformalImputer(**QUICK).fit(np.full((3, 2), np.nan))
