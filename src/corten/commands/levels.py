"""Results of several coverages in one file: the first as always, the others beside it as lower_95, upper_95."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from corten.io import LongTable
    from corten.results.intervals import Intervals

__all__ = ["level_name", "write_levels"]


def level_name(coverage: float) -> str:
    """What a further coverage is called in variable names: percent, with _ for the point.

    Example:
        >>> level_name(0.95), level_name(0.999)
        ('95', '99_9')
    """
    return f"{100 * coverage:.10g}".replace(".", "_")


def write_levels(
    path: Path, results: Sequence[Intervals], *, overwrite: bool = False, table: LongTable | None = None
) -> Path:
    """Write results of the same fit at several coverages; the first is the main one."""
    from corten.io import writers
    from corten.io.dataset import write_netcdf, write_zarr
    from corten.io.files import suffix_of
    from corten.io.names import NETCDF
    from corten.io.table import long_form
    from corten.io.whole import whole_file

    first, *others = results
    if not others:
        return writers.write(path, first, overwrite=overwrite, table=table)
    writers.check_target(path, overwrite)
    suffix = suffix_of(path)
    ends = {f"{end}_{level_name(one.coverage)}": (one, end) for one in others for end in ("lower", "upper")}
    if suffix in NETCDF or suffix == ".zarr":
        dataset = first.to_dataset()
        for name, (one, end) in ends.items():
            array = getattr(one, f"{end}_array")
            dataset[name] = (dataset["lower"].dims, array, one._bound_attrs(end))
        return (write_zarr if suffix == ".zarr" else write_netcdf)(dataset, path, overwrite=overwrite)
    with whole_file(path, overwrite) as temporary:
        if suffix in writers._TABLES:
            frame = long_form(first) if table is None else table.to_frame(first)
            for one in others:
                other = long_form(one) if table is None else table.to_frame(one)
                for end in ("lower", "upper"):
                    frame[f"{end}_{level_name(one.coverage)}"] = other[end].to_numpy()
            if suffix == ".parquet":
                frame.to_parquet(temporary, index=False)
            else:
                frame.to_csv(temporary, index=False)
        elif suffix == ".npy":
            bounds = [array for one in results for array in (one.lower_array, one.upper_array)]
            with temporary.open("wb") as stream:
                np.save(stream, np.stack([first.estimate_array, *bounds]))
        else:
            arrays = writers._arrays(first) | {name: getattr(one, f"{end}_array") for name, (one, end) in ends.items()}
            arrays["coverages"] = np.array([one.coverage for one in results])
            if suffix == ".npz":
                writers._save_npz(temporary, arrays)
            else:
                from scipy.io import savemat

                savemat(temporary, arrays, appendmat=False, do_compression=True, long_field_names=True)
    return path
