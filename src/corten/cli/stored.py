"""Read what `corten complete` wrote: the estimate, and the intervals of every coverage in a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corten.data import flags

if TYPE_CHECKING:
    import numpy as np

    from corten.evidence.metrics import IntervalsLike

__all__ = ["StoredLevel", "read_result"]

FILLED = (flags.FILLED, flags.INFINITE, flags.FORECAST, flags.BEYOND)
_MAINS = ("estimate", "lower", "upper", "flag")
_FURTHER = re.compile(r"^lower_(\d+(?:_\d+)?)$")


@dataclass(frozen=True)
class StoredLevel:
    """Intervals of one coverage as a file keeps them: enough for `corten.evidence.metrics`."""

    lower: Any
    upper: Any
    missing: np.ndarray
    coverage: float

    def at(self, coverage: float) -> IntervalsLike:
        raise ValueError(f"the file holds coverage {self.coverage:g} only; save the fit (--save) to ask for others")


def read_result(path: Path, coverage: float | None, places: list[str] | None) -> tuple[Any, list[Any]]:
    """The estimate and the intervals of every coverage; coverage and places are for files that do not store them.

    Formats of C libraries are read in another process; a damaged file is a ValueError that names it.
    """
    from corten.io.files import Unchanged, existing, suffix_of
    from corten.io.registry import WRITABLE

    suffix, file = suffix_of(path), Unchanged(existing(path))
    if suffix == ".npy":
        found = _stacked(path, coverage)
    elif suffix in WRITABLE:
        found = _variables(path, coverage, places)
    else:
        found = _fit(path)
    file.check(whole=True)
    return found


def _fit(path: Path) -> tuple[Any, list[Any]]:
    """A saved fit; its bounds are computed here, which fails if parts of a forged file do not match."""
    from corten.io.files import plain_error
    from corten.results.saving import load

    result = load(path).intervals(0.9)
    try:
        _ = result.lower, result.upper
        return result.estimate, [result]
    except Exception as problem:
        raise plain_error(path, "a saved fit", problem) from None


def _variables(path: Path, coverage: float | None, places: list[str] | None) -> tuple[Any, list[Any]]:
    """Variables of a file, or columns of a long table: places, estimate, lower, upper, flag."""
    from corten import io
    from corten.io.files import suffix_of
    from corten.io.formats import contents
    from corten.io.registry import TABLES

    shapes = contents(path, careful=True)
    names = list(shapes)
    if not set(_MAINS) <= set(names):
        raise ValueError(
            f"{path} is not a result of corten complete: it has {', '.join(names)}, not {', '.join(sorted(_MAINS))}"
        )
    axes = None
    if suffix_of(path) in TABLES:
        first = names.index("estimate")
        axes, names = places or names[:first], names[first:]
    read = {
        name: io.read(path, name, axes=axes, careful=True).data for name in names if name in _MAINS or _is_bound(name)
    }
    main = getattr(read["lower"], "attrs", {}).get("coverage", coverage)
    if axes is None and "coverage" in shapes:
        if prod(shapes["coverage"]) != 1:
            raise ValueError(f"{path}: 'coverage' has shape {shapes['coverage']}: one number is expected")
        main = io.read(path, "coverage", careful=True).data
    return read["estimate"], _levels(path, read, _level(path, main))


def _levels(path: Path, read: Mapping[str, Any], main: float) -> list[StoredLevel]:
    import numpy as np

    shape = np.shape(read["estimate"])
    for name, array in read.items():
        kind = np.asarray(array).dtype
        if kind.kind not in "biuf" or np.shape(array) != shape:
            raise ValueError(
                f"{path}: {name!r} has dtype {kind} and shape {np.shape(array)}: numbers in the shape of the estimate, "
                f"{shape}, are expected"
            )
    missing = np.isin(np.asarray(read["flag"]), FILLED)
    levels = [StoredLevel(read["lower"], read["upper"], missing, main)]
    for name in read:
        if _FURTHER.match(name):
            upper = name.replace("lower", "upper")
            if upper not in read:
                raise ValueError(f"{path} is not a result of corten complete: it has {name!r} and not {upper!r}")
            levels.append(StoredLevel(read[name], read[upper], missing, _level(path, _percent(name))))
    return levels


def _stacked(path: Path, coverage: float | None) -> tuple[Any, list[Any]]:
    import numpy as np

    from corten import io

    stack = np.asarray(io.read(path).data)
    if stack.ndim < 3 or stack.shape[0] < 3 or stack.dtype.kind not in "biuf":
        raise ValueError(
            f"{path} is not a result of corten complete: its shape is {stack.shape}, its dtype {stack.dtype}"
        )
    estimate, lower, upper = stack[:3]
    # An observed entry has zero width; a filled one that has it too is covered by exact equality alone.
    return estimate, [StoredLevel(lower, upper, lower != upper, _level(path, coverage))]


def _level(path: Path, coverage: Any) -> float:
    import numpy as np

    from corten.data.coverage import check_coverage

    if coverage is None:
        raise ValueError(f"{path} does not store its coverage: give it, as --coverage 0.9 (.nc .h5 .npz store it)")
    try:
        return check_coverage(np.asarray(coverage, np.float64).item())
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None


def _is_bound(name: str) -> bool:
    return _FURTHER.match(name.replace("upper", "lower")) is not None


def _percent(name: str) -> float:
    return round(float(name.removeprefix("lower_").replace("_", ".")) / 100, 12)
