"""Links: the function h(B_i), through which the parameter of an entry enters its own log-odds.

An entry without neighbours is observed with log-odds 2 h(B). Passes over a mask read `kind` and `shift()` of a link;
their formulas are in `engine/arithmetic.py`, with the derivatives, and in `engine/jax_slab.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from corten.data.arrays import Numbers
from corten.engine.arithmetic import LOGIT, NO_LINK, PROBIT
from corten.propensity.coupling import as_floating


@runtime_checkable
class Link(Protocol):
    """The members of a link: h, and the kind and shift that kernels read."""

    kind: ClassVar[int]

    def shift(self) -> float: ...

    def value(self, x: ArrayLike) -> Numbers: ...


@dataclass(frozen=True)
class Logit:
    """The link of the paper, h(x) = x/2 + offset.

    Without neighbours an entry is observed with probability sigmoid(x + 2 offset).

    Parameters
    ----------
    offset : float or "learned"
        Default 0 (the paper); "learned" estimates it together with B.

    Raises
    ------
    ValueError
        If the offset is another string or not finite.

    Examples
    --------
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
        """Whether the offset is estimated during the fit."""
        return isinstance(self.offset, str)

    def shift(self) -> float:
        """The term that the offset adds to every log-odds, 2 offset."""
        if isinstance(self.offset, str):
            raise ValueError('The offset of Logit("learned") is not known yet; give a number, such as Logit(0.0).')
        return 2.0 * self.offset

    def value(self, x: ArrayLike) -> Numbers:
        x = as_floating(x)
        return np.asarray(x.dtype.type(0.5) * (x + x.dtype.type(self.shift())))


@dataclass(frozen=True)
class Probit:
    """The normal link, h(x) = log(Phi(x) / Phi(-x)) / 2.

    Without neighbours an entry is observed with probability Phi(x), the normal distribution function.

    Examples
    --------
    >>> float(Probit().value(0.0))
    0.0
    """

    kind: ClassVar[int] = PROBIT

    def shift(self) -> float:
        return 0.0

    def value(self, x: ArrayLike) -> Numbers:
        x = as_floating(x)
        return np.asarray(0.5 * (log_ndtr(x) - log_ndtr(-x)))


@dataclass(frozen=True)
class NoLink:
    """No link, h = 0: the log-odds depend on the neighbours only (equation Ising-model-no-ext).

    With a product coupling, B is then determined up to its sign.

    Examples
    --------
    >>> float(NoLink().value(3.0))
    0.0
    """

    kind: ClassVar[int] = NO_LINK

    def shift(self) -> float:
        return 0.0

    def value(self, x: ArrayLike) -> Numbers:
        return np.zeros_like(as_floating(x))


def as_link(link: object) -> Link:
    """Return a link from its name ("logit", "probit", "zero") or the link itself."""
    named: dict[str, Link] = {"logit": Logit(), "probit": Probit(), "zero": NoLink()}
    if isinstance(link, str) and link in named:
        return named[link]
    if isinstance(link, Link) and not isinstance(link, type):
        return link
    raise ValueError(f'link is {link!r}; give "logit", "probit" or "zero", or a link object.')
