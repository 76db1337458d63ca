"""What tensor trains, Tucker and CP tensors share, and the arithmetic of tangent vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Floats, frozen

if TYPE_CHECKING:
    from corten.lowrank.tensor_train import Frame, TensorTrain
    from corten.lowrank.tucker import Tucker

Point = TypeVar("Point", bound="TensorTrain | Tucker")
Point_co = TypeVar("Point_co", bound="TensorTrain | Tucker", covariant=True)


class LowRank(ABC):
    """An immutable tensor that is stored as small arrays; subclasses have `shape`, `rank` and `slab`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def rank(self) -> int | tuple[int, ...]: ...

    @abstractmethod
    def slab(self, start: int, stop: int) -> Floats: ...

    @property
    def order(self) -> int:
        """Number of modes, K."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries of the dense tensor."""
        return math.prod(self.shape)

    def to_dense(self) -> Floats:
        """The dense array."""
        return self.slab(0, self.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, rank={self.rank})"


class TangentFrame(Protocol[Point_co]):
    """The tangent space at a point, as a descent uses it."""

    @property
    def tt(self) -> Frame: ...
    def project(self, contractions: Sequence[npt.ArrayLike]) -> TangentVector[Point_co]: ...
    def project_tt(self, tt: TensorTrain) -> TangentVector[Point_co]: ...
    def radial(self) -> TangentVector[Point_co]: ...


@dataclass(frozen=True, eq=False)
class TangentVector(ABC, Generic[Point_co]):
    """A tangent vector at a frame's point: parts that are orthogonal to each other as tensors."""

    frame: TangentFrame[Point_co]
    parts: tuple[Floats, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(frozen(part) for part in self.parts))

    @abstractmethod
    def to_tt(self) -> TensorTrain:
        """The tangent vector as a tensor train."""

    @abstractmethod
    def retract(self, step: float) -> Point_co:
        """Move by `step` along the vector and round back to the rank (Step III); on small arrays only."""

    def inner(self, other: Self) -> float:
        """Inner product of the dense tensors: the sum of those of the parts."""
        self._same_frame(other)
        return float(sum(np.vdot(a, b) for a, b in zip(self.parts, other.parts)))

    def norm(self) -> float:
        """Frobenius norm of the dense tensor."""
        return float(np.linalg.norm([np.linalg.norm(part) for part in self.parts]))

    def __add__(self, other: Self) -> Self:
        self._same_frame(other)
        return type(self)(self.frame, tuple(a + b for a, b in zip(self.parts, other.parts)))

    def __sub__(self, other: Self) -> Self:
        return self + -other

    def __mul__(self, scalar: float) -> Self:
        return type(self)(self.frame, tuple(part * float(scalar) for part in self.parts))

    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self * -1.0

    def transport(self, frame: TangentFrame[Point_co]) -> Self:
        """The vector carried to another point, by projection on to the tangent space there; O(K d r^3)."""
        return cast(Self, frame.project_tt(self.to_tt()))

    def _same_frame(self, other: Self) -> None:
        if self.frame is not other.frame:
            raise ValueError("tangent vectors of two frames do not mix: carry one over with transport(frame)")
