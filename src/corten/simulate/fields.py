"""Simulated tensors with a known truth: the paper's parameter, signal and noise, and TEC-like fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from corten.data.arrays import Flags, Floats, Numbers

if TYPE_CHECKING:
    import xarray

Rank = int | Sequence[int]


def block_parameter(
    shape: Sequence[int], rank: Rank, seed: int = 0, noise: float = 0.2, maximum: float = 2.0, spread: float = 0.5
) -> Floats:
    """Draw the paper's Ising parameter B*: a checkerboard of blocks plus noise, scaled to a largest size.

    Block means come from 0.5 N(1, spread) + 0.5 N(-1, spread); a block is ceil(d/r) consecutive indices of
    every axis; `spread` and `noise` are standard deviations (Table "simulation-details").

    Examples
    --------
    >>> float(abs(block_parameter((8, 8, 8), rank=2)).max())
    2.0
    """
    ranks = _ranks(rank, shape)
    rng = np.random.default_rng(seed)
    core = rng.choice([-1.0, 1.0], size=ranks) + spread * rng.standard_normal(ranks)
    blocks = [np.arange(length) // ceil(length / r) for length, r in zip(shape, ranks)]
    parameter = core[np.ix_(*blocks)] + noise * rng.standard_normal(tuple(shape))
    return _scaled(parameter, maximum)


def tucker_signal(shape: Sequence[int], rank: Rank = 3, seed: int = 0, maximum: float = 2.0) -> Floats:
    """Draw the paper's noiseless data X*: Gaussian core and factors of a given Tucker rank, scaled.

    Examples
    --------
    >>> np.linalg.matrix_rank(tucker_signal((6, 7, 8), rank=2).reshape(6, -1)).item()
    2
    """
    ranks = _ranks(rank, shape)
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal(ranks)
    for axis, (length, r) in enumerate(zip(shape, ranks)):
        factor = rng.standard_normal((length, r))
        signal = np.moveaxis(np.tensordot(factor, signal, axes=(1, axis)), 0, axis)
    return _scaled(signal, maximum)


def noise(
    parameter: Numbers, kind: Literal["constant", "adversarial"], signal: Numbers, ratio: float = 2.0, seed: int = 0
) -> Floats:
    """Draw the paper's noise E, scaled so that max|signal| / max|E| is `ratio`.

    "constant" has one standard deviation; "adversarial" has (1 + exp(-B*))/2, large where entries go missing.
    """
    if kind not in ("constant", "adversarial"):
        raise ValueError(f'kind is {kind!r}; give "constant" or "adversarial".')
    if parameter.shape != signal.shape:
        raise ValueError(f"parameter has shape {parameter.shape} but signal {signal.shape}; make them equal.")
    spread = 0.5 * (1.0 + np.exp(-np.asarray(parameter, dtype=np.float64))) if kind == "adversarial" else 1.0
    drawn = spread * np.random.default_rng(seed).standard_normal(signal.shape)
    return _scaled(drawn, float(np.abs(signal).max()) / ratio)


@dataclass(frozen=True, eq=False)
class TecLike:
    """A TEC-like field with its truth, the mask of what receivers see, and coordinates (lat, lon, time).

    settings: all arguments and versions.
    """

    truth: Floats
    mask: Flags
    land: Flags
    lat: Floats
    lon: Floats
    time: NDArray[np.datetime64]
    settings: dict[str, float | str] = field(default_factory=dict, repr=False)

    axis_names = ("lat", "lon", "time")

    @property
    def observed(self) -> Floats:
        """The field with NaN where no receiver measures."""
        return np.where(self.mask, self.truth, np.nan)

    def to_dataset(self) -> xarray.Dataset:
        """Give it as an xarray.Dataset with variables tec (gappy), truth and mask."""
        import xarray

        units = {"units": "TECU", "long_name": "total electron content"}
        variables = {
            "tec": (self.axis_names, self.observed, units),
            "truth": (self.axis_names, self.truth, units),
            "mask": (self.axis_names, self.mask),
        }
        coordinates = {
            "lat": ("lat", self.lat, {"units": "degrees_north"}),
            "lon": ("lon", self.lon, {"units": "degrees_east"}),
            "time": ("time", self.time),
        }
        about = {f"corten_{key}": one for key, one in self.settings.items()}
        return xarray.Dataset(variables, coordinates, {"source": "simulated by corten.simulate.tec_like"} | about)


def tec_like(shape: Sequence[int] = (32, 48, 48), seed: int = 0, missing: float = 0.43) -> TecLike:
    """Simulate one day of total electron content over a continent, with the gaps its receivers leave.

    The field has the daily bulge moving west, a storm plume that comes and goes, travelling waves and
    small-scale structure. Receivers stand on land, densely in the south; each sees where its lines of sight
    to passing satellites pierce the ionosphere, so gaps are oceans, a speckled north, moving edges.

    Examples
    --------
    >>> round(1 - float(tec_like(seed=1).mask.mean()), 2)
    0.43
    """
    if len(shape) != 3:
        raise ValueError(f"shape is {tuple(shape)}; give three lengths: latitudes, longitudes, times.")
    if not 0.0 < missing < 1.0:
        raise ValueError(f"missing is {missing}; give a share between 0 and 1.")
    field_seed, map_seed, sky_seed = np.random.SeedSequence(seed).spawn(3)
    lat, lon = np.linspace(20.0, 69.0, shape[0]), np.linspace(-170.0, -56.0, shape[1])
    hours = np.arange(shape[2]) * 24.0 / shape[2]
    truth = _ionosphere(lat, lon, hours, np.random.default_rng(field_seed))
    height = _continent(lat, lon, np.random.default_rng(map_seed))
    reach = _sight(height, lat, lon, hours, np.random.default_rng(sky_seed))
    # an entry is observed if the highest land in its range is above sea level, which sets the share of missing entries
    sea_level = np.quantile(reach, missing)
    start = np.datetime64("2019-04-25T00:00", "ns")
    time = start + (hours * 3600).astype("timedelta64[s]").astype("timedelta64[ns]")
    settings = recipe(kind="tec", shape=shape, seed=seed, missing=missing)
    return TecLike(truth, reach > sea_level, land=height > sea_level, lat=lat, lon=lon, time=time, settings=settings)


def recipe(*, shape: Sequence[int], **arguments: float | str) -> dict[str, float | str]:
    """All arguments and versions, so that a simulation can be repeated; plain values for any file."""
    from corten import __version__

    lengths = "x".join(str(length) for length in shape)
    return arguments | {"shape": lengths, "corten": __version__, "numpy": np.__version__}


def _ionosphere(lat: Floats, lon: Floats, hours: Floats, rng: np.random.Generator) -> Floats:
    """The electron content: quiet day, equatorial crest, storm plume, waves, small-scale structure."""
    north, east, clock = lat[:, None, None], lon[None, :, None], hours[None, None, :]
    solar = (clock + east / 15.0 - 14.0 + 12.0) % 24.0 - 12.0
    day = np.exp(-0.5 * (solar / rng.uniform(3.6, 4.4)) ** 2)
    quiet = 3.5 + (2.5 + 4.5 * day) * (1.35 - 0.012 * (north - 20.0))
    crest_width = 7.0 + 3.0 * day
    crest = rng.uniform(10.0, 14.0) * day * np.exp(-0.5 * ((north - 15.0) / crest_width) ** 2)
    # a tongue of dense plasma that leaves the south-east and is drawn to the north-west
    onset, life = rng.uniform(17.0, 20.0), rng.uniform(2.0, 3.0)
    strength = rng.uniform(5.0, 8.0) * np.exp(-0.5 * ((clock - onset) / life) ** 2)
    ridge = -75.0 - 1.1 * (north - 25.0) - 3.0 * (clock - onset)
    plume = strength * np.exp(-0.5 * ((east - ridge) / 9.0) ** 2) / (1.0 + np.exp((north - 58.0) / 4.0))
    trough = 2.0 * np.exp(-0.5 * ((north - 58.0 - 3.0 * day) / 5.0) ** 2) * (1.0 - day)
    phase = 2.0 * np.pi * (north / 14.0 + east / 60.0 + clock / 1.7) + rng.uniform(0.0, 2.0 * np.pi)
    waves = 1.0 + 0.02 * np.sin(phase) * day
    shape = (lat.size, lon.size, hours.size)
    large = smooth_field(shape, (7.0 / _step(lat), 12.0 / _step(lon), 2.5 / _step(hours)), rng)
    small = smooth_field(shape, (1.7 / _step(lat), 2.5 / _step(lon), 0.8 / _step(hours)), rng)
    content = (quiet + crest + plume - trough) * waves * (1.0 + 0.08 * large + 0.025 * small)
    return np.maximum(content, 0.5)


def _continent(lat: Floats, lon: Floats, rng: np.random.Generator) -> Floats:
    """A height map: land towards the north, oceans in both southern corners, an island or a bay by chance."""
    north, east = np.meshgrid((lat - 20.0) / 49.0, (lon + 113.0) / 57.0, indexing="ij")
    middle = 0.12 + rng.uniform(-0.1, 0.1)
    slope = north - 1.1 * np.abs(east - middle) ** 1.5
    rough = smooth_field(north.shape, (6.0 / _step(lat), 8.0 / _step(lon)), rng)
    return slope + 0.22 * rough


def _sight(height: Floats, lat: Floats, lon: Floats, hours: Floats, rng: np.random.Generator) -> Floats:
    """For every entry the height of the highest receiver site that measures it (-inf for none)."""
    cells = _step(lat) * _step(lon)
    density = 1.6 * np.exp(-np.maximum(0.0, lat - 45.0) / 5.5) + 0.008
    sites = rng.poisson(np.repeat(density[:, None] * cells, lon.size, axis=1))
    rows, columns = (np.repeat(index, sites.ravel()) for index in np.indices(height.shape).reshape(2, -1))
    site_lat = lat[rows] + _step(lat) * rng.uniform(-0.5, 0.5, rows.size)
    site_lon = lon[columns] + _step(lon) * rng.uniform(-0.5, 0.5, rows.size)
    passes = 44
    # evenly staggered, so that the sky is never empty
    rise = np.linspace(-5.0, 24.0, passes) + rng.uniform(-0.6, 0.6, passes)
    stay = rng.uniform(3.0, 5.5, passes)
    heading, nearest = rng.uniform(0.0, 2.0 * np.pi, passes), rng.uniform(-0.85, 0.85, passes)
    reach = np.full((lat.size, lon.size, hours.size), -np.inf)
    for slot, hour in enumerate(hours):
        for each in np.flatnonzero((rise <= hour) & (hour <= rise + stay)):
            # straight through a disc of five degrees: what 30 degrees of elevation see at 350 km
            along = (2.0 * (hour - rise[each]) / stay[each] - 1.0) * np.sqrt(1.0 - nearest[each] ** 2)
            turn = np.array([np.cos(heading[each]), np.sin(heading[each])])
            shift = 5.0 * (along * turn + nearest[each] * np.array([-turn[1], turn[0]]))
            up = np.rint((site_lat + shift[0] - lat[0]) / _step(lat)).astype(np.intp)
            across = site_lon + shift[1] / np.cos(np.radians(site_lat))
            right = np.rint((across - lon[0]) / _step(lon)).astype(np.intp)
            inside = (up >= 0) & (up < lat.size) & (right >= 0) & (right < lon.size)
            seen = height[rows[inside], columns[inside]]
            np.maximum.at(reach[:, :, slot], (up[inside], right[inside]), seen)
    return reach


def smooth_field(shape: Sequence[int], lengths: Sequence[float], rng: np.random.Generator) -> Floats:
    """A stationary Gaussian field of unit variance; lengths in grid steps."""
    wide = [length + 2 * ceil(3 * reach) for length, reach in zip(shape, lengths)]
    field = gaussian_filter(rng.standard_normal(wide), lengths, mode="wrap")
    field /= np.sqrt(np.prod([1.0 / (2.0 * np.sqrt(np.pi) * max(reach, 0.3)) for reach in lengths]))
    inner = tuple(slice(ceil(3 * reach), ceil(3 * reach) + n) for n, reach in zip(shape, lengths))
    return field[inner]


def _step(coordinate: Floats) -> float:
    return float(coordinate[1] - coordinate[0]) if coordinate.size > 1 else 1.0


def _scaled(tensor: Floats, maximum: float) -> Floats:
    return tensor * (maximum / np.abs(tensor).max())


def _ranks(rank: Rank, shape: Sequence[int]) -> tuple[int, ...]:
    ranks = (rank,) * len(shape) if isinstance(rank, int) else tuple(int(r) for r in rank)
    if len(ranks) != len(shape) or any(not 1 <= r <= length for r, length in zip(ranks, shape)):
        raise ValueError(
            f"rank is {rank!r} for shape {tuple(shape)}; give one number, or one per axis, from 1 to the axis length."
        )
    return ranks
