"""Intervals of several variables of one Dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from corten.io.dataset import write_netcdf
from corten.results.intervals import Intervals

if TYPE_CHECKING:
    import xarray as xr


class DatasetIntervals(Mapping[str, Intervals]):
    """Estimates and prediction intervals of several variables. Returned by ``dataset.corten.complete()``.

    A mapping from each variable of `dataset` that was filled to its `Intervals`.

    Examples
    --------
    >>> import corten.xarray
    >>> found = dataset.corten.complete(coverage=0.9)                # doctest: +SKIP
    >>> found.estimate["sst"], found["sst"].summary()                # doctest: +SKIP
    """

    def __init__(self, dataset: xr.Dataset, results: Mapping[str, Intervals]) -> None:
        self.dataset, self._results = dataset, dict(results)

    def __getitem__(self, name: str) -> Intervals:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def estimate(self) -> xr.Dataset:
        """The input with its gaps filled; variables that were not filled are unchanged."""
        return self.dataset.assign({name: one.estimate for name, one in self.items()})

    @property
    def lower(self) -> xr.Dataset:
        """Lower bounds of the variables that were filled."""
        return self.dataset[[*self]].assign({name: one.lower for name, one in self.items()})

    @property
    def upper(self) -> xr.Dataset:
        """Upper bounds of the variables that were filled."""
        return self.dataset[[*self]].assign({name: one.upper for name, one in self.items()})

    def summary(self, full: bool = False) -> str:
        """The summaries of all variables as text; `full` as for `Intervals.summary`."""
        return "\n\n".join(str(one.summary(full)) for one in self.values())

    def at(self, coverage: float) -> DatasetIntervals:
        """The intervals at another nominal coverage, between 0 and 1; nothing is fitted again."""
        return DatasetIntervals(self.dataset, {name: one.at(coverage) for name, one in self.items()})

    def to_dataset(self) -> xr.Dataset:
        """The input with its gaps filled, bounds and flags beside each filled variable, by the CF conventions.

        For each variable as `Intervals.to_dataset` gives it; ``corten_settings`` holds the settings of each.
        """
        made, about = self.dataset.copy(), []
        for name, one in self.items():
            found = one.to_dataset(like=self.dataset)
            before = str(self.dataset[name].attrs.get("ancillary_variables", "")).split()
            kept = [other for other in before if other in self.dataset.variables]
            attrs = found[name].attrs
            attrs["ancillary_variables"] = " ".join(dict.fromkeys([*attrs["ancillary_variables"].split(), *kept]))
            made = made.assign({key: found[key] for key in found.data_vars if key == name or key not in made.variables})
            about.append(found.attrs)
        settings = {name: json.loads(attrs["corten_settings"]) for name, attrs in zip(self, about)}
        comment = "\n".join(dict.fromkeys(attrs["comment"] for attrs in about))
        shared = {"comment": comment, "corten_settings": json.dumps(settings, separators=(",", ":"))}
        made.attrs = about[0] | shared
        return made

    def to_netcdf(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `to_dataset()` to a NetCDF file; path and overwrite as for `Intervals.to_netcdf`."""
        return write_netcdf(self.to_dataset(), path, overwrite=overwrite)

    def __getattr__(self, name: str) -> NoReturn:
        """The error for a name that only the result of one variable has."""
        one = next(iter(self.__dict__.get("_results", ())), None)
        remedy = f": use result[{one!r}].{name}" if one is not None and name in dir(self[one]) else ""
        raise AttributeError(f"DatasetIntervals has no {name!r}{remedy}", name=name, obj=self)

    def __repr__(self) -> str:
        return "\n".join(["<DatasetIntervals>", *(f"{name}: {one!r}" for name, one in self.items())])

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self.values())
