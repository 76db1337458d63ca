"""A fit that was saved answers with the same bits; a file that is not whole is refused by name."""

import json
import tracemalloc
import warnings
import zipfile
from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr

import corten
from corten.conformal.scores import Absolute
from corten.io.archive import read_archive, write_archive
from corten.lowrank import TensorTrain


def gappy(shape=(8, 9, 10), seed=0):
    rng = np.random.default_rng(seed)
    x = sum(np.multiply.outer(np.multiply.outer(rng.normal(size=shape[0]), rng.normal(size=shape[1])),
                              rng.normal(size=shape[2])) for _ in range(2))  # fmt: skip
    x += 0.05 * rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.3, np.nan, x)


def fit(x, where=None, **options):
    settings = {"completion": corten.TuckerCompletion(2), "calibration": "random", "seed": 3} | options
    if "propensity" not in settings:
        settings["propensity"] = corten.IsingPropensity(coupling=corten.Product(0.1), rank=2)
    return corten.ConformalCompleter(**settings).fit(x, where=where)


def assert_same(a, b):
    assert np.array_equal(a.estimate, b.estimate, equal_nan=True) and a.estimate.dtype == b.estimate.dtype
    for name in ("scores", "entries", "log_weights", "residuals"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for coverage in (0.5, 0.9, 0.997):
        one, two = a.intervals(coverage), b.intervals(coverage)
        for end in ("estimate_array", "lower_array", "upper_array", "flag_array"):
            assert np.array_equal(getattr(one, end), getattr(two, end), equal_nan=True), (end, coverage)
    assert a.choices == b.choices and a.settings() == b.settings() and a.seconds == b.seconds
    assert len(a.rounds) == len(b.rounds)
    for one, two in zip(a.rounds, b.rounds):
        assert np.array_equal(one.train, two.train) and np.array_equal(one.hidden, two.hidden)
        assert one.train_share == two.train_share


def round_trip(fitted, tmp_path):
    path = fitted.save(tmp_path / "fit.corten")
    loaded = corten.load(path)
    assert_same(fitted, loaded)
    return loaded


@pytest.mark.parametrize("score", ["absolute", "adaptive", "signed", "normalized"])
def test_same_bits_for_every_score(tmp_path, score):
    fitted = fit(gappy(), score=score)
    loaded = round_trip(fitted, tmp_path)
    assert str(loaded.intervals(0.9).summary()) == str(fitted.intervals(0.9).summary())


@pytest.mark.parametrize(
    "propensity",
    [
        corten.BernoulliPropensity(rank=2),
        corten.UniformPropensity(),
        corten.KnownPropensity(np.linspace(-1, 1, 720).reshape(8, 9, 10), corten.Sigmoid(0.4), "probit", "cube"),
        corten.IsingPropensity(corten.Linear(0.05), neighborhood="adjacent:0,2", rank=1),
        corten.IsingPropensity(corten.Polynomial({(1, 1): 0.05, (2, 2): 0.01}), rank=1),
    ],
    ids=["bernoulli", "uniform", "known", "linear", "polynomial"],
)
def test_the_law_of_the_missingness_comes_back(tmp_path, propensity):
    x = gappy()
    fitted = fit(x, propensity=propensity)
    model, back = fitted.propensity, round_trip(fitted, tmp_path).propensity
    assert back.coupling == model.coupling and back.link == model.link and type(back.parameter) is type(model.parameter)
    assert np.array_equal(back.neighborhood.offsets, model.neighborhood.offsets)
    if isinstance(model.parameter, TensorTrain):
        assert np.array_equal(back.parameter.to_dense(), model.parameter.to_dense()) and back.rank == model.rank
    assert np.array_equal(back.probability(~np.isnan(x)), model.probability(~np.isnan(x)))
    assert (back.passes, back.stopped_because, back.history) == (model.passes, model.stopped_because, model.history)


def test_pooled_rounds_come_back(tmp_path):
    def mean(x):
        return np.where(np.isnan(x), np.nanmean(x), x)

    fitted = fit(gappy(), calibration=corten.GapCalibration(rounds=3), completion=mean, propensity="uniform")
    assert len(np.unique(fitted.entries)) < len(fitted.entries)
    assert round_trip(fitted, tmp_path).completer is None
    beyond = fitted.observed.missing & (np.arange(fitted.observed.values.size).reshape(fitted.observed.shape) % 3 == 0)
    (tmp_path / "flagged").mkdir()
    kept = round_trip(replace(fitted, calibrated=replace(fitted.calibrated, beyond=beyond)), tmp_path / "flagged")
    assert np.array_equal(kept.intervals(0.9).beyond_tested, beyond)


@pytest.mark.parametrize("calibration", [corten.CrossCalibration(3), corten.RepeatedSplits(2)])
def test_merged_splits_come_back(tmp_path, calibration):
    fitted = fit(np.exp(gappy()), calibration=calibration, score="normalized", transform="box-cox", bounds=(0, None))
    loaded = round_trip(fitted, tmp_path)
    assert loaded.completer == fitted.completer
    assert np.array_equal(loaded.intervals(0.9).draws(2), fitted.intervals(0.9).draws(2))
    one, two = (each.intervals(0.8, groups="axis_0") for each in (fitted, loaded))
    assert np.array_equal(one.upper_array, two.upper_array)


def test_transforms_and_bounds_come_back(tmp_path):
    fitted = fit(np.exp(gappy()), transform="box-cox", climatology=None, bounds=(0, None))
    assert (round_trip(fitted, tmp_path).intervals(0.99).lower >= 0).all()


def test_the_completer_comes_back(tmp_path):
    fitted = fit(gappy())
    assert round_trip(fitted, tmp_path).completer == fitted.completer


def test_labels_come_back(tmp_path):
    times = np.arange("2020-01-01", "2020-01-11", dtype="datetime64[D]").astype("datetime64[ns]")
    attrs = {"units": "K", "range": np.array([0.0, np.inf]), "nested": {"a": (1, None)}, "valid": np.float32(2)}
    x = xr.DataArray(
        gappy().astype(np.float32),
        dims=("station", 7, "time"),
        coords={
            "station": list("abcdefgh"),
            "time": times,
            "height": ("station", np.arange(8.0), {"units": "m"}),
            "run": 5,
            "name": ("station", np.array(["ä", None, *"cdefgh"], dtype=object)),
        },
        name="temp",
        attrs=attrs,
    )
    where = np.ones(x.shape, bool)
    where[2] = False
    fitted = fit(x, where=where)
    loaded = round_trip(fitted, tmp_path)
    one, two = fitted.intervals(0.9).lower, loaded.intervals(0.9).lower
    xr.testing.assert_identical(one, two)
    assert two.dtype == np.float32 and two.time.dtype == times.dtype and "height" in two.coords
    estimate = loaded.intervals(0.9).estimate
    assert estimate.name == "temp" and estimate.attrs["nested"] == {"a": (1, None)}
    assert [(a.name, a.kind, a.periodic, a.units) for a in loaded.observed.axes] == [
        (a.name, a.kind, a.periodic, a.units) for a in fitted.observed.axes
    ]
    assert not loaded.observed.values.flags.writeable


def test_other_calendars_and_stacked_axes_come_back(tmp_path):
    times = xr.date_range("2000-02-27", periods=8, calendar="360_day", use_cftime=True)
    x = xr.DataArray(gappy(), dims=("time", "a", "b"), coords={"time": times, "a": range(9), "b": range(10)})
    xr.testing.assert_identical(fit(x).intervals().upper, round_trip(fit(x), tmp_path).intervals().upper)
    wide = x.stack(place=("a", "b"))
    fitted = fit(wide, completion=corten.TuckerCompletion(1), propensity="uniform")
    fitted.save(tmp_path / "wide.corten")
    xr.testing.assert_identical(fitted.intervals().upper, corten.load(tmp_path / "wide.corten").intervals().upper)


def test_masked_kind_and_nothing_to_fill(tmp_path):
    x = gappy()
    loaded = round_trip(fit(np.ma.MaskedArray(np.nan_to_num(x), np.isnan(x))), tmp_path)
    assert isinstance(loaded.intervals(0.9).lower, np.ma.MaskedArray)
    full = corten.ConformalCompleter(calibration="random").fit(np.ones((3, 4)))
    full.save(tmp_path / "full.corten")
    assert_same(full, corten.load(tmp_path / "full.corten"))


def test_own_completion_is_kept_as_a_description(tmp_path):
    def mean(x):
        return np.where(np.isnan(x), np.nanmean(x), x)

    loaded = round_trip(fit(gappy(), completion=mean), tmp_path)
    assert loaded.completion.description == "function mean"


def test_own_score_is_refused_before_anything_is_written(tmp_path):
    @dataclass(frozen=True)
    class Mine(Absolute):
        pass

    with pytest.raises(ValueError, match=r"Mine.*to_netcdf"):
        fit(gappy(), score=Mine()).save(tmp_path / "fit.corten")
    assert list(tmp_path.iterdir()) == []


def test_existing_file_is_refused(tmp_path):
    fitted = fit(gappy())
    path = tmp_path / "fit.corten"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite"):
        fitted.save(path)
    assert path.read_text() == "precious"
    fitted.save(path, overwrite=True)
    assert_same(fitted, corten.load(path))


def test_unfit_files_are_refused_by_name(tmp_path):
    good = fit(gappy()).save(tmp_path / "good.corten")
    whole = good.read_bytes()
    bad = tmp_path / "bad.corten"
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:-1]):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.corten"):
            corten.load(bad)
    np.savez(tmp_path / "foreign.npz", a=np.ones(3))
    with pytest.raises(ValueError, match=r"foreign\.npz.*not one that corten saved"):
        corten.load(tmp_path / "foreign.npz")
    with pytest.raises(FileNotFoundError, match="absent"):
        corten.load(tmp_path / "absent.corten")


def test_every_damaged_byte_is_noticed(tmp_path):
    good = fit(gappy((4, 4, 4)), completion=corten.TuckerCompletion(1), propensity="uniform")
    path = good.save(tmp_path / "good.corten")
    whole, bad = path.read_bytes(), tmp_path / "bad.corten"
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        bad.write_bytes(damaged)
        try:
            loaded = corten.load(bad)
        except ValueError as problem:
            assert "bad.corten" in str(problem)
        else:  # a byte that no content hangs on, such as a date in the archive's directory
            assert_same(good, loaded)


def rewritten(path, change):
    """A copy of a saved fit with another tree, and checksums that fit it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    changed = path.with_name("changed.corten")
    with zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, json.dumps(change(json.loads(data))) if name == "corten.json" else data)
    return changed


def test_newer_formats_and_other_kinds_are_refused(tmp_path):
    path = fit(gappy()).save(tmp_path / "good.corten")
    with pytest.raises(ValueError, match=r"version 99.*upgrade"):
        corten.load(rewritten(path, lambda tree: tree | {"version": 99}))
    with pytest.raises(ValueError, match=r"version 1 of a corten fit.*reads version 2.*fit again and save"):
        corten.load(rewritten(path, lambda tree: tree | {"version": 1}))
    with pytest.raises(ValueError, match=r"of a corten round"):
        corten.load(rewritten(path, lambda tree: tree | {"format": "corten round"}))


def test_a_small_file_cannot_ask_for_many_objects_or_much_work(tmp_path):
    """Each of these took seconds to minutes and up to 3.3 GB; all are refused before they are made."""
    path = fit(gappy()).save(tmp_path / "good.corten")

    def with_part(name, node):
        return rewritten(path, lambda tree: tree | {"content": tree["content"] | {name: node}})

    for name, node, message in (
        ("options", [[]] * 2_000_000, "in up to [0-9]+ parts, above the limit"),
        ("options", "x" * (1 << 25), "not one that corten saved"),
        ("rounds", [{"!": "array", "of": "a0"}] * 100_000, "again and again"),
        ("options", json.loads("[" * 60 + "]" * 60), "more than 40 deep"),
        ("options", {"!": "Popen", "of": []}, "'Popen', which this corten does not know"),
        ("options", {"!": "pair", "of": "text"}, "'pair', which this corten does not know"),
    ):
        forged = with_part(name, node)
        assert forged.stat().st_size < 200_000
        tracemalloc.start()
        with pytest.raises(ValueError, match=rf"changed\.corten.*{message}"):
            corten.load(forged)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100e6, message


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("propensity", {"!": "Absolute", "of": {}}),
        ("choices", "text"),
        ("seconds", [1.0]),
        ("rounds", {"!": "Calibration", "of": []}),
        ("estimate", 1.5),
    ],
)
def test_a_field_of_another_type_is_refused(tmp_path, name, node):
    path = fit(gappy()).save(tmp_path / "good.corten")
    forged = rewritten(path, lambda tree: tree | {"content": tree["content"] | {name: node}})
    with pytest.raises(ValueError, match=rf"changed\.corten.*(Fitted\.{name} is a|does not know)"):
        corten.load(forged)


def test_labels_beyond_the_limit_are_refused_when_they_are_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("corten.io.archive.MAX_TREE_NODES", 100)
    with pytest.raises(ValueError, match="labels and attributes take"):
        fit(gappy()).save(tmp_path / "fit.corten")
    assert not list(tmp_path.iterdir())


def test_the_limit_grows_with_the_file(tmp_path):
    """What was written whole is read again, however large; a small file that unpacks to much is not."""
    path, noise = tmp_path / "a.corten", np.random.default_rng(0).normal(size=1000)
    write_archive(path, "x", {}, {"a": noise, "b": np.zeros(5000)})
    assert read_archive(path, "x", max_bytes=1000)[1]["b"].shape == (5000,)
    write_archive(path, "x", {}, {"a": np.zeros(50_000), "b": np.zeros(50_000)}, overwrite=True)
    with pytest.raises(ValueError, match=r"a\.corten.*above the limit"):
        read_archive(path, "x", max_bytes=1000)
    write_archive(path, "x", {}, {"a": noise}, overwrite=True)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:  # packs a million to one
        archive.writestr("b.npy", bytes(4_000_000))
    with pytest.raises(ValueError, match=r"a\.corten.*above the limit"):
        read_archive(path, "x", max_bytes=1_000_000)


def test_the_engine_that_a_forged_fit_names_is_not_started(tmp_path):
    path = corten.ConformalCompleter("tucker", "bernoulli", "random").fit(gappy()).save(tmp_path / "good.corten")

    def forge(tree):
        tree["content"]["propensity"]["of"]["engine"] = "dask"
        return tree

    assert corten.load(rewritten(path, forge)).propensity.engine == "auto"


def test_members_of_one_name_and_small_files_that_unpack_to_gigabytes_are_refused(tmp_path):
    """Sixty entries for one member of 60 MB, in a file of 74 kB, took 11 s; 2 MB of zeros took 2 GB."""
    good = fit(gappy()).save(tmp_path / "good.corten")
    for name, members, message in (
        ("twice", {"a0.npy": 2}, "several of its members have one name"),
        ("zeros", {f"z{k}.npy": 1 for k in range(30)}, "above the limit of 1 GiB"),
    ):
        forged = tmp_path / f"{name}.corten"
        forged.write_bytes(good.read_bytes())
        with zipfile.ZipFile(forged, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of duplicate names
            for member, count in members.items():
                for _ in range(count):
                    archive.writestr(member, bytes(40_000_000) if name == "zeros" else archive.read("a0.npy"))
        with pytest.raises(ValueError, match=rf"{name}\.corten.*{message}"):
            corten.load(forged)
