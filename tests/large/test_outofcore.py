"""Completion from disk against the same completion in memory, and what happens when disk, store or folder are bad."""

import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import xarray as xr
from test_engine import build

import corten
from corten.conformal.sketch import NO_CELL, cells_of
from corten.conformal.weights import ExactIsingWeights
from corten.engine import Threads, memory
from corten.engine.passes import MaskPass
from corten.engine.threads import in_order
from corten.io.lazy import LazyTensor
from corten.large import flow, needs, settings, split, stages
from corten.large.settings import middle_box
from corten.large.split import changes_of, halo
from corten.propensity import IsingPropensity, KnownPropensity, Product, UniformPropensity

zarr = pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")

SHAPE = (11, 9, 10)
TUCKER = corten.TuckerCompletion(rank=2)
ISING = IsingPropensity(Product(0.15), rank=2)


def data(shape=SHAPE, missing=0.4, seed=0, dtype=np.float32):
    x = corten.simulate.tucker_signal(shape, rank=2, seed=seed)
    x = x + 0.1 * np.random.default_rng(seed).standard_normal(shape)
    x[~corten.simulate.masks.random_mask(shape, missing=missing, seed=seed)] = np.nan
    return x.astype(dtype)


def labelled(x):
    hours = np.arange("2020-01-01", "2020-01-12", dtype="datetime64[D]")
    return xr.DataArray(
        x, dims=("time", "lat", "lon"), name="tec", attrs={"units": "TECU", "long_name": "electron content"},
        coords={"time": hours, "lat": np.linspace(-40, 40, 9), "lon": np.arange(10) * 36.0},
    )  # fmt: skip


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of two planes, whatever memory allows: every seam of the walk is crossed."""
    monkeypatch.setattr(needs, "PIECE_ENTRIES", 2 * 9 * 10)


def filled(x, folder, *args, **options):
    return corten.complete_to_zarr(x, folder / "filled.zarr", *args, **options)


def opened(stored):
    """The store with names that do not depend on that of its variable."""
    found = stored.open()
    return found.rename({name: re.sub(f"^{stored.variable}_?", "", name) or "estimate" for name in found.data_vars})


def assert_same(stored, result, close=1e-6, least=-np.inf):
    """Equal but for the sketch: ends at most 1 % further out; where `least` cut the estimate off, not asked."""
    found = opened(stored)
    missing = result.observed.missing
    np.testing.assert_allclose(found.estimate.values, result.estimate_array, rtol=close, atol=close)
    assert (found.flag.values == result.flag_array).all()
    for end, sign in (("lower", -1), ("upper", 1)):
        have, want = found[end].values, getattr(result, f"{end}_array")
        np.testing.assert_array_equal(have[~missing], want[~missing])
        have, want, middle = have[missing], want[missing], result.estimate_array[missing]
        finite = np.isfinite(want)
        assert (np.isfinite(have) == finite).all() and finite.any()
        finite &= middle > least
        far, exact = sign * (have - middle)[finite], sign * (want - middle)[finite]
        slack = 1e-5 * np.abs(middle[finite]).max()
        assert (far >= exact - slack).all()
        assert (far <= exact + 0.01 * np.abs(exact) + slack).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": "approximate"},
        {"score": "signed"},
        {"score": "normalized"},
        {"propensity": "uniform"},
        {"propensity": IsingPropensity(Product(0.1), rank=2, neighborhood="cube")},
        {"completion": corten.TensorTrainCompletion(rank=2), "bounds": (-1.0, None)},
        {"periodic": (0, 2)},
        {"calibration": corten.SplitCalibration(0.5), "seed": 3, "engine": 1},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
def test_the_answer_is_that_of_the_flow_in_memory(tmp_path, small_runs, options):
    x = data()
    options = {"completion": TUCKER, "propensity": ISING, "calibration": "random"} | options
    least = (options.get("bounds") or (-np.inf,))[0]
    assert_same(filled(x, tmp_path, 0.8, **options), corten.complete(x, 0.8, **options), least=least)


def test_labels_domain_forecast_and_several_coverages_are_as_in_memory(tmp_path, small_runs):
    x = labelled(data(dtype=np.float64))
    x[9:] = np.nan
    where = xr.DataArray(np.arange(9) > 1, dims="lat", coords={"lat": x.lat})
    options = {"completion": TUCKER, "propensity": ISING, "calibration": "random", "where": where}
    result = corten.complete(x, 0.8, **options)
    stored = filled(x, tmp_path, [0.8, 0.5], **options)
    assert_same(stored, result)
    found = opened(stored)
    assert found.estimate.dims == x.dims
    np.testing.assert_array_equal(found.time, x.time)  # old releases of xarray read another unit of time
    assert found.estimate.attrs["units"] == "TECU" and found.lower.attrs["coverage"] == 0.8
    assert found.attrs["corten_settings"] and "flag_meanings" in found.flag.attrs
    narrow, wide = (found.upper_50 - found.lower_50).values, (found.upper - found.lower).values
    assert (narrow <= wide)[result.observed.missing].all() and (narrow < wide).any()
    summary, wanted = stored.summary(), result.summary()
    for fact in ("observed", "missing", "outside", "forecast", "infinite", "name", "units", "axes"):
        assert getattr(summary, fact) == getattr(wanted, fact), fact
    assert summary.forecast > 0 and summary.outside > 0
    assert summary.mean_width == pytest.approx(wanted.mean_width, rel=0.01)
    assert summary.median_width == pytest.approx(wanted.median_width, rel=0.02)
    assert "0.8" in str(summary) and repr(stored)


@pytest.mark.parametrize("kind", ["zarr", "nc", "npy", "lazy", "zarr array", "memory map"])
def test_every_kind_of_source_gives_the_same_bits(tmp_path, small_runs, kind):
    x = data()
    named = xr.DataArray(x, dims=("a", "b", "c"), name="x")
    extra = xr.Dataset({"x": named, "other": ("a", np.zeros(11))})
    if kind in ("zarr", "lazy"):
        source = tmp_path / "x.zarr"
        extra.to_zarr(source, zarr_format=2, encoding={"x": {"chunks": (4, 5, 10)}})
        if kind == "lazy":
            source = xr.open_zarr(source, chunks=None).x
    elif kind == "nc":
        source = tmp_path / "x.nc"
        extra.to_netcdf(source)
    elif kind == "zarr array":
        source = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=(3, 9, 10))
        source[...] = x
    else:
        np.save(tmp_path / "x.npy", x)
        source = tmp_path / "x.npy" if kind == "npy" else np.load(tmp_path / "x.npy", mmap_mode="r")
    options = {"completion": TUCKER, "propensity": ISING}
    (tmp_path / "out").mkdir()
    found = opened(filled(source, tmp_path / "out", **options))
    expected = opened(filled(x, tmp_path, **options))
    for name in ("estimate", "lower", "upper", "flag"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)


def test_settings_left_open_are_chosen_on_a_part_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "PART_ENTRIES", 12 * 12 * 12)
    x = data((24, 12, 12))
    stored = filled(x, tmp_path, propensity=corten.BernoulliPropensity())
    because = {choice.what: choice.because for choice in stored.choices}
    assert "(on 12 of 24 planes)" in because["Tucker rank"] and "(on 12 of 24 planes)" in because["propensity rank"]
    assert "Tucker rank" in json.loads(stored.open().attrs["corten_settings"])["chosen"]


def test_numbers_that_stand_for_missing_are_reported_and_declared(tmp_path, small_runs):
    x = data()
    options = {"completion": TUCKER, "propensity": "uniform", "calibration": "random"}
    coded = np.where(np.isnan(x), -9999.0, x)
    coded[0, 0, 0] = np.nan
    with pytest.warns(UserWarning, match=r"entries \(in [0-9]+ of [0-9]+ planes\) are exactly -9999"):
        filled(coded, tmp_path, **options)
    before = coded.copy()
    blank = np.where(before == -9999, np.nan, before)
    stored = filled(coded, tmp_path, 0.8, missing_value=-9999, overwrite=True, **options)
    assert_same(stored, corten.complete(blank, 0.8, **options))
    np.testing.assert_array_equal(coded, before)


def test_deep_gaps_are_warned_of(tmp_path):
    x = data((30, 20, 20), missing=0.05)
    x[8:22, 4:16] = np.nan
    stored = filled(x, tmp_path, completion=TUCKER, propensity="uniform")
    assert any("calibration='gaps'" in warning for warning in stored.summary().warnings)


@pytest.mark.parametrize(
    ("shape", "neighborhood", "periodic"),
    [
        ((5, 4, 6), "adjacent", ()),
        ((5, 4, 6), "cube", (0, 2)),
        ((6, 7), "adjacent", (1,)),
        ((4, 3, 2, 5), "cube", (3,)),
    ],
)
def test_changed_weights_are_those_of_the_exact_rule(shape, neighborhood, periodic):
    rng = np.random.default_rng(0)
    mask = rng.random(shape) < 0.6
    model = IsingPropensity(Product(0.3), rank=1, neighborhood=neighborhood)
    law = model.fit(mask, 1.0, periodic=[k in periodic for k in range(len(shape))])
    hidden = mask & (rng.random(shape) < 0.5)
    entries, tests = np.flatnonzero(hidden), np.flatnonzero(~mask)
    odds = law.log_odds(mask)
    exact = ExactIsingWeights(-odds, shape=shape, calibration=entries, neighbours=law.neighbours, pair=law.pair)
    factor = exact.neighbour_factor(tests)
    cells = np.full(shape, NO_CELL, np.int32)
    cells[hidden] = cells_of(np.arange(1.0, len(entries) + 1))
    plane = int(np.prod(shape[1:]))
    for start, stop in ((0, shape[0]), (1, 3), (shape[0] - 1, shape[0])):
        planes, _ = halo(law, start, stop)
        mine = (tests >= start * plane) & (tests < stop * plane)
        outside = (planes < 0).reshape(-1, *(1 for _ in shape[1:]))
        spread = lambda a: a[planes]  # noqa: B023, E731
        b = law.parameter.to_dense().astype(np.float32)
        found = changes_of(
            law,
            tests[mine] - start * plane,
            cells=np.where(outside, NO_CELL, spread(cells)),
            log_odds=spread(odds),
            parameter=spread(b),
            shift=0.5,
        )
        for row, near, log_factor in zip(range(mine.sum()), factor.neighbours[mine], factor.log_factor[mine]):
            there = near >= 0
            want = sorted(
                zip(cells.reshape(-1)[entries[near[there]]].tolist(),
                    (np.exp(-odds.reshape(-1)[entries[near[there]]] - 0.5) * np.expm1(log_factor[there])).tolist())
            )  # fmt: skip
            kept = found.cells[row] != NO_CELL
            have = sorted(zip(found.cells[row][kept].tolist(), found.weights[row][kept].tolist()))
            assert [cell for cell, _ in have] == [cell for cell, _ in want]
            np.testing.assert_allclose([w for _, w in have], [w for _, w in want], rtol=1e-5)


@pytest.mark.parametrize("periodic", [False, True])
def test_log_odds_of_any_run_of_planes_are_those_of_the_whole(periodic):
    shape = (90, 5, 6)
    mask = np.random.default_rng(0).random(shape) < 0.5
    law = IsingPropensity(Product(0.2), rank=2).fit(mask, 1.0, periodic=[periodic, False, False])
    whole = law.log_odds(mask)
    passes = MaskPass(np.where(mask, 1, -1).astype(np.int8), law.model, 1.0)
    for start, stop in ((0, 1), (39, 41), (89, 90), (7, 60)):
        np.testing.assert_array_equal(passes.log_odds_between(law.parameter.cores, start, stop), whole[start:stop])


# ---- what it takes, said and kept


def lazy_of(shape, chunk=1, dtype=np.float32):
    return LazyTensor(shape, np.dtype(dtype), LazyTensor.of(np.zeros((2,) * len(shape))).axes, chunk, "x", None)


def test_needs_shrink_with_memory_and_align_with_chunks():
    wide = needs.Needs.of(lazy_of((2000, 1000, 1000)), 1_500_000_000, arrays=3, threads=2)
    assert wide.planes == 2 and wide.memory <= 1_500_000_000 and wide.disk == 18 * 2 * 10**9 + 10**9 * 2
    narrow = needs.Needs.of(lazy_of((2000, 1000, 1000)), 850_000_000, arrays=3, threads=2)
    assert (narrow.planes, narrow.workers) == (1, 2) and narrow.memory <= 850_000_000
    fewer = needs.Needs.of(lazy_of((2000, 1000, 1000)), 1_300_000_000, arrays=3, threads=16)
    assert 1 < fewer.workers < 16 and fewer.memory <= 1_300_000_000
    chunked = needs.Needs.of(lazy_of((2000, 1000, 1000), chunk=9), 2_000_000_000, arrays=3, threads=2)
    assert (chunked.planes, chunked.block) == (1, 9)
    assert needs.Needs.of(lazy_of((200, 100, 100), chunk=7), 2_000_000_000, arrays=3, threads=2).planes % 7 == 0
    with pytest.raises(MemoryError, match=r"chunks of x hold 2000 planes.*Rechunk"):
        needs.Needs.of(lazy_of((2000, 1000, 1000), chunk=2000), 1_500_000_000, arrays=3, threads=2)
    with pytest.raises(MemoryError, match=r"one plane of x holds 1,000,000 entries.*longest axis first"):
        needs.Needs.of(lazy_of((2000, 1000, 1000)), 400_000_000, arrays=3, threads=2)


def test_needs_of_a_long_thin_tensor_in_one_chunk_are_known_at_once():
    """Every run of a million planes was tried against every divisor of the chunk: hours."""
    began = time.process_time()
    with pytest.raises(MemoryError, match="Rechunk"):
        needs.Needs.of(lazy_of((10**8, 2), chunk=10**8), 500_000_000, arrays=3, threads=2)
    with pytest.raises(MemoryError, match="one plane of x"):
        needs.Needs.of(lazy_of((10**8, 2)), 300_000_000, arrays=3, threads=16)
    assert time.process_time() - began < 20  # a fifth of a second


def test_it_says_beforehand_what_it_takes(tmp_path):
    told = []
    filled(data(), tmp_path, completion=TUCKER, propensity="uniform", say=told.append, memory="700 MB")
    assert len(told) == 1 and "of memory" in told[0] and "of disk" in told[0]


def test_engines_that_take_the_whole_mask_count_it_or_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTEN_THREADS", "2")  # memory is counted for each thread

    class Elsewhere:
        """Not known to walk through a file."""

        label, mask_pass, residual_pass = "elsewhere", Threads().mask_pass, Threads().residual_pass

    lazy = lazy_of((2000, 1000, 1000))
    need = needs.Needs.of(lazy, 1_500_000_000, arrays=3, threads=2)
    assert need.with_mask_at_once(lazy, 4_000_000_000, "jax (H200)").memory == need.memory + 2 * 10**9
    with pytest.raises(MemoryError, match=r"takes the whole mask of x.*2\.95 GB in all.*engine='threads'"):
        need.with_mask_at_once(lazy, 1_500_000_000, "jax (H200)")
    with pytest.raises(ValueError, match=r"in this machine's memory.*engine='threads'"):
        need.with_mask_at_once(lazy, 4_000_000_000, "jax (cpu x 2)")
    told = []
    for engine in (2, Elsewhere()):
        filled(
            data((300, 200, 20)), tmp_path, completion=TUCKER, propensity="uniform", engine=engine, overwrite=True,
            say=told.append,
        )  # fmt: skip
    sizes = [memory.read_size(re.search(r"about (.*?) of memory", words)[1]) for words in told]
    assert sizes[1] == pytest.approx(sizes[0] + 1_200_000, abs=1_000_000)


@pytest.mark.slow
def test_peak_memory_keeps_to_the_limit_where_the_flow_in_memory_would_not(tmp_path):
    code = f"""
import numpy as np, corten
x = np.load({str(tmp_path / "x.npy")!r}, mmap_mode="r")
told = []
corten.complete_to_zarr(x, {str(tmp_path / "o.zarr")!r}, completion=corten.TuckerCompletion(rank=2),
    propensity=corten.IsingPropensity(corten.Product(0.1), rank=2), memory="700 MB", say=told.append)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    np.save(tmp_path / "x.npy", data((400, 160, 160), dtype=np.float64))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1024 * int(done.stdout) < 700_000_000 < 120 * 400 * 160 * 160


# ---- bad input: a clear message, and nothing half-written stays


def refused(folder, error, message, x=None, **options):
    options = {"completion": TUCKER, "propensity": "uniform"} | options
    with pytest.raises(error, match=message):
        filled(data() if x is None else x, folder, **options)
    assert not [name for name in os.listdir(folder) if name.startswith(".") or name == "filled.zarr"]


def test_a_disk_too_small_is_refused_before_the_work(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    refused(tmp_path, OSError, "1 kB free.*up to .* needed.*make room")


def test_a_disk_that_fills_up_while_writing_leaves_nothing_behind(tmp_path, monkeypatch, small_runs):
    calls, put = [], zarr.Array.__setitem__

    def full(self, where, values):
        calls.append(self.path)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, where, values)

    monkeypatch.setattr(zarr.Array, "__setitem__", full)
    refused(tmp_path, OSError, "No space left on device.*make room")
    assert len(calls) > 6


def test_a_scratch_file_that_does_not_fit_is_an_error_and_not_a_crash(tmp_path):
    code = f"""
import resource, signal, numpy as np
from pathlib import Path
from corten.engine import Threads, memory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
with memory.limited(10**9, Path({str(tmp_path)!r})):
    try:
        memory.file_tensor((10, 10**6), np.int8)
    except OSError as problem:
        print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "a scratch file of 10 MB could not be made" in done.stdout and not os.listdir(tmp_path)


def test_a_real_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "corten-test", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        refused(disk, OSError, "free.*make room", x=data((30, 30, 30)))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("stage", ["reading", "completion", "missingness", "calibration", "writing"])
def test_an_interrupt_leaves_nothing_behind(tmp_path, small_runs, stage, end):
    def interrupt(where, share):
        if where == stage:
            raise end

    refused(tmp_path, end, None, progress=interrupt)


@pytest.mark.parametrize("kind", ["zarr 2", "zarr 3", "netcdf"])
def test_a_store_larger_than_any_disk_is_opened_and_refused_for_the_disk(tmp_path, kind):
    """Half a terabyte declared, nothing in it: neither memory nor a limit on files stands in the way."""
    shape, chunks, path = (10**5, 1000, 10**3), (2, 1000, 1000), tmp_path / kind.replace(" ", ".")
    if kind == "netcdf":
        h5py = pytest.importorskip("h5py", reason="needs h5py: pip install 'corten[files]'")
        path = tmp_path / "x.nc"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", shape, "f4", chunks=chunks, fillvalue=np.nan)
    else:
        version, path = int(kind[-1]), tmp_path / "x.zarr"
        dims = {"attributes": {"_ARRAY_DIMENSIONS": list("abc")}} if version == 2 else {"dimension_names": list("abc")}
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array("x", shape=shape, chunks=chunks, dtype="f4", **dims)
    refused(tmp_path, OSError, r"free, and up to 1\.9 TB are needed", x=path, memory="1.5 GB")


def test_after_an_error_nobody_works_on():
    begun, ended = [], []

    def work(item):
        begun.append(item)
        if item == 1:
            raise OSError("full")
        time.sleep(0.2)
        ended.append(item)

    with pytest.raises(OSError, match="full"):
        list(in_order(work, range(8), 3))
    assert sorted(begun) == sorted([*ended, 1])


def test_an_unwritable_folder_is_named_before_any_work(tmp_path):
    options = {"completion": TUCKER, "propensity": "uniform"}
    filled(data(), tmp_path, **options)  # everything is imported: another user may not be allowed to
    folder = tmp_path / "locked"
    folder.mkdir()
    os.chmod(folder, 0o555)
    opened = [one for one in tmp_path.parents if one.stat().st_uid == os.geteuid() and not one.stat().st_mode & 0o001]
    for one in (tmp_path, *opened[:3]):
        os.chmod(one, one.stat().st_mode | 0o711)
    root, worked = os.geteuid() == 0, []
    if root:
        os.seteuid(65534)  # nothing is unwritable for root
    try:
        with pytest.raises(PermissionError, match=r"locked does not allow it.*write elsewhere"):
            filled(data(), folder, progress=lambda stage, share: worked.append(stage), **options)
    finally:
        if root:
            os.seteuid(0)
    assert not worked and not os.listdir(folder)


def test_stores_without_the_variable_and_chunks_that_do_not_lie_along_the_first_axis(tmp_path):
    xr.Dataset({"a": (("x", "y"), np.ones((3, 4))), "b": (("x", "y"), np.ones((3, 4)))}).to_zarr(
        tmp_path / "two.zarr", zarr_format=2
    )
    (tmp_path / "out").mkdir()
    refused(tmp_path / "out", ValueError, r"no variable 'c'; it has [ab] \(x, y\)", tmp_path / "two.zarr", variable="c")
    refused(tmp_path / "out", ValueError, "no variable 'land'", tmp_path / "two.zarr", variable="a", where="land")
    refused(tmp_path / "out", ValueError, "say which variable", tmp_path / "two.zarr")
    refused(tmp_path / "out", FileNotFoundError, "does not exist", tmp_path / "three.zarr")
    (tmp_path / "broken.zarr").mkdir()
    refused(tmp_path / "out", ValueError, "could not be read as Zarr", tmp_path / "broken.zarr")
    tall = zarr.create_array(tmp_path / "tall.zarr", shape=(50_000, 60, 60), chunks=(50_000, 60, 60), dtype="f4")
    refused(tmp_path / "out", MemoryError, "Rechunk", tall, memory="700 MB")


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "'auto', 'random' and 'gaps'", {"calibration": "cross"}),
        (ValueError, "'tucker' and 'tensor-train'", {"completion": "smooth"}),
        (ValueError, "weights is", {"weights": "none"}),
        (ValueError, "memory is 'much'", {"memory": "much"}),
        (ValueError, "coverage", {"coverage": [0.9, 2.0]}),
        (ValueError, "array already", {"variable": "x"}),
        (ValueError, "must be a TensorTrain", {"propensity": KnownPropensity(np.zeros(SHAPE))}),
        (ValueError, "infinite value at", {"x": np.where(np.arange(990).reshape(SHAPE) == 500, np.inf, data())}),
        (ValueError, "nothing to fill", {"x": np.ones(SHAPE)}),
        (ValueError, "cannot be split", {"x": np.full(SHAPE, np.nan)}),
        (ValueError, "two or more axes", {"x": np.ones(4)}),
        (TypeError, "dtype complex", {"x": np.ones(SHAPE, complex)}),
        (TypeError, "give the path", {"x": [[1.0, 2.0]]}),
        (ValueError, "where has shape", {"where": np.ones((2, 2, 2), bool)}),
        (MemoryError, "one plane", {"memory": "1 MB"}),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, error, message, options):
    refused(tmp_path, error, message, **options)


def test_outputs_that_cannot_be_are_refused(tmp_path):
    for name, error, message in (
        ("o.nc", ValueError, "ends in .zarr"),
        ("none/o.zarr", FileNotFoundError, "does not exist"),
        ("folder.zarr", FileExistsError, "not a Zarr store that corten wrote"),
    ):
        (tmp_path / "folder.zarr").mkdir(exist_ok=True)
        with pytest.raises(error, match=message):
            corten.complete_to_zarr(data(), tmp_path / name, overwrite=name == "folder.zarr")
    for overwrite in (False, True):
        if overwrite:
            with pytest.raises(FileExistsError, match="overwrite"):
                corten.complete_to_zarr(data(), tmp_path / "there.zarr")
        options = {"completion": TUCKER, "propensity": "uniform", "overwrite": overwrite}
        corten.complete_to_zarr(data(), tmp_path / "there.zarr", **options)
    assert xr.open_zarr(tmp_path / "there.zarr", chunks=None).value.notnull().all()


# ---- the parts below


def test_sizes_are_read_as_people_write_them():
    sizes = {"1.5 GB": 1_500_000_000, "800MB": 800_000_000, "2t": 2 * 10**12, "100 bytes": 100, 5: 5, "7": 7}
    assert {text: memory.read_size(text) for text in sizes} == sizes
    for bad in ("", "GB", "-1 GB", "1.2.3 MB", True, 0, float("nan")):
        with pytest.raises(ValueError, match="memory is"):
            memory.read_size(bad)


def test_pages_let_go_of_keep_what_was_written(tmp_path, monkeypatch):
    with memory.limited(10**9, tmp_path):
        tensor = memory.file_tensor((40, 300, 100), np.float32)
        small, large = memory.byte_tensor((10, 10)), memory.byte_tensor((20_000, 1000))
    assert memory.is_mapped(tensor) and memory.is_mapped(large) and not memory.is_mapped(small)
    assert not os.listdir(tmp_path)  # no name: nothing can be left behind
    expected = np.random.default_rng(0).random(tensor.shape, dtype=np.float32)
    monkeypatch.setattr(memory, "PART_BYTES", 7 * tensor[0].nbytes)
    for start, stop, part in memory.parts(tensor):
        part[...] = expected[start:stop]
    memory.let_go(tensor[3:5])
    memory.let_go(expected)
    assert (tensor == expected).all()


def resident(array):
    """Bytes of a tensor in a file that this process holds in memory."""
    if not os.path.exists("/proc/self/smaps"):
        pytest.skip("needs /proc/self/smaps")
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if "-" in first:
                low, high = (int(end, 16) for end in first.split("-"))
                inside = low <= array.ctypes.data < high
            elif inside and first == "Rss:":
                return 1024 * int(line.split()[1])
    raise AssertionError("the tensor is not mapped")


@pytest.mark.parametrize("walk", ["loss_and_contractions", "thinned", "effective_size", "soft_spins", "log_odds"])
def test_no_pass_keeps_the_pages_it_read(walk):
    shape = (40, 270, 270)
    tt, spins, _, passes = build(shape, Product(0.1))
    mapped = memory.file_tensor(shape, np.int8)
    mapped[...] = spins
    assert resident(mapped) >= mapped.nbytes
    memory.let_go(mapped)
    there = MaskPass(mapped, passes.model, 0.7, threads=2, slab=4, tile=40)
    there._observed_constant()  # read once, walked through by itself
    if walk == "thinned":
        soft = there.soft_spins(tt.frame())
        there.loss_and_contractions(tt.frame(), soft)
    else:
        getattr(there, walk)(tt.cores if walk in ("effective_size", "log_odds") else tt.frame())
    assert resident(mapped) == 0


def test_no_stage_keeps_the_pages_it_read(tmp_path, monkeypatch):
    """Resident pages of every scratch tensor when a stage ends: what threads met at, however much they walked through.

    A page read while a neighbour lets go of it may stay, so a few planes are allowed; 8 of 40.
    """
    shape, kept = (40, 128, 128), {}
    monkeypatch.setattr(needs, "PIECE_ENTRIES", 2 * 128 * 128)
    made = stages.Scratch.of
    scratch = []
    monkeypatch.setattr(stages.Scratch, "of", lambda shape: scratch.append(made(shape)) or scratch[0])

    def watched(name, work, *args, **named):
        answer = work(*args, **named)
        kept[name] = {f.name: resident(getattr(scratch[0], f.name)) for f in dataclasses.fields(scratch[0])}
        return answer

    walk = split.Split
    watch = ((flow, "look"), (settings, "prepared"), (walk, "complete"), (walk, "score"), (walk, "write"))
    for module, name in watch:
        work = partial(watched, name, getattr(module, name))
        monkeypatch.setattr(module, name, lambda *args, work=work, **named: work(*args, **named))
    filled(data(shape), tmp_path, completion=TUCKER, propensity=IsingPropensity(Product(0.1), rank=1))
    assert set(kept) == {name for _, name in watch}
    plane = 128 * 128
    for stage, held in kept.items():
        assert held["observed"] <= 8 * plane and held["train"] <= 8 * plane and held["numbers"] <= 8 * 4 * plane, stage


def test_the_middle_of_a_tensor_keeps_its_short_axes_whole():
    box = middle_box((2000, 1000, 4), 40_000)
    assert [part.stop - part.start for part in box] == [100, 100, 4] and box[0].start == 950
    assert middle_box((5, 6), 10**6) == (slice(0, 5), slice(0, 6))


def test_a_uniform_law_reads_spins_and_domain():
    mask = np.random.default_rng(0).random((6, 7, 8)) < 0.5
    domain = np.random.default_rng(1).random(mask.shape) < 0.8
    spins = np.where(domain, np.where(mask, 1, -1), 0).astype(np.int8)
    one = UniformPropensity().fit(spins, 0.7)
    other = UniformPropensity().fit(mask & domain, 0.7, domain=domain)
    share = (mask & domain).sum() / (0.7 * domain.sum())
    level = pytest.approx(np.log(share / (1 - share)))
    assert one.parameter.at_flat([0])[0] == other.parameter.at_flat([0])[0] == level


# ---- the command


def command(*words):
    from typer.testing import CliRunner

    from corten.cli.app import app

    return CliRunner().invoke(app, ["complete", *map(str, words)])


@pytest.mark.usefixtures("read_here")
def test_the_command_works_from_disk_where_memory_would_not_do(tmp_path, monkeypatch):
    xr.Dataset({"tec": labelled(data())}).to_netcdf(tmp_path / "x.nc")
    words = ["--propensity", "bernoulli", "--completion", "tensor-train", "--calibration", "random"]
    inside = command(tmp_path / "x.nc", "-o", tmp_path / "inside.zarr", "--memory", "700MB", *words)
    assert inside.exit_code == 0, inside.output
    # A tensor of a thousand entries counts as large.
    monkeypatch.setattr("corten.calibration.split.FIT_BYTES_PER_ENTRY", 10**9)
    words += ["--coverage", "0.9,0.5", "--memory", "700MB"]
    told = command(tmp_path / "x.nc", "-o", tmp_path / "disk.zarr", "--full", *words)
    assert told.exit_code == 0, told.output
    assert "Why" in told.output  # a setting with its reason, by --full
    assert "of memory, and up to" in told.output and "wrote" in told.output
    one, other = (xr.open_zarr(tmp_path / name, chunks=None) for name in ("inside.zarr", "disk.zarr"))
    np.testing.assert_allclose(one.tec.values, other.tec.values, rtol=1e-5, atol=1e-5)
    assert "tec_upper_50" in other and "work from disk" in other.attrs["corten_settings"]
    for words, message in (
        (("-o", tmp_path / "o.nc"), "ends in .zarr"),
        (("-o", tmp_path / "o.zarr", "--report", tmp_path / "r.html"), "out-of-core mode does not support --report"),
        (("-o", tmp_path / "o.zarr", "--memory", "lots"), "memory is 'lots'"),
        (("-o", tmp_path / "o.zarr", "--variable", "none"), "no variable 'none'"),
    ):
        refusal = command(tmp_path / "x.nc", *words)
        assert refusal.exit_code == 2 and message in " ".join(refusal.output.split()), refusal.output
    assert sorted(os.listdir(tmp_path)) == ["disk.zarr", "inside.zarr", "x.nc"]


@pytest.mark.usefixtures("read_here")
def test_a_domain_from_disk_takes_the_forms_of_one_in_memory(tmp_path):
    from corten.cli.complete import _domain
    from corten.cli.options import DataOptions
    from corten.io.lazy import open_lazily

    x = labelled(data())
    land = xr.DataArray((np.arange(x.shape[1])[:, None] + np.arange(x.shape[2])) % 3 == 0, dims=x.dims[1:])
    xr.Dataset({"tec": x, "land": land.astype("i1")}).to_netcdf(tmp_path / "x.nc")
    xr.Dataset({"wet": 1 - land.astype("f4"), "other": land}).to_netcdf(tmp_path / "mask.nc")
    np.save(tmp_path / "x.npy", x.values)
    np.save(tmp_path / "land.npy", land.values)
    for file, where in (
        ("x.nc", "!land"),
        ("x.nc", f"{tmp_path}/mask.nc:wet"),
        ("x.nc", f"!{tmp_path}/land.npy"),
        ("x.npy", f"!{tmp_path}/land.npy"),
        ("x.npy", f"{tmp_path}/mask.nc:wet"),
    ):
        options = DataOptions(variable="tec" if file == "x.nc" else None, where=where)
        domain = _domain(tmp_path / file, options)
        with open_lazily(tmp_path / file, domain, variable=options.variable) as lazy:
            inside = lazy.read(2, 5)[1]
        assert np.array_equal(inside, np.broadcast_to(~land.values, inside.shape)), where
        loaded = options.read(tmp_path / file)
        assert np.array_equal(np.broadcast_to(loaded.where, x.shape)[2:5], inside), where


def test_land_is_left_out_as_in_memory(tmp_path):
    from corten.data.never_observed import skip_never_observed
    from corten.io.lazy import open_lazily
    from corten.large.settings import without_land

    x = labelled(data()).rename("sst")
    land = xr.DataArray(np.zeros(x.shape[1:], bool), dims=x.dims[1:])
    land[2:5, 1:3] = True
    x = x.where(~land)
    x[:, 0, 0] = np.nan  # never observed, and not land by the mask
    for name, dataset in (("mask", x.to_dataset().assign(lsm=land.astype("i1"))), ("name", x.to_dataset())):
        path = tmp_path / f"{name}.nc"
        dataset.to_netcdf(path)
        wanted = skip_never_observed(
            corten.ObservedTensor.of(x), masks={"lsm": land.values[None]} if name == "mask" else {}
        )
        with open_lazily(path, variable="sst") as lazy:
            for planes in (4, 100):
                found, choices, _ = without_land(lazy, planes)
                assert np.array_equal(found.read(0, 3)[1], wanted.domain[:3])
                assert choices == wanted.choices and choices[0].taken == "skipped"
            assert without_land(lazy, 4, fill=True)[0] is lazy
    done = corten.complete_to_zarr(tmp_path / "mask.nc", tmp_path / "out.zarr", variable="sst", completion=TUCKER,
                                   propensity="constant", calibration="random")  # fmt: skip
    assert done.summary().outside == int(land.sum()) * x.shape[0] and "the mask 'lsm'" in str(done.summary())
    assert np.isnan(done.open()["sst"].values[:, land.values]).all()
    assert (done.open()["sst_flag"].values[:, 0, 0] == 6).all()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_values_that_cannot_be_squared_are_refused(tmp_path, size):
    np.save(tmp_path / "x.npy", size * data(dtype=np.float64))
    with pytest.raises(ValueError, match="another unit"):
        corten.complete_to_zarr(tmp_path / "x.npy", tmp_path / "filled.zarr", completion=TUCKER)
    assert not (tmp_path / "filled.zarr").exists()
