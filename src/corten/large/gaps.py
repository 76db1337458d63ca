"""Pseudo-gaps for tensors larger than memory: tiles filled against a coarse field, calibrated on a sample of tiles.

A coarse field of the whole tensor is completed first. Tiles are completed from their own entries and those of a margin;
deep inside gaps larger than that, the coarse field stands for what is not near. For calibration, entries of a sample of
tiles are hidden under copies of gaps of the same tile or of another place, the coarse field is completed again without
them, and the tiles are filled; their errors give the mix, the learned scale and the scores, as in
`calibration/gaps.py`. Then one pass fills all tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from scipy import ndimage

from corten.calibration.gap_scale import choose_score, first_estimate, reach, tested_depth
from corten.calibration.pseudo_gaps import MIN_HIDDEN_SHARE, hide
from corten.calibration.round_entries import MAX_POOLED_ENTRIES, Hidden, cross_fitted_mix, pooled, reduced
from corten.completion.axes_kinds import axis_kinds, edges_of
from corten.completion.protocol import Fill, PreparedMix, on_axes
from corten.completion.stack import StackedCompletion, fill_on
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.depth import DepthWeights, depth, steps_of_change
from corten.conformal.local_scale import EntryFeatures, LearnedScale
from corten.conformal.scores import Score
from corten.conformal.weights import PooledWeights
from corten.data.axes import Axis, cut_axes
from corten.data.choices import Choice
from corten.engine.lazy import is_lazy
from corten.engine.memory import MappedFile, file_tensor, let_go
from corten.io.lazy import LazyTensor
from corten.large.needs import number_of_rounds
from corten.large.stages import Tell, blocks
from corten.large.tasks import TileRunner
from corten.large.tiles import Box, Coarse, FarField, Tile, tile_sides, tiles_of

TILE_SEED_STREAM = 0x711E
SETS = 4  # of tiles hidden at once: the coarse field is completed once for each set
MIN_TILE_HIDDEN = 20  # entries that can be hidden in a tile, at least
SAMPLED_TILES = 12  # from which depths of missing entries and steps of change are estimated
MAX_COMPARED_ENTRIES = 24_000  # hidden in a tile, by which settings are compared
SETTINGS_TILES = 4  # the stack has the settings of one of them: those with the lowest error in all of them


@dataclass(frozen=True)
class TiledField:
    """A tensor in files or as Dask arrays: values, and what each entry is (1 observed, -1 missing, 0 outside).

    counts: numbers of observed and of missing entries of the core of each tile, (tiles, 2).
    """

    axes: tuple[Axis, ...]
    values: np.ndarray = field(repr=False)
    spins: np.ndarray = field(repr=False)
    tiles: tuple[Tile, ...] = field(repr=False)
    coarse: Coarse = field(repr=False)
    counts: np.ndarray = field(repr=False)

    @staticmethod
    def of(lazy: LazyTensor, spins: np.ndarray, *, block: int, tile_entries: int, tell: Tell) -> TiledField:
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
        counts = np.array([_counts(spins[tile.core]) for tile in tiles])
        return TiledField(lazy.axes, values, spins=spins, tiles=tuple(tiles), coarse=coarse, counts=counts)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.length for axis in self.axes)

    def __getstate__(self) -> dict[str, object]:
        """For another process: files instead of the tensors in them."""
        return self.__dict__ | {"values": MappedFile.of(self.values), "spins": MappedFile.of(self.spins)}

    def __setstate__(self, state: dict[str, object]) -> None:
        opened = {name: one.open() for name, one in state.items() if isinstance(one, MappedFile)}
        self.__dict__.update(state | opened)

    def read(self, box: Box) -> tuple[np.ndarray, np.ndarray]:
        """Values and spins of a box."""
        parts = self.values[box], self.spins[box]
        if is_lazy(parts[0]):
            import dask

            return cast(tuple[np.ndarray, np.ndarray], dask.compute(*parts))  # spins are computed from the values
        values, spins = map(np.array, parts)
        for part in parts:
            let_go(part)
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
class TileFiller:
    """Fills tiles from their observed entries, and from the coarse field where none of them is near.

    engine: fills on its device if it has one.
    """

    axes: tuple[Axis, ...]
    completion: PreparedMix = field(repr=False)
    far: FarField = field(repr=False)
    change: np.ndarray
    spread: float
    engine: object = "auto"

    def fill(self, tile: Tile, values: np.ndarray, mask: np.ndarray) -> tuple[Fill, EntryFeatures]:
        """A padded tile filled from the entries in `mask`, and what describes its entries."""
        axes, (anchors, placed) = cut_axes(self.axes, tile.padded), self.far.anchors(tile.padded)
        placed &= ~mask
        known = np.where(placed, anchors, values).astype(values.dtype)
        fill = fill_on(self.engine, on_axes(self.completion, axes), known, mask | placed)
        return fill, EntryFeatures(axes, self.change, self.spread)


@dataclass(frozen=True)
class TiledModel:
    """All that fills a tile and gives its missing entries intervals; `first` has the weights before calibration."""

    filler: TileFiller
    first: PreparedMix = field(repr=False)
    learned: LearnedScale = field(repr=False)
    by_depth: DepthWeights = field(repr=False)
    tested: float
    scored: CalibratedScores = field(repr=False)
    choices: tuple[Choice, ...] = ()

    def fill(self, tile: Tile, values: np.ndarray, spins: np.ndarray, coverages: Sequence[float]) -> FilledTile:
        """Fill one tile from the values and spins of its padded box."""
        mask, inner, missing = spins == 1, tile.inner, tile.entries(spins == -1)
        estimate, deep = values, np.zeros(0)
        lower: np.ndarray = np.zeros((len(coverages), 0))
        upper: np.ndarray = lower
        if missing.size:
            fill, describe = self.filler.fill(tile, values, mask)
            whole = depth(mask, describe.axes, describe.change)
            features = describe.at(
                missing, values=values, train=mask, estimate=first_estimate(self.first, fill), members=fill.members,
                deep=whole,
            )  # fmt: skip
            estimate, deep = fill.estimate, whole.reshape(-1)[missing]
            middle = estimate.reshape(-1)[missing].astype(np.float64)
            bins = np.searchsorted(self.by_depth.edges, deep)
            lower, upper = self.scored.intervals(bins, middle, self.learned.predict(features), list(coverages))
        return FilledTile(
            spins=spins[inner], values=values[inner], estimate=estimate[inner].astype(values.dtype),
            missing=np.flatnonzero(spins[inner] == -1), lower=lower, upper=upper, beyond=deep > self.tested,
        )  # fmt: skip


def calibrate(data: TiledField, score: Score, *, seed: int, runner: TileRunner, tell: Tell) -> TiledModel:
    """Choose settings, hide entries in a sample of tiles, and learn mix, scale and scores from their errors."""
    rng = np.random.default_rng((seed, TILE_SEED_STREAM))
    axes, shape, coarse = data.axes, data.shape, data.coarse
    observed, missing = data.counts.T.astype(float)
    useful = np.flatnonzero(observed >= 2 * MIN_TILE_HIDDEN).tolist()
    givers = np.flatnonzero(missing)
    if not useful or not givers.size:
        raise ValueError("no part of the tensor has enough observed entries: pseudo-gaps cannot be placed")
    needy = missing[givers] / missing.sum()
    sampled = rng.choice(givers, min(SAMPLED_TILES, len(givers)), replace=False, p=needy)
    change, spread, missing_depths = _look_at(data, [data.tiles[i] for i in sampled], rng)
    sets = []
    for number, numbers in enumerate(_sets(useful, observed[useful], number_of_rounds(data.tiles, len(useful)), rng)):
        hidings = []
        for place, i in enumerate(numbers):
            # Every second copy is that of the tile itself. The others come from near tiles drawn in proportion to their
            # missing entries: a tile with large gaps has few entries to hide under them.
            tile = data.tiles[i]
            start = tuple(part.start for part in tile.padded)
            if (number + place) % 2 == 0 or not missing[i]:
                start = _near(data.tiles[int(rng.choice(givers, p=needy))], tile.shape, shape, rng)
            hidings.append(Hiding(tile, start, int(rng.integers(2**32))))
        sets.append(hidings)
    tell(0.05)
    ordered = sorted(useful, key=lambda i: observed[i])
    places = (np.arange(SETTINGS_TILES) + 0.5) / SETTINGS_TILES * len(ordered)
    compared = [data.tiles[ordered[k]] for k in np.unique(places.astype(int))]
    # On a cluster all of this runs on the workers: what the client does alone, the workers wait for.
    settings = partial(_settings_of, data=data, seed=seed, engine=runner.inside)
    boxes = (*(tile.padded for tile in compared), None)
    *options, large = runner.run(settings, boxes, lambda share: tell(0.05 + 0.1 * share))
    compare = partial(_hidden_with, data=data, options=options, seed=seed, engine=runner.inside)
    far_field = partial(_far_field_without, data=data, large=large)
    both = partial(_each_by_its_kind, of_tile=compare, of_hidings=far_field)
    found = runner.run(both, (*compared, (), *sets), lambda share: tell(0.15 + 0.15 * share))
    hidden, fields = found[: len(compared)], found[len(compared) :]
    errors = [_error(one, [at[k] for at in hidden]) for k, one in enumerate(options)]
    first = options[int(np.argmin(errors))]
    filler = TileFiller(axes, first, fields[0], change, spread=spread, engine=runner.inside)
    drawn = [(number, hiding) for number, hidings in enumerate(sets, 1) for hiding in hidings]
    limit = MAX_POOLED_ENTRIES // len(drawn)
    scored = partial(_scored, data=data, filler=filler, fields=fields, limit=limit)
    rounds = runner.run(scored, drawn, lambda share: tell(0.3 + 0.65 * share))
    rounds = [one for one in rounds if one.entries.size]
    completion, rounds = cross_fitted_mix(filler.completion, rounds, shape, seed)
    entries, truth, estimate, features = (pooled(rounds, n) for n in ("entries", "truth", "estimate", "features"))
    learned = LearnedScale.fit(features, truth - estimate, entries=entries, shape=shape, seed=seed)
    depths = [h.depths for h in rounds]
    by_depth = DepthWeights.of(np.concatenate(depths), missing_depths)
    # Test entries are named by the bin of their depth: their weight depends on nothing else.
    weights = PooledWeights(entries, by_depth.at(np.concatenate(depths)), by_depth.log_ratio)
    score, form = choose_score(
        score, truth - estimate, learned=learned, log_weights=weights.of_calibration(entries), entries=entries,
        shape=shape,
    )  # fmt: skip
    scores = score.score(truth, estimate, learned.hidden)
    tested = tested_depth(depths)
    sides = " x ".join(str(part.stop - part.start) for part in data.tiles[0].core)
    choices = (
        Choice("tiles", f"{len(data.tiles)} of {sides}", f"with a coarse field of {coarse.total.size:,} entries"),
        *((Choice("tiles are filled on", runner.device, "as given"),) if runner.device else ()),
        Choice("pseudo-gaps", f"{len(rounds)} tiles", "copies of gaps of the same tile or of another place"),
        Choice(
            "tile of the settings",
            f"number {1 + int(np.argmin(errors))} of {len(compared)}",
            "its settings have the lowest error of entries hidden in all of them",
            tuple(
                {"tile": [part.start for part in tile.core], "error": error} for tile, error in zip(compared, errors)
            ),
        ),
        *completion.choices,
        *form,
        reach(int(np.count_nonzero(missing_depths > tested)), missing_depths.size),
    )
    tell(1.0)
    return TiledModel(
        replace(filler, completion=completion), filler.completion, learned=learned, by_depth=by_depth, tested=tested,
        scored=CalibratedScores(score, scores, entries, weights), choices=choices,
    )  # fmt: skip


def _counts(spins: np.ndarray) -> tuple[int, int]:
    """Numbers of observed and missing entries."""
    found = int(np.count_nonzero(spins == 1)), int(np.count_nonzero(spins == -1))
    let_go(spins)
    return found


def _look_at(data: TiledField, tiles: Sequence[Tile], rng: np.random.Generator) -> tuple[np.ndarray, float, np.ndarray]:
    """Change in one step along each axis, standard deviation of the values, and depths of missing entries of tiles."""
    changes, values_seen, spins_seen = [], [], []
    for tile in tiles:
        values, spins = data.read(tile.padded)
        spins_seen.append(spins)
        mask = spins == 1
        spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
        changes.append(steps_of_change(values, mask, cut_axes(data.axes, tile.padded)) * spread)
        values_seen.append(rng.choice(values[mask], min(10_000, int(mask.sum()))) if mask.any() else values[:0])
    spread = float(np.concatenate([np.ravel(v) for v in values_seen]).std(dtype=np.float64)) or 1.0
    change = np.clip(np.sqrt(np.mean(np.square(changes), axis=0)) / spread, 1e-3, 2.0)
    depths = []
    for tile, spins in zip(tiles, spins_seen):
        deep = depth(spins == 1, cut_axes(data.axes, tile.padded), change)
        found = deep[tile.inner][spins[tile.inner] == -1]
        depths.append(rng.choice(found, min(20_000, found.size), replace=False))
    return change, spread, np.concatenate(depths)


def _near(tile: Tile, size: Sequence[int], shape: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
    """The start of a box of this size within the tensor, at a random distance from a tile of at most its side."""
    start = []
    for part, n, length in zip(tile.core, size, shape):
        side = part.stop - part.start
        start.append(int(np.clip(part.start + rng.integers(-side, side + 1), 0, length - n)))
    return tuple(start)


def _sets(useful: Sequence[int], chance: np.ndarray, rounds: int, rng: np.random.Generator) -> list[list[int]]:
    """Sets of different tiles, `rounds` tiles or a few more in all, drawn with these chances."""
    each = min(-(-rounds // SETS), len(useful))
    draws = range(-(-rounds // each))
    return [rng.choice(useful, each, replace=False, p=chance / chance.sum()).tolist() for _ in draws]


@dataclass(frozen=True)
class Hiding:
    """Observed entries of a tile to hide: under a copy of the gaps in a box of the same shape that begins at `start`.

    The copy is reflected along the axes that are cut into tiles and moved along the others: a shift within the box
    would cut gaps at its borders, and parts of a gap are easier to fill.
    """

    tile: Tile
    start: tuple[int, ...]
    seed: int

    def draw(self, data: TiledField) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and mask of the padded tile, and which entries are hidden; the same at every call."""
        tile, shape = self.tile, self.tile.shape
        values, spins = data.read(tile.padded)
        mask = spins == 1
        kinds = axis_kinds(cut_axes(data.axes, tile.padded), shape)
        kept = {k for k, n in enumerate(shape) if n < data.shape[k]}
        if self.start == tuple(part.start for part in tile.padded):
            kept |= set(edges_of(spins == -1, kinds))  # gaps at the edges of the data stay there
        else:
            spins = data.read(tuple(slice(at, at + n) for at, n in zip(self.start, shape)))[1]
        gap = _continued(spins)
        least = MIN_HIDDEN_SHARE * min(int(gap.sum()), int(mask.sum()))
        rng = np.random.default_rng(self.seed)
        return values, mask, hide(None, gap=gap, usable=mask, kinds=kinds, least=least, rng=rng, kept=sorted(kept))


def _continued(spins: np.ndarray) -> np.ndarray:
    """The gaps, continued over entries outside the domain by the nearest entry inside: clouds do not end at a coast."""
    gap, outside = spins == -1, spins == 0
    if not outside.any() or outside.all():
        return gap
    nearest = ndimage.distance_transform_edt(outside, return_distances=False, return_indices=True)
    return np.asarray(gap[tuple(nearest)])


def _each_once(data: TiledField, hidings: Sequence[Hiding]) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """The hidden entries of tiles that may overlap, each entry in one of them: start of the box, values, which."""
    before: list[tuple[Tile, np.ndarray]] = []
    for one in hidings:
        values, _, hidden = one.draw(data)
        new = hidden.copy()
        for other, earlier in before:
            mine, theirs = one.tile.common(other)
            new[mine] &= ~earlier[theirs]
        before.append((one.tile, hidden))
        yield [part.start for part in one.tile.padded], values, new


def _each_by_its_kind(
    one: Tile | Sequence[Hiding], *, of_tile: Callable[[Tile], Any], of_hidings: Callable[[Sequence[Hiding]], Any]
) -> Any:
    """Two kinds of work in one run: workers do not wait for the last item of the first kind."""
    return of_tile(one) if isinstance(one, Tile) else of_hidings(one)


def _settings_of(box: Box | None, *, data: TiledField, seed: int, engine: object) -> PreparedMix:
    """The stack prepared on a box, or on the coarse field where there is none."""
    if box is None:
        values, mask, axes = data.coarse.values, data.coarse.mask, data.coarse.axes(data.axes)
    else:
        values, spins = data.read(box)
        mask, axes = spins == 1, cut_axes(data.axes, box)
    return StackedCompletion(engine=engine).prepare(values, mask, axes, seed)


def _hidden_with(
    tile: Tile, *, data: TiledField, options: Sequence[PreparedMix], seed: int, engine: object
) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """For each of the settings the values and the estimates of the members at entries hidden in the core of a tile.

    The likelihood of small samples of a single tile has several maxima: settings of some tiles have an error that is
    larger by a fifth in all others.
    """
    values, mask, hidden = Hiding(tile, tuple(part.start for part in tile.padded), seed).draw(data)
    train, entries, axes = mask & ~hidden, tile.entries(hidden), cut_axes(data.axes, tile.padded)
    if entries.size > MAX_COMPARED_ENTRIES:
        entries = np.random.default_rng(seed).choice(entries, MAX_COMPARED_ENTRIES, replace=False)
    known, truth = np.where(train, values, np.nan), values.reshape(-1)[entries]
    fills = (fill_on(engine, on_axes(one, axes), known, train).members for one in options)
    return [(truth, {name: one.reshape(-1)[entries] for name, one in members.items()}) for members in fills]


def _error(prepared: PreparedMix, hidden: Sequence[tuple[np.ndarray, dict[str, np.ndarray]]]) -> float:
    """The mean absolute error of the mix, with weights learned from these entries: one tile has few of them."""
    truth = np.concatenate([one for one, _ in hidden])
    members = {name: np.concatenate([each[name] for _, each in hidden]) for name in hidden[0][1]}
    if not truth.size:
        return 0.0
    return float(np.abs(prepared.combine(members, truth).mix(members) - truth).mean(dtype=np.float64))


def _far_field_without(hidings: Sequence[Hiding], *, data: TiledField, large: PreparedMix) -> FarField:
    """The coarse field completed without the entries that are hidden in tiles."""
    left = data.coarse.without(_each_once(data, hidings))
    return left.far_field(large.fill(left.values, left.mask).estimate)


def _scored(
    one: tuple[int, Hiding], *, data: TiledField, filler: TileFiller, fields: Sequence[FarField], limit: int
) -> Hidden:
    """The hidden entries of the core of a tile, at most `limit` of them, filled without them.

    one: the number of the coarse field without the entries that are hidden in the set of the tile; and the hiding.
    """
    number, hiding = one
    tile = hiding.tile
    values, mask, hidden = hiding.draw(data)
    train, entries = mask & ~hidden, tile.entries(hidden)
    if entries.size > limit:
        entries = np.sort(np.random.default_rng((hiding.seed, 1)).choice(entries, limit, replace=False))
    fill, describe = replace(filler, far=fields[number]).fill(tile, np.where(train, values, np.nan), train)
    found = reduced(fill, values, train=train, entries=entries, describe=describe)
    return replace(found, entries=tile.of_tensor(entries, data.shape))
