"""What goes in comes out: kinds, labels, domains, and errors that say what to do."""

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from corten.data.observed import Axis, ObservedTensor

NAN = np.nan


def field(dtype=float):
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    x[0, 1, 2] = x[1, 2, 3] = NAN
    return x


def labelled():
    return xr.DataArray(
        field(),
        dims=("station", "lon", "time"),
        coords={
            "station": ["b", "a"],
            "lon": ("lon", [0.0, 120.0, 240.0], {"units": "degrees_east"}),
            "time": np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]").astype("datetime64[ns]"),
            "height": ("station", [1.0, 2.0]),
        },
        name="tec",
        attrs={"units": "TECU"},
    )


def test_array_round_trip_and_counts():
    x = field()
    before = x.copy()
    tensor = ObservedTensor.of(x)
    assert (tensor.n_observed, tensor.n_missing, tensor.complete) == (22, 2, False)
    assert np.array_equal(tensor.missing, np.isnan(x)) and tensor.domain is None
    assert np.array_equal(x, before, equal_nan=True)
    x[0, 0, 0] = 99.0
    assert tensor.values[0, 0, 0] == 0.0
    with pytest.raises(ValueError):
        tensor.values[0, 0, 0] = 1.0
    assert type(tensor.wrap(np.zeros(x.shape))) is np.ndarray
    with pytest.raises(ValueError, match="shape"):
        tensor.wrap(np.zeros((2, 2)))


@pytest.mark.parametrize(
    "given, answered",
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float32"),
        ("int32", "float64"),
        ("bool", "float64"),
    ],
)
def test_number_types(given, answered):
    tensor = ObservedTensor.of(np.ones((2, 2), dtype=given))
    assert tensor.values.dtype == answered and tensor.complete


def test_nested_lists_and_fortran_order():
    assert ObservedTensor.of([[1, 2], [3, NAN]]).n_missing == 1
    x = np.asfortranarray(field())
    assert ObservedTensor.of(x).values.flags.c_contiguous


def test_masked_array_hides_even_infinities():
    x = np.ma.MaskedArray([[1, 2], [np.inf, NAN]], mask=[[False, True], [True, False]])
    tensor = ObservedTensor.of(x)
    assert tensor.n_observed == 1 and tensor.n_missing == 3
    back = tensor.wrap(np.ones((2, 2)))
    assert isinstance(back, np.ma.MaskedArray) and not np.ma.getmaskarray(back).any()
    inside = ObservedTensor.of(x, where=np.array([[True, True], [True, False]]))
    assert np.array_equal(np.ma.getmaskarray(inside.wrap(np.ones((2, 2)))), [[False, False], [False, True]])


def test_dataarray_keeps_everything():
    x = labelled()
    tensor = ObservedTensor.of(x)
    back = tensor.wrap(tensor.values)
    assert back.identical(x)
    station, lon, time = tensor.axes
    assert (station.kind, lon.kind, time.kind) == ("unordered", "ordered", "ordered")
    assert lon.periodic and not time.periodic and lon.units == "degrees_east"
    assert time.is_time and time.label(1) == "2020-01-02" and station.label(0) == "b"
    assert tensor.wrap(tensor.values, "lower", {"a": 1}).attrs == {"a": 1}


@pytest.mark.parametrize(
    "name, units, values, circle",
    [
        ("lon", None, np.arange(-180.0, 180.0, 5.0), True),
        ("x", "degrees_east", np.arange(0.5, 360.0), True),
        ("lon", None, np.arange(355.0, -1.0, -5.0), True),
        ("lon", None, np.linspace(-180.0, 180.0, 73), False),
        ("lon", "radians", np.arange(0.0, 360.0, 5.0), False),
        ("x", None, np.arange(0.0, 360.0, 5.0), False),
        ("lon", None, np.arange(-60.0, 60.0, 5.0), False),
        ("longitude", "degrees_east", np.linspace(0, 360, 360, endpoint=False).astype("float32"), True),
    ],
)
def test_full_circle_of_longitude_is_recognised(name, units, values, circle):
    attrs = {} if units is None else {"units": units}
    x = xr.DataArray(np.ones((2, len(values))), dims=("y", name), coords={name: (name, values, attrs)})
    assert ObservedTensor.of(x).axes[1].periodic is circle


def test_user_says_kind_and_period():
    tensor = ObservedTensor.of(field(), axes=("a", "b", "c"), periodic=("c", 1), axis_kinds={"a": "unordered"})
    assert [(axis.kind, axis.periodic) for axis in tensor.axes] == [
        ("unordered", False), ("ordered", True), ("ordered", True),
    ]  # fmt: skip
    axes = (Axis("s", 2), Axis("lon", 3, np.array([0.0, 120.0, 240.0])), Axis("t", 4))
    assert ObservedTensor.of(field(), axes=axes).axes[1].periodic
    for wrong, words in [
        ({"periodic": ("lat",)}, "unknown axis 'lat'; the axes are axis_0, axis_1, axis_2"),
        ({"periodic": (5,)}, "there are 3: 0 to 2"),
        ({"axis_kinds": {"q": "unordered"}}, "axis_kinds names the unknown axis 'q'"),
        ({"axis_kinds": {0: "station"}}, "allowed are 'ordered', 'unordered'"),
        ({"axis_kinds": {0: "unordered"}, "periodic": (0,)}, "no period"),
        ({"axes": ("a", "b")}, "one name per axis"),
        ({"axes": ("a", "a", "b")}, "twice"),
    ]:
        with pytest.raises(ValueError, match=words):
            ObservedTensor.of(field(), **wrong)


def test_domain_by_array_and_by_name():
    x = labelled()
    where = xr.DataArray([[True, True, False], [True, True, True]], dims=("station", "lon"))
    tensor = ObservedTensor.of(x, where=where.T)
    assert tensor.domain is not None and not tensor.domain[0, 2].any()
    assert not tensor.mask[0, 2].any() and np.isnan(tensor.values[0, 2]).all() and not tensor.missing[0, 2].any()
    assert tensor.n_observed + tensor.n_missing == 20
    plain = ObservedTensor.of(field(), where=where.to_numpy()[:, :, None].astype(int))
    assert np.array_equal(plain.domain, tensor.domain)
    assert ObservedTensor.of(field(), where=np.ones((2, 3, 4), bool)).domain is None
    outside = field()
    outside[0, 2, 0] = np.inf
    assert ObservedTensor.of(outside, where=tensor.domain).n_missing == tensor.n_missing


@pytest.mark.parametrize(
    "where, error, words",
    [
        (np.ones((2, 3), bool), ValueError, r"where has shape \(2, 3\), x has \(2, 3, 4\)"),
        (np.zeros((2, 3, 4), bool), ValueError, "False everywhere"),
        (np.full((2, 3, 4), 2), TypeError, "booleans"),
        (xr.DataArray(np.ones(2, bool), dims="depth"), ValueError, "depth"),
        (xr.DataArray(np.ones(5, bool), dims="lon"), ValueError, "length 5 along 'lon'"),
        (
            xr.DataArray(np.ones(3, bool), dims="lon", coords={"lon": [1, 2, 3]}),
            ValueError,
            "different coordinates",
        ),
    ],
)
def test_wrong_domains_are_refused(where, error, words):
    with pytest.raises(error, match=words):
        ObservedTensor.of(labelled(), where=where)


@pytest.mark.parametrize(
    "x, error, words",
    [
        (np.full((3, 3), NAN), ValueError, "no observed value"),
        (np.array([[1.0, np.inf]]), ValueError, r"infinite value\(s\), the first at \(0, 1\)"),
        (np.ones(5), ValueError, "two or more"),
        (3.0, ValueError, "two or more"),
        (None, TypeError, "x is None: give an array"),
        (np.ones((2, 0)), ValueError, "length 0"),
        (np.ones((2, 2), complex), TypeError, "x.real"),
        (np.array([[1, None]], dtype=object), TypeError, "object"),
        (np.array([["a", "b"]]), TypeError, "dtype"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), TypeError, "dates are labels"),
        ([[1, 2], [3]], ValueError, "same length"),
        ("data.nc", TypeError, "read a file"),
        (labelled().to_dataset(), TypeError, "Dataset.*tec"),
        (labelled().isel(lon=0, station=0).to_series(), TypeError, "pandas"),
    ],
)
def test_bad_input_is_named(x, error, words):
    with pytest.raises(error, match=words):
        ObservedTensor.of(x)


def test_length_one_modes_and_matrices_are_fine():
    assert ObservedTensor.of(np.ones((1, 5))).shape == (1, 5)
    assert ObservedTensor.of(np.ones((1, 1))).complete


@pytest.mark.parametrize(
    "time, words",
    [([0, 2, 1, 3], "not sorted.*sortby"), ([0, 1, 1, 2], "repeats values"), ([0, 1, NAN, 2], "missing")],
)
def test_disordered_coordinates_are_refused_by_name(time, words):
    x = xr.DataArray(field(), dims=("a", "b", "t"), coords={"t": time})
    with pytest.raises(ValueError, match=f"(?s)'t'.*{words}|{words}.*'t'"):
        ObservedTensor.of(x)
    assert ObservedTensor.of(x, axis_kinds={"t": "unordered"}).axes[2].kind == "unordered"


def test_empty_slices_and_forecast():
    x = labelled().copy(deep=True)
    x[:, :, 3] = NAN
    x[:, 1, :] = NAN
    tensor = ObservedTensor.of(x)
    assert tensor.empty_slices() == [("lon", 1), ("time", 3)]
    assert tensor.forecast[:, :, 3].all() and tensor.forecast.sum() == 6
    where = np.ones(x.shape, bool)
    where[:, 1] = False
    assert ObservedTensor.of(x, where=where).empty_slices() == [("time", 3)]
    hidden_first = np.where(np.arange(4) == 0, NAN, field())
    assert ObservedTensor.of(hidden_first, axes=("a", "b", "time")).forecast[:, :, 0].all()
    assert not ObservedTensor.of(hidden_first, axes=("a", "b", "c")).forecast.any()


def test_other_calendars_are_times():
    times = xr.date_range("2000-01-01", periods=4, calendar="noleap", use_cftime=True)
    x = xr.DataArray(field(), dims=("a", "b", "when"), coords={"when": times})
    axis = ObservedTensor.of(x).axes[2]
    assert axis.is_time and axis.kind == "ordered" and "2000" in axis.label(0)


def test_observed_tensor_passes_through():
    tensor = ObservedTensor.of(field())
    assert ObservedTensor.of(tensor) is tensor
    with pytest.raises(TypeError, match="has its domain and axes"):
        ObservedTensor.of(tensor, periodic=(0,))
    assert "22 observed, 2 missing" in repr(tensor)
    assert tensor.axis("axis_1") == 1


def test_xarray_is_not_imported_for_plain_arrays():
    code = (
        "import sys, numpy as np; from corten.data.observed import ObservedTensor;"
        "from corten.results.intervals import Intervals;"
        "ObservedTensor.of(np.ones((2, 2))); assert not {'xarray', 'pandas', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_slices_have_names_of_their_own():
    times = np.array(["2020-01-02", "2020-01-02T03:00", "2020-01-02T03:00:00.25", "2020-01-02T03:00:00.5"], "M8[ns]")
    axis = Axis("time", 4, coordinates=times)
    assert [axis.label(k) for k in range(2)] == ["2020-01-02", "2020-01-02T03:00:00"]
    assert axis.label(2) == "2020-01-02T03:00:00.25" and len({axis.label(k) for k in range(4)}) == 4
