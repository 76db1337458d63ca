"""A simulated sea surface under clouds, with land that is never observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corten.simulate.fields import recipe, smooth_field

if TYPE_CHECKING:
    import xarray

LATITUDES, LONGITUDES = (30.0, 54.0), (-60.0, -24.0)  # degrees
NOISE = 0.3  # standard deviation of a measurement, degrees Celsius
EDDIES, CLOUDS = (2.0, 2.0, 3.0), (2.2, 3.0, 0.8)  # lengths along lat, lon and time, in grid steps and days


def sea_like(
    shape: Sequence[int] = (24, 36, 30), seed: int = 0, missing: float = 0.45, land: float = 0.2
) -> xarray.Dataset:
    """Simulate daily maps of sea surface temperature with gaps under clouds and land that has no values.

    Parameters
    ----------
    shape : sequence of int, default (24, 36, 30)
        Numbers of latitudes, longitudes and days.
    seed : int, default 0
        Seed of the field, the land, the clouds and the noise.
    missing : float, default 0.45
        Share of the sea entries that lie under clouds, between 0 and 1.
    land : float, default 0.2
        Share of the map that is land, from 0 to below 1.

    Returns
    -------
    xarray.Dataset
        ``sst``: measurements, NaN under clouds and on land; ``measured``: a measurement of every sea entry;
        ``truth``: the noiseless field; ``land``: 1 on land.

    Raises
    ------
    ValueError
        If the shape does not have three lengths, or a share is outside its range.

    Examples
    --------
    >>> day = sea_like((12, 16, 8), seed=1)
    >>> day["sst"].dims, round(float(day["land"].mean()), 1)
    (('lat', 'lon', 'time'), 0.2)
    """
    import xarray

    if len(shape) != 3:
        raise ValueError(f"shape is {tuple(shape)}; give three lengths: latitudes, longitudes, days.")
    if not 0.0 < missing < 1.0 or not 0.0 <= land < 1.0:
        raise ValueError(f"missing is {missing} and land {land}; give shares between 0 and 1.")
    own = [np.random.default_rng(one) for one in np.random.SeedSequence([seed, 0x5EA]).spawn(4)]
    lat, lon = np.linspace(*LATITUDES, shape[0]), np.linspace(*LONGITUDES, shape[1])
    days = np.arange(shape[2])
    large = smooth_field(shape, (5.0, 7.0, 8.0), own[0])
    eddies = smooth_field(shape, EDDIES, own[0])
    truth = 20.0 - 0.45 * (lat[:, None, None] - 40.0) + 0.05 * days + 1.2 * large + 0.5 * eddies
    height = smooth_field(shape[:2], (3.5, 4.5), own[1])
    is_land = height > np.quantile(height, 1.0 - land) if land else np.zeros(height.shape, bool)
    cover = smooth_field(shape, CLOUDS, own[2])
    sea = np.broadcast_to(~is_land[..., None], truth.shape)
    clear = cover < np.quantile(cover[sea], 1.0 - missing)
    measured = truth + NOISE * own[3].standard_normal(truth.shape)
    dims = ("lat", "lon", "time")
    kept = {"units": "degree_Celsius", "standard_name": "sea_surface_temperature"}
    about_land = {"long_name": "1 on land", "standard_name": "land_binary_mask", "units": "1"}
    variables = {
        "sst": (dims, np.where(clear & sea, measured, np.nan), kept | {"long_name": "sea surface temperature"}),
        "measured": (dims, np.where(sea, measured, np.nan), kept | {"long_name": "a measurement of every sea entry"}),
        "truth": (dims, np.where(sea, truth, np.nan), kept | {"long_name": "the noiseless field"}),
        "land": (dims[:2], is_land.astype(np.int8), about_land),
    }
    coordinates = {
        "lat": ("lat", lat, {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", lon, {"units": "degrees_east", "standard_name": "longitude"}),
        "time": ("time", np.datetime64("2024-06-01", "ns") + days * np.timedelta64(1, "D"), {"standard_name": "time"}),
    }
    settings = recipe(kind="sea", shape=shape, seed=seed, missing=missing, land=land)
    about = {f"corten_{key}": one for key, one in settings.items()}
    return xarray.Dataset(variables, coordinates, {"source": "simulated by corten.simulate.sea_like"} | about)
