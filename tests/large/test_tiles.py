"""Tiles of a tensor larger than memory: geometry, the coarse field, and completion with pseudo-gaps from disk."""

import os
import signal

import numpy as np
import pytest

import corten
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.protocol import Fill
from corten.data.axes import Axis, cut_axes
from corten.io.lazy import LazyTensor
from corten.large import dask_arrays, gaps, needs, tiles
from corten.large.gaps import TiledField
from corten.large.writing import TileArrays

AXES = (Axis("y", 23), Axis("station", 3, kind="unordered"), Axis("x", 17, periodic=True), Axis("day", 40))


def test_tiles_cover_every_entry_once_and_cut_only_ordered_axes():
    sides = tiles.tile_sides(AXES, 4000)
    assert sides[1:3] == (3, 17) and np.prod(sides) <= 4000
    count = np.zeros([axis.length for axis in AXES], int)
    for tile in tiles.tiles_of(AXES, sides, margin=4):
        count[tile.core] += 1
        box = np.zeros(tile.shape)
        assert box[tile.inner].shape == count[tile.core].shape
        padded = np.arange(count.size).reshape(count.shape)[tile.padded]
        assert np.array_equal(tile.of_tensor(np.arange(padded.size), count.shape), padded.ravel())
    assert (count == 1).all()


@pytest.fixture
def coarse(monkeypatch):
    """Values, mask and their coarse field, added in boxes that do not begin where cells begin."""
    monkeypatch.setattr(tiles, "coarse_factors", lambda axes: (4, 1, 5, 7))
    rng = np.random.default_rng(0)
    x = rng.random([axis.length for axis in AXES])
    mask = rng.random(x.shape) < 0.3
    found = tiles.Coarse.of(AXES)
    for a in range(0, 23, 5):
        found.add((a, 0, 0, 0), x[a : a + 5], mask[a : a + 5])
    return x, mask, found


def test_coarse_cells_are_means_of_their_observed_entries(coarse):
    x, mask, found = coarse
    hidden = mask & (np.random.default_rng(1).random(mask.shape) < 0.5)
    box = (slice(3, 20), slice(0, 3), slice(2, 17), slice(1, 33))
    inside = np.zeros_like(mask)
    inside[box] = True
    left = found.without([((3, 0, 2, 1), x[box], hidden[box])])
    for field, used in ((found, mask), (left, mask & ~(hidden & inside))):
        for i, j, k, m in np.ndindex(*field.total.shape):
            cell = (slice(4 * i, 4 * i + 4), slice(j, j + 1), slice(5 * k, 5 * k + 5), slice(7 * m, 7 * m + 7))
            values = x[cell][used[cell]]
            assert field.mask[i, j, k, m] == (values.size > 0)
            if values.size:
                assert field.values[i, j, k, m] == pytest.approx(values.mean())


def test_the_coarse_field_stands_only_where_nothing_is_near(monkeypatch):
    axes = (Axis("y", 80), Axis("x", 90))
    monkeypatch.setattr(tiles, "coarse_factors", lambda axes: (4, 5))
    mask = np.ones((80, 90), bool)
    mask[10:70, 20:80] = False
    found = tiles.Coarse.of(axes)
    found.add((0, 0), np.ones(mask.shape), mask)
    values, placed = found.far_field(np.arange(20 * 18.0).reshape(20, 18)).anchors((slice(5, 75), slice(0, 90)))
    where = np.argwhere(placed) + np.array([5, 0])
    assert len(where) > 10
    for y, x in where:
        near = mask[max(0, y - 12) : y + 13, max(0, x - 12) : x + 13]
        assert not near.any()
        assert values[y - 5, x] == (y // 4) * 18 + x // 5


@pytest.fixture(scope="module")
def field():
    """A smooth field in time with clouds: truth, data, and which entries are sea."""
    found = corten.simulate.sea_like((26, 30, 14), seed=3)
    truth = found["truth"].values.astype(np.float32)
    x = found["sst"].values.astype(np.float32)
    sea = np.isfinite(x).any(axis=-1, keepdims=True) & np.ones(x.shape, bool)
    return truth, x, sea


def test_entries_hidden_in_two_tiles_are_taken_away_once():
    whole = np.random.default_rng(0).random((30, 20)) < 0.5
    parts = tiles.tiles_of((Axis("y", 30), Axis("x", 20)), (10, 10), margin=6)

    class Whole(gaps.Hiding):
        def draw(self, data):
            return np.zeros(self.tile.shape), None, whole[self.tile.padded]

    hidings = [Whole(tile, (), 0) for tile in (parts[0], parts[3], parts[5])]
    count, union = np.zeros(whole.shape, int), np.zeros_like(whole)
    for (start, _, once), hiding in zip(gaps._each_once(None, hidings), hidings):
        assert start == [part.start for part in hiding.tile.padded]
        count[hiding.tile.padded] += once
        union[hiding.tile.padded] = True
    assert np.array_equal(count, (union & whole).astype(int))


def test_copies_of_gaps_are_not_cut_at_the_borders_of_a_tile_and_continue_over_land():
    x = np.ones((40, 40, 6), np.float32)
    x[:8, :8] = np.nan  # one gap in a corner, and land inside it
    sea = np.ones(x.shape, bool)
    sea[3:5, 3:5] = False
    spins = np.where(np.isnan(x), np.int8(-1), np.int8(1))
    spins[~sea] = 0
    data = TiledField.of(LazyTensor.of(x, sea), spins, block=5, tile_entries=2400, tell=lambda share: None)
    assert len(data.tiles) == 4
    for seed in range(4):
        _, mask, hidden = gaps.Hiding(data.tiles[3], (0, 0, 0), seed).draw(data)
        assert mask.all()
        places = np.argwhere(hidden.any(axis=2))
        assert (np.ptp(places, axis=0) == 7).all() and len(places) == 64


def test_hidden_entries_do_not_reach_their_own_estimates(field, monkeypatch):
    _, x, sea = field
    spins = np.where(np.isnan(x), np.int8(-1), np.int8(1))
    spins[~sea] = 0
    data = TiledField.of(LazyTensor.of(x, sea), spins, block=5, tile_entries=4000, tell=lambda share: None)
    tile = data.tiles[1]
    hiding = gaps.Hiding(tile, (0, 0, 0), seed=0)
    values, mask, hidden = hiding.draw(data)
    assert hidden.any() and not (hidden & ~mask).any()
    from corten.completion.smooth import SmoothCompletion
    from corten.completion.stack import StackedCompletion

    stack = StackedCompletion({"one": SmoothCompletion()})
    first = stack.prepare(values, mask, cut_axes(data.axes, tile.padded), 0)
    large = stack.prepare(data.coarse.values, data.coarse.mask, data.coarse.axes(data.axes), 0)

    def members(changed):
        start = [part.start for part in tile.padded]
        coarse = data.coarse.without([(start, x[tile.padded], hidden)])
        far = coarse.far_field(large.fill(coarse.values, coarse.mask).estimate)
        monkeypatch.setattr(gaps.Hiding, "draw", lambda self, data: (changed, mask, hidden))
        filler = gaps.TileFiller(data.axes, first, far, np.array([0.1, 0.1, 0.1]), 1.0)
        return gaps._scored((0, hiding), data=data, filler=filler, fields=(far,), limit=4000)

    one = members(values)
    two = members(np.where(hidden, values + 100, values))
    assert np.array_equal(one.estimate, two.estimate) and np.array_equal(one.features, two.features)
    assert np.allclose(two.truth - one.truth, 100, atol=1e-3)


KNOWN = {}
prepare_anew = GaussianProcessCompletion.prepare


def prepare_once(self, values, mask, axes, seed):
    """The settings of a process, chosen once for the same data: this takes most of the time of the tests."""
    key = values.tobytes(), mask.tobytes(), seed
    if key not in KNOWN:
        KNOWN[key] = prepare_anew(self, values, mask, axes, seed)
    return KNOWN[key].on_axes(axes)


def small_tiles(patch):
    """Tiles of several shapes, few rounds, and settings that are chosen once."""
    patch.setattr(needs, "MAX_TILE_ENTRIES", 2500)
    patch.setattr(needs, "CALIBRATION_ENTRIES", 1)
    patch.setattr(gaps, "SETTINGS_TILES", 2)
    patch.setattr(GaussianProcessCompletion, "prepare", prepare_once)


def test_small_tiles_are_calibrated_in_more_rounds_and_none_too_often():
    axes = (Axis("y", 400), Axis("x", 400), Axis("day", 50))
    for side, useful, rounds in ((200, 4, 24), (100, 12, 24), (50, 60, 96), (50, 2, 48)):
        assert needs.number_of_rounds(tiles.tiles_of(axes, (side, side, 50)), useful) == rounds


def test_more_memory_gives_larger_tiles_that_keep_to_it():
    axes = (Axis("y", 1000), Axis("x", 1000), Axis("day", 100))
    limits = (700_000_000, 900_000_000, 4_000_000_000)
    small, middle, large = (needs.TileNeeds.of(axes, limit, threads=2) for limit in limits)
    assert all(one.memory <= limit for one, limit in zip((small, middle, large), limits))
    assert small.entries < middle.entries < large.entries and small.seconds > large.seconds


class Constant:
    """Settings of a stack whose members are a number and half of it."""

    def __init__(self, number):
        self.number = number

    def fill(self, values, mask):
        assert np.isnan(values[~mask]).all()
        whole = np.full(mask.shape, self.number)
        return Fill(whole, {"one": whole, "half": whole / 2})

    def combine(self, members, truth):
        return self

    def mix(self, members):
        return members["one"]


def test_settings_are_compared_by_hidden_entries_of_the_cores(field):
    _, x, sea = field
    spins = np.where(np.isnan(x), np.int8(-1), np.int8(1))
    spins[~sea] = 0
    data = TiledField.of(LazyTensor.of(x, sea), spins, block=5, tile_entries=4000, tell=lambda share: None)
    options, found = (Constant(20.0), Constant(50.0)), []
    for tile in data.tiles[:2]:
        values, _, hidden = gaps.Hiding(tile, tuple(part.start for part in tile.padded), 3).draw(data)
        found.append(values[tile.inner][hidden[tile.inner]])
        assert found[-1].size and found[-1].size < hidden.sum()
    some = {"data": data, "options": options, "seed": 3, "engine": "auto"}
    hidden = [gaps._hidden_with(tile, **some) for tile in data.tiles[:2]]
    for k, one in enumerate(options):
        error = gaps._error(one, [at[k] for at in hidden])
        assert error == pytest.approx(np.abs(np.concatenate(found) - one.number).mean(), rel=1e-5)


@pytest.fixture(scope="module")
def stored(field, tmp_path_factory):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    _, x, sea = field
    folder = tmp_path_factory.mktemp("tiles")
    with pytest.MonkeyPatch.context() as patch:
        small_tiles(patch)
        return corten.complete_to_zarr(x, folder / "filled.zarr", [0.9, 0.5], where=sea, memory="3 GB")


def test_deep_gaps_are_filled_in_tiles_from_disk(field, stored):
    truth, x, sea = field
    text = {choice.what: choice.taken for choice in stored.summary().choices}
    assert "tile of the settings" in text
    assert text["calibration"] == "gaps" and int(text["tiles"].split()[0]) > 1
    found = stored.open()
    estimate, low, high, flag = (found[name].values for name in ("value", "value_lower", "value_upper", "value_flag"))
    observed, gap = np.isfinite(x), np.isnan(x) & sea
    assert np.array_equal(estimate[observed], x[observed]) and np.isnan(estimate[~sea]).all()
    assert (flag[observed] == 0).all() and (flag[~sea] == 4).all() and np.isin(flag[gap], (1, 2, 3, 5)).all()
    assert np.isfinite(estimate[gap]).all() and (low <= high)[gap].all()
    error = np.abs(estimate - truth)[gap].mean()
    assert error < 0.5 * np.nanstd(x)
    # Noise is part of what the intervals cover; the truth alone is covered more often.
    assert ((low <= truth) & (truth <= high))[gap].mean() > 0.8


def test_tiles_leave_no_seams(field, stored):
    truth, x, sea = field
    found = stored.open()
    error = found["value"].values - truth
    gap = np.isnan(x) & sea
    chunks = found["value"].encoding["chunks"]
    axis = int(np.argmax([n / c for n, c in zip(x.shape, chunks)]))
    both = np.take(gap, range(1, x.shape[axis]), axis) & np.take(gap, range(x.shape[axis] - 1), axis)
    jump = np.abs(np.diff(error, axis=axis))
    place = np.arange(1, x.shape[axis]).reshape([-1 if k == axis else 1 for k in range(3)])
    border = np.broadcast_to(place % chunks[axis] == 0, jump.shape)
    assert jump[both & border].mean() < 1.5 * jump[both & ~border].mean()


def test_what_tiles_cannot_do_is_refused(tmp_path):
    x = np.where(np.random.default_rng(0).random((9, 8)) < 0.5, 1.0, np.nan)
    for options, text in (
        ({"calibration": "gaps", "completion": "tucker"}, "fills tiles with 'stack'"),
        ({"calibration": "random", "completion": "stack"}, "take calibration='gaps'"),
        ({"calibration": "cross"}, "supports 'auto', 'random' and 'gaps'"),
    ):
        with pytest.raises(ValueError, match=text):
            corten.complete_to_zarr(x, tmp_path / "a.zarr", **options)
    with pytest.raises(MemoryError, match="use fewer threads"):
        needs.TileNeeds.of(AXES, 10**8, threads=2)


@pytest.mark.slow  # kills a process
def test_a_worker_killed_in_the_middle_changes_nothing(field, stored, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install 'corten[cluster]'")
    small_tiles(monkeypatch)
    _, x, sea = field
    killed, shares = [], []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=600)

        def kill_one(stage, share):
            if stage == "writing":
                shares.append(share)
            if stage == "writing" and share > 0.2 and not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        filled = corten.complete_to_zarr(
            x, tmp_path / "f.zarr", [0.9, 0.5], where=sea, memory="3 GB", engine=client, progress=kill_one
        )
    assert killed and len(shares) > 5 and shares == sorted(shares) and shares[-1] == 1.0
    one, two = stored.open().load(), filled.open().load()
    assert set(one) == set(two)
    for name in one:
        assert np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f"), name
    assert [path.name for path in tmp_path.iterdir()] == ["f.zarr"]


@pytest.mark.slow  # compiles the programs of every shape of tile
def test_tiles_are_filled_on_the_device_of_the_engine(field, tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")
    _, x, sea = field
    monkeypatch.setattr(needs, "MAX_TILE_ENTRIES", 6000)
    monkeypatch.setattr(needs, "CALIBRATION_ENTRIES", 1)
    options = {"where": sea, "memory": "3 GB", "calibration": "gaps"}
    one, two = (
        corten.complete_to_zarr(x, tmp_path / f"{engine}.zarr", engine=engine, **options)
        for engine in ("threads", "jax")
    )
    assert [choice.what for choice in two.summary().choices if choice not in one.summary().choices][:1] == [
        "tiles are filled on"
    ]
    gap = np.isnan(x) & sea
    for name in ("value", "value_lower", "value_upper"):
        apart = np.abs(one.open()[name].values - two.open()[name].values)[gap]
        # Settings may be chosen differently where held-out errors differ in their last digits only.
        assert 0 < apart.mean() < 0.1 * np.nanstd(x)


def test_a_dask_array_is_filled_tile_by_tile_when_it_is_computed(field, stored, monkeypatch):
    da = pytest.importorskip("dask.array", reason="needs Dask: pip install 'corten[cluster]'")
    import xarray as xr

    _, x, sea = field
    source = da.from_array(x, chunks=(3, 15, 14))
    given = xr.DataArray(source, dims=("lat", "lon", "day"), name="value", attrs={"units": "K"})
    where = xr.DataArray(sea[..., 0], dims=("lat", "lon"))
    small_tiles(monkeypatch)
    kinds = dict.fromkeys(("lat", "lon", "day"), "ordered")
    with monkeypatch.context() as patch:
        patch.setenv("CORTEN_MEMORY", "1000000")
        patch.setattr(dask_arrays, "_room", lambda memory: (3 * 10**9, 1))
        result = corten.complete(given, where=where, axis_kinds=kinds)
    assert isinstance(result, dask_arrays.LazyIntervals) and result.estimate.attrs["units"] == "K"
    assert all(one.chunks is not None for one in result.to_dataset().values())
    tiles_filled = []
    of = TileArrays.of
    monkeypatch.setattr(TileArrays, "of", lambda self, *given: tiles_filled.append(1) or of(self, *given))
    result.upper[:2, :2, :2].compute(scheduler="synchronous")
    assert len(tiles_filled) == 1
    one, two = stored.open().load(), result.to_dataset().compute(scheduler="synchronous")
    assert np.array_equal(one["value_flag"], two["value_flag"])
    for name in ("value", "value_lower", "value_upper"):
        # Sums in coarse cells are added in another order.
        np.testing.assert_allclose(one[name], two[name], rtol=1e-4, err_msg=name)
    with monkeypatch.context() as patch:
        patch.setenv("CORTEN_MEMORY", "1000000")
        with pytest.raises(ValueError, match=r"climatology is 'day'.*does not fit"):
            corten.complete(given, climatology="day")
    with pytest.raises(TypeError, match="without a Dask array"):
        corten.complete_lazily(x)
