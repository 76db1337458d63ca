"""Couplings: the function g(B_i, B_j) of two neighbouring entries in the Ising model.

A coupling is a frozen object. Every g is symmetric. Passes over a mask read its `code()`; their formulas are
in `engine/arithmetic.py`, with the derivatives, and in `engine/jax_slab.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from corten.data.arrays import Floats, Numbers
from corten.engine.arithmetic import POLYNOMIAL, PRODUCT, SIGMOID, ZERO


class KernelCoupling(NamedTuple):
    """A coupling as compiled kernels read it: a kind and rows (c, a, b), one for each term c * x**a * y**b."""

    kind: int
    terms: Floats


@runtime_checkable
class Coupling(Protocol):
    """The methods of a coupling: g, and its form for kernels."""

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers: ...

    def code(self) -> KernelCoupling: ...


@dataclass(frozen=True)
class Product:
    """The coupling of the paper, g(x, y) = strength * x * y.

    Parameters
    ----------
    strength : float, "auto" or "learned"
        Default "auto": one of 0, 1/30, 1/15, 0.15 and 0.3, by held-out loss among those whose weights keep a
        sufficient effective sample size. "learned" estimates the strength together with B.

    Raises
    ------
    ValueError
        If the strength is another string or not finite.

    Notes
    -----
    Equation (hamiltonian) of the paper with g(x, y) = c x y.

    Examples
    --------
    >>> float(Product(0.5).value(2.0, 3.0))
    3.0
    """

    strength: float | Literal["auto", "learned"] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.strength, str):
            if self.strength not in ("auto", "learned"):
                raise ValueError(f'strength is {self.strength!r}; give a finite number, "auto" or "learned".')
        else:
            object.__setattr__(self, "strength", _finite("strength", self.strength))

    @property
    def is_auto(self) -> bool:
        """Whether the strength is chosen during the fit."""
        return self.strength == "auto"

    @property
    def is_learned(self) -> bool:
        """Whether the strength is estimated during the fit."""
        return self.strength == "learned"

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers:
        x, y = as_floating(x), as_floating(y)
        return np.asarray(self._number() * x * y)

    def code(self) -> KernelCoupling:
        return KernelCoupling(PRODUCT, np.array([[self._number(), 1.0, 1.0]]))

    def _number(self) -> float:
        if isinstance(self.strength, str):
            raise ValueError(
                f'The strength of Product("{self.strength}") is not chosen yet; give a number, such as Product(1/15).'
            )
        return self.strength


@dataclass(frozen=True)
class Linear:
    """A coupling linear in both parameters: g(x, y) = strength * (x + y).

    Parameters
    ----------
    strength : float
        The factor of the sum; finite.

    Examples
    --------
    >>> float(Linear(0.5).value(2.0, 3.0))
    2.5
    """

    strength: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", _finite("strength", self.strength))

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers:
        return np.asarray(self.strength * (as_floating(x) + as_floating(y)))

    def code(self) -> KernelCoupling:
        return KernelCoupling(POLYNOMIAL, np.array([[self.strength, 1.0, 0.0], [self.strength, 0.0, 1.0]]))


@dataclass(frozen=True)
class Polynomial:
    """A symmetric polynomial coupling: g(x, y) = sum of c * x**a * y**b.

    Parameters
    ----------
    terms : mapping
        Exponents (a, b) to the coefficient c of x**a * y**b. Each term needs its mirror image (b, a) with the same
        coefficient.

    Raises
    ------
    ValueError
        If an exponent is negative or not whole, a coefficient is not finite, or the polynomial is not symmetric.

    Examples
    --------
    >>> float(Polynomial({(2, 1): 1.0, (1, 2): 1.0}).value(2.0, 3.0))
    30.0
    """

    terms: Mapping[tuple[int, int], float] = field(hash=False)

    def __post_init__(self) -> None:
        terms: dict[tuple[int, int], float] = {}
        for powers, coefficient in sorted(self.terms.items()):
            a, b = powers
            if a != int(a) or b != int(b) or a < 0 or b < 0:
                raise ValueError(f"terms has exponents {powers!r}; both must be whole numbers from 0 up.")
            terms[int(a), int(b)] = _finite(f"terms[{powers!r}]", coefficient)
        for (a, b), coefficient in terms.items():
            if terms.get((b, a), 0.0) != coefficient:
                raise ValueError(
                    f"terms is not symmetric: x^{a} y^{b} has {coefficient} but x^{b} y^{a} has "
                    f"{terms.get((b, a), 0.0)}; give both the same coefficient."
                )
        object.__setattr__(self, "terms", terms)

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers:
        x, y = np.broadcast_arrays(as_floating(x), as_floating(y))
        total = np.zeros(x.shape, dtype=np.result_type(x, y))
        for (a, b), c in self.terms.items():
            total += c * x**a * y**b
        return total

    def code(self) -> KernelCoupling:
        rows = [[c, a, b] for (a, b), c in self.terms.items()]
        return KernelCoupling(POLYNOMIAL, np.array(rows, dtype=np.float64).reshape(-1, 3))


@dataclass(frozen=True)
class Sigmoid:
    """A bounded coupling: ``g(x, y) = strength * (sigmoid(x*y) - 1/2)``, at most ``|strength| / 2``.

    Parameters
    ----------
    strength : float, default 1.0
        Twice the largest absolute value of g.

    Examples
    --------
    >>> float(Sigmoid().value(1e4, -1e4))
    -0.5
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", _finite("strength", self.strength))

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers:
        # tanh saturates where 1/(1 + exp(-xy)) would overflow
        with np.errstate(over="ignore"):
            product = as_floating(x) * as_floating(y)
        return np.asarray((0.5 * self.strength) * np.tanh(0.5 * product))

    def code(self) -> KernelCoupling:
        return KernelCoupling(SIGMOID, np.array([[self.strength, 1.0, 1.0]]))


@dataclass(frozen=True)
class Zero:
    """No coupling, g = 0: entries are observed or missing independently (equation Bernoulli-model).

    Examples
    --------
    >>> float(Zero().value(2.0, 3.0))
    0.0
    """

    def value(self, x: ArrayLike, y: ArrayLike) -> Numbers:
        x, y = np.broadcast_arrays(as_floating(x), as_floating(y))
        return np.zeros(x.shape, dtype=np.result_type(x, y))

    def code(self) -> KernelCoupling:
        return KernelCoupling(ZERO, np.zeros((0, 3)))


def as_coupling(coupling: object) -> Coupling:
    """Return a coupling from a coupling, a number (the strength of a product), or a name."""
    if isinstance(coupling, str):
        named: dict[str, Coupling] = {
            "auto": Product("auto"),
            "product": Product("auto"),
            "learned": Product("learned"),
            "sigmoid": Sigmoid(),
            "zero": Zero(),
        }
        if coupling in named:
            return named[coupling]
    elif isinstance(coupling, (int, float, np.integer, np.floating)) and not isinstance(coupling, bool):
        return Product(float(coupling))
    elif isinstance(coupling, Coupling) and not isinstance(coupling, type):
        return coupling
    raise ValueError(
        f"coupling is {coupling!r}; give Product, Linear, Polynomial, Sigmoid or Zero, a number (the "
        'strength of a product), or one of "auto", "product", "learned", "sigmoid", "zero".'
    )


def _finite(name: str, number: float) -> float:
    """Return the number as a finite float, or raise."""
    number = float(number)
    if not np.isfinite(number):
        raise ValueError(f"{name} is {number}; give a finite number.")
    return number


def as_floating(x: ArrayLike) -> Numbers:
    """Return a floating array as it is and any other as float64."""
    array = np.asarray(x)
    return array if array.dtype.kind == "f" else array.astype(np.float64)
