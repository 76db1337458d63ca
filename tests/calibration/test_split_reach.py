"""Where a random split tests nothing: slices without training entries, and entries that are hardly ever observed."""

import numpy as np

import corten
from corten.calibration.split import untested_slices
from corten.propensity import AutoPropensity


def test_slices_without_training_entries_are_beyond_unless_hidden_entries_lie_in_such_slices():
    rng = np.random.default_rng(0)
    mask = rng.random((8, 30, 20)) < 0.6
    mask[3] = False
    train = mask & (rng.random(mask.shape) < 0.7)
    beyond = untested_slices(train, mask & ~train, ~mask)
    assert beyond is not None and np.array_equal(beyond.any(axis=(1, 2)), np.arange(8) == 3)
    assert np.array_equal(beyond[3], ~mask[3])
    # Of columns with two entries many have no training entry by chance, and hidden entries lie in such columns.
    short = rng.random((2, 400)) < 0.6
    train = short & (rng.random(short.shape) < 0.7)
    assert untested_slices(train, short & ~train, ~short) is None
    assert untested_slices(train[0], short[0] & ~train[0], ~short[0]) is None


def _rows(rng):
    """Log-odds differ by row; two of 150 entries of one row are observed, and its noise is large."""
    odds = np.repeat(np.linspace(-0.6, 2.5, 14), 150).reshape(14, 15, 10)
    mask = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
    mask[4] = False
    mask[4, [2, 9], [3, 7]] = True
    noise = 0.2 * (1 + np.exp(-odds))
    noise[4] = 20.0
    return noise * rng.standard_normal(odds.shape), mask


def test_a_row_that_is_hardly_observed_is_flagged_and_the_other_rows_keep_their_weights():
    rng = np.random.default_rng(1)
    values, mask = _rows(rng)
    fitted = AutoPropensity(max_rank=2).fit(mask & (rng.random(mask.shape) < 0.7), 0.7)
    assert fitted.choices[0].taken == "additive" and np.isfinite(fitted.max_log_weight)
    logs = fitted.log_weights(mask)
    limited = fitted.limited(logs, mask)
    above = logs > fitted.max_log_weight
    assert np.array_equal(above.any(axis=(1, 2)), np.arange(14) == 4) and np.array_equal(limited[~above], logs[~above])
    assert (limited[4][~mask[4] & above[4]] == np.float32(fitted.max_log_weight)).all()
    assert np.exp(limited[4][mask[4] & above[4]].astype(float)).sum() == 0.0

    result = corten.complete(
        np.where(mask, values, np.nan), 0.9, completion=lambda x: np.zeros(x.shape), calibration="random",
        propensity=AutoPropensity(max_rank=2),
    )  # fmt: skip
    assert np.array_equal(result.beyond_tested.any(axis=(1, 2)), np.arange(14) == 4)
    text = " ".join(str(result.summary()).split())
    assert "in slices with too few observed entries to test them" in text
    inside = (result.lower <= values) & (values <= result.upper)
    unflagged = ~mask & ~result.beyond_tested
    assert 0.86 < inside[unflagged].mean() < 0.94
    assert np.isfinite(result.width[~mask]).all()
