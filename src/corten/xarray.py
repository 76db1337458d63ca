"""The accessor `corten` of xarray: ``array.corten.complete()`` and ``dataset.corten.complete()``.

It is registered by ``import corten.xarray``, and by any use of corten after xarray was imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from corten.results.intervals import Intervals
    from corten.results.several import DatasetIntervals


@xr.register_dataarray_accessor("corten")
class DataArrayAccessor:
    """``array.corten``: corten for one DataArray."""

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    def complete(self, coverage: float = 0.9, **options: Any) -> Intervals:
        """Estimate the missing entries, with a prediction interval for each: `corten.complete` of this array.

        Examples
        --------
        >>> import corten.xarray
        >>> result = dataset["sst"].corten.complete(coverage=0.9)        # doctest: +SKIP
        """
        from corten.functions import complete

        return complete(self._array, coverage, **options)


@xr.register_dataset_accessor("corten")
class DatasetAccessor:
    """``dataset.corten``: corten for the variables of a Dataset."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def complete(
        self,
        coverage: float = 0.9,
        *,
        variables: Sequence[str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> DatasetIntervals:
        """Estimate the missing entries of several variables, each by itself.

        Parameters
        ----------
        coverage : float, default 0.9
            Nominal coverage of every variable, between 0 and 1.
        variables : sequence of str, optional
            The variables to fill. Default: all of floating-point numbers with two or more axes and missing entries,
            but for bounds of coordinates and flags that belong to another variable.
        settings : mapping from variable to options, optional
            Options of single variables, such as ``{"rain": {"transform": "log"}}``.
        **options
            Options of `corten.complete` for all variables.

        Returns
        -------
        DatasetIntervals
            The result of each variable, and Datasets of estimates and bounds.

        Examples
        --------
        >>> import corten.xarray
        >>> found = dataset.corten.complete(settings={"rain": {"bounds": (0, None)}})   # doctest: +SKIP
        >>> found.to_netcdf("filled.nc")                                                # doctest: +SKIP
        """
        from corten.functions import complete
        from corten.results.several import DatasetIntervals

        chosen, own = self._chosen(variables), dict(settings or {})
        unknown = [name for name in own if name not in chosen]
        if unknown:
            raise ValueError(f"settings names {unknown[0]!r}, which is not filled; filled are {', '.join(chosen)}")
        dataset = self._dataset
        given = {name: {"coverage": coverage, **options, **own.get(name, {})} for name in chosen}
        results = {name: complete(dataset[name], **self._with_land(name, given[name])) for name in chosen}
        return DatasetIntervals(dataset, results)

    def _with_land(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options with a domain, if a mask of the Dataset marks places of the variable that are never observed."""
        from corten.data.never_observed import is_mask_name, masks_of, skip_never_observed
        from corten.data.observed import ObservedTensor

        x, others = self._dataset[name], self._dataset.drop_vars(name).data_vars
        may_have_mask = any(is_mask_name(str(key), one.attrs) for key, one in others.items())
        if not may_have_mask or options.get("where") is not None or options.get("fill_never_observed"):
            return options
        observed = ObservedTensor.of(x, missing_value=options.get("missing_value"))
        masks = masks_of(observed, others)
        domain = skip_never_observed(observed, masks=masks).domain if masks else None
        return options if domain is None else options | {"where": x.copy(data=domain)}

    def _chosen(self, variables: Sequence[str] | None) -> list[str]:
        from corten.data.never_observed import is_mask_name
        from corten.io.stores import of_dataset

        known = [str(name) for name in self._dataset.data_vars]
        if variables is not None:
            unknown = [name for name in variables if name not in known]
            if unknown or isinstance(variables, str):
                raise ValueError(f"variables is {variables!r}: give a list of names from {', '.join(known)}")
            return list(variables)
        found = [
            name
            for name, one in of_dataset(self._dataset).items()
            if one.is_tensor
            and one.dtype.kind == "f"
            and bool(self._dataset[name].isnull().any())
            and not is_mask_name(name)
        ]
        if not found:
            there = f"the variables are {', '.join(known)}" if known else "the Dataset is empty"
            raise ValueError(f"no variable of real numbers with two or more axes has missing entries; {there}")
        return found
