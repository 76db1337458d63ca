"""A synthetic sea surface of any size with a known truth, computed plane by plane: smooth water, clouds, land.

`SeaSurface(shape, seed)` has `planes(start, stop)` (truth), `observed(start, stop)` (with noise, NaN under clouds and
on land) and `sea` (which places are water). The axes are latitude, longitude and day; planes are latitudes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

WAVES = 400
LENGTHS = (30.0, 40.0, 8.0)  # typical steps along latitude, longitude and day over which the sea changes
CLOUD_LENGTHS = (22.0, 30.0, 2.5)
NOISE = 0.1


def _waves(lengths: tuple[float, ...], seed: int, smoothness: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies (radians per step) and phases of waves with the spectrum of a Matern field of these lengths."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((WAVES, len(lengths)))
    stretch = np.sqrt(rng.gamma(smoothness, 1 / smoothness, (WAVES, 1)))
    return normal / stretch / np.array(lengths), rng.uniform(0, 2 * np.pi, WAVES)


@dataclass(frozen=True)
class SeaSurface:
    """A field of sea surface temperatures of any size."""

    shape: tuple[int, int, int]
    seed: int = 0
    cloudy: float = 0.45
    land: float = 0.2

    def _sum(self, lengths: tuple[float, ...], stream: int, start: int, stop: int) -> np.ndarray:
        """A field of unit variance in planes start:stop."""
        frequencies, phases = _waves(lengths, 1000 * self.seed + stream)
        a, b, c = (
            np.exp(1j * np.outer(np.arange(lo, hi), frequencies[:, k])).astype(np.complex64)
            for k, (lo, hi) in enumerate([(start, stop), (0, self.shape[1]), (0, self.shape[2])])
        )
        a = a * np.exp(1j * phases).astype(np.complex64)
        both = (a[:, None, :] * b[None, :, :]).reshape(-1, WAVES)
        total = both.real @ c.T.real - both.imag @ c.T.imag
        return (total * np.float32(np.sqrt(2 / WAVES))).reshape(stop - start, *self.shape[1:])

    @cached_property
    def sea(self) -> np.ndarray:
        """True where there is water, (latitude, longitude)."""
        flat = SeaSurface((self.shape[0], self.shape[1], 1), self.seed)
        starts = range(0, self.shape[0], 50)  # at once it would take more memory than the completion
        parts = [flat._sum((60.0, 80.0, 1.0), 2, at, min(at + 50, self.shape[0])) for at in starts]
        height = np.concatenate(parts)[..., 0]
        return height < np.quantile(height, 1 - self.land)

    @cached_property
    def _cloud_level(self) -> float:
        return float(np.quantile(self._sum(CLOUD_LENGTHS, 1, 0, min(8, self.shape[0])), 1 - self.cloudy))

    def planes(self, start: int, stop: int) -> np.ndarray:
        """The truth in planes start:stop."""
        gradient = 20 + 8 * np.cos(np.pi * np.arange(start, stop) / self.shape[0]).astype(np.float32)
        season = 2 * np.sin(2 * np.pi * np.arange(self.shape[2]) / 365).astype(np.float32)
        return gradient[:, None, None] + season + 1.2 * self._sum(LENGTHS, 0, start, stop)

    def observed(self, start: int, stop: int) -> np.ndarray:
        """What a satellite sees in planes start:stop: NaN under clouds and on land."""
        clear = self._sum(CLOUD_LENGTHS, 1, start, stop) < self._cloud_level
        rng = np.random.default_rng((self.seed, start, stop))
        seen = self.planes(start, stop) + NOISE * rng.standard_normal(clear.shape, dtype=np.float32)
        return np.where(clear & self.sea[start:stop, :, None], seen, np.float32(np.nan))
