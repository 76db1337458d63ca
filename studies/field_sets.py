"""Real fields whose truth is known at the gaps: where they are read from, and how each is scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from corten.data.axes import AxisKind

__all__ = ["SETS", "FieldSet", "data_folder", "load_set"]

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class FieldSet:
    """A tensor with gaps and its truth; `score` marks the cells that count."""

    name: str
    truth: np.ndarray = field(repr=False)
    mask: np.ndarray = field(repr=False)
    score: np.ndarray = field(repr=False)
    axes: tuple[str, ...] = ()
    periodic: tuple[str, ...] = ()
    axis_kinds: dict[str | int, AxisKind] = field(default_factory=dict)
    units: str = ""

    @property
    def observed(self) -> Any:
        """What a user would have: a labelled array with NaN in the gaps."""
        import xarray as xr

        values = np.where(self.mask, self.truth, np.nan).astype(np.float32)
        return xr.DataArray(values, dims=self.axes, name=self.name, attrs={"units": self.units})


def data_folder(given: Path | None) -> Path:
    """The folder of the shared data: the one given, or `../shared/data` beside the project."""
    folder = given or ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        raise FileNotFoundError(f"no data folder at {folder}: name one with --data PATH")
    return folder


def load_set(name: str, folder: Path) -> FieldSet:
    """A set by its name, such as `tec-america-1` or `ndvi-50`."""
    if name not in SETS:
        raise ValueError(f"unknown set {name!r}; known are {', '.join(SETS)}")
    file, make = SETS[name]
    path = folder / file
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is not in {folder}: name the data folder with --data PATH")
    with np.load(path, allow_pickle=False) as data:
        return make(name, data)


def _tec(day: int, whole_globe: bool) -> Callable[[str, Any], FieldSet]:
    def make(name: str, data: Any) -> FieldSet:
        columns = slice(None, -1) if whole_globe else slice(None)  # the globe's last meridian repeats its first
        truth = data["tec"][:, columns, 96 * (day - 1) : 96 * day]
        mask = data["mask"][:, columns].astype(bool)
        periodic = ("lon",) if whole_globe else ()
        return FieldSet(name, truth, mask, ~mask, ("lat", "lon", "time"), periodic, units="TECU")

    return make


def _ndvi(share: int) -> Callable[[str, Any], FieldSet]:
    def make(name: str, data: Any) -> FieldSet:
        truth = data["ndvi"]
        mask = data[f"mask{share}"].astype(bool) & np.isfinite(truth)
        score = np.isfinite(truth) & ~mask
        return FieldSet(name, truth, mask, score, ("y", "x", "doy", "year"), (), {"year": "unordered"})

    return make


def _metro(kind: str) -> Callable[[str, Any], FieldSet]:
    def make(name: str, data: Any) -> FieldSet:
        truth = data["flow"].astype(np.float32)
        mask = _mask(kind, truth.shape)
        axes = ("station", "day", "slot")
        return FieldSet(name, truth, mask, ~mask, axes, (), {"station": "unordered"}, "passengers")

    return make


def _air(kind: str) -> Callable[[str, Any], FieldSet]:
    def make(name: str, data: Any) -> FieldSet:
        truth = data["conc"][:, 0, 300:480].astype(np.float32)  # PM2.5 of twelve stations in half a year
        known = np.isfinite(truth)
        mask = known & _mask(kind, truth.shape)
        axes = ("station", "day", "hour")
        return FieldSet(name, truth, mask, known & ~mask, axes, (), {"station": "unordered"}, "ug m-3")

    return make


def _mask(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    from corten.simulate import masks

    if kind == "random":
        return np.asarray(masks.random_mask(shape, 0.4, seed=0))
    if kind == "block":
        return np.asarray(masks.block_mask(shape, 0.4, seed=0))
    return np.asarray(masks.ising_mask(shape, seed=0))


AMERICA, GLOBE = "tec_namerica_20190425-26.npz", "tec_uqrg_global_20190425-26.npz"
NDVI, METRO, AIR = "ndvi_modis_gapfill.npz", "metro_hangzhou.npz", "air_beijing_12stations.npz"
SETS: dict[str, tuple[str, Callable[[str, Any], FieldSet]]] = {
    "tec-america-1": (AMERICA, _tec(1, False)),
    "tec-america-2": (AMERICA, _tec(2, False)),
    "tec-global-1": (GLOBE, _tec(1, True)),
    "tec-global-2": (GLOBE, _tec(2, True)),
    **{f"ndvi-{share}": (NDVI, _ndvi(share)) for share in (20, 30, 40, 50)},
    **{f"metro-{kind}": (METRO, _metro(kind)) for kind in ("random", "block", "ising")},
    **{f"air-{kind}": (AIR, _air(kind)) for kind in ("random", "block", "ising")},
}
