"""A source of intervals that costs nothing to make: what the tests of figures and page look at."""

import base64
import zlib
from types import SimpleNamespace

import numpy as np
import xarray as xr

from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.evidence.audit_table import Row
from corten.report.content import ABSENT
from corten.results.intervals import Intervals

EVIL = "<script>alert(1)</script>"


class Made:
    """Estimate and bounds by formula: intervals widen with depth along the first axis, a corner is infinite."""

    def __init__(self, observed, chance=True, rich=True):
        self.observed = observed
        place = np.indices(observed.shape).sum(axis=0)
        self.estimate = np.where(observed.mask, observed.values, np.sin(place / 5.0))
        self.corner = place < 4
        self.half = 0.5 + place / place.max()
        self.probabilities = 0.1 + 0.8 * (place / place.max()) if chance else None
        self.beyond, self.carried, self.propensity, self.log_weights = None, False, None, np.empty(0)
        self.choices = ()
        if rich:
            tried = tuple({"rank": str(r), "P-AIC": float((r - 3) ** 2), "note": EVIL} for r in range(1, 6))
            self.choices = (
                Choice("rank " + EVIL, "3", "smallest P-AIC", tried),
                Choice("split", "random", "asked for"),
            )
            self.log_weights = np.linspace(-2.0, 2.0, 500)
            self.propensity = SimpleNamespace(
                history=(900.0, 500.0, 450.0, 449.0, 448.99), stopped_because="it was flat"
            )

    def bounds(self, coverage, entries=None):
        half = np.where(self.corner, np.inf, self.half * coverage)
        ends = self.estimate - half, self.estimate + 2 * half
        return ends if entries is None else tuple(end.reshape(-1)[entries] for end in ends)

    def hidden_coverage(self, coverage):
        return None

    def warnings(self):
        return ["Beware of " + EVIL]

    def facts(self, coverage):
        return {"calibration_entries": 500, "effective_sample_size": 321.0}

    def settings(self):
        return {"completion": "auto", "propensity": EVIL, "seed": 3, "corten": "0.1.0"}


class Audited:
    """What an audit gives, groups and all."""

    tolerance, samples = 0.01, range(20)
    rows = tuple(
        Row(
            level,
            "all",
            group="all",
            coverage=level - 0.004,
            standard_error=0.01,
            width=1.0,
            infinite_share=0.0,
            count=99,
        )
        for level in (0.5, 0.8, 0.9, 0.95)
    ) + tuple(
        Row(
            level,
            "depth",
            group=f"{far} to {2 * far}",
            coverage=level - far / 100,
            standard_error=0.02,
            width=1.0,
            infinite_share=0.0,
            count=99,
        )
        for level in (0.5, 0.9)
        for far in (1, 2, 4)
    )

    def untested_line(self):
        return ["Cannot tell for 7% of the missing entries."]

    def verdict(self):
        return "At 90% it is fine.\nLimits: " + EVIL


def field(shape=(12, 16, 10), missing=0.4, name="tec"):
    """A labelled field with gaps: latitude, longitude, time, and further axes without labels."""
    rng = np.random.default_rng(1)
    values = np.cos(np.indices(shape).sum(axis=0) / 4.0) + 0.05 * rng.standard_normal(shape)
    values[rng.random(shape) < missing] = np.nan
    values[0, 0] = np.nan
    dims = ("lat", "lon", "time", "level", "member")[: len(shape)]
    coords = {"lat": ("lat", np.linspace(20.0, 60.0, shape[0]), {"units": "degrees_north"})}
    coords["lon"] = ("lon", np.linspace(-120.0, -60.0, shape[1]), {"units": "degrees_east"})
    if len(shape) > 2:
        start = np.datetime64("2019-04-25T00:00", "ns")
        coords["time"] = ("time", start + np.arange(shape[2]) * np.timedelta64(3600, "s"))
    return xr.DataArray(values, coords, dims, name, {"units": "TECU", "long_name": "electron content"})


def made(shape=(12, 16, 10), coverage=0.9, name="tec", where=None, **options):
    """A ready result."""
    return Intervals(Made(ObservedTensor.of(field(shape, name=name), where), **options), coverage)


def unpack_levels(packed):
    """The inverse of `pack_levels`, flat; infinite where there was no finite value."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    high, low = raw[: raw.size // 2].astype(np.uint16), raw[raw.size // 2 :].astype(np.uint16)
    codes = np.cumsum((high << 8) | low, dtype=np.uint16)
    return np.where(codes == ABSENT, np.inf, packed["low"] + packed["step"] * codes)
