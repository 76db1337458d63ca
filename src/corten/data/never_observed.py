"""Places without any observation, such as land in maps of the sea: found, reported, and skipped where they are land.

A place is a position of all axes but time (a pixel, a station). One that is never observed is skipped if a mask of land
and sea marks it, or if the variable is one of the sea (or of land) and never observed places are not merely rarely
observed ones. All others are filled, as without this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

__all__ = ["CODE", "NeverObserved", "find_never_observed", "is_mask_name", "mask_classes", "skip_never_observed"]

CODE = "never_observed"  # of the record
MASK_NAMES = {
    "land", "land_mask", "landmask", "lsm", "land_sea_mask", "landsea_mask", "landseamask", "sea", "sea_mask",
    "seamask", "ocean", "ocean_mask", "mask", "wet", "tmask", "mask_rho", "is_land", "is_sea", "is_ocean",
}  # fmt: skip
MASK_STANDARD_NAMES = {"land_binary_mask", "sea_binary_mask", "land_area_fraction", "sea_area_fraction"}
SEA = re.compile(r"sea_(surface|water|ice|floor)|ocean|(^|_)(sst|ssh|sss|sla|adt|chl|chla|chlor_a|zos|thetao)($|_)")
LAND = re.compile(r"soil|land_surface|leaf_area|vegetation|(^|_)(lst|ndvi|evi|lai)($|_)")
MAX_CLASSES = 32  # of a mask; a field with more different values is a fraction, or no mask
MAX_OBSERVED_SHARE = 0.05  # of the places of a class of a mask that is outside: masks are shifted by a pixel at coasts
MIN_TIMES = 10  # below which a place that is only rarely observed is not told apart from one that never is
RARE_SHARE, MIN_RATIO = 0.1, 2.0  # never observed places must outnumber those observed in at most a tenth of the times


@dataclass(frozen=True)
class NeverObserved:
    """Places of a tensor without any observation.

    places: True at them, of length 1 along the axes in `along`; entries: how many entries they have.
    """

    places: np.ndarray
    along: tuple[int, ...]
    entries: int

    @property
    def count(self) -> int:
        """The number of places."""
        return int(np.count_nonzero(self.places))


def find_never_observed(observed: ObservedTensor) -> NeverObserved | None:
    """The places without any observation, or None if there are none.

    Times are the axes over which places are observed. Without an axis of time, and without axes of latitude and
    longitude, it is the axis along which most missing entries lie in lines without any observation.

    Examples
    --------
    >>> x = np.ones((3, 4, 5))
    >>> x[0, 1] = np.nan
    >>> found = find_never_observed(ObservedTensor.of(x))
    >>> found.count, found.entries
    (1, 5)
    """
    axes, every = observed.axes, range(len(observed.axes))
    times = tuple(k for k in every if axes[k].is_time and axes[k].length > 1)
    maps = {k for k in every if axes[k].name.lower() in ("lat", "lon", "latitude", "longitude", "x", "y")}
    if not times and len(maps) >= 2:
        times = tuple(k for k in every if k not in maps)
    candidates = [times] if times else [(k,) for k in every if observed.kind != "dataarray"]
    found = [_never(observed, along) for along in candidates if len(along) < len(axes)]
    best = max(found, key=lambda one: one.entries, default=None)
    return best if best is not None and best.entries else None


def _never(observed: ObservedTensor, along: tuple[int, ...]) -> NeverObserved:
    places = np.asarray(~observed.mask.any(axis=along, keepdims=True))
    places &= observed.missing.any(axis=along, keepdims=True)
    return NeverObserved(places, along, int(np.count_nonzero(observed.missing & places)))


def skip_never_observed(
    observed: ObservedTensor, *, fill: bool = False, masks: Mapping[str, np.ndarray] | None = None
) -> ObservedTensor:
    """The tensor with never observed places outside its domain where they are land (or sea), and a record of them.

    Parameters
    ----------
    observed : ObservedTensor
        The tensor. If it has a domain already, nothing is skipped: the domain was given.
    fill : bool, default False
        Whether such places are filled nevertheless.
    masks : mapping from str to array, optional
        Masks of land and sea beside the variable, each of a shape that broadcasts to that of the tensor. Coordinates
        of a DataArray that are such masks are found here.

    Returns
    -------
    ObservedTensor
    """
    if any(choice.code == CODE for choice in observed.choices):
        return observed
    found = find_never_observed(observed)
    if found is None:
        return observed
    axes = [axis.name for k, axis in enumerate(observed.axes) if k not in found.along]
    what = f"{found.count:,} positions of {', '.join(axes)} ({found.entries:,} entries) have no observation"
    given = {"places": found.count, "entries": found.entries}
    outside, why = (None, "") if fill or observed.domain is not None else _outside(observed, found, masks or {})
    if outside is None or not outside.any():
        because = f"{what} and are filled; mark by where= what need not be filled"
        choice = Choice("never observed", "filled", because, code=CODE, values={**given, "skipped": 0})
        return replace(observed, choices=(*observed.choices, choice))
    domain = np.array(np.broadcast_to(~outside, observed.shape), order="C")
    domain.setflags(write=False)
    skipped = int(np.count_nonzero(~domain))
    because = f"{what}; {skipped:,} entries are not filled: {why}. fill_never_observed=True fills them"
    values = {**given, "skipped": skipped, "places_skipped": int(np.count_nonzero(outside)), "why": why}
    choice = Choice("never observed", "skipped", because, code=CODE, values=values)
    return replace(observed, domain=domain, choices=(*observed.choices, choice))


def _outside(
    observed: ObservedTensor, found: NeverObserved, masks: Mapping[str, np.ndarray]
) -> tuple[np.ndarray | None, str]:
    """The places to skip and the reason; None if nothing suggests that they are land or sea."""
    for name, mask in {**_masks_of(observed), **masks}.items():
        marked = _marked(observed, found, mask)
        if marked is not None:
            return found.places & marked, f"the mask {name!r} marks them"
    name = " ".join(str(one).lower() for one in (observed.attrs.get("standard_name", ""), observed.name or ""))
    sea, land = (any(kind.search(word) for word in name.split()) for kind in (SEA, LAND))
    if sea == land:
        return None, ""
    seen = observed.mask.sum(axis=found.along, keepdims=True)
    times = int(np.prod([observed.shape[k] for k in found.along]))
    rare = int(np.count_nonzero((seen > 0) & (seen <= max(1.0, RARE_SHARE * times))))
    if times < MIN_TIMES or found.count < MIN_RATIO * max(rare, 1):
        return None, ""
    return found.places, f"a variable of {'the sea' if sea else 'land'} has no values on {'land' if sea else 'water'}"


def _marked(observed: ObservedTensor, found: NeverObserved, mask: np.ndarray) -> np.ndarray | None:
    """The places that a mask marks as outside: those of its classes in which hardly any place is observed."""
    classes = mask_classes(mask)
    if classes is None or classes.ndim != len(observed.shape):
        return None
    still = all(classes.shape[k] == 1 for k in found.along)  # the mask does not change in time
    shape = found.places.shape if still else observed.shape
    seen = np.broadcast_to(observed.mask.any(axis=found.along, keepdims=True), shape)
    classes = np.broadcast_to(classes, shape)
    shares = {one: float(seen[classes == one].mean()) for one in np.unique(classes)}
    outside = [one for one, share in shares.items() if share <= MAX_OBSERVED_SHARE]
    if not outside or len(outside) == len(shares):
        return None
    return np.asarray(np.isin(classes, outside).all(axis=found.along, keepdims=True))


def _masks_of(observed: ObservedTensor) -> dict[str, np.ndarray]:
    """Masks among the coordinates of a DataArray, with length 1 along the axes that they do not have."""
    found: dict[str, np.ndarray] = {}
    dims = [axis.dim for axis in observed.axes]
    for key, one in ({} if observed.coords is None else observed.coords).items():
        if key not in dims and one.ndim and set(one.dims) <= set(dims) and is_mask_name(str(key), one.attrs):
            ordered = one.transpose(*[dim for dim in dims if dim in one.dims])
            found[str(key)] = np.asarray(ordered.values).reshape([one.sizes.get(dim, 1) for dim in dims])
    return found


def is_mask_name(name: str, attrs: Mapping[Any, Any] | None = None) -> bool:
    """Whether a variable of this name and these attributes is a mask of land and sea.

    Examples
    --------
    >>> is_mask_name("LSM"), is_mask_name("sst"), is_mask_name("m", {"standard_name": "land_binary_mask"})
    (True, False, True)
    """
    return name.lower() in MASK_NAMES or str((attrs or {}).get("standard_name", "")) in MASK_STANDARD_NAMES


def mask_classes(mask: np.ndarray) -> np.ndarray | None:
    """The classes of a mask as small integers: its values, or below and above one half for a fraction; None if neither.

    Examples
    --------
    >>> mask_classes(np.array([1, 5, 1])), mask_classes(np.linspace(0, 1, 99))[[0, -1]]
    (array([0, 1, 0]), array([0, 1]))
    """
    values = np.asarray(mask)
    if values.dtype.kind not in "biuf":
        return None
    values = np.nan_to_num(values.astype(np.float64), nan=-1.0)  # outside of most masks is NaN, a class of its own
    kinds, classes = np.unique(values, return_inverse=True)
    if len(kinds) > MAX_CLASSES:
        top = float(values.max())
        if values.min() < -1.0 or top > 100.0:
            return None
        return (values > (0.5 if top <= 1.0 else 50.0)).astype(np.intp)
    return classes.reshape(values.shape) if len(kinds) > 1 else None
