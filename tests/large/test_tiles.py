"""Tiles of a tensor larger than memory: geometry, the coarse field, and completion with pseudo-gaps from disk."""

import numpy as np
import pytest

import corten
from corten.data.axes import Axis
from corten.io.lazy import LazyTensor
from corten.large import gaps, needs, tiles
from corten.large.gaps import TiledField

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
    values, placed = found.anchors(np.arange(20 * 18.0).reshape(20, 18), (slice(5, 75), slice(0, 90)))
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
    hidden = [(tile, np.zeros(tile.shape), None, whole[tile.padded]) for tile in (parts[0], parts[3], parts[5])]
    count = np.zeros(whole.shape, int)
    for (start, _, once), (tile, *_) in zip(gaps._each_once(hidden), hidden):
        assert start == [part.start for part in tile.padded]
        count[tile.padded] += once
    union = np.zeros_like(whole)
    for tile, *_ in hidden:
        union[tile.padded] = True
    assert np.array_equal(count, (union & whole).astype(int))


def test_hidden_entries_do_not_reach_their_own_estimates(field):
    _, x, sea = field
    spins = np.where(np.isnan(x), np.int8(-1), np.int8(1))
    spins[~sea] = 0
    data = TiledField.of(LazyTensor.of(x, sea), spins, 5, 4000, lambda share: None)
    rng = np.random.default_rng(0)
    tile = data.tiles[1]
    _, values, mask, hidden = gaps._hide(data, tile, data.tiles[0], rng)
    assert hidden.any() and not (hidden & ~mask).any()
    from corten.completion.smooth import SmoothCompletion
    from corten.completion.stack import StackedCompletion

    stack = StackedCompletion({"one": SmoothCompletion()})
    first = stack.prepare(values, mask, tiles.cut_axes(data.axes, tile.padded), 0)
    large = stack.prepare(data.coarse.values, data.coarse.mask, data.coarse.axes(data.axes), 0)

    def members(values):
        start = [part.start for part in tile.padded]
        coarse = data.coarse.without([(start, x[tile.padded], hidden)])
        scale = large.fill(coarse.values, coarse.mask).estimate
        sample = gaps._Sample(data, coarse, scale, first, np.array([0.1, 0.1, 0.1]), 1.0)
        return sample.scored(tile, values, mask, hidden, 0)

    one = members(values)
    two = members(np.where(hidden, values + 100, values))
    assert np.array_equal(one.estimate, two.estimate) and np.array_equal(one.features, two.features)
    assert np.allclose(two.truth - one.truth, 100, atol=1e-3)


@pytest.fixture(scope="module")
def stored(field, tmp_path_factory):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    _, x, sea = field
    folder = tmp_path_factory.mktemp("tiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "MAX_TILE_ENTRIES", 2500)  # tiles of several shapes
        return corten.complete_to_zarr(x, folder / "filled.zarr", [0.9, 0.5], where=sea, memory="3 GB")


def test_deep_gaps_are_filled_in_tiles_from_disk(field, stored):
    truth, x, sea = field
    text = {choice.what: choice.taken for choice in stored.summary().choices}
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
    with pytest.raises(MemoryError, match="too small"):
        needs.tile_entries(10**8, 2)
