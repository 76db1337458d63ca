"""Pseudo-gaps for tensors larger than memory: tiles filled against a coarse field, calibrated on a sample of tiles.

A coarse field of the whole tensor is completed first. Tiles are completed from their own entries and those of a margin;
deep inside gaps larger than that, the coarse field stands for what is not near. For calibration, entries of a sample of
tiles are hidden under moved copies of the gaps of the tile, the coarse field is completed again without them, and the
tiles are filled; their errors give the mix, the learned scale and the scores, as in `calibration/gaps.py`. Then one
pass fills all tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corten.calibration.gap_rounds import MAX_POOLED_ENTRIES, Hidden, cross_fitted_mix, reduced
from corten.calibration.gap_scale import first_estimate, reach, tested_depth
from corten.calibration.gaps import MIN_HIDDEN_SHARE, hide
from corten.completion.axes_kinds import axis_kinds, edges_of
from corten.completion.protocol import Fill, PreparedMix, on_axes
from corten.completion.stack import StackedCompletion
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.depth import DepthWeights, depth, steps_of_change
from corten.conformal.local_scale import EntryFeatures, LearnedScale
from corten.conformal.scores import Score
from corten.conformal.weights import PooledWeights
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine.memory import file_tensor, let_go
from corten.engine.threads import in_order
from corten.io.lazy import LazyTensor
from corten.large.stages import Tell, blocks
from corten.large.tiles import Box, Coarse, Tile, cut_axes, tile_sides, tiles_of

__all__ = ["FilledTile", "TiledField", "TiledModel", "calibrate"]

SEED_STREAM = 0x711E
ROUNDS = 24  # tiles in which entries are hidden
TILES_AT_ONCE = 6  # of them, hidden at once: the coarse field is completed once for each such set
MIN_HIDDEN = 20  # entries that can be hidden in a tile, at least
SAMPLED_TILES = 12  # from which depths of missing entries and steps of change are estimated


@dataclass(frozen=True)
class TiledField:
    """A tensor in files: values, and what each entry is (1 observed, -1 missing, 0 outside the domain)."""

    axes: tuple[Axis, ...]
    values: np.ndarray = field(repr=False)
    spins: np.ndarray = field(repr=False)
    tiles: tuple[Tile, ...] = field(repr=False)
    coarse: Coarse = field(repr=False)

    @staticmethod
    def of(lazy: LazyTensor, spins: np.ndarray, block: int, tile_entries: int, tell: Tell) -> TiledField:
        """Copy the values of a lazy tensor to a file, block by block, and sum them in coarse cells."""
        values, coarse = file_tensor(lazy.shape, lazy.dtype), Coarse.of(lazy.axes)
        rest = (0,) * (len(lazy.shape) - 1)
        for start, planes, _ in blocks(lazy, block, tell):
            stop = start + len(planes)
            values[start:stop] = planes
            coarse.add((start, *rest), planes, spins[start:stop] == 1)
            let_go(values[start:stop])
            let_go(spins[start:stop])
        tiles = tiles_of(lazy.axes, tile_sides(lazy.axes, tile_entries))
        return TiledField(lazy.axes, values, spins, tuple(tiles), coarse)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.length for axis in self.axes)

    def read(self, box: Box) -> tuple[np.ndarray, np.ndarray]:
        """Values and spins of a box."""
        values, spins = np.array(self.values[box]), np.array(self.spins[box])
        let_go(self.values[box])
        let_go(self.spins[box])
        return values, spins


@dataclass(frozen=True)
class FilledTile:
    """The estimate of the entries of a core, and of its missing entries: where, bounds, and which lie too deep."""

    spins: np.ndarray
    values: np.ndarray
    estimate: np.ndarray
    missing: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    beyond: np.ndarray


@dataclass(frozen=True)
class TiledModel:
    """All that fills a tile and gives its missing entries intervals."""

    data: TiledField
    first: PreparedMix = field(repr=False)
    completion: PreparedMix = field(repr=False)
    large_scale: np.ndarray = field(repr=False)
    change: np.ndarray
    spread: float
    learned: LearnedScale = field(repr=False)
    by_depth: DepthWeights = field(repr=False)
    tested: float
    scored: CalibratedScores = field(repr=False)
    choices: tuple[Choice, ...] = ()

    def fill(self, tile: Tile, coverages: Sequence[float]) -> FilledTile:
        """Fill one tile."""
        values, spins = self.data.read(tile.padded)
        mask, inner = spins == 1, tile.inner
        core = np.zeros(tile.shape, bool)
        core[inner] = True
        missing = np.flatnonzero(core & (spins == -1))
        estimate, deep = values, np.zeros(0)
        lower: np.ndarray = np.zeros((len(coverages), 0))
        upper: np.ndarray = lower
        if missing.size:
            axes = cut_axes(self.data.axes, tile.padded)
            fill = _filled(self.completion, values, mask, self.data.coarse, self.large_scale, tile, axes)
            whole = depth(mask, axes, self.change)
            features = EntryFeatures(axes, self.change, self.spread).at(
                missing, values=values, train=mask, estimate=first_estimate(self.first, fill), members=fill.members,
                deep=whole,
            )  # fmt: skip
            estimate, deep = fill.estimate, whole.reshape(-1)[missing]
            middle = estimate.reshape(-1)[missing].astype(np.float64)
            bins = np.searchsorted(self.by_depth.edges, deep)
            lower, upper = self.scored.intervals(bins, middle, self.learned.predict(features), list(coverages))
        places = np.unravel_index(missing, tile.shape)
        size = tuple(part.stop - part.start for part in inner)
        at = np.ravel_multi_index([p - part.start for p, part in zip(places, inner)], size)
        return FilledTile(
            spins=spins[inner], values=values[inner], estimate=estimate[inner].astype(values.dtype), missing=at,
            lower=lower, upper=upper, beyond=deep > self.tested,
        )  # fmt: skip

    def fill_all(self, coverages: Sequence[float], threads: int, tell: Tell) -> Iterator[tuple[Tile, FilledTile]]:
        """Fill all tiles, in order."""
        tiles = self.data.tiles
        for number, (tile, filled) in enumerate(
            zip(tiles, in_order(lambda tile: self.fill(tile, coverages), tiles, threads, pool="tiles")), 1
        ):
            yield tile, filled
            tell(number / len(tiles))


def _filled(
    completion: PreparedMix, values: np.ndarray, mask: np.ndarray, coarse: Coarse, large_scale: np.ndarray, tile: Tile,
    axes: Sequence[Axis],
) -> Fill:  # fmt: skip
    """A tile filled from its observed entries, and from the coarse field where none of them is near."""
    far, placed = coarse.anchors(large_scale, tile.padded)
    placed &= ~mask
    return on_axes(completion, axes).fill(np.where(placed, far, values).astype(values.dtype), mask | placed)


def calibrate(data: TiledField, score: Score, seed: int, threads: int, tell: Tell) -> TiledModel:
    """Choose settings, hide entries in a sample of tiles, and learn mix, scale and scores from their errors."""
    rng = np.random.default_rng((seed, SEED_STREAM))
    axes, shape, coarse = data.axes, data.shape, data.coarse
    coarse_axes = coarse.axes(axes)
    large = StackedCompletion().prepare(coarse.values, coarse.mask, coarse_axes, seed)
    large_scale = large.fill(coarse.values, coarse.mask).estimate
    tell(0.1)
    counts = [_counts(data, tile) for tile in data.tiles]
    observed, missing = (np.array(column, float) for column in zip(*counts))
    useful = np.flatnonzero(observed >= 2 * MIN_HIDDEN).tolist()
    givers = np.flatnonzero(missing)
    if not useful or not givers.size:
        raise ValueError("no part of the tensor has enough observed entries: pseudo-gaps cannot be placed")
    needy = missing[givers] / missing.sum()
    sampled = rng.choice(givers, min(SAMPLED_TILES, len(givers)), replace=False, p=needy)
    change, spread, missing_depths = _look_at(data, [data.tiles[i] for i in sampled], rng)
    middle = sorted(useful, key=lambda i: observed[i])[len(useful) // 2]
    values, spins = data.read(data.tiles[middle].padded)
    first = StackedCompletion().prepare(values, spins == 1, cut_axes(axes, data.tiles[middle].padded), seed)
    tell(0.2)
    rounds: list[Hidden] = []
    sets = _sets(useful, observed[useful], rng)
    for number, numbers in enumerate(sets):
        hidden = []
        for place, i in enumerate(numbers):
            # As in memory, every second copy stays at the edges that the gap touches. The others come from tiles in
            # proportion to their missing entries: a tile with large gaps has few entries to hide under them.
            giver = i if (number + place) % 2 == 1 and missing[i] else int(rng.choice(givers, p=needy))
            hidden.append(_hide(data, data.tiles[i], data.tiles[giver], rng))
        left = coarse.without(_each_once(hidden))
        sample = _Sample(data, left, large.fill(left.values, left.mask).estimate, first, change, spread)
        seeds = rng.integers(2**32, size=len(hidden)).tolist()
        jobs = [(sample, *parts, own_seed) for parts, own_seed in zip(hidden, seeds)]
        rounds += in_order(lambda job: job[0].scored(*job[1:]), jobs, threads, pool="tiles")
        tell(0.2 + 0.75 * (number + 1) / len(sets))
    rounds = [one for one in rounds if one.entries.size]
    completion, rounds = cross_fitted_mix(first, rounds, shape, seed)
    entries, truth, estimate, features = (
        np.concatenate([getattr(h, name) for h in rounds]) for name in ("entries", "truth", "estimate", "features")
    )
    learned = LearnedScale.fit(features, truth - estimate, entries=entries, shape=shape, seed=seed)
    depths = [h.depths for h in rounds]
    by_depth = DepthWeights.of(np.concatenate(depths), missing_depths)
    scores = score.score(truth, estimate, learned.hidden)
    # Test entries are named by the bin of their depth: their weight depends on nothing else.
    pooled = PooledWeights(entries, by_depth.at(np.concatenate(depths)), by_depth.log_ratio)
    tested = tested_depth(depths)
    sides = " x ".join(str(part.stop - part.start) for part in data.tiles[0].core)
    choices = (
        Choice("tiles", f"{len(data.tiles)} of {sides}", f"with a coarse field of {coarse.total.size:,} entries"),
        Choice("pseudo-gaps", f"{len(rounds)} tiles", "moved copies of the gaps of the same tile"),
        *completion.choices,
        reach(int(np.count_nonzero(missing_depths > tested)), missing_depths.size),
    )
    tell(1.0)
    return TiledModel(
        data, first, completion, large_scale, change, spread, learned, by_depth, tested,
        CalibratedScores(score, scores, entries, pooled), choices,
    )  # fmt: skip


def _counts(data: TiledField, tile: Tile) -> tuple[int, int]:
    """Numbers of observed and missing entries of a core."""
    part = data.spins[tile.core]
    found = int(np.count_nonzero(part == 1)), int(np.count_nonzero(part == -1))
    let_go(part)
    return found


def _look_at(
    data: TiledField, tiles: Sequence[Tile], rng: np.random.Generator
) -> tuple[np.ndarray, float, np.ndarray]:
    """Change in one step along each axis, standard deviation of the values, and depths of missing entries of tiles."""
    changes, values_seen = [], []
    for tile in tiles:
        values, spins = data.read(tile.padded)
        mask = spins == 1
        spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
        changes.append(steps_of_change(values, mask, cut_axes(data.axes, tile.padded)) * spread)
        values_seen.append(rng.choice(values[mask], min(10_000, int(mask.sum()))) if mask.any() else values[:0])
    spread = float(np.concatenate([np.ravel(v) for v in values_seen]).std(dtype=np.float64)) or 1.0
    change = np.clip(np.sqrt(np.mean(np.square(changes), axis=0)) / spread, 1e-3, 2.0)
    depths = []
    for tile in tiles:
        _, spins = data.read(tile.padded)
        deep = depth(spins == 1, cut_axes(data.axes, tile.padded), change)
        found = deep[tile.inner][spins[tile.inner] == -1]
        depths.append(rng.choice(found, min(20_000, found.size), replace=False))
    return change, spread, np.concatenate(depths)


def _sets(useful: Sequence[int], chance: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
    """Sets of different tiles, `ROUNDS` tiles or a few more in all, drawn with these chances."""
    each = min(TILES_AT_ONCE, len(useful))
    draws = range(-(-ROUNDS // each))
    return [rng.choice(useful, each, replace=False, p=chance / chance.sum()).tolist() for _ in draws]


def _hide(
    data: TiledField, tile: Tile, giver: Tile, rng: np.random.Generator
) -> tuple[Tile, np.ndarray, np.ndarray, np.ndarray]:
    """A tile with its values, its mask, and the observed entries to hide: under a moved copy of the gaps of `giver`.

    A tile that is its own giver keeps its gaps at the edges of the data that they touch.
    """
    values, spins = data.read(tile.padded)
    mask, gap = spins == 1, spins == -1
    kinds = axis_kinds(cut_axes(data.axes, tile.padded), tile.shape)
    kept = edges_of(gap, kinds) if giver is tile else ()
    if giver is not tile:
        gap = data.read(giver.padded)[1] == -1
        for k, n in enumerate(tile.shape):  # tiles at the edges of the data are smaller
            gap = np.take(gap, range(n), axis=k, mode="wrap")
    least = MIN_HIDDEN_SHARE * min(int(gap.sum()), int(mask.sum()))
    return tile, values, mask, hide(None, gap=gap, usable=mask, kinds=kinds, least=least, rng=rng, kept=kept)


def _each_once(
    hidden: Sequence[tuple[Tile, np.ndarray, np.ndarray, np.ndarray]],
) -> list[tuple[list[int], np.ndarray, np.ndarray]]:
    """The hidden entries of tiles that may overlap, each entry in one of them: start of the box, values, which."""
    found: list[tuple[list[int], np.ndarray, np.ndarray]] = []
    for number, (tile, values, _, gone) in enumerate(hidden):
        new = gone.copy()
        for other, _, _, earlier in hidden[:number]:
            mine, theirs = tile.common(other)
            new[mine] &= ~earlier[theirs]
        found.append(([part.start for part in tile.padded], values, new))
    return found


@dataclass(frozen=True)
class _Sample:
    """What fills tiles of one set: the coarse field without the entries hidden in all of them."""

    data: TiledField
    coarse: Coarse
    large_scale: np.ndarray
    completion: PreparedMix
    change: np.ndarray
    spread: float

    def scored(self, tile: Tile, values: np.ndarray, mask: np.ndarray, hidden: np.ndarray, seed: int) -> Hidden:
        """The hidden entries of the core of a tile, filled without them."""
        train, limit = mask & ~hidden, MAX_POOLED_ENTRIES // ROUNDS
        core = np.zeros(tile.shape, bool)
        core[tile.inner] = True
        entries = np.flatnonzero(core & hidden)
        if entries.size > limit:
            entries = np.sort(np.random.default_rng(seed).choice(entries, limit, replace=False))
        axes, known = cut_axes(self.data.axes, tile.padded), np.where(train, values, np.nan)
        fill = _filled(self.completion, known, train, self.coarse, self.large_scale, tile, axes)
        describe = EntryFeatures(axes, self.change, self.spread)
        found = reduced(fill, values, train, entries, describe)
        return replace(found, entries=tile.of_tensor(entries, self.data.shape))
