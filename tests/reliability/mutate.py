"""Damage: a whole file and a source of randomness in, a file somebody might hand us out."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from random import Random
from typing import Any

from reliability.corpus import CORPUS, Content, compressed, rebuilt_archive, zipped
from reliability.hostile import BUILDERS

__all__ = ["damaged"]

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1)
WORDS = (
    b"nan", b"inf", b"-1", b"1e400", b"99999999999999999999", b"0x10", b"\x00", b"\xff\xfe", b'"', b"'", b",", b"\n",
    b"9" * 400, b"[red]", b"\x1b[31m", b"<script>", b"../../secret", b"(" * 300, b"{" * 300, b"days since never",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 2**70, "", "x", "../secret", [], {}, [[]], {"!": "array", "name": "a0"},
    {"!": "tuple", "of": [1]}, {"!": "Fitted", "of": {}}, {"!": "Axis", "of": {}}, {"!": "float", "of": "nan"},
    {"!": "mapping", "of": [[1, 2]]}, {"!": "date", "of": [1]}, {"!": "objects", "shape": [10**12], "of": [1]},
    {"!": "scalar", "name": "a1"}, {"!": "coordinates", "of": {"variables": [], "stacked": {}}},
)  # fmt: skip


def damaged(kind: str, random: Random, whole_ones: list[Content]) -> Content:
    """A file of the kind, damaged in one of many ways; now and then pure noise or one built to do harm."""
    builders = BUILDERS.get(kind, ())
    choice = random.random()
    if choice < 0.04:
        return noise(random) if kind != ".zarr" else {".zarray": noise(random), "zarr.json": noise(random)}
    if choice < 0.24 and builders:
        return random.choice(builders)(random)
    whole = random.choice(whole_ones)
    if isinstance(whole, dict):
        return _folder(whole, random)
    if choice < 0.6:
        inside = _INSIDE.get(kind)
        if inside is not None:
            return inside(whole, random)
    return scrambled(whole, random)


def noise(random: Random) -> bytes:
    heads = (
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00",
        b"\x89HDF\r\n\x1a\n",
        b"CDF\x01",
        b"PAR1",
        b"\x1f\x8b",
        b"\x1f\x9d",
    )
    return random.choice(heads) + random.randbytes(random.randrange(400))


def scrambled(data: bytes, random: Random) -> bytes:
    """One to eight small wounds."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(raw)) if raw else 0
        wound = random.randrange(9)
        if wound == 0 and raw:
            raw[at] ^= 1 << random.randrange(8)
        elif wound == 1 and raw:
            raw[at] = random.randrange(256)
        elif wound == 2:
            del raw[at:]
        elif wound == 3:
            del raw[at : at + random.choice((1, 2, 4, 8, 64, 512))]
        elif wound == 4:
            raw[at:at] = random.randbytes(random.choice((1, 4, 8, 64)))
        elif wound == 5:
            raw[at:at] = raw[at : at + random.choice((4, 16, 80, 512))]
        elif wound == 6:
            size = random.choice((1, 2, 4, 8))
            number = random.choice(NUMBERS) & (2 ** (8 * size) - 1)
            raw[at : at + size] = number.to_bytes(size, random.choice(("little", "big")))
        elif wound == 7:
            raw[at : at + random.randrange(8)] = random.choice(WORDS)
        else:
            to = random.randrange(len(raw)) if raw else 0
            size = random.choice((4, 8, 32))
            raw[at : at + size] = raw[to : to + size]
    return bytes(raw)


def _gzip(data: bytes, random: Random) -> bytes:
    return gzip.compress(scrambled(gzip.decompress(data), random), 1)


def _z(data: bytes, random: Random) -> bytes:
    [text] = CORPUS[".19i"]
    assert isinstance(text, bytes)
    return compressed(scrambled(text, random))


def _npz(data: bytes, random: Random) -> bytes:
    """The members damaged, the archive whole: its checksums do not catch it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    members[name] = scrambled(members[name], random)
    if random.random() < 0.2:
        members[random.choice(("../tec.npy", "/tec.npy", "a/../../b.npy", "\x1b[2J.npy", ".npy"))] = members[name]
    return zipped(members, random.random() < 0.7)


def _saved(data: bytes, random: Random) -> bytes:
    """A saved fit with other content and seals that fit it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        about = json.loads(archive.read("corten.json"))
        arrays = {n.removesuffix(".npy"): archive.read(n) for n in archive.namelist() if n.endswith(".npy")}
    if random.random() < 0.4:
        name = random.choice(list(arrays))
        arrays[name] = scrambled(arrays[name], random)
    else:
        for _ in range(random.choice((1, 1, 2, 4))):
            about = changed_json(about, random, VALUES)
    return rebuilt_archive(about, arrays)


def changed_json(value: Any, random: Random, values: tuple[Any, ...]) -> Any:
    """One place of a JSON value replaced, removed, doubled or exchanged for another part."""
    places: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        if isinstance(part, dict | list):
            for key in part if isinstance(part, dict) else range(len(part)):
                places.append((part, key))
                visit(part[key])

    copy = json.loads(json.dumps(value))
    visit(copy)
    if not places:
        return random.choice(values)
    part, key = random.choice(places)
    what = random.randrange(4)
    if what == 0:
        part[key] = random.choice(values)
    elif what == 1:
        del part[key]
    elif what == 2:
        other, there = random.choice(places)
        part[key] = json.loads(json.dumps(other[there])) if there in other or isinstance(other, list) else None
    else:
        part[key] = random.choice(NUMBERS) if isinstance(part[key], int) else random.choice(("f8", "O", "|S9", "NaN"))
    return copy


def _mat(data: bytes, random: Random) -> bytes:
    """Compressed elements are damaged inside, so that their checksum does not catch it."""
    if data[128:132] != struct.pack("<I", 15):
        return scrambled(data[:128], random)[:128].ljust(128, b" ") + data[128:] if data[:6] == b"MATLAB" else data
    inner = scrambled(zlib.decompress(data[136:]), random)
    packed = zlib.compress(inner, 1)
    return data[:128] + struct.pack("<II", 15, len(packed)) + packed


ZARR_VALUES: tuple[Any, ...] = (
    None, -1, 0, 2**40, 1e308, "NaN", "|O", "<M8[ns]", ">f8", "x", [], {}, [2**40, 2**40, 2], [0, 0, 0], [2**31],
    {"id": "pickle"}, [{"id": "pickle"}], {"id": "zlib", "level": 99}, {"id": "nothing"}, "../secret", True,
    [{"id": "json2"}], [{"id": "delta", "dtype": "|O"}], [{"name": "bytes"}], {"name": "default"}, "/../",
)  # fmt: skip


def _folder(whole: dict[str, bytes], random: Random) -> dict[str, bytes]:
    """A Zarr folder with one or two of its files changed, lost or added; consolidated metadata may go, to be read
    from the single files."""
    files = dict(whole)
    if random.random() < 0.6:
        files.pop(".zmetadata", None)
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(sorted(files))
        described = name.rsplit("/", 1)[-1] in (".zarray", ".zattrs", ".zgroup", "zarr.json", ".zmetadata")
        if described and random.random() < 0.75:
            try:
                about = json.loads(files[name])
            except ValueError:
                continue
            files[name] = json.dumps(changed_json(about, random, ZARR_VALUES)).encode()
        elif random.random() < 0.15:
            del files[name]
        else:
            files[name] = scrambled(files[name], random)
        if not files:
            break
    return files


_INSIDE = {".csv.gz": _gzip, ".19i.gz": _gzip, ".19i.Z": _z, ".npz": _npz, ".corten": _saved, ".mat": _mat}
