"""The whole method through Python: what goes in comes back filled, labelled and reproducible; bad input is told."""

import numpy as np
import pytest
import xarray as xr

import corten
from corten.evidence import metrics

QUICK = {
    "completion": corten.TuckerCompletion(2),
    "propensity": corten.BernoulliPropensity(rank=1),
    "calibration": "random",
}


def full(shape=(12, 11, 10), seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    x = np.zeros(shape)
    for _ in range(2):
        term = np.ones(())
        for length in shape:
            term = np.multiply.outer(term, rng.normal(size=length))
        x += term
    return x + noise * rng.normal(size=shape)


def gappy(shape=(12, 11, 10), seed=0, missing=0.3):
    x = full(shape, seed)
    x[np.random.default_rng(seed + 99).random(shape) < missing] = np.nan
    return x


def test_an_array_comes_back_filled_and_unchanged():
    x = gappy()
    before = x.copy()
    result = corten.complete(x, coverage=0.9, seed=1, **QUICK)
    assert np.array_equal(x, before, equal_nan=True)
    gap = np.isnan(x)
    for array in (result.estimate, result.lower, result.upper):
        assert type(array) is np.ndarray and array.shape == x.shape and array.dtype == x.dtype
        assert not np.isnan(array).any() and np.array_equal(array[~gap], x[~gap])
    assert (result.lower[gap] < result.estimate[gap]).all() and (result.estimate[gap] < result.upper[gap]).all()
    assert result.coverage == 0.9 and np.array_equal(result.missing, gap)
    assert metrics.coverage(full(), result) > 0.75


def test_same_seed_same_bits_and_another_seed_another_split():
    x = gappy()
    one, two, other = (corten.complete(x, seed=seed, **QUICK) for seed in (5, 5, 6))
    for name in ("estimate", "lower", "upper"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.lower, other.lower)


def test_one_call_and_the_completer_agree():
    x = gappy()
    fitted = corten.ConformalCompleter(seed=2, **QUICK).fit(x)
    assert np.array_equal(fitted.intervals(0.8).upper, corten.complete(x, 0.8, seed=2, **QUICK).upper)


@pytest.mark.parametrize("engine", [1, 2])
def test_threads_do_not_change_the_bits(engine):
    x = gappy()
    auto = corten.complete(x, **QUICK)
    assert np.array_equal(auto.lower, corten.complete(x, engine=engine, **QUICK).lower)


@pytest.mark.parametrize("shape", [(30, 25), (12, 11, 10), (7, 6, 5, 8), (20, 1, 15)])
@pytest.mark.parametrize("completion", ["tucker", "tensor-train", "smooth"])
def test_any_number_of_modes(shape, completion):
    x = gappy(shape)
    result = corten.complete(x, **QUICK | {"completion": completion})
    assert result.estimate.shape == shape and not np.isnan(result.upper).any()


def test_masked_arrays_come_back_masked():
    x = gappy()
    masked = np.ma.MaskedArray(np.nan_to_num(x, nan=1e20), mask=np.isnan(x))
    result = corten.complete(masked, **QUICK)
    assert isinstance(result.lower, np.ma.MaskedArray) and not np.ma.getmaskarray(result.estimate).any()
    assert np.array_equal(result.estimate.data, corten.complete(x, **QUICK).estimate)


def test_labels_come_back():
    times = np.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]").astype("datetime64[ns]")
    x = xr.DataArray(
        gappy().astype(np.float32),
        dims=("time", "station", "level"),
        coords={"time": times, "station": [f"s{k}" for k in range(11)], "level": np.arange(10.0)},
        name="temperature",
        attrs={"units": "K"},
    )
    before = x.copy(deep=True)
    result = corten.complete(x, **QUICK)
    xr.testing.assert_identical(x, before)
    assert result.estimate.name == "temperature" and result.estimate.attrs["units"] == "K"
    for array in (result.estimate, result.lower, result.upper, result.width):
        assert array.dims == x.dims and array.dtype == np.float32
        xr.testing.assert_equal(array.coords.to_dataset(), x.coords.to_dataset())
    dataset = result.to_dataset()
    companions = [f"temperature_{what}" for what in ("lower", "upper", "flag", "propensity")]
    assert {"temperature", *companions} == set(dataset)
    assert "TECU" not in str(result.summary()) and "K" in str(result.summary())


def test_integers_are_answered_in_float():
    counts = np.ma.MaskedArray(np.rint(10 * full()).astype(int), mask=np.isnan(gappy()))
    result = corten.complete(counts, **QUICK)
    assert result.estimate.dtype == np.float64 and np.array_equal(result.estimate[~counts.mask], counts[~counts.mask])


def test_nothing_missing_says_so():
    x = full()
    result = corten.complete(x)
    assert np.array_equal(result.estimate, x) and (result.width == 0).all()
    assert "Nothing was missing" in str(result.summary())
    assert corten.ConformalCompleter().fit(x).entries.size == 0


def test_an_empty_slice_is_filled_and_told():
    x = gappy()
    x[:, 4] = np.nan
    result = corten.complete(x, **QUICK)
    assert np.isfinite(result.estimate).all()
    assert "axis_1 4" in str(result.summary()) and "extrapolated" in str(result.summary())


def test_cells_outside_the_domain_are_no_gaps():
    x = gappy()
    where = np.ones(x.shape, bool)
    where[:3, :3] = False
    x[0, 0, 0] = 1e9  # outside: must not matter
    result = corten.complete(x, where=where, **QUICK)
    assert np.isnan(result.estimate[~where]).all() and not np.isnan(result.estimate[where]).any()
    assert (result.flag[~where] == 4).all() and not result.missing[~where].any()
    assert np.abs(result.estimate[where]).max() < 1e3


def test_several_coverages_nest():
    fitted = corten.ConformalCompleter(**QUICK).fit(gappy())
    narrow, wide = fitted.intervals([0.5, 0.95])
    assert (narrow.coverage, wide.coverage) == (0.5, 0.95)
    assert (wide.lower <= narrow.lower).all() and (narrow.upper <= wide.upper).all()
    assert np.array_equal(narrow.at(0.95).upper, wide.upper)
    assert [one.coverage for one in narrow.at([0.8, 0.9])] == [0.8, 0.9]


def test_scores_and_weights_options():
    x = gappy()
    signed = corten.complete(x, score="signed", **QUICK)
    gap = np.isnan(x)
    lean = (signed.upper + signed.lower)[gap] / 2 - signed.estimate[gap]
    assert np.abs(lean).max() > 0.001 * signed.width[gap].mean(), "more than rounding"
    normalized = corten.complete(x, score="normalized", **QUICK)
    assert normalized.width[gap].std() > 1.5 * corten.complete(x, **QUICK).width[gap].std()
    ising = QUICK | {"propensity": corten.IsingPropensity(coupling=corten.Product(0.3), rank=1)}
    exact, rough = (corten.complete(x, weights=how, **ising) for how in ("exact", "approximate"))
    assert not np.array_equal(exact.upper, rough.upper)


def test_choices_are_recorded():
    completer = corten.ConformalCompleter(completion="tucker", calibration="random")
    result = completer.fit(gappy((14, 14, 14))).intervals(0.9)
    chosen = {choice.what for choice in result.choices}
    assert {"Tucker rank", "propensity model"} <= chosen
    rank = next(choice for choice in result.choices if choice.what == "Tucker rank")
    assert len(rank.candidates) > 1 and rank.because


def test_arrays_behind_the_intervals_are_public():
    x = gappy()
    fitted = corten.ConformalCompleter(seed=4, **QUICK).fit(x)
    (one,) = fitted.rounds
    assert not (one.train & one.hidden).any() and np.array_equal(one.train | one.hidden, ~np.isnan(x))
    assert np.array_equal(np.sort(fitted.entries), np.flatnonzero(one.hidden))
    wrong = np.abs(x.ravel()[fitted.entries] - fitted.estimate.ravel()[fitted.entries])
    assert np.allclose(fitted.scores, wrong, atol=1e-9)
    weights = fitted.propensity.log_weights(~np.isnan(x)).ravel()[fitted.entries]
    assert np.allclose(fitted.log_weights, weights)
    assert fitted.propensity.parameter.to_dense().shape == x.shape and fitted.probabilities.shape == x.shape
    assert fitted.settings()["seed"] == 4


def test_own_function_fills():
    def column_mean(x):
        means = np.nanmean(x, axis=0, keepdims=True)
        return np.where(np.isnan(x), np.nan_to_num(means), x)

    result = corten.complete(gappy(), **QUICK | {"completion": column_mean})
    assert np.isfinite(result.estimate).all() and "column_mean" in str(result.source.settings())


def spoilt(change):
    def own(x):
        return change(np.nan_to_num(x))

    return own


BAD_FUNCTIONS = [
    (lambda x: x[:-1], "own.*shape"),
    (lambda x: np.where(x == x[0, 0, 0], np.nan, x), "own.*not finite"),
    (lambda x: x.astype(complex), "own.*real numbers"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FUNCTIONS)
def test_own_function_is_checked(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        corten.complete(gappy(), **QUICK | {"completion": spoilt(change)})


def with_infinity():
    x = gappy()
    x[1, 2, 3] = np.inf
    return x


BAD_INPUT = [
    (lambda: np.full((3, 4), np.nan), "no observed value.*12"),
    (with_infinity, r"infinite.*\(1, 2, 3\)"),
    (lambda: gappy()[0, 0], r"x\[:, None\]"),
    (lambda: gappy() + 1j, "complex.*x.real"),
    (lambda: gappy().astype(object), "object.*dtype=float"),
    (lambda: np.array([["a", "b"], ["c", "d"]]), "real numbers"),
    (lambda: np.empty((3, 0)), "length 0"),
    (lambda: [[1.0, 2.0], [3.0]], "same length"),
    (lambda: xr.Dataset({"t": (("a", "b"), np.ones((3, 4)))}), r"no variable .* missing entries; the variables are t"),
    (lambda: "data.nc", r"corten\.io\.read"),
]


@pytest.mark.parametrize(("make", "message"), BAD_INPUT)
def test_bad_input_is_told(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        corten.complete(make(), **QUICK)


@pytest.mark.parametrize(
    ("coverage", "message"),
    [(0, "strictly between"), (1.0, "strictly between"), (90, "coverage=0.9"), ("0.9", "number")],
)
def test_bad_coverage_is_told_before_any_work(coverage, message):
    with pytest.raises((ValueError, TypeError), match=message):
        corten.complete("not even an array", coverage)


BAD_OPTIONS = [
    ({"completion": "magic"}, '"tucker"'),
    ({"completion": corten.TuckerCompletion}, "class TuckerCompletion"),
    ({"completion": 3}, "a function"),
    ({"propensity": "magic"}, '"ising"'),
    ({"propensity": 0.5}, "fit"),
    ({"calibration": "magic"}, '"gaps"'),
    ({"calibration": 0.7}, "calibrate"),
    ({"score": "magic"}, "signed"),
    ({"weights": "magic"}, "approximate"),
    ({"seed": -1}, "at least 0"),
    ({"seed": 1.5}, "whole number"),
    ({"engine": 0}, "at least 1"),
    ({"engine": "abacus"}, "threads"),
]


@pytest.mark.parametrize(("option", "message"), BAD_OPTIONS)
def test_bad_options_are_told_with_what_is_allowed(option, message):
    with pytest.raises((ValueError, TypeError), match=message):
        corten.ConformalCompleter(**option)


@pytest.mark.parametrize(
    "option",
    [
        {"completion": corten.TuckerCompletion(50)},
        {"completion": corten.TensorTrainCompletion(500)},
        {"propensity": corten.IsingPropensity(rank=500)},
        {"completion": corten.TuckerCompletion(0)},
    ],
)
def test_a_rank_the_shape_does_not_allow_is_told(option):
    with pytest.raises(ValueError, match="rank"):
        corten.complete(gappy(), **QUICK | option)


def test_too_few_entries_to_split_is_told():
    x = np.full((4, 4), np.nan)
    x[0, 0] = 1.0
    with pytest.raises(ValueError, match=r"1 observed entry cannot be split.*at least 2"):
        corten.complete(x, **QUICK)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"periodic": ["moon"]}, "axis_0, axis_1, axis_2"),
        ({"axis_kinds": {"moon": "unordered"}}, "axis_0, axis_1, axis_2"),
        ({"where": np.ones((2, 2), bool)}, r"where has shape \(2, 2\)"),
    ],
)
def test_unknown_axes_are_told_with_the_known_ones(option, message):
    with pytest.raises(ValueError, match=message):
        corten.complete(gappy(), **QUICK, **option)


def test_output_that_exists_is_refused(tmp_path):
    result = corten.complete(gappy(), **QUICK)
    path = tmp_path / "filled.nc"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite"):
        result.to_netcdf(path)
    assert path.read_text() == "precious"
    result.to_netcdf(path, overwrite=True)
    with xr.open_dataset(path) as back:
        assert np.array_equal(back.value_lower.values, result.lower)


def test_progress_is_reported():
    heard = []
    corten.complete(gappy(), progress=lambda stage, share: heard.append((stage, share)), **QUICK)
    assert {stage for stage, _ in heard} == {"reading", "planning", "completion", "missingness", "calibration"}
    assert all(0 <= share <= 1 for _, share in heard) and heard[-1] == ("calibration", 1.0)


def test_progress_can_be_printed_and_nothing_else_is_taken(capsys):
    corten.complete(gappy(), progress=True, **QUICK)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("corten: reading the data") and any("predicted: " in line for line in said)
    assert "filling the gaps" in " ".join(said) and all("elapsed" in line or "predicted" in line for line in said)
    corten.complete(gappy(), progress=False, **QUICK)
    assert capsys.readouterr().err == ""
    with pytest.raises(TypeError, match="progress is 3: give True, or a function"):
        corten.complete(gappy(), progress=3, **QUICK)


def test_calibration_is_chosen_by_the_shape_of_the_gaps():
    scattered = corten.ConformalCompleter(completion="tucker", propensity="uniform").fit(gappy((20, 20, 20)))
    choice = next(one for one in scattered.choices if one.what == "calibration")
    assert choice.taken == "random" and choice.because


def test_the_memory_order_of_a_completions_answer_changes_nothing():
    """An answer in Fortran order once lost its lower ends: flat indices are in C order."""
    rng = np.random.default_rng(4)
    signal = rng.normal(size=(9, 8, 7))
    truth = signal + 0.1 * rng.normal(size=signal.shape)
    x = np.where(rng.random(signal.shape) < 0.6, truth, np.nan)
    for calibration in ("random", corten.CrossCalibration(3)):
        ends = [
            corten.complete(x, 0.8, completion=lambda x, s=s: s, propensity="uniform", calibration=calibration)
            for s in (signal, np.asfortranarray(signal))
        ]
        np.testing.assert_array_equal(ends[0].lower, ends[1].lower)
        np.testing.assert_array_equal(ends[0].upper, ends[1].upper)
        assert (ends[1].lower < ends[1].estimate)[np.isnan(x)].all()
