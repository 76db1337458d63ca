"""Numbers that mean missing: declared ones are gaps, suspicious ones are reported, ordinary data are left in peace."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten import io
from corten.cli.app import app
from corten.data.missing_values import suspects
from corten.data.observed import ObservedTensor

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}


def field(shape=(12, 9)):
    return 15 + 5 * np.sin(np.add.outer(np.arange(float(shape[0])), 0.3 * np.arange(shape[1])))


def with_code(code, dtype=float):
    x = field().astype(dtype)
    x[2:4, 3:6] = code
    return x


@pytest.mark.parametrize("code", [-9999.0, -999.0, -99.9, 1e20, 9.96921e36, -1e34, 32767.0, 255.0])
def test_a_repeated_extreme_value_is_reported_with_its_count(code):
    with pytest.warns(UserWarning, match=r"6 entries are exactly .*far outside.*missing_value=") as heard:
        tensor = ObservedTensor.of(with_code(code))
    assert len(heard) == 1 and f"{code:.10g}" in str(heard[0].message) and tensor.n_missing == 0
    assert tensor.choices[-1].what == "missing value" and tensor.choices[-1].taken == "suspected"


@pytest.mark.parametrize(("code", "dtype"), [(-9999, "i2"), (32767, "i2"), (-32768, "i2"), (9999, "i8"), (1e20, "f4")])
def test_integers_and_single_floats_too(code, dtype):
    x = (100 * field()).astype(dtype)
    x[2:4, 3:6] = code
    with pytest.warns(UserWarning, match="6 entries are exactly"):
        ObservedTensor.of(x)
    tensor = ObservedTensor.of(x, missing_value=code)
    assert tensor.n_missing == 6 and not tensor.mask[2:4, 3:6].any()


@pytest.mark.parametrize("code", [-99.9, 999.9, 255])
def test_codes_of_the_order_of_the_data_are_found(code):
    for dtype in ("f4", "f8"):
        x = np.append(np.linspace(0, 100, 200), [code] * 4).astype(dtype)
        assert [count for _, count in suspects(x)] == [4]


def test_two_codes_are_found_together():
    x = with_code(-9999.0)
    x[7, :4] = 1e20
    x[9, :5] = -999.0
    assert sorted(suspects(x)) == [(-9999.0, 6), (-999.0, 5), (1e20, 4)]
    assert ObservedTensor.of(x, missing_value=[-9999, -999, 1e20]).n_missing == 15


def ordinary():
    rng = np.random.default_rng(0)
    rain = np.where(rng.random(4000) < 0.8, 0.0, rng.gamma(0.5, 8.0, 4000))
    return {
        "counts": rng.poisson(0.7, 4000).astype(float),
        "counts of rare, large events": rng.negative_binomial(0.05, 0.002, 4000).astype(float),
        "rain": rain,
        "rounded rain": np.round(rain, 1),
        "clipped": np.clip(rng.normal(size=4000), -1, 1),
        "saturated": np.minimum(rng.lognormal(2, 1, 4000), 40.0),
        "bytes": np.minimum(rng.integers(0, 300, 4000), 255).astype(float),
        "skewed": rng.lognormal(0, 3, 4000),
        "Cauchy": rng.standard_cauchy(4000),
        "classes": rng.choice([0.0, 1.0, 100.0], 4000),
        "shares": np.clip(rng.normal(0.5, 1, 4000), 0, 1),
        "one outlier": np.append(rng.normal(size=3999), -9999.0),
        "zeros and tens of thousands": np.where(rng.random(4000) < 0.3, 0.0, rng.uniform(15_000, 30_000, 4000)),
        "constant": np.full(4000, 7.0),
        "few": np.array([1.0, 2.0, -9999.0, -9999.0, -9999.0]),
    }


@pytest.mark.parametrize(
    ("others", "codes"),
    [
        (np.linspace(0, 30, 300), {-9999.0: 9, -8888.0: 7}),  # two of one side
        (np.linspace(0, 30, 300), {-9999.0: 9, -8888.0: 7, -7777.0: 5, 9999.0: 4}),
        (np.append(np.linspace(0, 30, 300), [-20000, 1e6]), {-9999.0: 9}),  # a single error lies beyond it
        (np.geomspace(0.1, 1e5, 300), {-9999.0: 9}),  # skewed: its range is wider than the code is far
        (np.repeat([0.0, 1, 2, 3], 50), {-9999.0: 9}),  # counts of few kinds
        (np.repeat([1.0, 2, 3, 4, 5], 50), {-99.0: 40, 99.0: 3}),
    ],
)
def test_codes_are_found_beside_others_beyond_errors_in_skewed_data_and_in_counts(others, codes):
    values = np.concatenate([others, *(np.full(count, code) for code, count in codes.items())])
    assert dict(suspects(np.random.default_rng(0).permutation(values))) == codes


@pytest.mark.parametrize("name", ordinary())
def test_ordinary_data_give_no_alarm(name):
    assert suspects(ordinary()[name]) == []


def test_outside_the_domain_nothing_is_reported():
    x = with_code(-9999.0)
    assert ObservedTensor.of(x, where=x > -9999).n_missing == 0  # a warning would be an error


def test_attributes_of_a_labelled_array_declare():
    x = xr.DataArray(with_code(-9999.0), dims=("a", "b"), attrs={"_FillValue": -9999.0})
    assert ObservedTensor.of(x).n_missing == 6


@pytest.mark.parametrize("bad", ["-9999", True, [None]])
def test_only_numbers_can_be_declared(bad):
    with pytest.raises(TypeError, match="missing_value is"):
        ObservedTensor.of(field(), missing_value=bad)


def test_declared_values_are_filled_within_the_data():
    x = with_code(-9999.0)
    result = corten.complete(x, missing_value=-9999, **QUICK)
    assert result.estimate[2:4, 3:6].min() > 0 and "declared; 6 entries" in str(result.summary(full=True))
    fitted = corten.ConformalCompleter(**QUICK).fit(x, missing_value=[-9999.0])
    assert np.array_equal(fitted.intervals(0.9).estimate, result.estimate)
    with pytest.warns(UserWarning, match="used as data"):
        said = str(corten.complete(x, **QUICK).summary())
    assert "-9999" in said and "missing_value" in said


def test_tables_blank_rows_before_they_are_averaged():
    frame = pd.DataFrame([(a, b, field()[a, b]) for a in range(12) for b in range(9)], columns=["a", "b", "value"])
    twice = pd.concat([frame, frame.iloc[:5].assign(value=-9999)], ignore_index=True)
    with pytest.warns(UserWarning, match="5 entries are exactly -9999"):
        io.from_table(twice)
    table = io.from_table(twice, missing_value=-9999)
    np.testing.assert_allclose(table.data.values, field())
    completer = corten.ConformalCompleter(**QUICK)
    frame.loc[3:9, "value"] = -9999
    filled = corten.complete_table(frame, missing_value=-9999, completer=completer)
    assert filled["estimate"].min() > 0 and (filled["flag"] != 0).sum() == 7


@pytest.mark.parametrize("suffix", [".nc", ".csv"])
def test_the_command_line_declares_them(tmp_path, suffix):
    x = with_code(-9999.0)
    path = tmp_path / f"x{suffix}"
    data = xr.DataArray(x, dims=("a", "b"), coords={"a": np.arange(12), "b": np.arange(9)}, name="value")
    if suffix == ".nc":
        data.to_netcdf(path, encoding={"value": {"_FillValue": None}})
    else:
        data.to_dataframe().reset_index().to_csv(path, index=False)
    options = [part for key, value in QUICK.items() for part in (f"--{key}", value)]
    asked = ["complete", str(path), "-o", str(tmp_path / "o.nc"), *options, "--missing-value", "-9999,1e20", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["summary"]["missing"] == 6
    assert float(xr.load_dataset(tmp_path / "o.nc")["value"].min()) > 0
    with pytest.warns(UserWarning, match="6 entries are exactly -9999"):
        ObservedTensor.of(io.read(path).data)
