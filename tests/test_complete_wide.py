"""Wide tables: pandas in and out of `complete`, wide CSV and Parquet in and out of the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import corten
from corten import io
from corten.cli.app import app
from corten.data.matching import joined
from corten.data.observed import ObservedTensor

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}
WORDS = ["--completion", "smooth", "--propensity", "uniform", "--calibration", "random", "--quiet"]
STATIONS = ["Basel", "Bern", "Genf", "Zug"]


def stations(index=None, count=48):
    """Hourly values of four stations, and the same with gaps."""
    rng = np.random.default_rng(0)
    index = pd.date_range("2024-03-01", periods=count, freq="h", name="time") if index is None else index
    wave = np.sin(np.arange(len(index)) / 4)[:, None] + np.arange(4.0)
    whole = pd.DataFrame(wave + 0.1 * rng.normal(size=wave.shape), index=index, columns=STATIONS)
    return whole, whole.mask(rng.random(whole.shape) < 0.25)


INDEXES = {
    "times": pd.date_range("2024-03-01", periods=30, freq="h", name="time"),
    "zoned": pd.date_range("2024-03-30", periods=30, freq="h", tz="Europe/Zurich"),
    "periods": pd.period_range("2020-01", periods=30, freq="M", name="month"),
    "numbered": pd.RangeIndex(30),
    "pairs": pd.MultiIndex.from_product([["a", "b"], range(15)], names=["site", "visit"]),
    "ids": pd.Index(np.random.default_rng(0).permutation(30) + 100, name="id"),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_a_table_comes_back_with_its_labels_and_the_numbers_of_the_matrix(tmp_path, kind):
    _, gappy = stations(INDEXES[kind])
    gappy.attrs["units"] = "ppb"
    fitted = corten.ConformalCompleter(**QUICK).fit(gappy)
    result = fitted.intervals(0.8)
    kinds = {0: fitted.observed.axes[0].kind, 1: "unordered"}
    assert kinds[0] == ("ordered" if kind in ("times", "zoned", "periods", "numbered") else "unordered")
    same = corten.complete(gappy.to_numpy(), 0.8, axis_kinds=kinds, **QUICK)
    for name in ("estimate", "lower", "upper", "width", "flag", "missing"):
        found = getattr(result, name)
        assert isinstance(found, pd.DataFrame) and found.index.equals(gappy.index), name
        assert found.index.names == gappy.index.names and list(found.columns) == STATIONS
        if kind not in ("times", "zoned", "periods"):  # dates may lie unevenly, a matrix without them may not
            np.testing.assert_array_equal(found.to_numpy(), getattr(same, name))
    assert result.observed.attrs == {"units": "ppb"}
    fitted.save(tmp_path / "x.corten")
    again = corten.load(tmp_path / "x.corten").intervals(0.8).upper
    np.testing.assert_array_equal(again.to_numpy(), result.upper.to_numpy())
    assert list(again.columns) == STATIONS
    assert again.index.equals(gappy.index if kind != "periods" else gappy.index.astype(str))
    assert len(result.to_dataframe()) == gappy.size
    means = result.mean(0)
    assert means.estimate.index.equals(gappy.columns)


def test_types_of_columns_come_back_as_floating_point_numbers_of_their_family():
    _, gappy = stations()
    mixed = gappy.round().astype({"Bern": "Float64", "Genf": "Int64"})
    found = corten.complete(mixed, **QUICK).lower
    assert [str(one) for one in found.dtypes] == ["float64", "Float64", "Float64", "float64"]
    assert (corten.complete(gappy.astype("float32"), **QUICK).estimate.dtypes == "float32").all()
    where = pd.DataFrame(True, index=gappy.index, columns=gappy.columns)
    where.loc[:, "Zug"] = False
    assert corten.complete(gappy, where=where, **QUICK).estimate["Zug"].isna().all()
    with pytest.raises(ValueError, match="reindex_like"):
        corten.complete(gappy, where=where.iloc[1:], **QUICK)


def test_tables_that_are_not_wide_are_refused_with_the_remedy():
    _, gappy = stations()
    for x, error, words in (
        (gappy.reset_index(), TypeError, r"column 'time' holds no numbers.*set_index\('time'\).*complete_table"),
        (gappy.iloc[[2, 0, 1]], ValueError, "sort_index"),
        (pd.concat([gappy, gappy]).sort_index(), ValueError, "groupby"),
        (gappy["Bern"], TypeError, "pandas Series.*two or more axes.*fold"),
        (gappy.set_axis(gappy.index.strftime("%d/%m/%Y")), ValueError, "day and month.*pd.to_datetime"),
    ):
        with pytest.raises(error, match=words):
            corten.complete(x, **QUICK)


def test_a_fit_of_a_table_fills_moves_and_is_verified():
    whole, gappy = stations(count=60)
    fitted = corten.ConformalCompleter(**QUICK).fit(gappy.iloc[:40])
    today = fitted.fill(gappy.iloc[40:])
    assert today.estimate.index.equals(gappy.index[40:]) and today.estimate.notna().all().all()
    scores = today.verify(whole.iloc[45:])
    assert scores.summary()["entries"] == int(gappy.iloc[45:].isna().sum().sum())
    window = joined(fitted.observed, ObservedTensor.of(gappy.iloc[35:]), 0, 50).observed
    pd.testing.assert_frame_equal(window.wrap(window.values), gappy.iloc[-50:], check_freq=False)
    assert np.array_equal(window.coords["time"], gappy.index[-50:])


def run(*words):
    done = CliRunner().invoke(app, [str(one) for one in words])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("sep, decimal", [(";", ","), (";", "."), ("\t", "."), (",", ".")])
def test_csv_files_of_other_countries_are_read(tmp_path, sep, decimal):
    _, gappy = stations()
    gappy.to_csv(tmp_path / "x.csv", sep=sep, decimal=decimal)
    found = io.read(tmp_path / "x.csv").data
    np.testing.assert_allclose(found, gappy)
    assert found.time.dtype.kind == "M"


def test_a_table_that_is_not_wide_says_why(tmp_path):
    _, gappy = stations()
    whole = gappy.reset_index()
    for frame, words in (
        (pd.concat([whole, whole.iloc[:1]]), "'time' has the label .* twice"),
        (whole.assign(note="cold"), "column 'note' is not numbers"),
        (whole.assign(time=gappy.index.strftime("%d.%m.%Y %H:%M")), "day and month.*2024-01-31"),
    ):
        frame.to_csv(tmp_path / "x.csv", index=False)
        with pytest.raises(ValueError, match=words):
            io.read(tmp_path / "x.csv")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_wide_file_comes_back_wide(tmp_path, suffix):
    whole, gappy = stations()
    path, truth, out = (tmp_path / f"{name}{suffix}" for name in ("gappy", "truth", "filled"))
    for frame, target in ((gappy, path), (whole, truth)):
        frame.to_parquet(target) if suffix == ".parquet" else frame.to_csv(target)
    run("complete", path, "-o", out, "--coverage", "0.8,0.5", *WORDS)
    found = pd.read_parquet(out) if suffix == ".parquet" else pd.read_csv(out, parse_dates=["time"])
    result = corten.complete(gappy, 0.8, **QUICK)
    own = ["lower", "upper", "lower_50", "upper_50", "flag"]
    assert list(found.columns) == ["time", *STATIONS, *(f"{one}_{what}" for one in STATIONS for what in own)]
    assert (found["time"].to_numpy() == gappy.index.to_numpy()).all()
    np.testing.assert_allclose(found[STATIONS], result.estimate, rtol=1e-12)
    np.testing.assert_allclose(found["Genf_upper"], result.upper["Genf"], rtol=1e-12)
    np.testing.assert_allclose(found["Genf_lower_50"], result.at(0.5).lower["Genf"], rtol=1e-12)
    facts = json.loads(run("evaluate", out, truth, "--coverage", 0.8, "--json").stdout)
    assert facts["entries"] == int(gappy.isna().sum().sum()) and len(facts["levels"]) == 2
    assert facts["levels"][0]["covered"] == pytest.approx(corten.metrics.coverage(whole, result))
    with pytest.raises(ValueError, match=r"result of corten: it has Basel, Basel_lower"):
        io.read(out)


def test_the_rule_for_wide_and_long(tmp_path):
    _, gappy = stations()
    path = tmp_path / "x.csv"

    def layout(frame, **options):
        frame.to_csv(path, index=False)
        return io.read(path, **options).data.dims

    wide = gappy.reset_index()
    long = wide.melt("time", var_name="station", value_name="no2")
    assert layout(wide) == ("time", "column")
    assert layout(wide, layout="wide", axes=["hour", "station"]) == ("hour", "station")
    assert layout(long, variable="no2") == layout(long.rename(columns={"no2": "value"})) == ("time", "station")
    years = gappy.assign(year=range(1950, 1998))[["year", *STATIONS]]
    assert layout(years) == ("year", "column")
    assert layout(gappy, layout="wide") == ("row", "column")  # no column labels the rows
    shuffled = wide.sample(frac=1, random_state=0)
    shuffled.to_csv(path, index=False)
    loaded = io.read(path)
    np.testing.assert_array_equal(loaded.data, gappy.to_numpy())
    back = loaded.table.to_frame(corten.complete(loaded.data, **QUICK))
    assert list(back["time"]) == [str(one) for one in shuffled["time"]] and "sorted by time" in loaded.notes[0]
    grid = long.assign(station=long["station"].map(STATIONS.index), time=np.tile(range(48), 4))
    for frame, options, words in (
        (long, {}, "name the column of values"),  # text in a second column
        (grid, {}, "name the column of values"),  # repeated numbers label no rows
        (wide, {"layout": "tall"}, "layout is 'tall'"),
        (wide, {"layout": "wide", "variable": "Bern"}, "no variable"),
        (wide.astype({"Bern": object}).replace({"Bern": {wide["Bern"].max(): "much"}}), {"layout": "wide"}, "'much'"),
    ):
        with pytest.raises(ValueError, match=words):
            layout(frame, **options)


def test_an_index_of_dates_as_text_is_time_and_comes_back_as_text():
    """As `pandas.read_csv(path, index_col=0)` leaves it: without times, outages would not be seen as such."""
    times = pd.date_range("2024-03-01", periods=6, freq="6h")
    frame = pd.DataFrame(np.arange(12.0).reshape(6, 2), index=times, columns=["A", "B"])
    frame.iloc[2, 0] = np.nan
    written = frame.set_axis(times.strftime("%Y-%m-%d %H:%M"))
    observed = ObservedTensor.of(written)
    assert observed.axes[0].kind == "ordered" and observed.axes[1].kind == "unordered"
    np.testing.assert_array_equal(observed.axes[0].coordinates, times)
    assert observed.wrap(observed.values).index.equals(written.index)
    unsorted, names = ["2024-03-01", "2024-03-03", "2024-03-02"], ["2024-03-01", "2024-03-01x", "2024-03-02"]
    for other in (unsorted, names, ["a", "b", "c"]):
        assert ObservedTensor.of(frame[:3].set_axis(other)).axes[0].kind == "unordered"


def test_tables_of_other_libraries_are_filled():
    """pyarrow has `to_pandas`; the other is known by the dataframe interchange alone. Both have no index."""
    pyarrow = pytest.importorskip("pyarrow")
    _, gappy = stations()

    class Interchange:
        def __init__(self, frame):
            self.frame = frame

        def __dataframe__(self, *args, **options):
            return self.frame.__dataframe__(*args, **options)

    plain = corten.complete(gappy, **QUICK)
    flat = gappy.reset_index()
    for table in (pyarrow.Table.from_pandas(flat), Interchange(flat.astype({"time": "datetime64[ns]"}))):
        found = corten.complete(table, **QUICK)
        assert isinstance(found.estimate, pd.DataFrame) and list(found.estimate.columns) == STATIONS
        assert found.estimate.index.name == "time" and (found.estimate.index == gappy.index).all()
        np.testing.assert_array_equal(found.estimate, plain.estimate)
