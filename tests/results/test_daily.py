"""A fit used every day: it fills new data, moves along the time, does so from a file, and refuses other grids."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import corten
from corten.completion.protocol import on_axes
from corten.completion.unfoldings import UnfoldingCompletion
from corten.data.matching import fresh_slices, matching

SHAPE = (14, 12)
MEMBERS = {"pyramid": corten.SmoothCompletion(), "low rank": UnfoldingCompletion("mean", iterations=60)}


def days(first, count, seed):
    """A field that moves, with gaps, and its truth."""
    rng = np.random.default_rng(seed)
    lat, lon, t = np.ogrid[: SHAPE[0], : SHAPE[1], first : first + count]
    truth = np.sin(lat / 4 + t / 6) + np.cos(lon / 3 - t / 8) + 0.1 * rng.normal(size=(*SHAPE, count))
    gap = np.kron(rng.random((7, 4, -(-count // 3))) < 0.3, np.ones((2, 3, 3), bool))[..., :count]
    time = np.datetime64("2020-01-01", "ns") + np.arange(first, first + count) * np.timedelta64(1, "h")
    coords = {"lat": np.arange(SHAPE[0]) * 2.0, "lon": np.arange(SHAPE[1]) * 2.0, "time": time}
    whole = xr.DataArray(truth, coords, ("lat", "lon", "time"), "tec", {"units": "TECU"})
    return whole.where(~gap), whole


def gap_fit(x, rounds=6, **options):
    calibration = corten.GapCalibration(rounds, drawn=0)
    completion = corten.StackedCompletion(MEMBERS)
    return corten.ConformalCompleter(completion, "constant", calibration, **options).fit(x)


@pytest.fixture(scope="module")
def fitted():
    return gap_fit(days(0, 24, 0)[0])


@pytest.fixture(scope="module")
def loaded(fitted, tmp_path_factory):
    return corten.load(fitted.save(tmp_path_factory.mktemp("fit") / "fit.corten"))


def same(one, two):
    assert np.array_equal(one.estimate_array, two.estimate_array, equal_nan=True)
    assert np.array_equal(one.lower_array, two.lower_array) and np.array_equal(one.upper_array, two.upper_array)


def coverage_of(result, truth):
    missing = result.observed.missing
    inside = (result.lower_array <= truth.values) & (truth.values <= result.upper_array)
    return inside[missing].mean(), np.abs(result.estimate_array - truth.values)[missing].mean()


def test_new_data_are_filled_like_by_a_fresh_fit_and_from_a_file_with_the_same_bits(fitted, loaded):
    x, truth = days(24, 30, 1)  # a longer time axis
    result = fitted.fill(x)
    same(result, loaded.fill(x))
    same(result.at(0.8), loaded.fill(x, 0.8))
    covered, error = coverage_of(result, truth)
    fresh = coverage_of(gap_fit(x).intervals(0.9), truth)
    assert 0.85 < covered < 0.95 and error < 1.1 * fresh[1]
    assert result.estimate.dims == x.dims and result.estimate.attrs == x.attrs
    # The audit, which hides entries again, needs the learned scale of the file as well.
    assert fitted.audit(rounds=2).table().equals(loaded.audit(rounds=2).table())


def test_filling_the_data_of_the_fit_gives_the_fit(fitted):
    same(fitted.fill(fitted.observed.wrap(fitted.observed.values)), fitted.intervals(0.9))


def test_a_filled_result_can_be_saved_and_knows_what_it_cannot_do(fitted, tmp_path):
    result = fitted.fill(days(24, 24, 2)[0])
    same(corten.load(result.source.save(tmp_path / "filled.corten")).intervals(0.9), result)
    for refused in (
        lambda: result.source.audit(),
        lambda: result.source.intervals(0.9, groups="lat"),
        lambda: result.mean("lat"),
        lambda: result.source.update(days(48, 2, 0)[0]),
    ):
        with pytest.raises(ValueError, match="earlier fit"):
            refused()
    assert fitted.fill(days(24, 24, 2)[1]).summary().to_dict()["missing"] == 0


def test_the_domain_of_the_fit_is_used_where_it_does_not_depend_on_the_time():
    x, sea = days(0, 12, 0)[0], np.arange(SHAPE[0])[:, None, None] > 2
    calibration = corten.GapCalibration(2, drawn=0)
    fit = corten.ConformalCompleter("smooth", "constant", calibration).fit(x, where=sea)
    for result in (fit.fill(days(12, 14, 1)[0]), fit.update(days(12, 3, 1)[0]).intervals(0.9)):
        assert np.isnan(result.estimate.values[:3]).all() and np.isfinite(result.lower.values[3:]).all()
    assert fit.fill(days(12, 14, 1)[0], where=np.ones((1, 1, 1), bool)).observed.domain is None


def test_calendars_further_coordinates_and_checkpoints(tmp_path):
    """Labels come back after an update, and a fit that was made with a checkpoint can be saved and used."""
    x, new = days(0, 12, 0)[0], days(10, 4, 1)[0]

    def with_more(one):
        dates = xr.date_range("2001-02-27", periods=30, calendar="noleap", use_cftime=True)
        hour = (one.time.values - np.datetime64("2020-01-01", "ns")) // np.timedelta64(1, "h")
        more = {"hour": ("time", hour), "site": (("lat", "lon"), np.ones(SHAPE)), "time": dates[hour]}
        return one.assign_coords(more | {"version": 3})

    calibration = corten.GapCalibration(2, drawn=0)
    completer = corten.ConformalCompleter("smooth", "constant", calibration)
    with corten.Checkpoint(tmp_path / "rounds") as kept:
        resumable = completer.fit(x, checkpoint=kept)
    same(resumable.fill(new), corten.load(resumable.save(tmp_path / "resumable.corten")).fill(new))
    assert not (tmp_path / "rounds").exists()
    fit = corten.load(completer.fit(with_more(x)).save(tmp_path / "fit.corten"))
    moved = corten.load(fit.update(with_more(new)).save(tmp_path / "moved.corten"))
    found = moved.observed.wrap(moved.observed.values)
    expected = xr.concat([with_more(x).isel(time=slice(2, 10)), with_more(new)], "time")
    assert found.time.values[-1].calendar == "noleap" and sorted(found.coords) == sorted(expected.coords)
    assert np.array_equal(found.hour, expected.hour) and np.array_equal(found.time, expected.time)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(fit.fill(with_more(new)).estimate.time, with_more(new).time)
    with pytest.raises(ValueError, match="coordinates of type"):
        fit.fill(new)


def refusals():
    x = days(24, 24, 3)[0]
    yield "another order", x.transpose("time", "lat", "lon"), "transpose"
    yield "another name", x.rename(lat="y"), "the fit has lat, lon, time"
    yield "an axis less", x[..., 0], "time is needed even for one position"
    yield "another unit", x.assign_attrs(units="K"), "in K, the fit is in TECU"
    yield "another grid", x.assign_coords(lat=x.lat + 1.0), "another grid.*'lat'"
    yield "fewer", x[1:], "'lat' has 13 positions from 2.0 to 26.0, in the fit 14 positions from 0.0 to 26.0. Select"
    yield "turned", x[::-1], "axis 'lat' has the positions of the fit in another order"
    yield "unlike in two axes", x[1:, :5], "'lat' has.*; axis 'lon' has 5 positions"
    yield "another step", x[..., ::2], "a step of 7200 s, in the fit 3600 s"
    yield "backwards", x[..., ::-1], "another grid"
    yield "one slice", x[..., :1], "give 2 or more"
    yield "plain, another shape", x.values[:5], "another grid"


@pytest.mark.parametrize(("x", "words"), [case[1:] for case in refusals()], ids=[case[0] for case in refusals()])
def test_other_axes_units_and_grids_are_refused(fitted, x, words):
    with pytest.raises(ValueError, match=words):
        fitted.fill(x)


def test_values_of_another_unit_are_reported(fitted):
    x = days(24, 24, 3)[0]
    with pytest.warns(UserWarning, match="another unit"):
        fitted.fill(x + 273.15)


def test_a_random_split_fills_from_as_many_entries_and_weights_by_its_odds(tmp_path):
    x, (y, truth) = days(0, 24, 0)[0], days(24, 24, 1)
    options = {"completion": "smooth", "calibration": "random"}
    fit = corten.ConformalCompleter(propensity="additive", **options).fit(x)
    loaded = corten.load(fit.save(tmp_path / "fit.corten"))
    same(fit.fill(y), loaded.fill(y))
    covered, _ = coverage_of(fit.fill(y), truth)
    assert covered > 0.8
    # The same data give the same estimate: the same training entries are drawn.
    same(fit.fill(x), fit.intervals(0.9))
    with pytest.raises(ValueError, match="no odds for other positions"):
        fit.fill(days(24, 30, 1)[0])
    constant = corten.ConformalCompleter(propensity="constant", **options).fit(x)
    assert constant.fill(days(24, 30, 1)[0]).estimate.shape == (*SHAPE, 30)
    with pytest.raises(ValueError, match="calibration='gaps' can be updated"):
        fit.update(y)
    with pytest.raises(ValueError, match="earlier fit"):
        fit.fill(y).source.fill(y)


def test_fits_without_their_method_say_so(tmp_path):
    x = days(0, 24, 0)[0]
    own = corten.ConformalCompleter(lambda a: np.where(np.isnan(a), np.nanmean(a), a), calibration="random").fit(x)
    own.fill(x)
    with pytest.raises(ValueError, match="completion of your own"):
        corten.load(own.save(tmp_path / "own.corten")).fill(x)
    merged = corten.ConformalCompleter("smooth", calibration="cross", propensity="constant").fit(x)
    with pytest.raises(ValueError, match="merged splits"):
        merged.fill(x)


def test_transforms_of_the_fit_are_used_and_refused_where_they_do_not_apply():
    x, (y, truth) = days(0, 24, 0)[0] + 5, days(24, 30, 1)
    logs = gap_fit(x, 4, transform="log", bounds=(0, None))
    covered, _ = coverage_of(logs.fill(y + 5), truth + 5)
    assert 0.8 < covered < 0.97
    with pytest.raises(ValueError, match="not finite"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logs.fill(y - 100)
    by_hour = gap_fit(x, 1, transform="standardise:time")
    with pytest.raises(ValueError, match="means for positions"):
        by_hour.fill(y + 5)


def test_an_update_appends_replaces_and_keeps_a_window(fitted, loaded):
    new, truth = days(20, 10, 7)  # four slices are revised, six are new
    moved = fitted.update(new, half_life=8)
    assert moved.observed.shape == (*SHAPE, 24)
    kept = moved.observed.wrap(moved.observed.values)
    assert kept.time.values[0] == np.datetime64("2020-01-01T06") and kept.time.values[-1] == new.time.values[-1]
    xr.testing.assert_equal(kept.isel(time=slice(14, None)), new)
    xr.testing.assert_equal(kept.isel(time=slice(None, 14)), days(0, 24, 0)[0].isel(time=slice(6, 20)))
    result = moved.intervals(0.9)
    last = result.observed.missing[..., 14:]
    hit = (result.lower_array[..., 14:] <= truth.values) & (truth.values <= result.upper_array[..., 14:])
    assert hit[last].mean() > 0.8
    same(result, loaded.update(new, half_life=8).intervals(0.9))
    # Scores of revised slices and of slices that left the window are gone; recent ones weigh more.
    age = 23 - np.unravel_index(moved.entries, moved.observed.shape)[2]
    deep = moved.calibrated.local.by_depth.at(moved.calibrated.local.depths)
    np.testing.assert_allclose(moved.log_weights - deep, -np.log(2) * age / 8)
    old = ~np.isin(fitted.observed.axes[2].coordinates[np.unravel_index(fitted.entries, (*SHAPE, 24))[2]], new.time)
    old &= np.unravel_index(fitted.entries, (*SHAPE, 24))[2] >= 6
    assert np.array_equal(moved.scores[: old.sum()], fitted.scores[old])
    assert moved.entries.size > old.sum()
    twice = moved.update(days(30, 2, 8)[0])
    assert twice.observed.axes[2].coordinates[-1] == np.datetime64("2020-01-02T07")
    assert twice.fill(days(32, 24, 9)[0]).estimate.shape == (*SHAPE, 24)
    assert moved.intervals(0.9, groups="lat").lower_array.shape == moved.observed.shape
    with pytest.raises(ValueError, match="cannot be audited"):
        moved.audit()


def test_an_update_hides_entries_of_all_slices_and_scores_the_new_ones(fitted):
    """A new slice alone would be filled from the slices beside it, where gaps last for several."""
    moved = fitted.update(days(24, 1, 3)[0])
    for one in moved.rounds:
        assert one.hidden[..., -1].any() and not one.hidden[..., :-1].any()
        assert (moved.observed.mask & ~one.train)[..., :-1].any()


def test_an_update_twice_is_an_update_once(fitted):
    """Also if further slices come with those that the fit has already; a revised slice is calibrated again."""
    new = days(20, 10, 7)[0]
    once = fitted.update(new, half_life=8)
    twice = once.update(new, half_life=8)
    same(twice.intervals(0.9), once.intervals(0.9))
    assert np.array_equal(twice.scores, once.scores) and np.array_equal(twice.residuals, once.residuals)
    assert np.array_equal(twice.log_weights, once.log_weights)
    assert "no slice is new" in next(one for one in twice.choices if one.code == "renewed").because
    revised = new.copy()
    revised[0, 0, 3] += 0.1
    third = once.update(revised, half_life=8)
    at = [np.unravel_index(one.entries, one.observed.shape)[2] for one in (once, third)]
    others = [one != 17 for one in at]  # the revised slice
    assert np.array_equal(once.scores[others[0]], third.scores[: others[0].sum()])
    assert (at[1][others[0].sum() :] == 17).all() and not others[1].all()


def test_plain_arrays_are_appended(fitted):
    plain = gap_fit(days(0, 12, 0)[0].values, 2)
    assert plain.fill(days(12, 14, 1)[0].values).lower.shape == (*SHAPE, 14)
    moved = plain.update(days(12, 3, 1)[0].values, window=15)
    assert np.array_equal(moved.observed.values[..., :12], plain.observed.values, equal_nan=True)
    with pytest.raises(ValueError, match="Give axis="):
        plain.update(days(12, 12, 1)[0].values)
    assert plain.update(days(12, 12, 1)[0].values, axis=2).observed.shape == (*SHAPE, 12)
    with pytest.raises(ValueError, match="need the other axes of the fit, but axis 'time' has 24 positions"):
        fitted.update(days(24, 24, 1)[0], axis="lat")
    for bad in ({"window": 1}, {"half_life": 0}, {"axis": "unknown"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            plain.update(days(12, 3, 1)[0].values, **bad)


def test_numbers_that_differ_by_rounding_are_one_position(fitted):
    """Slices whose coordinate is in single precision replace those of the fit."""

    def numbered(x, kind):
        return x.assign_coords(time=np.arange(len(x.time)).astype(kind) / kind(10))

    x = days(0, 12, 0)[0]
    completer = corten.ConformalCompleter("smooth", "constant", corten.GapCalibration(2, drawn=0))
    fit = completer.fit(numbered(x, np.float64))
    revised = numbered(x + 1, np.float32)
    assert not np.array_equal(revised.time, numbered(x, np.float64).time)
    moved = fit.update(revised[..., 4:], axis="time")
    assert np.array_equal(moved.observed.axes[2].coordinates, np.arange(12) / 10)
    assert np.array_equal(moved.observed.values[..., 4:], x[..., 4:] + 1, equal_nan=True)
    with pytest.raises(ValueError, match="no coordinate 'time'"):
        fitted.update(x.drop_vars("time"))
    one = corten.ObservedTensor.of(x[:1])
    with pytest.raises(ValueError, match="another grid"):
        matching(one, x[:1].assign_coords(lat=x.lat[:1] + 50))


def test_a_fill_and_an_update_follow_noise_that_grew(fitted):
    """With three times the noise, intervals of the fit do not cover; with a scale measured in new slices they do."""
    x, truth = days(24, 24, 11)
    louder = 0.28 * np.random.default_rng(0).normal(size=x.shape)  # with the noise of 0.1: 0.3
    before, _ = coverage_of(fitted.fill(x + louder), truth + louder)
    measured, _ = coverage_of(fitted.fill(x + louder, rounds=2), truth + louder)
    after, _ = coverage_of(fitted.update(x + louder, half_life=12).intervals(0.9), truth + louder)
    assert before < 0.6 and 0.8 < measured < 0.95 and 0.85 < after < 0.95


def test_a_fill_measures_the_errors_of_new_slices_only(fitted, loaded):
    """The scale is multiplied in slices that the fit does not have, by the same factor; a few values say little."""
    x = xr.concat([days(0, 24, 0)[0], days(24, 6, 1)[0] * 1.5], "time")
    result = fitted.fill(x, rounds=2)
    same(result, loaded.fill(x, rounds=2))
    known, new = days(0, 24, 0)[0], x.isel(time=slice(24, None))
    few = fitted.fill(xr.concat([known, new.where(x.lat + x.lon < 2)], "time"), rounds=2)
    ratios = [next(one for one in r.choices if one.code == "filled_by_a_fit").values["ratio_of_errors"] for r in
              (result, few, fitted.fill(known, rounds=2))]  # fmt: skip
    # Errors at these few values, all in one corner, are four times the usual ones.
    assert ratios[0] > 1.2 and ratios[1] < 1.5 and ratios[2] == 1.0
    plain = fitted.fill(x)
    entries = np.flatnonzero(result.observed.missing)
    old = np.unravel_index(entries, x.shape)[2] < 24
    found, before = (one.source.calibrated.scale.at(entries) for one in (result, plain))
    assert np.array_equal(found[old], before[old])
    np.testing.assert_allclose(found[~old], ratios[0] * before[~old])
    for bad in (-1, 1.5, True):
        with pytest.raises(ValueError, match="rounds is"):
            fitted.fill(x, rounds=bad)
    split = corten.ConformalCompleter(corten.SmoothCompletion(), "constant", "random").fit(known)
    with pytest.raises(ValueError, match="calibration='gaps'"):
        split.fill(x, rounds=1)


def test_new_slices_are_those_that_the_fit_does_not_have(fitted):
    x = days(0, 24, 0)[0]
    later = xr.concat([x.isel(time=slice(4, None)), days(24, 2, 1)[0]], "time")
    later[0, 0, 7] = 9.0  # a revised slice
    fresh = fresh_slices(fitted.observed, matching(fitted.observed, later))
    assert np.flatnonzero(fresh.all(axis=(0, 1))).tolist() == [7, 20, 21] and fresh.sum() == 3 * SHAPE[0] * SHAPE[1]
    plain = matching(fitted.observed, x.values)
    assert not fresh_slices(fitted.observed, plain).any()
    without = replace(fitted.observed, axes=tuple(replace(a, coordinates=None, units="") for a in fitted.observed.axes))
    assert not fresh_slices(without, without).any()
    other = replace(without, values=without.values + 1)
    assert fresh_slices(without, other).all()


def test_a_completion_is_told_of_the_new_axes(fitted):
    """A member that keeps positions is moved to those of the new data, in a fill and in an update."""
    told = []

    class Keeps:
        choices = ()

        def __init__(self, member):
            self.fill, self.member = member.fill, member

        def on_axes(self, axes):
            told.append([axis.length for axis in axes])
            return Keeps(self.member.on_axes(axes))

    members = {**fitted.completion.members, "pyramid": Keeps(fitted.completion.members["pyramid"])}
    keeps = replace(fitted, completion=replace(fitted.completion, members=members))
    same(keeps.fill(days(24, 30, 1)[0]), fitted.fill(days(24, 30, 1)[0]))
    keeps.update(days(24, 2, 1)[0], window=26)
    assert told[0] == [*SHAPE, 30] and told[-1] == [*SHAPE, 26]


def test_unequal_steps_and_lengths_move_with_the_coordinates(tmp_path):
    """A kernel keeps its length in the unit of the coordinates; the data of the fit give the same bits."""
    whole, new = days(0, 40, 0)[0], days(40, 30, 1)[0]
    uneven = whole.isel(time=np.sort(np.random.default_rng(0).permutation(40)[:26]))
    completer = corten.ConformalCompleter("gaussian-process", "constant", corten.GapCalibration(1, drawn=0))
    fit = completer.fit(uneven)
    assert fit.completion.grids[2].positions is not None
    loaded = corten.load(fit.save(tmp_path / "fit.corten"))
    same(loaded.fill(uneven), fit.intervals(0.9))
    with pytest.raises(ValueError, match="a step of 7200 s"):
        fit.fill(new[..., ::2])
    same(loaded.fill(new), fit.fill(new))
    one = fit.completion
    moved = on_axes(one, corten.ObservedTensor.of(new).axes)
    lengths = [each.covariance.components[0].lengths[2] * each.grids[2].step for each in (one, moved)]
    assert moved.grids[2].positions is None and lengths[1] == pytest.approx(lengths[0])
    assert on_axes(one, fit.observed.axes).covariance == one.covariance
