"""Monotone changes of variable, learned from training entries and undone exactly, intervals included.

A transform maps each entry by a strictly increasing function, so an interval of the transformed value maps back to
an interval of the value with the same coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from corten.data.axes import Axis, position

__all__ = ["Chain", "FittedTransform", "Transform", "as_transform"]


@runtime_checkable
class FittedTransform(Protocol):
    """A strictly increasing map of every entry, and its inverse; both take and return full arrays."""

    def forward(self, values: np.ndarray) -> np.ndarray: ...
    def backward(self, values: np.ndarray) -> np.ndarray: ...


@runtime_checkable
class Transform(Protocol):
    """Learns a map from the entries where `mask` is True."""

    def fit(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> FittedTransform: ...


@dataclass(frozen=True)
class Standardise:
    """Subtract the mean and divide by the standard deviation, of each slice along `axis` or of all."""

    axis: str | None = None

    def fit(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> Affine:
        own = None if self.axis is None else position(self.axis, [axis.name for axis in axes], "transform")
        over = tuple(k for k in range(values.ndim) if k != own)
        mean, deviation = _moments(values, mask, over)
        return Affine(mean, deviation)


@dataclass(frozen=True)
class Climatology:
    """Subtract the mean over one axis (days, years) at every position of the others.

    Means of few entries are shrunk to the overall mean, as if `prior` more entries had that value.
    """

    over: str
    prior: float = 1.0

    def fit(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> Affine:
        axis = position(self.over, [axis.name for axis in axes], "climatology")
        whole = float(values[mask].mean(dtype=np.float64)) if mask.any() else 0.0
        count = mask.sum(axis=axis, keepdims=True)
        total = np.where(mask, values, 0.0).sum(axis=axis, keepdims=True, dtype=np.float64)
        return Affine((total + self.prior * whole) / (count + self.prior), np.ones((1,) * values.ndim))


@dataclass(frozen=True)
class Affine:
    """y = (x - centre) / scale with arrays that broadcast over the tensor."""

    centre: np.ndarray
    scale: np.ndarray

    def forward(self, values: np.ndarray) -> np.ndarray:
        return np.asarray((values - self.centre) / self.scale)

    def backward(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values * self.scale + self.centre)


@dataclass(frozen=True)
class BoxCox:
    """y = (x^power - 1) / power, or log x at power 0; the power by maximum likelihood unless it is given."""

    power: float | None = None

    def fit(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> Power:
        known = values[mask].astype(np.float64)
        if not (known > 0).all():
            name = "log" if self.power == 0 else "Box-Cox"
            raise ValueError(
                f"a {name} transform needs positive values; the smallest is {known.min():.4g}: shift them, or "
                "use bounds=(0, None) to keep intervals non-negative"
            )
        if self.power == 0:
            return Power(0.0)
        logs = np.log(known)
        middle = float(logs.mean())
        highest = float(logs.max() - middle)
        if self.power is not None:
            return Power(self.power, middle, highest)
        from scipy.optimize import minimize_scalar

        logs -= middle

        def cost(power: float) -> float:
            y = logs if abs(power) < 1e-8 else np.expm1(power * logs) / power
            return float(np.log(max(y.var(), 1e-300)))

        best = minimize_scalar(cost, bounds=(-1.0, 2.0), method="bounded")
        return Power(round(float(best.x), 2), middle, highest)


@dataclass(frozen=True)
class Power:
    """The Box-Cox map of one power; a value of y that no x reaches is mapped back to x = 0.

    middle: the mean logarithm; x is divided by its geometric mean, because a negative power of large x loses all
    digits. highest: the logarithm of the largest training value, after that division. A negative power has no y above
    -1 / power and would map larger estimates back to infinity; above `highest` the map continues as a logarithm with
    the same slope, and reaches all y.
    """

    power: float
    middle: float = 0.0
    highest: float = np.inf

    def forward(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(values) - self.middle
        if self.power == 0:
            return logs
        inner = np.minimum(logs, self.highest) if self._continued else logs
        found = np.expm1(self.power * inner) / self.power
        return found + (logs - inner) * np.exp(self.power * inner) if self._continued else found

    def backward(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if self.power == 0:
                return np.exp(values + self.middle)
            values = np.asarray(values, np.float64)
            beyond = np.zeros(())
            if self._continued:
                top, slope = np.expm1(self.power * self.highest) / self.power, np.exp(self.power * self.highest)
                beyond = np.maximum(values - top, 0.0) / slope
                values = np.minimum(values, top)
            inside = 1 + self.power * values
            return np.exp(np.log(np.maximum(inside, 0.0)) / self.power + (beyond + self.middle))

    @property
    def _continued(self) -> bool:
        return self.power < 0 and bool(np.isfinite(self.highest))


@dataclass(frozen=True)
class Chain:
    """Transforms one after another."""

    steps: tuple[Transform, ...]

    def fit(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> FittedChain:
        done = []
        for step in self.steps:
            one = step.fit(values, mask, axes)
            values = one.forward(values)
            done.append(one)
        return FittedChain(tuple(done))


@dataclass(frozen=True)
class FittedChain:
    """Fitted transforms one after another."""

    steps: tuple[FittedTransform, ...]

    def forward(self, values: np.ndarray) -> np.ndarray:
        for step in self.steps:
            values = step.forward(values)
        return values

    def backward(self, values: np.ndarray) -> np.ndarray:
        for step in reversed(self.steps):
            values = step.backward(values)
        return values


def as_transform(transform: str | Transform | None, climatology: str | None = None) -> Transform | None:
    """The transform behind a name ("log", "box-cox", "standardise", "standardise:AXIS") or an object, or None.

    A climatology is removed first, but after a logarithm or Box-Cox map, because differences from a mean can be
    negative.
    """
    steps: list[Transform] = []
    if climatology is not None:
        if not isinstance(climatology, str):
            raise TypeError(f"climatology is {climatology!r}; give the name of the axis to average over")
        steps.append(Climatology(climatology))
    if isinstance(transform, str):
        name, _, axis = transform.partition(":")
        standardise = Standardise(axis or None)
        makers: dict[str, Transform] = {"log": BoxCox(0.0), "box-cox": BoxCox(), "standardise": standardise}
        if name not in makers or (axis and name != "standardise"):
            raise ValueError(
                f'transform is {transform!r}; give "log", "box-cox", "standardise", "standardise:AXIS" or an object'
            )
        steps.insert(0 if isinstance(makers[name], BoxCox) else len(steps), makers[name])
    elif transform is not None:
        if isinstance(transform, type) or not isinstance(transform, Transform):
            raise TypeError(f"transform is {transform!r}; give a name or an object with fit(values, mask, axes)")
        steps.insert(0 if isinstance(transform, BoxCox) else len(steps), transform)
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else Chain(tuple(steps))


def _moments(values: np.ndarray, mask: np.ndarray, over: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the training entries over some axes; the overall ones where there are none."""
    known = values[mask].astype(np.float64)
    whole_mean, whole_deviation = float(known.mean()), float(known.std()) or 1.0
    count = mask.sum(axis=over, keepdims=True)
    some = np.maximum(count, 1)
    mean = np.where(mask, values, 0.0).sum(axis=over, keepdims=True, dtype=np.float64) / some
    square = np.where(mask, (values - mean) ** 2, 0.0).sum(axis=over, keepdims=True, dtype=np.float64) / some
    deviation = np.sqrt(square)
    enough = (count >= 3) & (deviation > 0)
    return np.where(count > 0, mean, whole_mean), np.where(enough, deviation, whole_deviation)
