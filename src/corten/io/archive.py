"""One file of named arrays and a JSON tree: a zip archive of `.npy` members with checksums, never pickled.

Bytes and nodes of the tree are counted before parsing, so that a small file cannot take much memory or time.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from corten import __version__
from corten.data.plain import Json
from corten.io.files import check_size, existing
from corten.io.whole import whole_file

VERSION, TREE = 2, "corten.json"
MAX_TREE_BYTES, MAX_TREE_NODES = 1 << 24, 1 << 20
MAX_UNPACKED_BYTES = 1 << 30  # of any file
MAX_UNPACKED_PER_PACKED = 32  # bytes of a large file (fits: 2 to 6)


def write_archive(
    path: str | os.PathLike[str], kind: str, content: object, arrays: dict[str, np.ndarray], *, overwrite: bool = False,
    packed: bool = True,
) -> Path:  # fmt: skip
    """Write a JSON tree and the arrays it names, whole or not at all; packed: smaller, but slower to write."""
    about = {"format": kind, "version": VERSION, "corten": __version__, "content": content}
    text = _within_limits(json.dumps(about, allow_nan=False).encode())
    with whole_file(path, overwrite) as temporary:
        with temporary.open("wb") as stream:
            (np.savez_compressed if packed else np.savez)(stream, **arrays)  # type: ignore[arg-type]
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(TREE), text, zipfile.ZIP_DEFLATED)
    return Path(path)


def read_archive(
    path: str | os.PathLike[str], kind: str, max_bytes: int = MAX_UNPACKED_BYTES
) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """The tree and the arrays of a file; whatever is wrong with it is a ValueError that names the file."""
    found = existing(path)
    try:
        with zipfile.ZipFile(found) as archive:
            size = {one.filename: one.file_size for one in archive.infolist()}  # no more than this is unpacked
            if len(size) < len(archive.infolist()):  # each would be unpacked, and only one of a name was counted
                raise ValueError("several of its members have one name")
            if size.get(TREE, MAX_TREE_BYTES + 1) > MAX_TREE_BYTES:
                raise ValueError("this is an archive, but not one that corten saved")
            # Together, before the first is read: a small file can hold many arrays that each unpack to the limit.
            limit = max(max_bytes, MAX_UNPACKED_PER_PACKED * found.stat().st_size)
            check_size((sum(size.values()),), 1, limit, "what it holds")
            about = json.loads(_within_limits(archive.read(TREE)))
        if about["format"] != kind or about["version"] != VERSION:
            remedy = "upgrade corten" if about["version"] > VERSION else "fit again and save, or use that corten"
            raise ValueError(
                f"it is version {about['version']} of a {about['format']}, by corten {about['corten']}; this one reads "
                f"version {VERSION} of a {kind}: {remedy}"
            )
        with np.load(found, allow_pickle=False) as arrays:
            return about["content"], {name: arrays[name] for name in arrays.files if name != TREE}
    except Exception as problem:
        detail = " ".join(str(problem).split()) or type(problem).__name__
        reason = f"not a corten file, damaged, or of another version ({detail})"
        raise ValueError(f"{found} cannot be read: {reason}") from None


def _within_limits(text: bytes) -> bytes:
    """The text of a tree, refused before it is parsed where that would need too many objects."""
    nodes = sum(map(text.count, (b",", b"[", b"{", b":")))
    if len(text) > MAX_TREE_BYTES or nodes > MAX_TREE_NODES:
        raise ValueError(f"its labels and attributes take {len(text)} bytes in up to {nodes} parts, above the limit of "
                         f"{MAX_TREE_BYTES} bytes and {MAX_TREE_NODES} parts")  # fmt: skip
    return text
