"""Read what `corten complete` wrote: the estimate, and the intervals of every coverage in a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corten.data.flags import BEYOND, FILLED, FORECAST, INFINITE, NEVER
from corten.io.names import companion

if TYPE_CHECKING:
    import numpy as np

    from corten.evidence.metrics import IntervalsLike

IS_FILLED = (FILLED, INFINITE, FORECAST, BEYOND, NEVER)
_MAINS = ("estimate", "lower", "upper", "flag")
_BOUND = re.compile(r"(lower|upper)(_\d+(?:_\d+)?)?")


@dataclass(frozen=True)
class StoredLevel:
    """Intervals of one coverage as a file keeps them: enough for `corten.evidence.metrics`."""

    lower: Any
    upper: Any
    missing: np.ndarray
    coverage: float

    def at(self, coverage: float) -> IntervalsLike:
        raise ValueError(f"the file holds coverage {self.coverage:g} only; save the fit (--save) to ask for others")


def read_result(
    path: Path, coverage: float | None, places: list[str] | None, variable: str | None = None
) -> tuple[Any, list[Any]]:
    """The estimate and the intervals of every coverage; coverage and places are for files that do not store them.

    variable: which one, where a file holds the results of several.

    Formats of C libraries are read in another process; a damaged file is a ValueError that names it.
    """
    from corten.io.files import Unchanged, existing, suffix_of
    from corten.io.registry import WRITABLE

    suffix, file = suffix_of(path), Unchanged(existing(path))
    if suffix == ".npy":
        found = _stacked(path, coverage)
    elif suffix in WRITABLE:
        found = _variables(path, coverage, places, variable)
    else:
        found = _fit(path)
    file.check(whole=True)
    return found


def _fit(path: Path) -> tuple[Any, list[Any]]:
    """A saved fit; its bounds are computed here, which fails if parts of a forged file do not match."""
    from corten.io.files import reading
    from corten.results.saving import load

    result = load(path).intervals(0.9)
    with reading(path, "a saved fit"):
        _ = result.lower, result.upper
        return result.estimate, [result]


def _variables(
    path: Path, coverage: float | None, places: list[str] | None, variable: str | None
) -> tuple[Any, list[Any]]:
    """Variables of a file, or columns of a long table: places, estimate, lower, upper, flag (of NetCDF: sst, sst_lower,
    sst_upper, sst_flag).
    """
    from corten import io
    from corten.io.files import suffix_of
    from corten.io.formats import contents
    from corten.io.registry import TABLES

    shapes = contents(path, careful=True)
    names = list(shapes)
    table = suffix_of(path) in TABLES
    if table and "estimate" not in names:
        return _wide(path, names, coverage)
    main = _main(path, names, variable)
    before = "" if main == "estimate" else companion(main, "")
    parts = {name.removeprefix(before): name for name in names if name.startswith(before)}
    kept = {"estimate": main} | {what: name for what, name in parts.items() if _is_part(what)}
    # A long table keeps the column of values that was filled, beside its coordinates.
    axes = (places or [name for name in names[: names.index("estimate")] if name != variable]) if table else None
    read = {what: io.read(path, name, axes=axes, careful=True).data for what, name in kept.items()}
    asked = getattr(read["lower"], "attrs", {}).get("coverage", coverage)
    if axes is None and "coverage" in shapes:
        if prod(shapes["coverage"]) != 1:
            raise ValueError(f"{path}: 'coverage' has shape {shapes['coverage']}: one number is expected")
        asked = io.read(path, "coverage", careful=True).data
    return read["estimate"], _levels(path, read, _level(path, asked))


def _wide(path: Path, names: list[str], coverage: float | None) -> tuple[Any, list[Any]]:
    """The columns of a wide table: labels of the rows, A, B, ..., then A_lower, A_upper, A_flag, B_lower, ..."""
    from corten.io.formats import read_columns
    from corten.io.wide import from_wide

    mains = _filled(names)
    if not mains:
        raise _no_result(path, names)
    frame = read_columns(path, careful=True)
    first = [name for name in map(str, frame.columns[:1]) if name not in mains]
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    after = dict.fromkeys(name.removeprefix(companion(mains[0], "")) for name in names if name.startswith(mains[0]))
    kept = {"estimate": mains} | {what: [companion(one, what) for one in mains] for what in after if _is_part(what)}
    absent = [name for columns in kept.values() for name in columns if name not in frame.columns]
    if absent:
        raise ValueError(f"{path} is not a result of corten complete: it has no column {absent[0]!r}")
    read = {
        what: from_wide(frame[[*first, *columns]].set_axis([*first, *mains], axis=1), source=str(path)).data
        for what, columns in kept.items()
    }
    return read["estimate"], _levels(path, read, _level(path, coverage))


def _filled(names: list[str]) -> list[str]:
    """Variables with bounds and flags."""
    return [name for name in names if {companion(name, what) for what in _MAINS[1:]} <= set(names)]


def _no_result(path: Path, names: list[str]) -> ValueError:
    return ValueError(
        f"{path} is not a result of corten complete: it has {', '.join(names)}, and no variable with a lower and an "
        "upper bound and a flag"
    )


def _main(path: Path, names: list[str], variable: str | None) -> str:
    """The variable of a result that holds the estimate."""
    if set(_MAINS) <= set(names):
        return "estimate"
    found = _filled(names)
    if len(found) == 1:
        return found[0]
    if variable in found:
        return variable
    if found:
        raise ValueError(f"{path} has several filled variables, {', '.join(found)}: say which variable (--variable)")
    raise _no_result(path, names)


def _is_part(what: str) -> bool:
    """Whether a name is that of a bound, "lower" or "upper_95", or of the flags."""
    return what == "flag" or _BOUND.fullmatch(what) is not None


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
    missing = np.isin(np.asarray(read["flag"]), IS_FILLED)
    levels = []
    for name in (name for name in read if name.startswith("lower")):
        upper = name.replace("lower", "upper")
        if upper not in read:
            raise ValueError(f"{path} is not a result of corten complete: it has {name!r} and not {upper!r}")
        percent = name.removeprefix("lower_").replace("_", ".")
        level = main if name == "lower" else _level(path, round(float(percent) / 100, 12))
        levels.append(StoredLevel(read[name], read[upper], missing, level))
    return sorted(levels, key=lambda one: one.lower is not read["lower"])


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
