"""Byte tensors go to a file when memory is short, and a fit on memory maps gives the same bits."""

import threading

import numpy as np
import pytest

from corten.engine import memory
from corten.engine.threads import in_order
from corten.propensity import IsingPropensity, Product


def test_available_memory_can_be_told(monkeypatch):
    monkeypatch.setenv("CORTEN_MEMORY", "12345")
    assert memory.available() == 12345
    monkeypatch.setenv("CORTEN_MEMORY", "plenty")
    with pytest.raises(ValueError, match="CORTEN_MEMORY"):
        memory.available()
    monkeypatch.delenv("CORTEN_MEMORY")
    assert memory.available() > 1 << 20


def test_what_does_not_fit_becomes_a_file(monkeypatch):
    monkeypatch.setenv("CORTEN_MEMORY", "1000000")
    large = memory.byte_tensor((300, 300, 300))
    assert isinstance(large, np.memmap)
    large[1, 2, 3] = 5
    assert large[1, 2, 3] == 5 and large[0, 0, 0] == 0
    assert not isinstance(memory.byte_tensor((3, 3)), np.memmap)
    with pytest.raises(MemoryError, match="needs about 5 GB, and 1 MB are available"):
        memory.refuse_beyond(5 * 10**9, "this fit", "buy more")


def test_a_memory_map_of_spins_fits_like_the_mask_it_came_from(tmp_path):
    mask = np.random.default_rng(0).random((14, 12, 10)) < 0.5
    path = tmp_path / "spins.npy"
    np.save(path, np.where(mask, 1, -1).astype(np.int8))
    mapped = np.load(path, mmap_mode="r")
    model = IsingPropensity(Product(0.1), rank=2)
    one, other = model.fit(mask, 0.7), model.fit(mapped, 0.7)
    assert one.loss == other.loss
    assert np.array_equal(one.log_odds(mask), other.log_odds(mask))
    with pytest.raises(ValueError, match="spins are"):
        model.fit(np.full((3, 3), 7, np.int8))


def test_what_is_written_to_a_copy_of_a_file_in_memory_is_not_let_go_of(tmp_path):
    np.save(tmp_path / "zeros.npy", np.zeros((4, 64, 64), np.int8))
    copied = np.load(tmp_path / "zeros.npy", mmap_mode="c")
    copied[...] = 1
    assert all(part.all() for _, _, part in memory.parts(copied))
    assert copied.all()


def test_a_zarr_mask_fits_like_the_array_it_came_from(tmp_path):
    zarr = pytest.importorskip("zarr")
    mask = np.random.default_rng(0).random((14, 12, 10)) < 0.5
    model = IsingPropensity(Product(0.1), rank=2)
    expected = model.fit(mask, 0.7).loss
    for values in (mask, np.where(mask, 1, -1).astype(np.int8)):
        store = zarr.create_array(
            tmp_path / f"{values.dtype}.zarr", shape=mask.shape, chunks=(5, 12, 10), dtype=values.dtype
        )
        store[...] = values
        assert model.fit(store, 0.7).loss == expected
    with pytest.raises(TypeError, match="boolean"):
        model.fit(zarr.create_array(tmp_path / "f.zarr", shape=(4, 4), chunks=(2, 2), dtype="f4"), 0.7)


@pytest.mark.parametrize("threads", [2, 3])
def test_nested_work_shares_the_threads_and_stays_in_order(threads, monkeypatch):
    monkeypatch.setenv("CORTEN_THREADS", "4")
    names = set()

    def inner(item):
        names.add(threading.current_thread().name)
        return item * item

    def outer(count):
        return sum(in_order(inner, range(count), threads))

    assert list(in_order(outer, range(20), threads)) == [sum(i * i for i in range(n)) for n in range(20)]
    assert len(names) <= 4  # three helpers and the calling thread, however deep the work is nested
