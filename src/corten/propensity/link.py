"""How the parameter of an entry alone moves its odds of being observed: the function h(B_i) of the model.

An entry without neighbours is observed with log-odds 2 h(B). Each link is a frozen object with `value` and
`derivative` side by side; compiled kernels see its `kind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr

__all__ = ["LOGIT", "NONE", "PROBIT", "Link", "Logit", "NoLink", "Probit", "as_link"]

LOGIT, PROBIT, NONE = 0, 1, 2


@runtime_checkable
class Link(Protocol):
    """What a link must offer: h, its derivative, and the numbers by which kernels know it: kind and shift."""

    kind: ClassVar[int]

    def shift(self) -> float: ...

    def value(self, x: ArrayLike) -> NDArray[np.floating]: ...

    def derivative(self, x: ArrayLike) -> NDArray[np.floating]: ...

    def label(self) -> str: ...


@dataclass(frozen=True)
class Logit:
    """The paper's link h(x) = x/2 + offset: alone, an entry is observed with probability sigmoid(x + 2 offset).

    offset: a number (the paper has 0), or "learned": estimated together with B.

    Example:
        >>> float(Logit().value(3.0))
        1.5
    """

    offset: float | Literal["learned"] = 0.0
    kind: ClassVar[int] = LOGIT

    def __post_init__(self) -> None:
        if isinstance(self.offset, str):
            if self.offset != "learned":
                raise ValueError(f'offset is {self.offset!r}; give a finite number or "learned".')
            return
        object.__setattr__(self, "offset", float(self.offset))
        if not np.isfinite(self.offset):
            raise ValueError(f'offset is {self.offset}; give a finite number or "learned".')

    @property
    def is_learned(self) -> bool:
        """Whether the offset is still to be estimated."""
        return isinstance(self.offset, str)

    def shift(self) -> float:
        """What the offset adds to every log-odds."""
        if isinstance(self.offset, str):
            raise ValueError('The offset of Logit("learned") is not known yet; give a number, such as Logit(0.0).')
        return 2.0 * self.offset

    def value(self, x: ArrayLike) -> NDArray[np.floating]:
        x = _floating(x)
        return np.asarray(x.dtype.type(0.5) * (x + x.dtype.type(self.shift())))

    def derivative(self, x: ArrayLike) -> NDArray[np.floating]:
        x = _floating(x)
        return np.full(x.shape, 0.5, dtype=x.dtype)

    def label(self) -> str:
        return "logit"


@dataclass(frozen=True)
class Probit:
    """The normal link: alone, an entry is observed with probability Phi(x), so h = log(Phi(x) / Phi(-x)) / 2.

    Example:
        >>> float(Probit().value(0.0))
        0.0
    """

    kind: ClassVar[int] = PROBIT

    def shift(self) -> float:
        return 0.0

    def value(self, x: ArrayLike) -> NDArray[np.floating]:
        x = _floating(x)
        return np.asarray(0.5 * (log_ndtr(x) - log_ndtr(-x)))

    def derivative(self, x: ArrayLike) -> NDArray[np.floating]:
        # phi(x)/Phi(x) = sqrt(2/pi) / erfcx(-x/sqrt(2)): no 0/0 in the tails
        x = _floating(x)
        scaled = x * x.dtype.type(np.sqrt(0.5))
        hazards = 1.0 / erfcx(scaled) + 1.0 / erfcx(-scaled)
        return np.asarray(hazards * x.dtype.type(0.5 * np.sqrt(2.0 / np.pi)))

    def label(self) -> str:
        return "probit"


@dataclass(frozen=True)
class NoLink:
    """No pull of its own, h = 0: only neighbours matter (a product coupling then knows B up to sign)."""

    kind: ClassVar[int] = NONE

    def shift(self) -> float:
        return 0.0

    def value(self, x: ArrayLike) -> NDArray[np.floating]:
        return np.zeros_like(_floating(x))

    def derivative(self, x: ArrayLike) -> NDArray[np.floating]:
        return np.zeros_like(_floating(x))

    def label(self) -> str:
        return "zero"


def as_link(link: object) -> Link:
    """Take a link from its name ("logit", "probit", "zero") or pass one through.

    Example:
        >>> as_link("probit")
        Probit()
    """
    named: dict[str, Link] = {"logit": Logit(), "probit": Probit(), "zero": NoLink()}
    if isinstance(link, str) and link in named:
        return named[link]
    if isinstance(link, Link) and not isinstance(link, type):
        return link
    raise ValueError(f'link is {link!r}; give "logit", "probit" or "zero", or a link object.')


def _floating(x: ArrayLike) -> NDArray[np.floating]:
    """Keep float32 as it is; everything that is not floating becomes float64."""
    array = np.asarray(x)
    return array if array.dtype.kind == "f" else array.astype(np.float64)
