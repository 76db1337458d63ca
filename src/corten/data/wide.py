"""Wide tables: a pandas DataFrame with one column per station (say) as a labelled matrix, and back."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from pandas.api.extensions import ExtensionDtype

ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")
OTHER_DATE = re.compile(r"(\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./]\d{1,2}[./]\d{1,2})([T ]|$)")


@dataclass(frozen=True, eq=False)
class WideLabels:
    """What a wide table has beside its numbers: index, columns, and the types of columns that NumPy does not know."""

    index: pd.Index
    columns: pd.Index
    types: tuple[str | None, ...]

    def frame(self, array: np.ndarray) -> pd.DataFrame:
        """A matrix as a table with these labels."""
        import pandas as pd

        made = pd.DataFrame(array, index=self.index, columns=self.columns)
        if array.dtype.kind == "f":
            for k, kind in enumerate(self.types):
                if kind is not None:
                    made.isetitem(k, made.iloc[:, k].astype(kind))
        return made

    def joined(self, new: WideLabels, axis: int, kept: np.ndarray, order: np.ndarray) -> WideLabels:
        """The labels of some old and all new rows (axis 0) or columns (axis 1), in a given order."""
        if axis == 0:
            return replace(self, index=self.index[kept].append(new.index)[order])
        types = np.concatenate([np.array(self.types, object)[kept], np.array(new.types, object)])[order]
        return replace(self, columns=self.columns[kept].append(new.columns)[order], types=tuple(types))

    def flags(
        self, where: ArrayLike | pd.DataFrame | xr.DataArray | None
    ) -> ArrayLike | pd.DataFrame | xr.DataArray | None:
        """A domain that is given as a table, as an array; its labels must be those of the values."""
        if not is_frame(where):
            return where
        if not (where.index.equals(self.index) and where.columns.equals(self.columns)):
            raise ValueError("where and x have different labels: align them first (where.reindex_like(x))")
        return where.to_numpy()


def is_frame(x: object) -> TypeGuard[pd.DataFrame]:
    """Whether x is a pandas.DataFrame, without importing pandas."""
    return any(c.__name__ == "DataFrame" and c.__module__.split(".")[0] == "pandas" for c in type(x).__mro__)


def is_foreign_frame(x: object) -> bool:
    """Whether x is a table of another library (polars, pyarrow) that pandas can read."""
    if is_frame(x) or type(x).__module__.split(".")[0] == "xarray":
        return False
    return hasattr(x, "__dataframe__") or (hasattr(x, "columns") and hasattr(x, "to_pandas"))


def frame_of(x: object) -> pd.DataFrame:
    """A table of another library as a pandas.DataFrame.

    Such tables have no index: a first column of dates or text becomes the labels of the rows.
    """
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions of pandas announce the end of the interchange protocol
            frame = x.to_pandas() if hasattr(x, "to_pandas") else pd.api.interchange.from_dataframe(x)
    except ImportError as problem:
        raise ImportError(
            f"x is a table of {type(x).__module__.split('.')[0]}, which needs pyarrow to become a pandas table: "
            f"pip install 'corten[files]' ({problem})"
        ) from None
    if isinstance(frame.index, pd.RangeIndex) and frame.shape[1] and not _is_number(frame.dtypes.iloc[0]):
        return frame.set_index(frame.columns[0])
    return frame


def matrix_of(frame: pd.DataFrame) -> tuple[xr.DataArray, WideLabels]:
    """The numbers of a wide table with its labels, and the way back.

    Rows and columns that pandas merely numbers from 0 have no labels.
    """
    import pandas as pd
    import xarray as xr

    kinds = list(frame.dtypes)
    odd = [str(name) for name, kind in zip(frame.columns, kinds) if not _is_number(kind)]
    if odd:
        more = ", ..." if len(odd) > 4 else ""
        which = f"column {odd[0]!r} holds" if len(odd) == 1 else f"columns {', '.join(odd[:4])}{more} hold"
        raise TypeError(
            f"x is a table whose {which} no numbers: make labels the index (x.set_index({odd[0]!r})) and drop other "
            "columns; a long table, with one row per entry, is filled by corten.complete_table(x, value=...)"
        )
    index = frame.index
    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) and not (
        index.is_unique and (index.is_monotonic_increasing or index.is_monotonic_decreasing)
    ):
        cure = "sort it (x.sort_index())" if index.is_unique else "average repeated rows (x.groupby(level=0).mean())"
        raise ValueError(f"the times in the index of x {'are not sorted' if index.is_unique else 'repeat'}: {cure}")
    single = all(kind == np.float32 for kind in kinds) and bool(kinds)
    values = frame.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)
    named = "time" if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) else "row"
    rows = named if index.name is None else str(index.name)
    across = "column" if frame.columns.name is None else str(frame.columns.name)
    dims = (rows, across if across != rows else f"{across}_2")
    coords = {dim: labels for dim, one in zip(dims, (index, frame.columns)) if (labels := labels_of(one)) is not None}
    about = {key: frame.attrs[key] for key in ("units", "long_name") if isinstance(frame.attrs.get(key), str)}
    data = xr.DataArray(values, dims=dims, coords={dim: (dim, one) for dim, one in coords.items()}, attrs=about)
    types = tuple(None if isinstance(kind, np.dtype) else _as_float(kind) for kind in kinds)
    return data, WideLabels(index, frame.columns, types)


def labels_of(index: pd.Index) -> np.ndarray | pd.DatetimeIndex | None:
    """The labels of rows or columns as a coordinate; None where pandas merely numbers them from 0.

    Numbers that are not sorted are names, such as the numbers of stations, and become text. Text that is sorted dates
    (2024-01-31, 2024-01-31 06:00), as pandas.read_csv leaves them, becomes times.
    """
    import pandas as pd

    if isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1:
        return None
    if isinstance(index, pd.PeriodIndex):
        return index.to_timestamp()
    if isinstance(index, pd.DatetimeIndex):
        return index
    if index.nlevels > 1:
        return np.array([" ".join(map(str, one)) for one in index], dtype=str)
    sorted_once = index.is_unique and (index.is_monotonic_increasing or index.is_monotonic_decreasing)
    if index.dtype.kind in "iufm" and sorted_once:
        return index.to_numpy()
    text = np.array([str(one) for one in index], dtype=str)
    times = _dates(text)
    if times is None:
        refuse_other_dates(text, "labels of x", "convert them (pd.to_datetime(x.index, dayfirst=True))")
    return text if times is None else times


def refuse_other_dates(text: np.ndarray, what: str, cure: str) -> None:
    """Refuse text that is dates in another form than 2024-01-31: as names they would have no order."""
    if len(text) and all(map(OTHER_DATE.match, text)):
        raise ValueError(f"{what} are dates such as {text[0]!r}, where day and month could be confused: {cure}")


def _dates(text: np.ndarray) -> pd.DatetimeIndex | None:
    """Sorted dates that are written as text, as times; None for other text."""
    import pandas as pd

    if not text.size or not all(map(ISO_DATE.match, text)):
        return None
    try:
        times = pd.to_datetime(text, format="ISO8601", utc=True).tz_localize(None)
    except ValueError:
        return None
    return times if times.is_unique and (times.is_monotonic_increasing or times.is_monotonic_decreasing) else None


def _is_number(kind: np.dtype | ExtensionDtype) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(kind)) and not pd.api.types.is_complex_dtype(kind)


def _as_float(kind: np.dtype | ExtensionDtype) -> str:
    """The name of the type of floating-point numbers in the family of a type of pandas or Arrow."""
    import pandas as pd

    if isinstance(kind, pd.ArrowDtype):
        return "float[pyarrow]" if str(kind) == "float[pyarrow]" else "double[pyarrow]"
    return "Float32" if str(kind) == "Float32" else "Float64"
