"""One file of named arrays and JSON: written whole or not at all, versioned, checksummed, never pickled."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from corten.io import npy
from corten.io.files import MAX_BYTES, check_size, existing
from corten.io.whole import whole_file

__all__ = ["read_archive", "write_archive"]

_ABOUT, _SEAL = "corten.json", "corten.sha256"
_LARGEST_TEXT = 2**26
# What a file larger than the limit may unpack to, in its own size: saved fits unpack to 2 (random gaps) to 6 times
# (patches, with a mask for each of many rounds), of constants to 64 times, and bombs to 1000 times.
_PACKED = 32
# A fixed date: the same content gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def write_archive(
    path: str | os.PathLike[str],
    format_name: str,
    version: int,
    content: Any,
    arrays: dict[str, np.ndarray],
    *,
    overwrite: bool = False,
    packed: bool = True,
) -> Path:
    """Write JSON content and the arrays it speaks of; an existing file is refused. packed: smaller, but slower."""
    from corten import __version__

    with whole_file(path, overwrite) as temporary, zipfile.ZipFile(temporary, "w", allowZip64=True) as archive:
        sums = {}
        for name, array in arrays.items():
            with archive.open(_member(f"{name}.npy", packed), "w", force_zip64=True) as stream:
                hashed = _Hashed(stream)
                np.lib.format.write_array(hashed, np.asarray(array, order="C"), allow_pickle=False)
            sums[name] = hashed.digest()
        about = {"format": format_name, "version": version, "corten": __version__, "arrays": sums, "content": content}
        text = json.dumps(about, allow_nan=False).encode()
        archive.writestr(_member(_ABOUT), text)
        archive.writestr(_member(_SEAL), hashlib.sha256(text).hexdigest())
    return Path(path)


def read_archive(
    path: str | os.PathLike[str], format_name: str, version: int, max_bytes: int = MAX_BYTES
) -> tuple[Any, dict[str, np.ndarray]]:
    """The content and the arrays of a file; whatever is wrong with it is a ValueError that names the file."""
    found = existing(path)
    try:
        with zipfile.ZipFile(found) as archive:
            about = _about(archive)
            _check_version(about, format_name, version)
            # Together, before the first is read: a small file can hold many arrays that each unpack to the limit.
            whole = sum(_size(archive, name) for name in about["arrays"])
            check_size((whole,), 1, max(max_bytes, _PACKED * found.stat().st_size), "what it holds")
            arrays = {name: _array(archive, name, total) for name, total in about["arrays"].items()}
            return about["content"], arrays
    except _Unfit as problem:
        raise ValueError(f"{found}: {problem}") from None
    except Exception as problem:
        detail = " ".join(str(problem).split()) or type(problem).__name__
        raise ValueError(f"{found} is no whole corten file (damaged, cut short or of another kind): {detail}") from None


class _Unfit(Exception):
    """A file that can be read but not used; the message says why."""


class _Hashed:
    """A stream that sums up what passes through it."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._sum = stream, hashlib.sha256()

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return int(self._stream.write(data))

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._sum.update(data)
        return data

    def digest(self) -> str:
        return self._sum.hexdigest()


def _member(name: str, packed: bool = True) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    return info


def _about(archive: zipfile.ZipFile) -> dict[str, Any]:
    names = set(archive.namelist())
    if not {_ABOUT, _SEAL} <= names:
        raise _Unfit("this is an archive, but not one that corten saved")
    if npy.member_size(archive.getinfo(_ABOUT)) > _LARGEST_TEXT or archive.getinfo(_SEAL).file_size > 1000:
        raise _Unfit(f"its description is larger than {_LARGEST_TEXT} bytes: nothing that corten saved is")
    text = archive.read(_ABOUT)
    if hashlib.sha256(text).hexdigest() != archive.read(_SEAL).decode("ascii"):
        raise _Unfit("its checksum does not fit: the file was changed or damaged")
    about: dict[str, Any] = json.loads(text)
    return about


def _check_version(about: dict[str, Any], format_name: str, version: int) -> None:
    if about["format"] != format_name:
        raise _Unfit(f"it holds a {about['format']}, not a {format_name}")
    if about["version"] > version:
        raise _Unfit(
            f"corten {about['corten']} wrote it in version {about['version']} of the format; this corten "
            f"reads up to {version}: upgrade corten"
        )


def _size(archive: zipfile.ZipFile, name: str) -> int:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, dtype = npy.declared(stream, npy.member_size(info))
    return prod(shape) * max(dtype.itemsize, 1)


def _array(archive: zipfile.ZipFile, name: str, total: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as stream:
        hashed = _Hashed(stream)
        array = np.lib.format.read_array(hashed, allow_pickle=False)
    if hashed.digest() != total:
        raise _Unfit(f"the checksum of array {name} does not fit: the file was changed or damaged")
    return np.asarray(array)
