"""Which ranks a shape allows: checked with a clear error, or clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def feasible_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Clip tensor-train ranks to the largest ones the shape allows.

    A bond can hold at most r_k <= r_{k-1} d_k and r_k <= d_{k+1} r_{k+1}, or no orthogonal core exists.

    Examples
    --------
    >>> feasible_rank((2, 10, 10), 5)
    (2, 5)
    """
    bonds = list(_listed(shape, rank, len(shape) - 1, "bond"))
    left = 1
    for k in range(len(bonds)):
        left = bonds[k] = min(bonds[k], left * shape[k])
    right = 1
    for k in reversed(range(len(bonds))):
        right = bonds[k] = min(bonds[k], right * shape[k + 1])
    return tuple(bonds)


def feasible_tucker_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Clip multilinear ranks to what the shape allows: r_k <= d_k and r_k <= the product of the others.

    Examples
    --------
    >>> feasible_tucker_rank((2, 10, 10), (2, 2, 9))
    (2, 2, 4)
    """
    if len(shape) < 2:
        raise ValueError(f"shape: needs two or more modes, got {tuple(shape)}")
    modes = [min(r, d) for r, d in zip(_listed(shape, rank, len(shape), "mode"), shape)]
    for _ in modes:  # each round can only lower ranks; K rounds reach the fixed point
        modes = [min(r, math.prod(modes[:k] + modes[k + 1 :])) for k, r in enumerate(modes)]
    return tuple(modes)


def check_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Give one rank per bond (an integer means every bond), or raise an error that names the bond.

    Examples
    --------
    >>> check_rank((4, 5, 6), 3)
    (3, 3)
    """
    allowed = feasible_rank(shape, rank)
    return _within(_listed(shape, rank, len(shape) - 1, "bond"), allowed, shape, "bond", "feasible_rank")


def check_tucker_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Give one rank per mode (an integer means every mode), or raise an error that names the mode."""
    allowed = feasible_tucker_rank(shape, rank)
    return _within(_listed(shape, rank, len(shape), "mode"), allowed, shape, "mode", "feasible_tucker_rank")


def _within(
    asked: tuple[int, ...], allowed: tuple[int, ...], shape: Sequence[int], what: str, clip: str
) -> tuple[int, ...]:
    """The ranks, or an error that names the first that is too large."""
    for k, (want, most) in enumerate(zip(asked, allowed), 1):
        if want > most:
            where = f"{what} {k}" + (f" (between modes {k} and {k + 1})" if what == "bond" else "")
            raise ValueError(
                f"rank: {where} asks for {want}, but shape {tuple(shape)} with ranks {asked} allows at most {most}; "
                f"lower it, or clip with {clip}(shape, rank)"
            )
    return asked


def _listed(shape: Sequence[int], rank: int | Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """One rank for each of `count` bonds or modes."""
    if len(shape) == 0 or any(int(d) < 1 for d in shape):
        raise ValueError(f"shape: every mode needs a length of at least 1, got {tuple(shape)}")
    ranks = tuple(int(r) for r in (rank if isinstance(rank, Iterable) else [rank] * count))
    if len(ranks) != count:
        raise ValueError(f"rank: {len(ranks)} ranks for {len(shape)} modes; give one integer or {count} of them")
    if any(r < 1 for r in ranks):
        raise ValueError(f"rank: every {what} needs a rank of at least 1, got {ranks}")
    return ranks
