"""Covariances of fields: sums of Matern components over groups of axes, and their spectrum.

A covariance is a sum of one or two components plus noise. Inside a component the ordered axes are in groups: within a
group the covariance is a Matern function of one radius that all its axes share (an *elliptic* group), between groups
it is a product. An unordered axis multiplies it by the correlation that the data show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Component:
    """One term of a covariance.

    groups: the ordered axes, each group elliptic; smoothness: the Matern parameter nu of each group; lengths: in
    steps along each axis of the tensor (nan along unordered ones), then along the circle of each season; own: the share
    of the variance that every position of an unordered axis has for itself (nan along ordered ones). An index in
    `groups` beyond the axes is that of a season.
    """

    variance: float
    groups: Groups
    smoothness: tuple[float, ...]
    lengths: tuple[float, ...]
    own: tuple[float, ...]


@dataclass(frozen=True)
class Season:
    """A cycle along one axis: its name and its period in steps of the grid of the axis.

    A component with a season is a product of a Matern function of the distance along the axis, over which the cycle
    changes, and one of the distance along the circle of the period: a quasi-periodic covariance.
    """

    axis: int
    name: str
    period: float

    def chord(self, distance: np.ndarray) -> np.ndarray:
        """Distance across the circle."""
        return np.asarray(self.period / np.pi * np.abs(np.sin(np.pi * distance / self.period)))

    def spectrum(self, component: Component, circle: tuple[int, ...], size: int) -> np.ndarray:
        """Eigenvalues of the component along its axis, in the Hartley basis of `size` points."""
        steps = np.arange(size)
        distance = np.minimum(steps, size - steps).astype(float)
        nu = dict(zip(component.groups, component.smoothness))
        change = matern(nu[(self.axis,)], distance / component.lengths[self.axis])[0]
        cycle = matern(nu[circle], self.chord(distance) / component.lengths[circle[0]])[0]
        # On a circle of finite length a few eigenvalues of a smooth kernel are slightly negative.
        values = np.maximum(np.fft.fft(change * cycle).real, 0.0)
        return values * (size / values.sum())


def circle_of(seasons: Sequence[Season], size: int) -> int:
    """Points of a circle of at least twice the length of an axis, about a multiple of every period along it."""
    points = 2.0 * size
    for period in sorted((season.period for season in seasons), reverse=True):
        points = period * (np.ceil(points / period) if points == 2.0 * size else np.round(points / period))
    return max(2 * size, round(points))


@dataclass(frozen=True)
class Covariance:
    """A sum of components plus noise, for data of variance about one."""

    components: tuple[Component, ...]
    noise: float
    seasons: tuple[Season, ...] = ()

    def rescaled(self, ratios: Sequence[float]) -> Covariance:
        """The same covariance in other steps: an old step is so many new ones along each axis."""
        every = [*ratios, *(ratios[season.axis] for season in self.seasons)]
        components = [replace(one, lengths=tuple(n * r for n, r in zip(one.lengths, every))) for one in self.components]
        seasons = [replace(one, period=one.period * ratios[one.axis]) for one in self.seasons]
        return replace(self, components=tuple(components), seasons=tuple(seasons))

    def spectrum(self, axes: Sequence[np.ndarray | None]) -> np.ndarray:
        """Eigenvalues in the basis of the axes; for each axis its frequencies, or eigenvalues of its correlation.

        `axes` has None along axes of length one. The basis of an axis with a season is that of a circle.
        """
        shape = tuple(1 if a is None else len(a) for a in axes)
        total = np.zeros(shape)
        for component in self.components:
            part = np.full((1,) * len(shape), component.variance)
            cycles = {self.seasons[g[0] - len(shape)]: g for g in component.groups if g[0] >= len(shape)}
            cycled = {season.axis for season in cycles}
            for group, smoothness in zip(component.groups, component.smoothness):
                if group[0] < len(shape) and not cycled & set(group):
                    part = part * _group_spectrum(group, smoothness, component.lengths, axes)
            for season, group in cycles.items():
                values = season.spectrum(component, group, shape[season.axis])
                part = part * _along(season.axis, len(shape), values)
            for k, own in enumerate(component.own):
                if not np.isnan(own):
                    part = part * _along(k, len(shape), (1 - own) * np.asarray(axes[k]) + own)
            total += part
        return total


def _along(axis: int, ndim: int, values: ArrayLike) -> np.ndarray:
    """A vector as an array that varies along one axis."""
    shape = [1] * ndim
    shape[axis] = -1
    return np.reshape(values, shape)


def _group_spectrum(
    group: tuple[int, ...], smoothness: float, lengths: Sequence[float], axes: Sequence[np.ndarray | None]
) -> np.ndarray:
    """(1 + sum of (l w)^2)^-(nu + d/2) with w^2 = 2 (1 - cos f), scaled so that an unbounded grid has variance one."""
    power = -(smoothness + len(group) / 2)
    inside: np.ndarray | float = 1.0
    for k in group:
        inside = inside + _along(k, len(axes), (2 * lengths[k] * np.sin(np.asarray(axes[k]) / 2)) ** 2)
    return inside**power / _mean_power(-power, [lengths[k] for k in group])


def _mean_power(power: float, lengths: Sequence[float]) -> float:
    """The mean of (1 + sum of (2 l sin(f / 2))^2)^-power over all frequencies f in [0, pi]^d.

    x^-p is the integral of t^(p-1) exp(-t x) / Gamma(p), and the mean of exp(-4 t l^2 sin(f/2)^2) over f is a scaled
    Bessel function: one integral for any number of axes, by the trapezoid rule in log t.
    """
    log_t = np.linspace(-60.0 / min(power, 1.0), 6.0, 1000)
    t = np.exp(log_t)
    values = np.exp(power * log_t - t - scipy.special.gammaln(power))
    for length in lengths:
        values = values * scipy.special.i0e(2 * t * length**2)
    return float(values.sum() * (log_t[1] - log_t[0]))


def matern(smoothness: float, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Matern correlation r^nu K_nu(r) / (2^(nu-1) Gamma(nu)), and minus r times its derivative."""
    r = np.maximum(radius, 1e-12)
    scale = 2 ** (1 - smoothness) / scipy.special.gamma(smoothness)
    value = scale * r**smoothness * scipy.special.kv(smoothness, r)
    slope = scale * r ** (smoothness + 1) * scipy.special.kv(abs(smoothness - 1), r)
    return np.where(radius > 0, value, 1.0), np.where(radius > 0, slope, 0.0)
