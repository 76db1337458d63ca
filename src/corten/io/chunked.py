"""A Zarr store written block by block; it appears when it is complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from corten.data.plain import plain
from corten.engine.memory import full_disk
from corten.io.dataset import prepare_for_file
from corten.io.registry import format_of
from corten.io.whole import whole_file

if TYPE_CHECKING:
    import xarray as xr
    import zarr
    from zarr.core.common import JSON

STORE_CHUNK_ENTRIES = 1 << 21


def chunk_shape(shape: Sequence[int], planes: int) -> tuple[int, ...]:
    """Chunks of `planes` planes, their rows cut so that a chunk holds about two million entries."""
    room, cut = max(1, STORE_CHUNK_ENTRIES // planes), []
    for length in reversed(shape[1:]):
        cut.append(min(int(length), max(1, room)))
        room //= cut[-1]
    return (planes, *reversed(cut))


@dataclass(frozen=True)
class ChunkedStore:
    """Arrays of one shape in an unfinished store; blocks may be written in any order and by several threads."""

    arrays: dict[str, zarr.Array]
    group: zarr.Group
    folder: Path
    dims: tuple[str, ...]

    def add(self, shape: Sequence[int], chunks: Sequence[int], dtypes: Mapping[str, np.dtype]) -> None:
        """Create the arrays."""
        from numcodecs import Blosc

        for name, dtype in dtypes.items():
            self.arrays[name] = self.group.create_array(
                name, shape=tuple(shape), chunks=tuple(chunks), dtype=dtype,
                compressors=Blosc("zstd", 1, Blosc.SHUFFLE), fill_value=np.nan if dtype.kind == "f" else None,
                attributes={"_ARRAY_DIMENSIONS": list(self.dims)},
            )  # fmt: skip

    def put_box(self, name: str, box: tuple[slice, ...], values: np.ndarray) -> None:
        """Write a box; calls that run at once must not share chunks."""
        try:
            self.arrays[name][box] = values
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise full_disk(self.folder, values.nbytes, f"a chunk of {name!r}", problem) from None

    def describe(self, attrs: Mapping[str, object], name: str | None = None) -> None:
        """Set attributes of an array, or of the store."""
        (self.group if name is None else self.arrays[name]).attrs.update(cast("dict[str, JSON]", plain(dict(attrs))))


@contextmanager
def write_in_chunks(
    path: str | os.PathLike[str], dims: Sequence[str], labels: xr.Dataset, *, overwrite: bool = False
) -> Iterator[ChunkedStore]:
    """A store to fill, which has its labels already; renamed when the block succeeds, removed when it fails."""
    format_of("x.zarr").refuse_absent()
    import zarr

    target = Path(path)
    with whole_file(target, overwrite, store=True) as temporary:
        try:
            prepare_for_file(labels).to_zarr(temporary, mode="w-", zarr_format=2, consolidated=False)
        except OSError as problem:
            if problem.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise PermissionError(
                f"{target} cannot be written, {target.parent} does not allow it ({problem.strerror}): write elsewhere"
            ) from None
        group = zarr.open_group(temporary, mode="r+", zarr_format=2)
        yield ChunkedStore({}, group, target.parent, tuple(dims))
        zarr.consolidate_metadata(temporary, zarr_format=2)
