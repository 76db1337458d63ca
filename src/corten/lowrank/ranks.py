"""Which ranks a shape allows: checked with a clear error, or clipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["check_rank", "feasible_rank"]


def feasible_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Clip tensor-train ranks to the largest ones the shape allows.

    A bond can hold at most r_k <= r_{k-1} d_k and r_k <= d_{k+1} r_{k+1}, or no orthogonal core exists.

    Examples
    --------
    >>> feasible_rank((2, 10, 10), 5)
    (2, 5)
    """
    bonds = list(_bonds(shape, rank))
    left = 1
    for k in range(len(bonds)):
        left = bonds[k] = min(bonds[k], left * shape[k])
    right = 1
    for k in reversed(range(len(bonds))):
        right = bonds[k] = min(bonds[k], right * shape[k + 1])
    return tuple(bonds)


def check_rank(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    """Give one rank per bond (an integer means every bond), or say which bond asks for too much.

    Examples
    --------
    >>> check_rank((4, 5, 6), 3)
    (3, 3)
    """
    asked = _bonds(shape, rank)
    allowed = feasible_rank(shape, asked)
    for k, (want, most) in enumerate(zip(asked, allowed)):
        if want > most:
            raise ValueError(
                f"rank: bond {k + 1} (between modes {k + 1} and {k + 2}) asks for {want}, but shape "
                f"{tuple(shape)} with ranks {asked} allows at most {most}; "
                "lower it, or clip with feasible_rank(shape, rank)"
            )
    return asked


def _bonds(shape: Sequence[int], rank: int | Sequence[int]) -> tuple[int, ...]:
    if len(shape) == 0 or any(int(d) < 1 for d in shape):
        raise ValueError(f"shape: every mode needs a length of at least 1, got {tuple(shape)}")
    bonds = tuple(int(r) for r in (rank if isinstance(rank, Iterable) else [rank] * (len(shape) - 1)))
    if len(bonds) != len(shape) - 1:
        raise ValueError(
            f"rank: {len(bonds)} ranks for {len(shape)} modes; give one integer or {len(shape) - 1} of them"
        )
    if any(r < 1 for r in bonds):
        raise ValueError(f"rank: every bond needs a rank of at least 1, got {bonds}")
    return bonds
