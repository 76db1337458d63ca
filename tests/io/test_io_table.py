"""Long tables become tensors and come back; days fold and unfold."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from test_result import Plain

from corten import io
from corten.data.observed import ObservedTensor
from corten.io.folding import regular_axis
from corten.results.intervals import Intervals


def speeds():
    times = pd.to_datetime(["2020-01-01 06:00", "2020-01-01 00:00", "2020-01-01 18:00", "2020-01-02 00:00"])
    return pd.DataFrame(
        {"time": times, "road": ["b", "a", "b", "b"], "speed": [1.0, 2.0, np.nan, 4.0], "note": list("wxyz")},
        index=[7, 7, 3, 1],
    )


def answer(table):
    return Intervals(Plain(ObservedTensor.of(table.data, where=table.where), infinite=False), 0.9)


@pytest.mark.parametrize(
    "values, full",
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 3], [0, 1, 2, 3]),
        ([0, 1, 10], None),
        ([0.0, 0.1, 0.3, 0.4], [0.0, 0.1, 0.2, 0.3, 0.4]),
        ([0.0, 0.1, 0.25], None),
        ([5], [5]),
        ([1, 4], [1, 4]),
    ],
)
def test_regular_axes_are_made_whole(values, full):
    found = regular_axis(np.array(values))
    assert (found is None) == (full is None)
    if full is not None:
        assert np.allclose(found, full) and np.isin(values, found).all()


def test_table_to_tensor():
    frame = speeds()
    before = frame.copy()
    table = io.from_table(frame, "speed", ["road", "time"])
    assert table.data.dims == ("road", "time") and table.data.shape == (2, 5)
    assert list(table.data.road.values) == ["b", "a"] and table.inserted == {"time": 1} and table.duplicates == 0
    assert table.data.sel(road="b", time="2020-01-02").item() == 4.0 and table.data.notnull().sum() == 3
    pd.testing.assert_frame_equal(frame, before)
    assert ObservedTensor.of(table.data).axes[0].kind == "unordered"


def test_duplicates_are_averaged_and_counted():
    frame = pd.DataFrame({"a": [0, 0, 0, 1], "b": [0, 0, 1, 1], "value": [1.0, 3.0, np.nan, 5.0]})
    table = io.from_table(frame)
    assert table.data.values[0, 0] == 2.0 and table.duplicates == 1
    frame.loc[1, "value"] = np.nan
    assert io.from_table(frame).data.values[0, 0] == 1.0


def test_irregular_axes_and_units_are_kept():
    frame = pd.DataFrame({"depth": [0.0, 5.0, 12.0, 100.0], "station": [1, 2, 4, 5], "value": [1.0, 2.0, 3.0, 4.0]})
    table = io.from_table(frame)
    assert list(table.data.depth.values) == [0, 5, 12, 100] and table.data.sizes["station"] == 5
    assert io.from_table(frame, axis_kinds={"station": "unordered"}).data.sizes["station"] == 4
    with pytest.raises(ValueError, match="axis_kinds names 'x'"):
        io.from_table(frame, axis_kinds={"x": "unordered"})


def test_frame_comes_back_in_its_order():
    frame = speeds()
    table = io.from_table(frame, "speed", ["road", "time"])
    back = table.to_frame(answer(table))
    assert list(back.columns) == [*frame.columns, "estimate", "lower", "upper", "flag"]
    assert len(back) == 10 and back.note.tolist()[:4] == list("wxyz")
    assert back.estimate.tolist()[:4] == [1.0, 2.0, 0.1, 4.0] and back.flag.tolist()[:4] == [0, 0, 1, 0]
    assert (back.lower <= back.upper).all() and not back[["road", "time"]].duplicated().any()
    assert (back.upper - back.lower)[back.flag == 0].eq(0).all()
    with pytest.raises(ValueError, match="already has the column lower"):
        io.from_table(frame.assign(lower=0), "speed", ["road", "time"]).to_frame(answer(table))
    with pytest.raises(TypeError, match="labels"):
        table.to_frame(Intervals(Plain(ObservedTensor.of(table.data.values), infinite=False), 0.9))


def test_folded_table_comes_back_unfolded():
    frame = speeds()
    plain = io.from_table(frame, "speed", ["road", "time"])
    table = io.from_table(frame, "speed", ["road", "time"], fold={"time": ("day", "slot")})
    assert table.data.dims == ("road", "day", "slot") and table.data.shape == (2, 2, 4)
    assert table.where is not None and int(table.where.sum()) == 5
    back = table.to_frame(answer(table))
    straight = plain.to_frame(answer(plain))
    pd.testing.assert_frame_equal(back, straight)


@pytest.mark.parametrize(
    "start, hours, count", [("2020-01-01T00", 6, 8), ("2020-03-01T05:30", 1, 31), ("2020-01-01T12", 12, 2)]
)
def test_fold_and_unfold_are_inverse(start, hours, count):
    times = (np.datetime64(start, "ns") + np.arange(count) * np.timedelta64(hours, "h")).astype("datetime64[ns]")
    values = np.random.default_rng(0).normal(size=(3, count, 2))
    coords = {"time": ("time", times, {"long_name": "when"}), "x": [1, 2, 3], "site": ("x", ["p", "q", "r"])}
    data = xr.DataArray(values, dims=("x", "time", "y"), coords=coords, name="v", attrs={"units": "m"})
    fold = {"time": ("day", "slot")}
    folded, where = io.fold_time(data, fold)
    assert folded.dims == ("x", "day", "slot", "y") and folded.sizes["slot"] == 24 // hours
    assert (where is None) == (folded.sizes["day"] * folded.sizes["slot"] == count)
    assert io.unfold_time(folded, fold).identical(data)
    if where is not None:
        assert int(where.sum()) == count
    tensor = ObservedTensor.of(folded, where=where)
    assert tensor.n_observed == data.size and tensor.complete


def test_what_cannot_fold_is_refused():
    def series(times):
        return xr.DataArray(np.ones((2, len(times))), dims=("x", "time"), coords={"time": times})

    day = np.datetime64("2020-01-01", "ns")
    fold = {"time": ("day", "slot")}
    for times, words in [
        (np.arange(4), "no datetime"),
        (day + np.array([0, 7, 14]) * np.timedelta64(1, "h"), "does not divide a day"),
        (day + np.array([0, 1, 9]) * np.timedelta64(1, "h"), "irregular"),
        (day + np.array([1, 0]) * np.timedelta64(1, "h"), "increasing"),
    ]:
        with pytest.raises(ValueError, match=words):
            io.fold_time(series(times), fold)
    good = series(day + np.arange(4) * np.timedelta64(6, "h"))
    with pytest.raises(ValueError, match="unknown axis 'when'"):
        io.fold_time(good, {"when": ("day", "slot")})
    with pytest.raises(ValueError, match="not used yet"):
        io.fold_time(good, {"time": ("x", "slot")})
    with pytest.raises(ValueError, match="not folded"):
        io.unfold_time(good.rename(x="day", time="slot"), fold)


def test_time_zones_become_utc():
    times = pd.to_datetime(["2020-01-01T00:00+02:00", "2020-01-01T01:00+02:00"])
    frame = pd.DataFrame({"t": times, "x": ["a", "b"], "value": [1.0, 2.0]})
    assert io.from_table(frame).data.t.values[0] == np.datetime64("2019-12-31T22:00")


@pytest.mark.parametrize(
    "frame, options, words",
    [
        ({"a": [1], "b": [2]}, {}, "name the column of values.*a, b"),
        ({"a": [1], "value": [2]}, {}, "two or more coordinate columns"),
        ({"a": [1], "b": [1], "value": [2]}, {"coordinates": ["a", "q"]}, "no column 'q'"),
        ({"a": [1], "b": [1], "value": [2]}, {"coordinates": ["a", "value"]}, "both value and coordinate"),
        ({"a": [], "b": [], "value": []}, {}, "no rows"),
        ({"a": [1.0, np.nan], "b": [1, 2], "value": [2, 3]}, {}, "row 2 has no 'a'"),
        ({"a": [1.0, np.inf], "b": [1, 2], "value": [2, 3]}, {}, "infinite coordinate"),
        ({"a": [1, 2], "b": [1, 2], "value": ["x", 3]}, {}, "expected a number, found 'x'"),
        ({"a": ["2020-01-01", "2020-99-99"], "b": [1, 2], "value": [2, 3]}, {}, "looks like dates"),
        ({"a": range(1000), "b": range(1000), "value": range(1000)}, {"max_bytes": 10**6}, "max_bytes"),
    ],
)
def test_bad_tables_are_named(frame, options, words):
    with pytest.raises(ValueError, match=words):
        io.from_table(pd.DataFrame(frame), **options)


def test_a_table_of_another_library_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match="to_pandas"):
        io.from_table([{"a": 1}])
