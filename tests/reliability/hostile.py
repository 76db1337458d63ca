"""Files built to do harm: huge declared shapes, bombs, pickles, links that lead outside."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from reliability.corpus import Content, compressed, rebuilt_archive, zipped

__all__ = ["BUILDERS", "MARK", "SECRET", "SECRET_FILE"]

_FASTEST = Path("/dev/shm")  # memory that looks like a disk: files there cost little
HOME = (_FASTEST if _FASTEST.is_dir() else Path(tempfile.gettempdir())) / f"corten-fuzz-{os.getpid()}"
MARK = HOME / "code-was-run"
SECRET = b"SECRETSECRETSECR"
SECRET_FILE = HOME / "secret"
HUGE = (10**5, 10**9, 2**31, 2**40, 2**62)
BOMB = 80 * 2**20  # above what a reader may take in the fuzz, small enough to build


class Payload:
    """Unpickling it leaves a mark."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(MARK),)


def npy(shape: str, dtype: str, body: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = len(header) if length is None else length
    packed = struct.pack("<H", min(size, 65535)) if version == 1 else struct.pack("<I", min(size, 2**32 - 1))
    return b"\x93NUMPY" + bytes([version, 0]) + packed + header + body


def hostile_npy(random: Random) -> bytes:
    huge = random.choice(HUGE)
    shapes = (f"({huge},)", f"({huge}, {huge})", f"(-{huge}, 2)", "(2, 3)", "(0, 0)", "(1,) * 99", "(True, 2)", "2",
              "()", "((2,),)", "(1.5,)", f"({'2, ' * 70})", f"({huge}, 0)")  # fmt: skip
    kinds = ("'<f8'", "'|O'", "'<U99999999'", "'|V2000000000'", "[('a', '<f8', (1000, 1000))]", "'<M8[ns]'", "'|S0'",
             "[('a', '|O')]", "'f' * 9", "(" * 150, "{}", "'>c16'", "'<f2'", "'|b1'")  # fmt: skip
    body = random.choice((b"", bytes(48), pickle.dumps(np.array([Payload()], object)), pickle.dumps(Payload())))
    length = random.choice((None, None, None, 0, 1, 65535, 2**32 - 1))
    return npy(random.choice(shapes), random.choice(kinds), body, random.choice((1, 1, 1, 2, 3, 9)), length)


def hostile_npz(random: Random) -> bytes:
    what = random.randrange(4)
    if what == 0:
        return zipped({"tec.npy": npy("(2, 3)", "'<f8'", bytes(48)), "x.npy": hostile_npy(random)})
    if what == 1:  # a bomb that its header owns up to, and one whose header is the bomb
        head = npy(f"(2, {BOMB // 16})", "'<f8'") if random.random() < 0.5 else npy("(2, 3)", "'<f8'", b"", 2, BOMB)
        return zipped({"tec.npy": head + bytes(BOMB)}) if random.random() < 0.02 else zipped({"tec.npy": head})
    if what == 2:
        return zipped({f"{k}.npy": npy("(1, 1)", "'<f8'", bytes(8)) for k in range(300)}, compressed=False)
    return zipped({"tec.npy": npy("(1, 2)", "'|O'", pickle.dumps(np.array([[Payload(), 1]], object)))})


def hostile_saved(random: Random) -> bytes:
    what = random.randrange(5)
    about: Any = {"format": "corten fit", "version": 1, "corten": "0", "content": {}}
    arrays = {"a0": hostile_npy(random)}
    if what == 0:
        about["content"] = {"observed": {"!": "array", "of": "a0"}}
    elif what == 1:
        depth = random.choice((50, 5000, 50_000))
        text = json.dumps(about)[:-3] + '"x": ' + "[" * depth + "]" * depth + "}}"
        return rebuilt_archive(text.encode(), {})
    elif what == 2:
        bomb = b" " * (BOMB if random.random() < 0.02 else 9000)
        return rebuilt_archive(json.dumps(about).encode() + bomb, arrays)
    elif what == 3:  # each of them fits, together they do not
        arrays = dict.fromkeys((f"a{k}" for k in range(12)), npy("(2000, 2000)", "'<f8'", bytes(32_000_000)))
        if random.random() < 0.9:
            arrays = dict.fromkeys(arrays, npy("(2, 3)", "'<f8'", bytes(48)))
    else:
        about |= random.choice(({"format": 3}, {"version": "9"}, {"version": None}, {"content": []}, {"content": 3}))
    return rebuilt_archive(about, arrays)


def hostile_hdf5(random: Random) -> bytes:
    """A valid HDF5 file with shapes, types, attributes and links that nobody expects."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        what = random.randrange(9)
        name = random.choice(("tec", "a/b/tec", "Data/Table Layout", "Data/Array Layout/2D Parameters/tec", "#refs#/x"))
        if what == 0:
            shape = random.choice(((10**6, 10**6), (2**31, 2), (2**40, 2**20), (3, 0), (1,) * 30))
            file.create_dataset(name, shape=shape, dtype=random.choice(("f8", "i1", "S100")), chunks=True)
        elif what == 1:
            file.create_dataset(name, (2, 8), "u1", external=[(str(SECRET_FILE), 0, 16)])
        elif what == 2:
            layout = h5py.VirtualLayout((2, 8), "u1")
            layout[:] = h5py.VirtualSource(str(SECRET_FILE) + ".h5", "secret", (2, 8))
            file.create_virtual_dataset(name, layout)
        elif what == 3:
            file["tec"] = np.zeros((2, 3))
            group = file.require_group("loop")
            group["up"], file["soft"] = file["/"], h5py.SoftLink("/soft")
            file["out"] = h5py.ExternalLink(str(SECRET_FILE) + ".h5", "secret")
            file["Data/Table Layout"] = h5py.ExternalLink(str(SECRET_FILE) + ".h5", "secret")
        elif what == 4:
            kinds: list[Any] = [
                h5py.string_dtype(), h5py.vlen_dtype("i4"), np.dtype([("year", "f8"), ("tec", "S3")]), "c16",
                h5py.ref_dtype, h5py.enum_dtype({"A": 1}), "V5", "?", "f2",
            ]  # fmt: skip
            file.create_dataset(name, (2, 3), random.choice(kinds))
        elif what == 5:
            at = file.create_dataset(name, data=np.arange(6.0).reshape(2, 3))
            for key in ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "bounds"):
                odd = (
                    np.zeros(0),
                    np.arange(5),
                    "x",
                    b"\xff",
                    np.nan,
                    np.array(["a", "b"], "S1"),
                    10**18,
                    h5py.Empty("f"),
                )
                if random.random() < 0.5:
                    at.attrs[key] = random.choice(odd)
        elif what == 6:
            group = file
            for _ in range(random.choice((20, 300))):
                group = group.create_group("g")
            group["tec"] = np.zeros((2, 3))
        elif what == 7:
            at = file.create_dataset("tec", data=np.zeros((2, 3)))
            file["x"] = np.zeros(random.choice((0, 1, 5)))
            file["x"].make_scale(random.choice(("x", "", "tec")))
            at.dims[0].attach_scale(file["x"])
            at.dims[1].attach_scale(file["x"])
        else:
            _bomb(file, name, random)
    return out.getvalue()


def _bomb(file: h5py.File, name: str, random: Random) -> None:
    """A chunk whose stored bytes inflate far beyond the shape."""
    at = file.create_dataset(name, (2, 3), "f8", chunks=(2, 3), compression="gzip")
    size = BOMB if random.random() < 0.02 else 100_000
    with suppress(OSError):  # old releases of HDF5 do not write a chunk larger than what it stands for
        at.id.write_direct_chunk((0, 0), zlib.compress(bytes(size), 9))


def hostile_zarr(random: Random) -> dict[str, bytes]:
    what = random.randrange(5)
    about: dict[str, Any] = {
        "zarr_format": 2, "shape": [2, 3], "chunks": [2, 3], "dtype": "<f8", "compressor": None, "fill_value": 0.0,
        "filters": None, "order": "C",
    }  # fmt: skip
    chunk: bytes = np.arange(6.0).tobytes()
    if what == 0:
        about |= {"dtype": "|O", "filters": [{"id": "pickle"}], "fill_value": None}
        chunk = pickle.dumps(np.array([[Payload()]], object))
    elif what == 1:
        about |= {"chunks": [random.choice(HUGE), random.choice(HUGE)]}
    elif what == 2:
        about |= {"shape": [random.choice((9000, *HUGE[1:])), 3], "chunks": [2, 3]}
    elif what == 3:
        about |= {"compressor": {"id": "zlib", "level": 1}}
        chunk = zlib.compress(bytes(BOMB if random.random() < 0.02 else 100_000))
    else:
        about |= {"dimension_separator": random.choice(("/", "/../", ".", "")), "order": random.choice("CFX")}
    attrs = {
        "_ARRAY_DIMENSIONS": random.choice((["x", "y"], ["x", "x"], ["../x", "y"], [], "xy", None, ["x", "y", "z"]))
    }
    files = {".zgroup": b'{"zarr_format": 2}', "tec/.zarray": json.dumps(about).encode(), "tec/0.0": chunk}
    return files | {"tec/.zattrs": json.dumps(attrs).encode()}


def hostile_csv(random: Random) -> bytes:
    what = random.randrange(6)
    if what == 0:
        return ("x,t,value\n" + "".join(f"{k},{random.choice(HUGE)},1\n" for k in range(60))).encode()
    if what == 1:
        rows = "".join(f"{random.random()},{random.random()},{random.random()},1\n" for _ in range(900))
        return f"x,y,z,value\n{rows}".encode()
    if what == 2:
        return (",".join(f"c{k}" for k in range(random.choice((2, 2000)))) + ",value\n" + "1," * 50).encode()
    if what == 3:
        return b'x,t,value\n"' + b"a" * 50_000 + b"\n1,2,3\n"
    if what == 4:
        times = ("0001-01-01", "9999-12-31T23:59", "2020-02-30", "2020-01-01T25:00", "2020-01-01+99:00", "NaT", "-5")
        return ("time,t,value\n" + "".join(f"{random.choice(times)},{k % 3},1\n" for k in range(9))).encode()
    return b"x,x,value,\xe2\x80\xae\n1,2,3,4\n\x00,1,2,3\n=cmd(),2,3,[red]\n"


def hostile_gz(random: Random) -> bytes:
    if random.random() < 0.02:
        return gzip.compress(b"x,t,value\n" + b"1,2,3\n" * (BOMB // 6), 1)
    return gzip.compress(hostile_csv(random), 1)


def hostile_parquet(random: Random) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    what = random.randrange(7)
    options: dict[str, Any] = {}
    if what == 0:
        many = 12_000_000 if random.random() < 0.02 else 20_000
        table = pa.table(
            {"x": pa.nulls(many, pa.int8()), "t": pa.nulls(many, pa.int8()), "value": pa.nulls(many, pa.int8())}
        )
    elif what == 1:
        table = pa.table({"x": [[1], [2, 3]], "t": [{"a": 1}, None], "value": [b"\xff", None]})
    elif what == 2:
        table = pa.table({"x": pa.array([1, 2], pa.decimal128(38, 2)), "t": pa.array([1, 2], pa.duration("ns")),
                          "value": pa.array([2**62, None])})  # fmt: skip
    elif what == 3:
        far = pa.array([2**60, -(2**60)], pa.timestamp("us"))
        table = pa.table({"x": pa.array(["a", "b"]).dictionary_encode(), "t": far, "value": [1.0, float("inf")]})
    elif what == 4:  # text that is stored once and repeats
        many, long = (60_000, 20_000) if random.random() < 0.05 else (300, 50)
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(many, "i4")), pa.array(["a" * long]))
        table, options = pa.table({"x": text, "t": np.arange(many), "value": np.zeros(many)}), {"store_schema": False}
    elif what == 5:  # text that is stored as what it adds to the one before
        many, long = (3000, 30_000) if random.random() < 0.02 else (300, 50)
        table = pa.table({"x": [f"{'a' * long}{k}" for k in range(many)], "t": np.arange(many), "value": np.ones(many)})
        options = {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}}
    else:
        table = pa.table({"value": [1.0]}).replace_schema_metadata(
            {b"pandas": random.choice((b"{", b"[]", b'{"columns": 3}'))}
        )
    out = io.BytesIO()
    parquet.write_table(table, out, **options)
    return out.getvalue()


def hostile_ionex(random: Random) -> bytes:
    def record(content: str, label: str) -> str:
        return f"{content:<60}{label:<20}"

    def axis(label: str) -> str:
        ends = (
            random.choice((0.0, -180.0, 9999.0, 87.5)),
            random.choice((180.0, -9e5, 99999.0)),
            random.choice((0.1, 5.0, -1e-3)),
        )
        return record("  " + "".join(f"{n:6.6}"[:6] for n in map(str, ends)), label)

    lines = [record("     1.0            IONOSPHERE MAPS     GPS", "IONEX VERSION / TYPE"),
             record(f"{random.choice((1, -1, 999999)):6d}", "# OF MAPS IN FILE")]  # fmt: skip
    lines += [
        axis("HGT1 / HGT2 / DHGT"),
        axis("LAT1 / LAT2 / DLAT"),
        axis("LON1 / LON2 / DLON"),
        record("", "END OF HEADER"),
    ]
    lines += [record("     1", "START OF TEC MAP")] * random.choice((1, 3))
    epoch = (random.choice((2019, 0, -5, 99999)), random.choice((1, 12, 13)), random.choice((1, 31)), 0, 0, 0)
    lines.append(record("".join(f"{n:6d}" for n in epoch), "EPOCH OF CURRENT MAP"))
    lines.append(record("  " + "  0.0 " * 5, "LAT/LON1/LON2/DLON/H"))
    return "\n".join(lines).encode()


def hostile_mat(random: Random) -> bytes:
    """Version 5 elements whose sizes, kinds and dimensions lie, alone or inside a compressed element."""
    sizes = (0, 1, 8, 4096, 2**31 - 1, 2**32 - 8)
    dims = struct.pack("<IIii", 5, 8, random.choice((2, -2, 2**31 - 1, 10**6)), random.choice((3, 0, 10**6)))
    kind = random.choice((1, 2, 3, 4, 5, 6, 7, 9, 15, 17, 99))
    flags = struct.pack("<IIBBHI", 6, 8, kind, random.choice((0, 2, 8, 255)), 0, 0)
    name = struct.pack("<HH4s", 1, 3, b"tec\0")
    body = struct.pack("<II", random.choice((9, 1, 7, 14, 15, 99)), random.choice(sizes)) + bytes(48)
    inner = flags + dims + name + body
    element = struct.pack("<II", 14, random.choice((len(inner), *sizes))) + inner
    if random.random() < 0.4:
        tail = bytes(BOMB) if random.random() < 0.02 else b""
        packed = zlib.compress(element + tail, 1)
        element = struct.pack("<II", 15, len(packed)) + packed
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + element


def hostile_z(random: Random) -> bytes:
    """Codes that each repeat and lengthen the word before: the table grows as fast as it can."""
    if random.random() < 0.5:
        return compressed(hostile_ionex(random))
    return b"\x1f\x9d" + bytes([random.choice((0x90, 0x10, 0x89, 0x1F))]) + random.randbytes(3000)


BUILDERS: dict[str, tuple[Callable[[Random], Content], ...]] = {
    ".npy": (hostile_npy,), ".npz": (hostile_npz,), ".corten": (hostile_saved,), ".h5": (hostile_hdf5,),
    ".nc": (hostile_hdf5,), ".mat": (hostile_mat,), ".zarr": (hostile_zarr,), ".csv": (hostile_csv,),
    ".csv.gz": (hostile_gz,), ".parquet": (hostile_parquet,), ".19i": (hostile_ionex,), ".19i.Z": (hostile_z,),
}  # fmt: skip
