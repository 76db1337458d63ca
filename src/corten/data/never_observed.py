"""Places without any observation, such as land in maps of the sea: found, reported, and skipped where they are land.

A place is a position of all axes but time (a pixel, a station). One that is never observed is skipped if a mask of land
and sea marks it, if the variable is one of the sea (or of land) and such places are not merely rarely observed ones, or
if it lies in a region of a map with the sharp edge of a coast. All others are filled and flagged.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from corten.data.axes import Axis, is_latitude, is_longitude
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

if TYPE_CHECKING:
    import xarray as xr

CODE = "never_observed"  # of the record
MASK_NAMES = {
    "land", "land_mask", "landmask", "lsm", "land_sea_mask", "landsea_mask", "landseamask", "sea", "sea_mask",
    "seamask", "ocean", "ocean_mask", "mask", "wet", "tmask", "mask_rho", "is_land", "is_sea", "is_ocean",
}  # fmt: skip
MASK_STANDARD_NAMES = {"land_binary_mask", "sea_binary_mask", "land_area_fraction", "sea_area_fraction"}
SEA = re.compile(r"sea_(surface|water|ice|floor)|ocean|(^|_)(sst|ssh|sss|sla|adt|chl|chla|chlor_a|zos|thetao|psu)($|_)")
LAND = re.compile(r"soil|land_surface|leaf_area|vegetation|(^|_)(lst|ndvi|evi|lai)($|_)")
EVERYWHERE = re.compile(
    r"(^|_)(air|wind|rain|precipitation|clouds?|pressure|humidity|ozone|aerosol|aod|v?tecu?|no2|so2|co2?|ch4|pm\d+)($|_)"
    r"|atmosph|ionosph|electron|radiation|radar"
)  # fields of the air have values above land and sea
MAX_CLASSES = 32  # of a mask; a field with more different values is a fraction, or no mask
MAX_OBSERVED_SHARE = 0.05  # of the places of a class of a mask that is outside: masks are shifted by a pixel at coasts
MIN_TIMES = 10  # below which a place that is only rarely observed is not told apart from one that never is
RARE_SHARE, MIN_RATIO = 0.1, 2.0  # never observed places must outnumber those observed in at most a tenth of the times
MIN_REGION = 10  # places of a region of land
SHARP_EDGE, MIN_SEEN = 0.5, 8  # places around land are observed at least half as often as usual, and 8 times


class Described(Protocol):
    """What is known of a tensor without its values: `ObservedTensor`, or `LazyTensor` from a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def axes(self) -> tuple[Axis, ...]: ...
    @property
    def name(self) -> str | None: ...
    @property
    def attrs(self) -> Mapping[str, object]: ...
    @property
    def coords(self) -> xr.Coordinates | None: ...


@dataclass(frozen=True)
class NeverObserved:
    """Places of a tensor without any observation.

    places: True at them, of length 1 along the axes in `along`; entries: how many missing entries they have; seen: how
    often each place is observed; times: the number of times.
    """

    places: np.ndarray
    along: tuple[int, ...]
    entries: int
    seen: np.ndarray
    times: int

    @property
    def count(self) -> int:
        """The number of places."""
        return int(np.count_nonzero(self.places))

    @property
    def by_chance(self) -> bool:
        """Whether about as many places would not be observed by chance (the bias-corrected estimate of Chao, 1984)."""
        once, twice = (int(np.count_nonzero(self.seen == k)) for k in (1, 2))
        return self.times < MIN_TIMES or self.count < MIN_RATIO * max(0.5, once * (once - 1) / (2 * (twice + 1)))


def find_never_observed(observed: ObservedTensor) -> NeverObserved | None:
    """The places without any observation, or None if there are none.

    Times are the axes over which places are observed. Without an axis of time, and without axes of latitude and
    longitude, places are the positions of unordered axes (sensors of days x hours x sensors: a day without values of
    one sensor is an outage, not a place). Where all axes are ordered, or none, time is the axis along which most
    missing entries lie in lines without any observation.
    """
    axes, times = observed.axes, times_of(observed.axes)
    ordered = tuple(k for k, axis in enumerate(axes) if axis.kind != "unordered")
    if not times and observed.kind != "dataarray" and 0 < len(ordered) < len(axes):
        times = ordered
    candidates = [times] if times else [(k,) for k in range(len(axes)) if observed.kind != "dataarray"]
    found = [_never(observed, along) for along in candidates if len(along) < len(axes)]
    best = max(found, key=lambda one: one.entries, default=None)
    return best if best is not None and best.entries else None


def times_of(axes: Sequence[Axis]) -> tuple[int, ...]:
    """The axes of time; without one the axes other than latitude and longitude; none without these either."""
    every = range(len(axes))
    times = tuple(k for k in every if axes[k].is_time and axes[k].length > 1)
    maps = {k for k in every if axes[k].name.lower() in ("lat", "lon", "latitude", "longitude", "x", "y")}
    if not times and len(maps) >= 2:
        times = tuple(k for k in every if k not in maps)
    return times


def _never(observed: ObservedTensor, along: tuple[int, ...]) -> NeverObserved:
    places = np.asarray(~observed.mask.any(axis=along, keepdims=True))
    places &= observed.missing.any(axis=along, keepdims=True)
    seen, times = observed.mask.sum(axis=along, keepdims=True), int(np.prod([observed.shape[k] for k in along]))
    return NeverObserved(places, along, int(np.count_nonzero(observed.missing & places)), seen, times)


def skip_never_observed(
    observed: ObservedTensor, *, fill: bool = False, masks: Mapping[str, np.ndarray] | None = None
) -> ObservedTensor:
    """The tensor with never observed places outside its domain where they are land (or sea), and a record of them.

    If it has a domain already, nothing is skipped: the domain was given. fill: such places are filled nevertheless.
    masks: masks of land and sea beside the variable, each of a shape that broadcasts to that of the tensor; coordinates
    of a DataArray that are such masks are found here.
    """
    if any(choice.code == CODE for choice in observed.choices):
        return observed
    found = find_never_observed(observed)
    if found is None:
        return observed
    asked = fill or observed.domain is not None
    outside, why = (None, "") if asked else _outside(observed, found, masks or {})
    choices = (*observed.choices, _record(observed, found, outside, why))
    if outside is None:
        return replace(observed, choices=choices)
    domain = np.array(np.broadcast_to(~outside, observed.shape), order="C")
    domain.setflags(write=False)
    return replace(observed, domain=domain, choices=choices)


def land_among(
    about: Described, seen: np.ndarray, along: tuple[int, ...], masks: Mapping[str, np.ndarray]
) -> tuple[np.ndarray | None, np.ndarray | None, Choice | None]:
    """Never observed places that are not filled, those that have a flag, and a record, for a tensor out of memory.

    about: has shape, axes, name, attrs and coords; seen: how often every place is observed, of length 1 along the axes
    `along`.
    """
    places = seen == 0
    if not places.any():
        return None, None, None
    times = int(np.prod([about.shape[k] for k in along]))
    found = NeverObserved(places, along, int(np.count_nonzero(places)) * times, seen, times)
    outside, why = _outside(about, found, masks)
    flagged = None if found.by_chance else places if outside is None else places & ~outside
    return outside, flagged, _record(about, found, outside, why)


def may_have_land(about: Described) -> bool:
    """Whether the name of a variable, or axes of latitude and longitude, suggest land (or sea) without values."""
    sea, land, everywhere = _words(about)
    return sea != land or (_is_map(about.axes) and not everywhere)


def _record(about: Described, found: NeverObserved, outside: np.ndarray | None, why: str) -> Choice:
    """The setting that says which never observed places are filled."""
    axes = [axis.name for k, axis in enumerate(about.axes) if k not in found.along]
    what = f"{found.count:,} positions of {', '.join(axes)} ({found.entries:,} entries) have no observation"
    given = {"places": found.count, "entries": found.entries, "by_chance": found.by_chance}
    if outside is None:
        chance = ", as many as by chance," if found.by_chance else ""
        because = f"{what}{chance} and are filled; mark by where= what need not be filled"
        return Choice("never observed", "filled", because, code=CODE, values={**given, "skipped": 0})
    count = int(np.count_nonzero(outside))
    skipped = count * int(np.prod([about.shape[k] for k in found.along]))
    because = f"{what}; {skipped:,} entries are not filled: {why}. fill_never_observed=True fills them"
    values = {**given, "skipped": skipped, "places_skipped": count, "why": why}
    return Choice("never observed", "skipped", because, code=CODE, values=values)


def _outside(about: Described, found: NeverObserved, masks: Mapping[str, np.ndarray]) -> tuple[np.ndarray | None, str]:
    """The places to skip and the reason; None if nothing suggests that they are land or sea."""
    for name, mask in {**masks_of(about), **masks}.items():
        marked = _marked(about.shape, found, mask)
        if marked is not None:
            outside = found.places & marked
            return (outside, f"the mask {name!r} marks them") if outside.any() else (None, "")
    sea, land, everywhere = _words(about)
    if sea != land:
        rare = int(np.count_nonzero((found.seen > 0) & (found.seen <= max(1.0, RARE_SHARE * found.times))))
        if found.times < MIN_TIMES or found.count < MIN_RATIO * max(rare, 1):
            return None, ""
        where = ("the sea", "land") if sea else ("land", "water")
        return found.places, "a variable of {} has no values on {}".format(*where)
    if everywhere or found.times < MIN_TIMES or not _is_map(about.axes):
        return None, ""
    outside = _regions(found)
    return (outside, "their regions have sharp edges, as land has") if outside.any() else (None, "")


def _words(about: Described) -> tuple[bool, bool, bool]:
    """Whether names and unit of a variable are of the sea, of land, and of the air, which is everywhere."""
    given = [about.name or "", *(about.attrs.get(key, "") for key in ("standard_name", "long_name", "units"))]
    words = [str(one).lower().replace(" ", "_") for one in given]
    sea, land, everywhere = (any(kind.search(word) for word in words) for kind in (SEA, LAND, EVERYWHERE))
    return sea, land, everywhere


def _is_map(axes: Sequence[Axis]) -> bool:
    """Whether there are axes of latitude and longitude."""
    return any(map(is_latitude, axes)) and any(map(is_longitude, axes))


def _regions(found: NeverObserved) -> np.ndarray:
    """Places in large regions with a sharp edge; around a gap of clouds or orbits others are rarely observed.

    In simulated clouds of 30 times or more no such region was without land; with 12 to 20 times and clouds that last
    for most of them, a few of 480 maps had one.
    """
    from scipy import ndimage

    outside, usual = np.zeros_like(found.places), float(np.median(found.seen[found.seen > 0]))
    labels, _ = ndimage.label(found.places)
    sizes = np.bincount(labels.reshape(-1))
    for number, box in enumerate(ndimage.find_objects(labels), 1):
        if sizes[number] >= MIN_REGION:
            wider = tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)
            region, seen = labels[wider] == number, found.seen[wider]
            around = seen[ndimage.binary_dilation(region) & (seen > 0)]
            if around.size and np.median(around) >= max(MIN_SEEN, SHARP_EDGE * usual):
                outside[wider] |= region
    return outside


def _marked(whole: tuple[int, ...], found: NeverObserved, mask: np.ndarray) -> np.ndarray | None:
    """The places that a mask marks as outside: those of its classes in which hardly any place is observed."""
    classes = mask_classes(mask)
    if classes is None or classes.ndim != len(whole):
        return None
    still = all(classes.shape[k] == 1 for k in found.along)  # the mask does not change in time
    shape = found.places.shape if still else whole
    seen = np.broadcast_to(found.seen > 0, shape)
    classes = np.broadcast_to(classes, shape)
    shares = {one: float(seen[classes == one].mean()) for one in np.unique(classes)}
    outside = [one for one, share in shares.items() if share <= MAX_OBSERVED_SHARE]
    if not outside or len(outside) == len(shares):
        return None
    return np.asarray(np.isin(classes, outside).all(axis=found.along, keepdims=True))


def masks_of(about: Described, variables: Mapping[Hashable, xr.DataArray] | None = None) -> dict[str, np.ndarray]:
    """Masks among the coordinates of a DataArray, or among variables, with length 1 along the axes they do not have."""
    found: dict[str, np.ndarray] = {}
    dims = [axis.dim for axis in about.axes]
    given = about.coords if variables is None else variables
    for key, one in ({} if given is None else given).items():
        if key not in dims and one.ndim and set(one.dims) <= set(dims) and is_mask_name(str(key), one.attrs):
            ordered = one.transpose(*[dim for dim in dims if dim in one.dims])
            found[str(key)] = np.asarray(ordered.values).reshape([one.sizes.get(dim, 1) for dim in dims])
    return found


def is_mask_name(name: str, attrs: Mapping[str, object] | None = None) -> bool:
    """Whether a variable of this name and these attributes is a mask of land and sea."""
    return name.lower() in MASK_NAMES or str((attrs or {}).get("standard_name", "")) in MASK_STANDARD_NAMES


def mask_classes(mask: np.ndarray) -> np.ndarray | None:
    """The classes of a mask as small integers: its values, or the two halves of a fraction; None if it is neither."""
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
