"""Keeps the rounds of a long fit on disk, so that a fit that was killed goes on where it stood, to the same bits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from corten.archive import read_archive, write_archive
from corten.completion.protocol import Completion, Fill, Prepared, PreparedMix
from corten.data.choices import Choice

__all__ = ["Checkpoint"]

FORMAT, VERSION = "corten round", 1
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass
class Checkpoint:
    """A folder for the rounds of a fit that are done. Leaving the block well removes them; a kill or an error does not.

    Rounds are known by a hash of the data, the entries they train on, all settings and the versions of corten, NumPy,
    SciPy and Numba: with other data or settings the fit starts clean. Files are written whole or not at all and carry
    checksums; a damaged one is made again. A completion that is a function of your own is not kept: nobody knows
    whether its code is still the same.

    kept: rounds that were found and not done again.

    Example:
        >>> with Checkpoint("tec.checkpoint") as checkpoint:                      # doctest: +SKIP
        ...     result = corten.complete(x, checkpoint=checkpoint)
        ...     result.to_netcdf("filled.nc")
    """

    folder: str | os.PathLike[str]
    kept: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        folder = Path(self.folder)
        there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        if there.exists() and not there.is_dir():
            raise NotADirectoryError(f"{there} is a file, and a checkpoint is a folder: give another name")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.clear()

    def clear(self) -> None:
        """Remove the rounds, and the folder if nothing else is in it."""
        for file in Path(self.folder).glob("*.round"):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            Path(self.folder).rmdir()

    def keeping(self, completion: Completion) -> Completion:
        """The same completion, which looks here before it fills and leaves here what it filled."""
        return completion if _ADDRESS.search(repr(completion)) else _Keeping(completion, self)

    def _fill(self, key: str, shape: tuple[int, ...], work: Callable[[], Fill]) -> Fill:
        path = Path(self.folder) / f"{key}.round"
        if path.exists():
            # A damaged file is as good as none, whatever it holds: the round is done again and the file replaced.
            with suppress(ValueError, KeyError, TypeError):
                content, arrays = read_archive(path, FORMAT, VERSION)
                members = {name: arrays[f"m{k}"] for k, name in enumerate(content["members"])}
                fill = Fill(arrays["estimate"], members)
                if content["leverage"]:
                    fill = replace(fill, leverage=(lambda: _leverage(work)))
                if {shape} != {one.shape for one in (fill.estimate, *members.values())}:
                    raise ValueError(f"{path} holds another shape than {shape}")
                self.kept += 1
                return fill
        fill = work()
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        arrays = {"estimate": fill.estimate} | {f"m{k}": one for k, one in enumerate(fill.members.values())}
        content = {"members": list(fill.members), "leverage": fill.leverage is not None}
        write_archive(path, FORMAT, VERSION, content, arrays, overwrite=True, packed=False)
        return fill


def _leverage(work: Callable[[], Fill]) -> np.ndarray:
    """Asked for rarely: filled again rather than kept."""
    leverage = work().leverage
    assert leverage is not None
    return leverage()


@dataclass(frozen=True)
class _Keeping:
    completion: Completion
    checkpoint: Checkpoint

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> Prepared:
        known = sha256(f"{_versions()} {self.completion!r} {seed} {values.dtype} {values.shape}".encode())
        for axis in axes:
            known.update(f"{axis.name} {axis.kind} {axis.periodic} {axis.length}".encode())
            if axis.coordinates is not None:
                known.update(str(axis.coordinates.tolist()).encode())
        known.update(np.ascontiguousarray(np.where(mask, values, 0)).tobytes())
        known.update(np.packbits(mask).tobytes())
        prepared = self.completion.prepare(values, mask, axes, seed)
        return _Kept(prepared, self.checkpoint, known.hexdigest())


@dataclass(frozen=True)
class _Kept:
    prepared: Prepared
    checkpoint: Checkpoint
    known: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.prepared.choices

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        key = sha256(self.known.encode())
        key.update(np.ascontiguousarray(np.where(mask, values, 0)).tobytes())
        key.update(np.packbits(mask).tobytes())
        return self.checkpoint._fill(key.hexdigest()[:32], values.shape, lambda: self.prepared.fill(values, mask))

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedMix:
        """What has learned how to mix fills once more and is not kept."""
        return cast(PreparedMix, self.prepared).combine(members, truth)

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        return cast(PreparedMix, self.prepared).mix(members)


@cache
def _versions() -> str:
    from corten import __version__

    return f"corten {__version__} " + " ".join(f"{one} {version(one)}" for one in ("numpy", "scipy", "numba"))
