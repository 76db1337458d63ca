"""Intervals keep what was observed, say what they are, and are written whole or not at all."""

import copy
import json

import numpy as np
import pytest
import xarray as xr

from corten import io
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.results.intervals import Intervals, check_coverage
from corten.results.summary import FOOTNOTE

NAN = np.nan


class Plain:
    """A source whose interval is estimate -+ 10 * coverage, infinite in the first slice's missing cells."""

    def __init__(self, observed, infinite=True):
        self.observed, self.infinite, self.asked = observed, infinite, []
        self.estimate, self.probabilities = np.full(observed.shape, 0.1), np.full(observed.shape, 0.5)
        self.beyond, self.carried, self.propensity, self.log_weights = None, False, None, np.empty(0)
        self.choices = (Choice("rank", "3", "smallest P-AIC", ({"rank": np.int64(2), "loss": NAN},)),)

    def bounds(self, coverage, entries=None):
        self.asked.append(coverage)
        upper = self.estimate + 10 * coverage
        if self.infinite:
            upper = np.where(np.arange(upper.shape[0])[:, None, None] == 0, np.inf, upper)
        ends = 2 * self.estimate - upper, upper
        return ends if entries is None else tuple(end.reshape(-1)[entries] for end in ends)

    def hidden_coverage(self, coverage):
        return None

    def warnings(self):
        return ["The weights are thin."]

    def facts(self, coverage):
        return {"effective_sample_size": 1234.5}

    def settings(self):
        return {"seed": 7, "rank": (2, 3), "nothing": None, "yes": True}


def given(dtype=np.float64):
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    x[:, 0, 1] = NAN
    x[:, :, 3] = NAN
    return x


def labelled(dtype=np.float64):
    times = np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]").astype("datetime64[ns]")
    attrs = {"units": "TECU", "history": "born", "_FillValue": -1.0, "odd": {"a": 1}}
    attrs["standard_name"] = "tec_sn"
    coords = {"station": ["a", "b"], "time": times}
    return xr.DataArray(given(dtype), dims=("station", "lat", "time"), coords=coords, name="tec", attrs=attrs)


def result_of(x, **options):
    return Intervals(Plain(ObservedTensor.of(x, **options)), 0.9)


def test_observed_entries_keep_their_value_with_zero_width():
    x = given()
    result = result_of(x)
    seen = ~np.isnan(x)
    for array in (result.estimate, result.lower, result.upper):
        assert np.array_equal(array[seen], x[seen])
    assert (result.width[seen] == 0).all() and (result.width[1][~seen[1]] == pytest.approx(18.0))
    assert np.isinf(result.width[0][~seen[0]]).all()
    assert np.array_equal(result.missing, ~seen)
    assert not np.isnan(result.estimate).any()


def test_same_kind_comes_back():
    x = labelled(np.float32)
    result = result_of(x)
    for array in (result.estimate, result.lower, result.upper, result.width, result.missing, result.flag):
        assert isinstance(array, xr.DataArray) and array.dims == x.dims and "time" in array.coords
    assert result.estimate.attrs == x.attrs and result.estimate.dtype == result.lower.dtype == np.float32
    assert result.lower.attrs["units"] == "TECU"
    masked = np.ma.MaskedArray(given(), mask=np.isnan(given()))
    where = np.ones(masked.shape, bool)
    where[1, 1] = False
    back = result_of(masked, where=where)
    assert isinstance(back.upper, np.ma.MaskedArray) and np.ma.getmaskarray(back.upper).sum() == 4
    assert (back.flag[1, 1] == 4).all() and not isinstance(back.flag, np.ma.MaskedArray)


def test_rounding_to_single_precision_never_narrows():
    observed = ObservedTensor.of(given(np.float32))
    source = Plain(observed, infinite=False)
    source.estimate = np.random.default_rng(0).normal(size=observed.shape)
    result = Intervals(source, 1 / 3)
    lower, upper = source.bounds(1 / 3)
    gap = observed.missing
    assert (result.lower[gap].astype(float) <= lower[gap]).all()
    assert (result.upper[gap].astype(float) >= upper[gap]).all()


def test_flags():
    where = np.ones((2, 3, 4), bool)
    where[0, 2] = False
    flag = result_of(labelled(), where=where).flag
    assert flag.dtype == np.int8 and len(flag.attrs["flag_meanings"].split()) == len(flag.attrs["flag_values"]) == 7
    assert (flag.values[0, 0, 0], flag.values[1, 0, 1], flag.values[0, 0, 1]) == (0, 1, 2)
    assert flag.values[1, 0, 3] == 3 and (flag.values[0, 2] == 4).all()


def test_entries_beyond_what_was_tested_have_a_flag_of_their_own():
    plain = result_of(labelled())
    assert not plain.beyond_tested.any() and plain.summary().beyond_tested == 0
    flag = plain.flag.values
    source = plain.source
    source.beyond = plain.observed.missing  # all of them: infinite intervals and forecasts keep their flag
    result = Intervals(source, plain.coverage)
    assert result.flag.attrs["flag_meanings"].split()[5] == "filled_beyond_tested"
    np.testing.assert_array_equal(result.flag.values, np.where(flag == 1, 5, flag))
    np.testing.assert_array_equal(result.beyond_tested.values, plain.observed.missing)
    assert result.beyond_tested.dims == result.flag.dims
    first = str(result.summary()).splitlines()[:8]
    assert any(line.startswith("beyond tested") and "(100.0%), deeper in gaps" in line for line in first)
    assert 5 in result.to_dataset()["tec_flag"].values


def test_at_other_levels_asks_the_source_only():
    result = result_of(given())
    wider = result.at(0.95)
    assert isinstance(wider, Intervals) and wider.coverage == 0.95 and wider.source is result.source
    several = result.at([0.5, 0.8])
    assert [one.coverage for one in several] == [0.5, 0.8] and result.at(np.array([0.5]))[0].coverage == 0.5
    assert result.source.asked == []
    assert (several[0].width <= several[1].width).all() and result.source.asked == [0.5, 0.8]
    assert isinstance(result.at(np.float64(0.7)), Intervals) and result.at(()) == []


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, 90, NAN, np.inf])
def test_coverage_outside_is_refused(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        check_coverage(level)


@pytest.mark.parametrize("level", ["0.9", None, True, [0.9], 1j])
def test_coverage_must_be_a_number(level):
    with pytest.raises(TypeError, match="number between 0 and 1"):
        check_coverage(level)


def test_percent_is_understood_as_a_slip():
    with pytest.raises(ValueError, match=r"coverage=0\.9"):
        check_coverage(90)


def test_summary_says_what_matters():
    result = result_of(labelled())
    summary = result.summary(full=True)
    text = str(summary)
    for words in (
        "TECU",
        "effective sample size",
        "1,234",
        "smallest P-AIC",
        "The weights are thin",
        "forecast",
    ):
        assert words in text or words.replace(",", "") in text
    assert " ".join(FOOTNOTE.split()) in " ".join(text.split())
    assert "extrapolated" in text and "time 2020-01-04" in text
    assert "noisy observation" in (Intervals.__doc__ or "")
    facts = summary.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["missing"] == 8 and facts["infinite"] == 4 and facts["finite_share"] == 0.5
    assert facts["mean_width"] == facts["median_width"] == pytest.approx(18.0)
    assert "<table>" in result._repr_html_() and "8 entries filled, 4 with infinite" in repr(result)


def test_nothing_missing_is_said():
    summary = Intervals(Plain(ObservedTensor.of(np.ones((2, 3, 4)))), 0.9).summary()
    assert "Nothing was missing" in str(summary) and summary.mean_width is None and summary.finite_share == 1.0


def test_all_infinite_has_no_width():
    x = given()
    x[1] = 1.0
    x[:, :, 3] = 1.0
    assert "none is finite" in str(result_of(x).summary())


def test_markup_in_names_is_shown_not_obeyed():
    x = labelled().rename("[bold]<b>x</b>")
    result = result_of(x)
    assert "[bold]" in str(result.summary()) and "<b>x" not in result._repr_html_()


@pytest.mark.parametrize("x", [labelled(), labelled(np.float32), given()])
def test_netcdf_round_trip(tmp_path, x):
    result = result_of(x)
    path = result.to_netcdf(tmp_path / "filled.nc")
    with xr.open_dataset(path) as read:
        read = read.load()
    name = "tec" if isinstance(x, xr.DataArray) else "value"
    companions = [f"{name}_{what}" for what in ("lower", "upper", "flag", "propensity")]
    assert [*read.data_vars] == [name, *companions]
    found = {what: read[one] for what, one in zip(("estimate", "lower", "upper", "flag"), (name, *companions))}
    for what, one in found.items():
        given_array = getattr(result, f"{what}_array")
        assert np.array_equal(one, given_array) and one.dtype == given_array.dtype
    assert read.attrs["Conventions"].startswith("CF-")
    settings = json.loads(read.attrs["corten_settings"])
    assert settings["seed"] == 7 and settings["coverage"] == 0.9 and "3" in settings["chosen"].values()
    assert sum(len(str(value)) for value in read.attrs.values()) < 2000
    assert read[name].attrs["ancillary_variables"].split() == companions
    assert found["lower"].attrs["coverage"] == 0.9 and FOOTNOTE in read.attrs["comment"]
    assert found["flag"].attrs["standard_name"] == "status_flag"
    if isinstance(x, xr.DataArray):
        assert np.array_equal(read.time, x.time) and list(read.station_name.values) == ["a", "b"]
        assert read.attrs["history"].startswith("born\n") and read["tec"].attrs["standard_name"] == "tec_sn"
        again = io.read(path, "tec", careful=True).data
        assert list(again.station.values) == ["a", "b"] and np.array_equal(again.time, x.time)


def test_existing_file_is_refused_and_kept(tmp_path):
    result = result_of(given())
    path = tmp_path / "filled.nc"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite"):
        result.to_netcdf(path)
    assert path.read_text() == "mine"
    result.to_netcdf(path, overwrite=True)
    assert path.read_bytes() != b"mine"
    with pytest.raises(FileNotFoundError, match="folder"):
        result.to_netcdf(tmp_path / "no" / "x.nc")
    assert [one.name for one in tmp_path.iterdir()] == ["filled.nc"]


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)
    with pytest.raises(OSError, match="disk full"):
        result_of(given()).to_netcdf(tmp_path / "x.nc")
    assert list(tmp_path.iterdir()) == []


def test_name_clash_is_refused():
    x = labelled().rename(lat="tec_lower")
    with pytest.raises(ValueError, match="tec_lower"):
        result_of(x).to_dataset()


def test_stacked_index_can_be_written(tmp_path):
    x = labelled().stack(place=("station", "lat")).transpose("place", "time")
    source = Plain(ObservedTensor.of(x), infinite=False)
    path = Intervals(source, 0.5).to_netcdf(tmp_path / "stacked.nc")
    with xr.open_dataset(path) as read:
        assert read.tec.shape == (6, 4)


def test_dataframe_has_one_row_per_cell_of_the_domain():
    where = np.ones((2, 3, 4), bool)
    where[0, 0] = False
    frame = result_of(labelled(), where=where).to_dataframe()
    assert list(frame.columns) == ["station", "lat", "time", "estimate", "lower", "upper", "flag"]
    assert len(frame) == 20 and frame.station.tolist()[-1] == "b" and set(frame.flag) == {0, 1, 3}


@pytest.mark.parametrize(
    ("name", "remedy"), [("audit", "result.source.audit"), ("to_csv", "to_dataframe().to_csv"), ("to_feather", "to_d")]
)
def test_names_that_are_not_there_name_the_remedy(name, remedy):
    result = result_of(labelled())
    with pytest.raises(AttributeError, match=r"use result\.") as caught:
        getattr(result, name)
    assert remedy in str(caught.value) and not hasattr(result, "nonsense") and hasattr(result.source, "bounds")
    assert copy.copy(result).coverage == result.coverage


def test_places_without_any_observation_have_a_flag_of_their_own():
    """A random split tests no whole place, so they are beyond what was tested; pseudo-gaps do."""
    x = labelled()
    x = x.copy(data=np.array(np.broadcast_to(np.arange(4.0), x.shape))).isel(time=[0, 1, 2, 3] * 4).drop_vars("time")
    x.values[1, 1], x.values[1, 0, 3] = np.nan, np.nan
    result = result_of(x)
    assert (result.flag.values[1, 1] == 6).all() and result.flag.values[1, 0, 3] == 1
    assert result.beyond_tested.values.sum() == 16
    result.source.choices = (Choice("reach", "deep enough", "", code="pseudo_gaps_deep_enough"),)
    tested = Intervals(result.source, result.coverage)
    assert (tested.flag.values[1, 1] == 6).all() and not tested.beyond_tested.any()
