"""Which entries a pseudo-gap hides: those under moved copies of the gaps, as hard to fill as the gaps themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from scipy import ndimage

from corten.completion.axes_kinds import move_gap

MAX_ROUND_ATTEMPTS = 40  # moved copies tried in a round until enough entries are hidden
MAX_HIDDEN_SHARE = 0.9  # of the observed entries; if gaps cover more, about half of them are hidden, in blocks
THIN_ABOVE, THIN_TO = 1 / 2, 1 / 3  # of the observed entries, with an unordered axis
MIN_HIDDEN_SHARE = 0.1  # of the missing entries, or of the observed ones if they are fewer


def with_margin(first: int, last: int, length: int) -> tuple[int, int]:
    """The positions of a gap along an axis and those beside it that copies keep observed between them and the edges.

    A copy beside an edge of the data is filled from one side, and is harder to fill than a gap inside. So copies keep
    as many positions to the edges as the gap does, but no more than half its length.

    Examples
    --------
    >>> with_margin(9, 14, 40), with_margin(1, 14, 40), with_margin(0, 5, 40)
    ((6, 17), (0, 15), (0, 5))
    """
    margin = min(first, length - 1 - last, (last - first + 1) // 2)
    return first - margin, last + margin


def even_moves(copies: int, axes: int, rng: np.random.Generator) -> np.ndarray:
    """How each copy is moved, (copies, axes, 2): random, but along every axis copies are spread evenly.

    Every number is uniform between 0 and 1; among n copies one lies in each n-th part.
    """
    order = rng.permuted(np.tile(np.arange(copies)[:, None, None], (1, axes, 2)), axis=0)
    return np.asarray((order + rng.random(order.shape)) / copies)


def hide(
    simulated: np.ndarray | None, gap: np.ndarray, *, usable: np.ndarray, kinds: Sequence[str], least: float,
    rng: np.random.Generator, kept: Sequence[int], extents: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    scored: np.ndarray | None = None, moves: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The usable entries to hide: under a simulated gap or a moved one, at least `least` of `scored` and not all.

    scored: those of the usable entries whose errors are counted; default all. moves: how the first copy is moved.
    """
    scored = usable if scored is None else scored
    total, best, most = usable.sum(), np.zeros_like(usable), 0
    if simulated is not None:
        hidden = simulated & usable
        if max(least, 1) <= (hidden & scored).sum() and hidden.sum() < total:
            return hidden
    for attempt in range(MAX_ROUND_ATTEMPTS):
        # A copy at an edge may hide everything or nothing; then one that is moved freely serves.
        free = attempt >= MAX_ROUND_ATTEMPTS // 2
        copy = move_gap(
            gap, kinds, rng=rng, kept=() if free else kept, extents={} if free else extents,
            moves=None if attempt else moves,
        )  # fmt: skip
        hidden = copy & usable
        count = (hidden & scored).sum()
        if count > most and hidden.sum() < total:
            best, most = hidden, count
        if most >= max(least, 1):
            return best
    return best if most else _tenth(scored, rng)


def hide_in_round(
    simulated: np.ndarray | None, gap: np.ndarray, *, usable: np.ndarray, kinds: Sequence[str], least: float,
    rng: np.random.Generator, kept: Sequence[int] = (),
    extents: Mapping[int, tuple[int, int]] = MappingProxyType({}), scored: np.ndarray | None = None,
    moves: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """As `hide`, for a whole round: fewer entries where too few would be left, as long as some are scored."""
    scored = usable if scored is None else scored
    hidden = hide(
        simulated, gap=gap, usable=usable, kinds=kinds, least=least, rng=rng, kept=kept, extents=extents,
        scored=scored, moves=moves,
    )  # fmt: skip
    fewer = thinned(hidden, gap, usable=usable, kinds=kinds, rng=rng)
    hidden = fewer if (fewer & scored).any() else hidden
    if hidden.sum() <= MAX_HIDDEN_SHARE * usable.sum():
        return hidden
    fewer = in_blocks(hidden, usable, kinds, rng)
    return fewer if (fewer & scored).any() else hidden & scored


def thinned(
    hidden: np.ndarray, gap: np.ndarray, *, usable: np.ndarray, kinds: Sequence[str], rng: np.random.Generator
) -> np.ndarray:
    """If they are more than half of all, with an unordered axis, those under further copies of the gap too: a third.

    Where stations have many gaps each, one copy of all of them leaves far fewer training entries than were observed:
    errors are larger than those of the missing entries, and other members of a stack are better. A map has few gaps,
    and a part of one would be less deep.
    """
    if "unordered" not in kinds or hidden.sum() <= THIN_ABOVE * usable.sum():
        return hidden
    for _ in range(MAX_ROUND_ATTEMPTS):
        if hidden.sum() <= THIN_TO * usable.sum():
            break
        fewer = hidden & move_gap(gap, kinds, rng=rng)
        hidden = fewer if fewer.any() else hidden
    return hidden


def in_blocks(hidden: np.ndarray, usable: np.ndarray, kinds: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """The hidden entries in about half of the blocks of the tensor, or a random tenth of the usable ones.

    Errors of an estimate from very few entries say nothing about one from many times as many. Blocks are as long as
    gaps are deep, so that entries in their middle lie as far from observed ones as missing entries do; they are shorter
    if all or none of the entries lie in such blocks.
    """
    distance = ndimage.distance_transform_edt(~usable)
    side = max(1, round(2 * float(np.median(distance[~usable])))) if not usable.all() else 1
    while True:
        blocks = [
            np.arange(n) if kind == "unordered" else (np.arange(n) + rng.integers(side)) // side
            for n, kind in zip(hidden.shape, kinds)
        ]
        chosen = rng.random([int(one[-1]) + 1 for one in blocks]) < 0.5
        kept = hidden & chosen[np.ix_(*blocks)]
        if MIN_HIDDEN_SHARE <= kept.sum() / usable.sum() <= MAX_HIDDEN_SHARE:
            return kept
        if side == 1:
            return _tenth(usable, rng)
        side //= 2


def _tenth(usable: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random tenth of the observed entries, used if no moved gap covers any of them."""
    entries = np.flatnonzero(usable)
    hidden = np.zeros(usable.size, bool)
    hidden[rng.choice(entries, max(1, min(entries.size // 10, entries.size - 1)), replace=False)] = True
    return hidden.reshape(usable.shape)
