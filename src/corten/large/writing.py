"""The output of a completion from disk or of a Dask array: names, arrays, attributes, and counts for the summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corten.conformal.quantile import rounded_out
from corten.conformal.sketch import ScoreSketch, cells_of
from corten.data.axes import Axis
from corten.data.flags import BEYOND, FORECAST, INFINITE, NEVER, flags
from corten.io.chunked import ChunkedStore
from corten.io.lazy import LazyTensor
from corten.io.names import companion, level_names, refuse_clash, variable_name
from corten.large.gaps import FilledTile, TiledField, TiledModel
from corten.large.tiles import Box, Tile


@dataclass
class Widths:
    """Widths of the finite intervals, their distribution in a sketch, and how many are infinite."""

    infinite: int = 0
    forecast: int = 0
    beyond: int = 0
    total: float = 0.0
    sketch: ScoreSketch = field(default_factory=ScoreSketch)

    @property
    def mean(self) -> float | None:
        return self.total / self.sketch.size if self.sketch.size else None

    @property
    def median(self) -> float | None:
        return float(self.sketch.cutoffs([-np.inf], 0.5)[0, 0]) if self.sketch.size else None


def sum_of(parts: Iterable[Widths]) -> Widths:
    """The widths of all parts together."""
    found = Widths()
    for one in parts:
        found.infinite, found.forecast = found.infinite + one.infinite, found.forecast + one.forecast
        found.beyond, found.total = found.beyond + one.beyond, found.total + one.total
        found.sketch = found.sketch.merge(one.sketch)
    return found


@dataclass(frozen=True)
class Output:
    """The arrays of a result: name and type of the main one, coverages, and limits of the values.

    late: for each axis which positions are forecasts, None for none; never: True at places that are never observed, of
    length 1 along the times.
    """

    main: str
    dtype: np.dtype
    coverages: Sequence[float]
    limits: tuple[float, float] | None
    late: Sequence[np.ndarray | None] = ()
    never: np.ndarray | None = None

    @staticmethod
    def of(lazy: LazyTensor, coverages: Sequence[float], limits: tuple[float, float] | None) -> Output:
        """The arrays of the result of a tensor; a ValueError if one of its labels has the name of such an array."""
        main = variable_name(lazy.name)
        refuse_clash(lazy.labels, main)
        return Output(main, lazy.dtype, coverages, limits)

    def flagged(
        self, axes: Sequence[Axis], has_observed: Sequence[np.ndarray], never: np.ndarray | None = None
    ) -> Output:
        """The same with flags of forecasts, and of places that are never observed."""
        return replace(self, late=[axis.forecast(known) for axis, known in zip(axes, has_observed)], never=never)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Names of the bounds of each coverage."""
        return level_names(self.coverages, self.main)

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """The type of every array, by its name."""
        numbers = dict.fromkeys((self.main, *(bound for pair in self.names for bound in pair)), self.dtype)
        return numbers | {companion(self.main, "flag"): np.dtype(np.int8)}

    def arrays(self, box: Box, filled: FilledTile, widths: Widths) -> Iterator[tuple[str, np.ndarray]]:
        """Bounds, estimate and flags of a box by their names, one at a time; adds to `widths`."""
        values, spins, missing = filled.values, filled.spins, filled.missing
        infinite = missing[:0]
        for level, names in enumerate(self.names):
            low, high = filled.lower[level], filled.upper[level]
            if self.limits is not None:
                low, high = np.clip(low, *self.limits), np.clip(high, *self.limits)
            low, high = rounded_out((low, high), values.dtype)
            for name, bound in zip(names, (low, high)):
                array = values.copy()  # observed entries keep their value; outside the domain there is none
                array.reshape(-1)[missing] = bound
                yield name, array
            if level == 0:
                width = (high - low).astype(np.float64)
                finite = np.isfinite(width)
                widths.infinite, widths.total = int(width.size - finite.sum()), float(width[finite].sum())
                widths.sketch.add(cells_of(width[finite]), np.zeros(int(finite.sum())))
                infinite = missing[~finite]
        estimate = filled.estimate if self.limits is None else np.clip(filled.estimate, *self.limits)
        yield self.main, np.where(spins == -1, estimate, values)
        marks = [(BEYOND, missing[filled.beyond]), (INFINITE, infinite)]
        if self.never is not None:
            here = tuple(one if n > 1 else slice(None) for one, n in zip(box, self.never.shape))
            marks.insert(0, (NEVER, self.never[here]))
        for k, late in enumerate(self.late):
            if late is not None:
                marks.append((FORECAST, late[box[k]].reshape([-1 if j == k else 1 for j in range(values.ndim)])))
        flag = flags(spins, marks)
        widths.forecast = int(np.count_nonzero(flag == FORECAST))
        widths.beyond = int(np.count_nonzero(flag == BEYOND))
        yield companion(self.main, "flag"), flag


@dataclass(frozen=True)
class TileArrays:
    """Makes all arrays of a result for a tile."""

    model: TiledModel
    output: Output

    def of(self, tile: Tile, values: np.ndarray, spins: np.ndarray) -> tuple[dict[str, np.ndarray], Widths]:
        """Estimate, bounds and flags of the core by their names, from the values and spins of the padded box."""
        widths = Widths()
        filled = self.model.fill(tile, values, spins, self.output.coverages)
        return dict(self.output.arrays(tile.core, filled, widths)), widths


def put_tile(tile: Tile, *, data: TiledField, arrays: TileArrays, store: ChunkedStore) -> Widths:
    """Fill and write one tile; the chunks of the store are the tiles."""
    found, widths = arrays.of(tile, *data.read(tile.padded))
    for name, array in found.items():
        store.put_box(name, tile.core, array)
    return widths
