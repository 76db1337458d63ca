"""Every figure is good without arguments, takes an ax, gives it back, and names its axes and units."""

import matplotlib
import numpy as np
import pytest

from corten.data.observed import Axis, ObservedTensor
from corten.report import evidence
from corten.report.planes import default_entry, default_index, labels, planes, title
from corten.results.intervals import Intervals
from report_source import Audited, Made, made

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAN = np.nan


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", ["slice", "series", "coverage", "widths", "weights", "selection"])
@pytest.mark.parametrize("shape", [(9, 12), (8, 9, 7), (5, 4, 6, 3)])
def test_every_figure_is_good_without_arguments(name, shape):
    result = made(shape)
    own = getattr(result.plot, name)()
    own.figure.canvas.draw()
    assert own.get_xlabel() and own.get_ylabel()
    _, ax = plt.subplots()
    assert getattr(result.plot, name)(ax=ax) is ax


def test_a_map_has_coordinates_units_and_the_shape_of_the_earth():
    ax = made().plot.slice(time=3)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("lon (°E)", "lat (°N)")
    assert ax.get_title() == "time 2019-04-25 03:00"
    # 40 degrees in 12 rows, 60 in 16 columns, at 40 degrees north
    assert ax.get_aspect() == pytest.approx((40 / 11) / (60 / 15 * np.cos(np.radians(40.0))), rel=1e-6)
    bar = ax.figure.axes[-1]
    assert bar.get_ylabel() == "electron content (TECU)"


@pytest.mark.parametrize("show", ["data", "estimate", "width", "propensity"])
def test_every_quantity_can_be_shown_in_every_plane(show):
    result = made((6, 7, 5), where=np.arange(6).reshape(-1, 1, 1) < 5)
    mask, inside = result.observed.mask, result.observed.inside
    arrays = {
        "data": np.where(mask, result.observed.values, NAN), "estimate": result.estimate_array,
        "width": np.where(mask, NAN, result.width_array), "propensity": result.source.probabilities,
    }  # fmt: skip
    array = np.where(inside, arrays[show], NAN)
    array[~np.isfinite(array)] = NAN
    default = np.s_[:, :, default_index(result.observed, 2)]
    places = np.s_[:, :, 1], np.s_[2], np.s_[:, -1], default
    for where, place in zip(({"time": 1}, {"lat": 2}, {"lon": -1}, {}), places):
        ax = result.plot.slice(show, **where)
        ax.figure.canvas.draw()
        picture, wanted = np.ma.filled(ax.collections[0].get_array(), NAN), array[place]
        assert any(np.array_equal(picture, one, equal_nan=True) for one in (wanted, wanted.T))


def test_slices_are_named_by_index_or_label_and_colours_do_not_move():
    plot = made().plot
    by_index, by_label = plot.slice(time=4), plot.slice(time="2019-04-25 04:00")
    assert by_index.get_title() == by_label.get_title()
    assert plot.slice(time=0).collections[0].get_clim() == plot.slice(time=5).collections[0].get_clim()
    assert plot.slice(lat=41.0).get_title() == "lat 41.82"


def test_what_is_not_there_is_refused_in_words():
    plot = made().plot
    with pytest.raises(ValueError, match="give one of data, estimate"):
        plot.slice("depth")
    with pytest.raises(ValueError, match="unknown axis 'tme'"):
        plot.slice(tme=3)
    with pytest.raises(ValueError, match="index from 0 to 9"):
        plot.slice(time=10)
    with pytest.raises(ValueError, match="two free axes"):
        plot.slice(time=1, lat=2)
    with pytest.raises(ValueError, match="runs along 'time'"):
        plot.series(time=1)
    with pytest.raises(ValueError, match="settings with candidates: rank"):
        plot.selection("seed")
    with pytest.raises(ValueError, match="no propensity model"):
        made(chance=False).plot.slice("propensity")


def test_results_with_little_behind_them_are_drawn_too():
    x = np.random.default_rng(0).normal(size=(5, 6))
    x[1:3, 2] = NAN
    plot = Intervals(Made(ObservedTensor.of(x), chance=False, rich=False), 0.9).plot
    for name in ("slice", "series", "coverage", "widths", "weights", "selection"):
        ax = getattr(plot, name)()
        ax.figure.canvas.draw()
        assert ax.has_data() or any(text.get_text() for text in ax.texts), name


def test_the_coverage_curve_shows_the_audit_with_its_errors():
    ax = made().plot.coverage(Audited())
    assert ax.get_ylabel() == "coverage found"
    points = ax.lines[1].get_xydata()
    assert points[:, 0].tolist() == [0.5, 0.8, 0.9, 0.95]


def test_planes_stand_the_way_maps_do():
    lon, lat = (
        Axis("x", 5, np.arange(5.0), units="degrees_east"),
        Axis("y", 4, np.arange(4.0)[::-1], units="degrees_north"),
    )
    first = planes([lon, lat, Axis("time", 3)])[0]
    assert (first.rows, first.columns, first.up, first.right) == (1, 0, False, True)
    stations = Axis("station", 3, np.array(["a", "b", "c"]), "unordered")
    plane = planes([Axis("time", 9), stations])[0]
    assert (plane.rows, plane.columns, plane.aspect) == (1, 0, None)


def test_labels_are_as_short_as_tells_slices_apart():
    days = np.arange("2020-02-28", "2020-03-02", dtype="datetime64[D]").astype("datetime64[ns]")
    assert labels(Axis("time", 3, days))[1] == "2020-02-29"
    assert labels(Axis("a", 2, np.array([1.0, 2.0]))) == ["1", "2"]
    assert labels(Axis("a", 2, np.array([0.001, 0.0015]))) == ["0.001000", "0.001500"]
    assert labels(Axis("a", 1, np.array([0.1]))) == ["0.1"]
    assert title(Axis("time", 3, days)) == "time (2020)"


def test_the_default_slice_and_cell_are_worth_a_look():
    result = made()
    cell = default_entry(result)
    assert result.observed.missing[cell] and np.isfinite(result.width_array[cell])
    share = result.observed.missing.mean(axis=(0, 1))
    picked = share[default_index(result.observed, 2)]
    assert abs(picked - share.mean()) <= np.abs(share - share.mean()).min() + 0.011


def test_widths_count_every_filled_entry_once():
    result = made()
    for rows in (evidence.widths_by_propensity(result), evidence.widths_by_depth(result)):
        assert sum(row["count"] for row in rows) == result.observed.n_missing
    curve = evidence.widths_by_coverage(result)
    shares = [row["infinite_share"] for row in curve]
    assert shares == sorted(shares) and any(row["coverage"] == 0.9 for row in curve)
