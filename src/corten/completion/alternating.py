"""CP completion by alternating least squares, with tensorly (extra `[peers]`)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.completion.protocol import Fill
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.lowrank import CP


@dataclass(frozen=True)
class CPCompletion:
    """Fill with a sum of outer products (CP), fitted by alternating least squares.

    Needs tensorly: `pip install 'corten[peers]'`.

    Parameters
    ----------
    rank : int
        The number of outer products, at least 1.
    max_iterations : int, default 100
        The largest number of iterations.

    Raises
    ------
    ValueError
        If the rank is not a whole number of at least 1; in a fill, if the iterations diverge.
    ImportError
        In a fit, if tensorly is not installed.

    Examples
    --------
    >>> CPCompletion(rank=2).max_iterations
    100
    """

    rank: int
    max_iterations: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"rank is {self.rank!r}; give a whole number of at least 1")

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedCP:
        """Return the prepared completion; no setting is chosen."""
        try:
            import tensorly  # noqa: F401
        except ImportError as error:
            raise ImportError("CPCompletion needs tensorly: pip install 'corten[peers]'") from error
        return PreparedCP(self.rank, self.max_iterations, seed)


@dataclass(frozen=True)
class PreparedCP:
    """A CP completion with its settings."""

    rank: int
    max_iterations: int
    seed: int
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill by alternating least squares from a random start."""
        from tensorly.decomposition import parafac

        found = values[mask].astype(np.float64)
        centre, scale = float(found.mean()), float(found.std()) or 1.0
        scaled = np.zeros(values.shape)
        scaled[mask] = (found - centre) / scale
        if not scaled.any():  # constant data, for which alternating least squares would divide by zero
            return Fill(np.full(values.shape, centre), leverage=lambda: np.zeros(values.shape))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorly warns of conditions that are handled below
            try:
                weights, factors = parafac(
                    scaled, self.rank, mask=mask.astype(float), init="random", n_iter_max=self.max_iterations,
                    tol=1e-6, random_state=self.seed, normalize_factors=True,
                )  # fmt: skip
            except np.linalg.LinAlgError:
                weights, factors = np.full(self.rank, np.nan), ()
        if not all(np.isfinite(part).all() for part in (weights, *factors)):
            raise ValueError(
                f"rank is {self.rank}: alternating least squares did not converge on {int(mask.sum())} entries of "
                f"shape {values.shape}; lower the rank, or use another completion"
            )
        point = CP(np.asarray(weights), tuple(np.asarray(f) for f in factors))

        def leverage() -> np.ndarray:
            return np.sqrt(np.maximum(point.leverage(), 0.0))

        return Fill(centre + scale * point.to_dense(), leverage=leverage)
