"""Hostile files: every reader reads or refuses by name; none crashes, hangs, grows, unpickles or leaves its file."""

import gzip
import json
import os
import pickle
import re
import resource
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corten
from corten import io
from corten.cli.terminal import Terminal, printable
from corten.io import apart
from corten.io.apart import read_apart
from corten.io.table import read_frame
from reliability import fuzz as fuzzing
from reliability.corpus import CORPUS, KINDS, zipped
from reliability.doors import doors_of, whole_files
from reliability.hostile import MARK, SECRET, SECRET_FILE, Payload, npy

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def own_process():
    """Every test starts and ends without a process that reads apart."""
    apart._close()
    yield
    apart._close()


def test_whole_files_are_read(tmp_path):
    for kind, door in sorted({(one, door) for one in KINDS for door in doors_of(one)}):
        for content in whole_files(kind, door):
            path = tmp_path / f"good{kind}"
            fuzzing.place(content, path)
            verdict, why = fuzzing.judge(path, door)
            # A result holds several variables, and a completion in parts asks for one by name.
            assert verdict == "read" or (door == "in parts" and "say which variable" in why), (kind, door, why)


def test_damaged_and_hostile_files_are_read_or_refused():
    tally = fuzzing.fuzz(120, seed=99, patience=300.0)
    assert tally.read and tally.refused
    assert not (tally.crashed or tally.hung or tally.wrong), tally


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != ".zarr"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_by_name(kind, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"noise{kind}"
    path.write_bytes(data)
    for door in sorted(set(doors_of(kind)) - {"program"}):  # which forks, and reads as the first does
        verdict, why = fuzzing.judge(path, door)
        assert verdict in ("read", "refused"), (door, why)


def test_the_judge_sees_what_readers_may_not_do(tmp_path, monkeypatch):
    """The fuzzer's own check: a reader that unpickles, or raises something else, does not pass."""
    fuzzing.prepare()
    path = tmp_path / "bad.npy"
    np.save(path, np.array([[Payload(), 1]], object), allow_pickle=True)
    assert fuzzing.judge(path)[0] == "refused"
    with monkeypatch.context() as change:
        change.setattr(io, "read", lambda *a, **k: np.load(path, allow_pickle=True))
        assert fuzzing.judge(path) == ("wrong", "code in the file was run")
        change.setattr(io, "read", lambda *a, **k: 1 / 0)
        assert fuzzing.judge(path)[0] == "wrong"
    assert not MARK.exists()


def test_pickles_are_never_opened(tmp_path):
    fuzzing.prepare()
    body = pickle.dumps(np.array([[Payload(), 1]], object))
    (tmp_path / "o.npz").write_bytes(zipped({"tec.npy": npy("(1, 2)", "'|O'", body)}))
    with pytest.raises(ValueError, match=r"o\.npz.*never unpickled"):
        io.read(tmp_path / "o.npz", "tec")
    zarr = tmp_path / "o.zarr"
    about = b'{"zarr_format": 2, "shape": [1, 2], "chunks": [1, 2], "dtype": "|O", "compressor": null, "order": "C",'
    about += b'"fill_value": null, "filters": [{"id": "pickle"}]}'
    attrs = b'{"_ARRAY_DIMENSIONS": ["x", "y"]}'
    files = {".zgroup": b'{"zarr_format": 2}', "tec/.zarray": about, "tec/.zattrs": attrs, "tec/0.0": body}
    fuzzing.place(files, zarr)
    with pytest.raises(ValueError, match=r"o\.zarr.*'pickle'.*not trust"):
        io.read(zarr, "tec")
    assert not MARK.exists()


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_files_cannot_show_other_files(tmp_path, suffix):
    fuzzing.prepare()
    path = tmp_path / f"x{suffix}"
    with h5py.File(path, "w") as file:
        file.create_dataset("tec", (2, 8), "u1", external=[(str(SECRET_FILE), 0, 16)])
    with h5py.File(path) as file:  # the library itself does follow it
        assert file["tec"][()].tobytes() == SECRET
    with pytest.raises(ValueError, match="other files"):
        io.read(path, "tec")


def test_links_out_of_a_zarr_folder_are_refused(tmp_path):
    fuzzing.place(CORPUS[".zarr"][0], tmp_path / "x.zarr")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "x.zarr" / "tec" / "9.9.9").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=r"leads outside"):
        io.read(tmp_path / "x.zarr", "tec")


def test_bombs_are_not_unpacked(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"x,t,value\n" + b"1,2,3\n" * 2_000_000))
    with pytest.raises(ValueError, match=r"x\.csv\.gz.*limit of 1000000 bytes"):
        io.read(path, max_bytes=1_000_000)
    small = zipped({"tec.npy": npy("(100000, 100000)", "'<f8'")})
    (tmp_path / "x.npz").write_bytes(small)
    with pytest.raises(ValueError, match=r"x\.npz.*cut short or damaged"):
        io.read(tmp_path / "x.npz")
    with h5py.File(tmp_path / "x.h5", "w") as file:  # a kilobyte that declares 80 GB
        file.create_dataset("tec", (100_000, 100_000), "f8", chunks=True)
    with pytest.raises(ValueError, match=r"x\.h5, tec declares 100000 x 100000"):
        io.read(tmp_path / "x.h5")


def grown(work):
    """Bytes by which the most memory of a process of its own grows while it works."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            work()
            os.write(here, str(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)).encode())
        finally:  # an error must not go on with the other tests in this process too
            os._exit(0)
    os.close(here)
    with open(there, "rb") as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    assert said, "the work failed"
    return int(said)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_text_that_repeats_is_not_unpacked_beyond_the_limit(tmp_path, kind):
    from pyarrow import parquet

    many, path = 20_000, tmp_path / "x.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(many, "i4")), pa.array(["a" * 20_000]).cast(kind))
    table = pa.table({"x": text, "t": np.arange(many), "value": np.zeros(many)})
    parquet.write_table(table, path, store_schema=False)
    assert path.stat().st_size < 200_000

    def refuse():
        with pytest.raises(ValueError, match=r"x\.parquet.*more than the limit of 20000000 bytes"):
            io.read(path, max_bytes=20_000_000)

    assert grown(refuse) < 200_000_000  # all of it are 400 MB, and more in pandas
    small = pa.table({"x": text.slice(0, 900), "t": np.arange(900), "value": np.zeros(900)})
    parquet.write_table(small, path, store_schema=False)
    assert io.read(path, max_bytes=20_000_000).data.shape == (1, 900)


@pytest.mark.parametrize("more", [{}, {"note": ["a"] * 20_000}], ids=["", "text"])
def test_categories_count_once_a_row_group(tmp_path, more):
    """With those of every batch the table would be 40 MB (0.6 MB a batch), with text beside it, and 4 MB without."""
    from pyarrow import parquet

    many, path = 20_000, tmp_path / "x.parquet"
    names = pa.array([f"{k:0>600}" for k in range(1000)])
    place = pa.DictionaryArray.from_arrays(pa.array(np.arange(many) % 1000, pa.int32()), names)
    table = pa.table({"x": place, "t": np.arange(many) // 1000, "value": np.arange(many, dtype=float), **more})
    parquet.write_table(table, path, row_group_size=10_000)
    frame = read_frame(path, max_bytes=3_000_000)
    assert frame["x"].cat.categories[-1] == "999".zfill(600) and (frame["x"].cat.codes == np.arange(many) % 1000).all()
    with pytest.raises(ValueError, match=r"x\.parquet.*more than the limit of 1000000 bytes"):
        read_frame(path, max_bytes=1_000_000)


def test_bytes_of_one_length_are_text_too(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": pa.array([bytes(65536)] * 3000, pa.binary(65536))}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"x\.parquet.*declares 3000 x 65544 values"):
        read_frame(path, max_bytes=10_000_000)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_of_shared_prefixes_is_not_unpacked_beyond_the_limit(tmp_path, kind):
    """Different texts, of which each stores what differs from the one before."""
    from pyarrow import parquet

    path, many = tmp_path / "x.parquet", 4000
    words = pa.array([f"{'a' * 100_000}{k:06d}" for k in range(many)])
    delta = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "data_page_version": "2.0"}
    parquet.write_table(pa.table({"x": words.cast(kind)}), path, **delta)
    assert path.stat().st_size < 2_000_000

    def refuse():
        with pytest.raises(ValueError, match=r"x\.parquet.*more than the limit of 20000000 bytes"):
            read_frame(path, max_bytes=20_000_000)

    del words
    assert grown(refuse) < 200_000_000


def test_lists_in_a_table_are_refused_by_column(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": [[1, 2], [3]], "value": [1.0, 2.0]}), path)
    with pytest.raises(ValueError, match=r"x\.parquet.*column 'x' holds lists or records"):
        read_frame(path)
    parquet.write_table(pa.table([[1, 2], [3, 4]], names=["x", "x"]), path)
    for careful in (False, True):
        with pytest.raises(ValueError, match=r"x\.parquet.*(column name twice|Duplicate column names)"):
            io.read(path, "x", careful=careful)


def test_one_long_label_does_not_lengthen_all(tmp_path):
    """As an array of text 30,000 labels of 100,000 letters are 12 GB."""
    path = tmp_path / "x.csv"
    path.write_text("x,t,value\n" + "".join(f"s{k},1,1\n" for k in range(30_000)) + "a" * 100_000 + ",2,1\n")
    with pytest.raises(ValueError, match=r"x\.csv, the labels of 'x', declares 30001 x 100000"):
        io.read(path, max_bytes=2**27)


def test_the_arrays_of_a_saved_fit_are_counted_together(tmp_path, monkeypatch):
    from corten.io.archive import read_archive, write_archive

    noise = np.random.default_rng(0).normal(size=1000)
    for many, count in ((noise, 9), (np.zeros(90_000), 1)):  # packed, the second is larger than 32 times its file
        write_archive(tmp_path / "x.corten", "corten fit", {}, {f"a{k}": many for k in range(count)}, overwrite=True)
    assert len(read_archive(tmp_path / "x.corten", "corten fit", 721_000)[1]) == 1
    with pytest.raises(ValueError, match=r"x\.corten.*what it holds declares 720"):
        read_archive(tmp_path / "x.corten", "corten fit", 719_999)


LOADED_BY = """
import warnings
import corten.io.apart, corten.io.formats
def load(*_, **__):
    {}
corten.io.formats.load = load
corten.io.apart.serve()
"""


def other_process(monkeypatch, code):
    """Readings apart are done by a process that runs `code`; standard input has the question."""
    apart._close()
    monkeypatch.setattr(apart, "_command", lambda: [sys.executable, "-c", code])


def test_a_crash_or_a_hang_of_a_library_is_a_refusal(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    path.write_bytes(b"")
    other_process(monkeypatch, "import os; input(); os.kill(os.getpid(), 11)")
    with pytest.raises(ValueError, match=r"x\.h5 makes the library.*signal 11"):
        io.read(path, careful=True)
    asleep = "import time; time.sleep(600)"
    for code in (asleep, f"input(); print('[1,', flush=True, end=''); {asleep}"):
        other_process(monkeypatch, code)
        monkeypatch.setattr(apart, "SECONDS", 0.05)
        with pytest.raises(ValueError, match=r"x\.h5 .*crash or hang"):
            io.read(path, careful=True)


def test_computing_time_of_a_reading_apart_is_limited(tmp_path, monkeypatch):
    other_process(monkeypatch, LOADED_BY.format("while True: pass"))
    monkeypatch.setattr(apart, "SECONDS", 1)
    monkeypatch.setattr(apart, "WALL_FACTOR", 600)
    (tmp_path / "x.h5").write_bytes(b"")
    with pytest.raises(ValueError, match=r"x\.h5 .*crash or hang"):
        io.read(tmp_path / "x.h5", careful=True)


def forged(found, *headers):
    """An answer: its JSON, and the headers of its arrays without any values."""
    said = {"warnings": [], "found": found, "arrays": len(headers)}
    return json.dumps(said).encode() + b"\n" + b"".join(npy(shape, dtype) for shape, dtype in headers)


ARRAY = {"!": "array", "of": "a0"}
TENSOR = [["name", "x"], ["others", {"!": "dict", "of": []}]]
FORGED = {
    "a pickle": pickle.dumps(Payload()),
    "an array of objects": forged(ARRAY, ("(2,)", "'|O'")),
    "an array beyond all memory": forged(ARRAY, ("(9999999, 9999999)", "'<f8'")),
    "a negative length": forged(ARRAY, ("(-1,)", "'<f8'")),
    "an array that is not there": forged({"!": "array", "of": "a5"}),
    "an endless number of arrays": b'{"warnings": [], "found": 1, "arrays": Infinity}',
    "a length of 4000 digits": forged(ARRAY, (f"(1{'0' * 4000},)", "'<f8'")),
    "text of no length": forged(ARRAY, ("(9999999999999,)", "'|S0'")),
    "one array twice": forged(
        {"!": "dict", "of": [["name", "x"], ["data", ARRAY], ["others", {"!": "dict", "of": [["y", ARRAY]]}]]},
        ("(0,)", "'|u1'"),
    ),
    "dates beyond the calendar": forged({"!": "date", "of": "9999 99 9 9 9 9 9 noleap True"}),
    "a number for a tensor": forged({"!": "dict", "of": [*TENSOR, ["data", 5]]}),
    "a list for a tensor": forged([1]),
    "a part of a tensor": forged({"!": "dict", "of": TENSOR[:1]}),
    "another kind of error": b'{"warnings": [], "arrays": 0, "error": ["StopIteration", ["x.h5"]]}',
    "no answer": b"{}",
    "a call": b'{"warnings": [], "arrays": 0, "error": ["eval", ["1 / 0"]]}',
    "a warning": b'{"warnings": [["x", "exit"]], "arrays": 0, "found": {"!": "unknown", "of": 1}}',
    "depth": b"[" * 100_000,
}


@pytest.mark.parametrize("said", FORGED.values(), ids=FORGED)
def test_what_comes_back_from_a_reading_apart_is_not_trusted(tmp_path, monkeypatch, said):
    """The process may have been taken over by the file: its answer is refused like a damaged file."""
    fuzzing.prepare()
    path = tmp_path / "x.h5"
    path.write_bytes(b"")
    other_process(monkeypatch, f"import sys; input(); sys.stdout.buffer.write({said!r} + b'\\n'); sys.stdout.flush()")
    with pytest.raises(ValueError, match=r"x\.h5|1 / 0"):
        io.read(path, careful=True)
    assert not MARK.exists()


def test_more_text_than_can_be_sent_is_refused_by_name(tmp_path, monkeypatch):
    fuzzing.place(CORPUS[".nc"][0], tmp_path / "x.nc")
    other_process(monkeypatch, "from corten.io import apart; apart.MAX_ANSWER_BYTES = 10; apart.serve()")
    with pytest.raises(ValueError, match=r"x\.nc has more text.*careful=False"):
        io.read(tmp_path / "x.nc", "tec", careful=True)


def test_nothing_in_the_readers_can_unpickle():
    """No module of the readers mentions pickle but to forbid it."""
    folder = Path(io.__file__).parent
    for path in sorted(folder.glob("*.py")):
        text = path.read_text().replace("allow_pickle=False", "").replace("unpickled", "").replace("pickled", "")
        assert not re.search(r"\b(pickle|marshal|shelve|dill)\b.*[.(]|import pickle", text), path.name


def test_a_module_beside_the_data_is_not_imported(tmp_path, monkeypatch):
    apart._close()
    fuzzing.place(CORPUS[".nc"][0], tmp_path / "x.nc")
    (tmp_path / "netCDF4.py").write_text("import os; os.mkdir('run')")
    monkeypatch.chdir(tmp_path)
    assert io.read("x.nc", "tec", careful=True).data.shape == (2, 3, 4)
    assert not (tmp_path / "run").exists()


def test_the_process_of_one_file_reads_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "IDLE_SECONDS", 600.0)  # a busy machine may let the usual time pass between two readings
    for name in ("x", "y"):
        fuzzing.place(CORPUS[".parquet"][0], tmp_path / f"{name}.parquet")
    found = []
    for name in ("x", "x", "y"):
        io.read(tmp_path / f"{name}.parquet", careful=True)
        found.append(apart._reader.process.pid)
    assert found[0] == found[1] != found[2]


def test_what_is_read_apart_comes_back_as_it_is(tmp_path):
    """Arrays, labels and tables have the bits and types of a reading in this process, and can be written to."""
    for kind in (".nc", ".h5", ".mat", ".zarr", ".parquet"):
        path = tmp_path / f"good{kind}"
        fuzzing.place(CORPUS[kind][0], path)
        name = {".nc": "tec", ".zarr": "tec", ".mat": "mad"}.get(kind)
        here, apart = io.read(path, name), io.read(path, name, careful=True)
        one, other = np.asarray(here.data), np.asarray(apart.data)
        assert one.dtype == other.dtype and one.flags.f_contiguous == other.flags.f_contiguous
        assert np.array_equal(one, other, equal_nan=True)
        assert (here.notes, here.variable) == (apart.notes, apart.variable)
        other[...] = 0.0
        if hasattr(here.data, "coords"):
            assert all(here.data[dim].identical(apart.data[dim]) for dim in here.data.dims)
        if here.table is not None:
            assert here.table.frame.equals(apart.table.frame)


def test_values_come_back_from_a_reading_apart_with_their_types():
    import cftime
    import pandas as pd
    import xarray as xr

    from corten.io.wire import FileDecoder, FileEncoder

    odd = np.array([cftime.DatetimeNoLeap(2001, 2, day, 1, 2, 3, 4) for day in (1, 28)], object)
    values = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    attrs = {"units": "K", "n": np.float32(1.5), "range": np.array([1, 2], "i2"), "nan": np.nan, "words": ["a", "b"]}
    labels = {"t": odd, "s": np.array(["a", "\u00e9", ""], object), "place": ((), 3.5)}
    labels["day"] = ("t", np.array([1, 2], "M8[s]"))
    array = xr.DataArray(values, dims=("t", "s"), coords=labels, name="x", attrs=attrs)
    zoned = pd.to_datetime(pd.Series(["2020-01-01T12:00+01:00", "2020-07-01T12:00+02:00"]), utc=True)
    frame = pd.DataFrame(
        {
            "zone": zoned.dt.tz_convert("Europe/Zurich"), "text": ["a", None], "number": [1, 2],
            "some": pd.array([1, None], "Int64"), "flag": pd.array([True, None], "boolean"),
            "kind": pd.Categorical(["b", "a"], ["b", "a"], ordered=True),
        }
    )  # fmt: skip
    encoder = FileEncoder()
    tree = json.loads(json.dumps(encoder.encode({"array": array, "frame": frame}, "it")))
    found = FileDecoder(encoder.arrays).decode(tree)
    assert found["array"].identical(array) and found["array"].attrs["n"].dtype == np.float32
    pd.testing.assert_frame_equal(found["frame"], frame)
    with pytest.raises(ValueError, match="neither numbers, text nor dates"):
        FileEncoder().encode(np.array([Payload()], object), "it")
    with pytest.raises(ValueError, match="unknown time zone"):  # pandas would read that file
        forged_zone = pa.table({"t": pa.array([0], pa.timestamp("ns", "dateutil//dev/zero"))})
        FileDecoder({"a0": stream_of(forged_zone)}).decode({"!": "frame", "of": ARRAY})
    with pytest.raises(ValueError):
        FileDecoder({"a0": np.frombuffer(b"no Arrow stream", np.uint8)}).decode({"!": "frame", "of": ARRAY})


def test_arrays_that_values_share_come_back_from_a_reading_apart():
    import xarray as xr

    from corten.io.wire import FileDecoder, FileEncoder

    lat, ends = np.arange(6.0).reshape(2, 3), np.array([0.0, 1.0])
    sea = xr.DataArray(lat > 2, dims=("y", "x"), coords={"lat": (("y", "x"), lat, {"actual_range": ends})})
    encoder = FileEncoder()
    tree = json.loads(json.dumps(encoder.encode({"x": sea + 0.5, "where": sea}, "it")))
    found = FileDecoder(encoder.arrays).decode(tree)
    assert found["where"].identical(sea)
    assert found["x"].lat.identical(sea.lat)


def test_a_time_zone_that_names_a_file_is_refused():
    from corten.io.wire import Decoder

    label = {"!": "index", "of": [[{"!": "array", "of": "a0"}, "dateutil//dev/zero", None]]}
    with pytest.raises(ValueError, match="unknown time zone"):
        Decoder({"a0": np.array([0], "M8[s]")}).decode(label)


def stream_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def test_errors_and_warnings_come_back_from_a_reading_apart(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    path.write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match=r"x\.h5 could not be read"):
        io.read(path, careful=True)
    other_process(monkeypatch, LOADED_BY.format("warnings.warn('so so', DeprecationWarning); open('/not here')"))
    with pytest.warns(DeprecationWarning, match="so so"), pytest.raises(FileNotFoundError, match="not here"):
        read_apart(path, "load")


@pytest.mark.parametrize("offset", [2**28, 2**30])
def test_frames_of_blosc_that_lie_are_refused_before_blosc_sees_them(tmp_path, offset):
    """numcodecs hands frames to Blosc without their length: one that claims more is read out of bounds, and crashes."""
    import struct

    whole = CORPUS[".zarr"][0]
    frame = bytearray(whole["tec/0.0.0"])
    struct.pack_into("<ii", frame, 12, 2**31 - 1, offset)  # the length of the frame, and where its first block begins
    lies = r"zarr .*tec/0\.0\.0 declares a Blosc frame of 2147483647 bytes, and has 78"
    for about in (whole, {name: data for name, data in whole.items() if name != ".zmetadata"}):
        path = tmp_path / f"{len(about)}.zarr"
        fuzzing.place(about | {"tec/0.0.0": bytes(frame)}, path)
        for careful in (False, True):
            with pytest.raises(ValueError, match=lies):
                io.read(path, "tec", careful=careful)


@pytest.mark.parametrize("name", [None, True, 3])
def test_axes_of_zarr_are_called_by_text(tmp_path, name):
    """Found by the fuzzer: such a name is an index to the libraries below, and their TypeError named no file."""
    import json

    whole = {key: data for key, data in CORPUS[".zarr"][0].items() if key != ".zmetadata"}
    attrs = json.loads(whole["tec/.zattrs"]) | {"_ARRAY_DIMENSIONS": ["lat", "station", name]}
    fuzzing.place(whole | {"tec/.zattrs": json.dumps(attrs).encode()}, tmp_path / "x.zarr")
    for careful in (False, True):
        with pytest.raises(ValueError, match=r"x\.zarr could not be read as Zarr.*expected text"):
            io.read(tmp_path / "x.zarr", "tec", careful=careful)


def test_blosc_inside_of_something_else_is_refused(tmp_path):
    import zarr

    data = np.arange(24.0).reshape(2, 3, 4)
    about = {"name": "tec", "shape": data.shape, "dtype": data.dtype, "dimension_names": ("x", "y", "z")}
    blosc, crc = zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()
    zarr.create_array(tmp_path / "x.zarr", chunks=(1, 3, 2), shards=(2, 3, 4), compressors=blosc, **about)[...] = data
    with pytest.raises(ValueError, match=r"x\.zarr.*Blosc inside"):
        io.read(tmp_path / "x.zarr", "tec")
    zarr.create_array(tmp_path / "y.zarr", chunks=(1, 3, 2), compressors=[blosc, crc], **about)[...] = data
    assert np.array_equal(io.read(tmp_path / "y.zarr", "tec").data, data)


def test_labels_cannot_steer_the_terminal_or_the_page(tmp_path, capsys):
    import xarray as xr
    from test_result import Plain

    from corten.results.intervals import Intervals

    name = "[red]\x1b[31m\u202e</script><script>alert(1)</script>"
    x = np.arange(12.0).reshape(3, 4)
    x[1, 2] = np.nan
    labelled = xr.DataArray(x, dims=(name, "t"), name=name, attrs={"units": name, "long_name": name})
    result = Intervals(Plain(corten.ObservedTensor.of(labelled), infinite=False), 0.9)
    Terminal().say(result.summary())
    Terminal().say(f"wrote {name}")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "[red]" in shown
    page = result.report(tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in page
    assert printable("plain words, ü, 日本\n") == "plain words, ü, 日本\n"


def test_the_programs_errors_cannot_steer_the_terminal(tmp_path):
    from typer.testing import CliRunner

    from corten.cli.app import app

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, ["complete", str(tmp_path / "\x1b[2Jx.nc"), "-o", str(tmp_path / "y.nc")])
    assert done.exit_code == 2 and "\x1b" not in done.output and "\\x1b[2Jx.nc does not exist" in done.output
