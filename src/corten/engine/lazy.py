"""Masks as Dask arrays: turned into spins, and spins into other spins, without being loaded here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, Union

import numpy as np

from corten.engine.memory import parts

if TYPE_CHECKING:
    import dask.array

Planes = Union[np.ndarray, "dask.array.Array"]
"""An array of this machine, or a Dask array that workers load."""


def is_lazy(array: object) -> TypeGuard[dask.array.Array]:
    """Whether an array is a Dask array."""
    return type(array).__module__.split(".")[0] == "dask"


def takes_lazy(engine: object) -> bool:
    """Whether an engine leaves Dask arrays to its workers; for others they are loaded here."""
    return bool(getattr(engine, "lazy", False))


def behind(array: object) -> Any:
    """The Dask array inside a labelled array; anything else as it is."""
    data = None if isinstance(array, np.ndarray) else getattr(array, "data", None)
    return data if is_lazy(data) else array


def lazy_spins(mask: dask.array.Array, domain: Planes | None = None) -> dask.array.Array:
    """A Dask array of booleans (True = observed) or of spins as int8 spins, 0 outside the domain."""
    if mask.dtype == bool:
        spins = 2 * mask.astype(np.int8) - 1
    elif mask.dtype == np.int8:
        spins = mask.map_blocks(check_codes, dtype=np.int8)  # type: ignore[call-arg, arg-type]  # Dask decorates it
    else:
        raise TypeError(f"mask must be boolean (True = observed) or int8 spins, got dtype {mask.dtype}")
    return spins if domain is None else spins * behind(domain).astype(np.int8)


def in_planes(spins: dask.array.Array, change: Callable[[np.ndarray, int], np.ndarray]) -> dask.array.Array:
    """Spins changed block by block: `change(planes, number of the first)`; whole planes, for any chunks."""
    whole = spins.rechunk(dict.fromkeys(range(1, spins.ndim), -1))

    def one(planes: np.ndarray, block_info: dict | None = None) -> np.ndarray:
        assert block_info is not None  # Dask gives it
        return change(planes, block_info[0]["array-location"][0][0])

    return whole.map_blocks(one, dtype=np.int8)


def check_codes(spins: np.ndarray) -> np.ndarray:
    """The spins, if all are -1, 0 or +1."""
    for _, _, part in parts(spins):
        low, high = int(np.min(part)), int(np.max(part))
        if low < -1 or high > 1:
            raise ValueError(f"mask has {low if low < -1 else high}; spins are +1 observed, -1 missing, 0 outside")
    return spins
