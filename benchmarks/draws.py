"""Intervals of means of regions from draws, and the correlation of drawn errors: `python -m benchmarks draws`.

    python -m benchmarks draws tec ndvi --draws 200

Fields of `python -m studies tec` (tec-full) and crops of them, whose truth is known at the gaps. Regions are boxes of
three sizes, at least 80 % of them missing; the 90 % interval of a mean lies between the quantiles of its draws.
Pseudo-gaps are judged with the dependence learned from the other half of the rounds. Standard errors are clustered by
27 blocks (rounds). A draw of the whole field takes about a second.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtr

import corten
from corten.results.dependence import Dependence, learn_dependence, normal_scores, pairs_of, steps_between
from corten.results.fitted import Fitted
from corten.results.predictive import signed_scores
from studies.field_sets import FieldSet, data_folder, load_set

CROPS: dict[str, tuple[str, tuple[slice, ...]]] = {
    "tec-full": ("tec-america-1", ()),
    "tec": ("tec-america-1", (slice(0, 40), slice(20, 60), slice(0, 32))),
    "tec2": ("tec-america-2", (slice(0, 40), slice(20, 60), slice(48, 80))),
    "ndvi": ("ndvi-50", (slice(0, 36), slice(0, 36))),
    "ndvi2": ("ndvi-50", (slice(50, 86), slice(50, 86))),
}
BOXES = ((3, 3), (6, 6), (12, 12))  # positions along the two axes of the map, at one time
MIN_MISSING, MIN_SCORED = 0.8, 3
LEVEL, TAILS = 0.9, (0.05, 0.95)
DISTANCES = ((1, 2), (4, 6), (10, 15))  # steps between two entries of one map


def crop(name: str) -> FieldSet:
    """A field, or a part of it."""
    base, where = CROPS[name]
    field = load_set(base, data_folder(None))
    return replace(field, truth=field.truth[where], mask=field.mask[where], score=field.score[where])


def tiles(shape: tuple[int, ...], box: tuple[int, int]) -> np.ndarray:
    """The number of the box of every entry: the first two axes are divided, every other position has its own."""
    index = np.indices(shape, sparse=True)
    number: Any = index[0] // box[0]
    number = number * (shape[1] // box[1] + 1) + index[1] // box[1]
    for place, n in zip(index[2:], shape[2:]):
        number = number * n + place
    return np.broadcast_to(number, shape)


def clustered(covered: np.ndarray, cluster: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error, with entries of one cluster dependent."""
    mean = float(covered.mean())
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], covered - mean)
    return mean, float(np.sqrt((sums**2).sum()) / len(covered))


def real_gaps(field: FieldSet, fitted: Fitted, draws: int) -> list[tuple[str, float, float, int, float, float]]:
    """Coverage of means of boxes inside the gaps; and for draws with independent errors."""
    use = fitted.observed.missing & field.score
    independent = replace(fitted)
    independent.__dict__["dependence"] = Dependence.none(use.ndim)
    part = np.zeros(use.shape, np.intp)
    for place, n in zip(np.indices(use.shape, sparse=True), use.shape):
        part = part * 3 + place * 3 // n
    boxes = [_Boxes(tiles(use.shape, box), use, box[0] * box[1]) for box in BOXES]

    def means(x: np.ndarray) -> np.ndarray:
        return np.concatenate([one.means(x) for one in boxes])

    true, answers = means(np.where(use, field.truth, 0.0)), []
    for one in (fitted, independent):
        drawn = one.intervals(LEVEL).draws(draws, seed=1, statistic=means)
        low, high = np.quantile(drawn, TAILS, axis=0, method="weibull")
        answers.append(((low <= true) & (true <= high), high - low))
    rows, start = [], 0
    for box, one in zip(BOXES, boxes):
        own = slice(start, start + len(one.kept))
        start = own.stop
        if len(one.kept):
            covered, width = answers[0][0][own], answers[0][1][own]
            mean, error = clustered(covered, one.labels(part))
            alone = float(answers[1][0][own].mean())
            rows.append((f"{box[0]} x {box[1]}", mean, error, len(covered), alone, float(width.mean())))
    return rows


class _Boxes:
    """Boxes that are missing nearly whole, and the means over their missing entries."""

    def __init__(self, number: np.ndarray, use: np.ndarray, size: int) -> None:
        self.use, self.number = use, number[use]
        self.count = np.bincount(self.number, minlength=int(number.max()) + 1)
        self.kept = np.flatnonzero(self.count >= MIN_MISSING * size)

    def means(self, x: np.ndarray) -> np.ndarray:
        sums = np.bincount(self.number, x[self.use], minlength=len(self.count))
        return np.asarray(sums[self.kept] / self.count[self.kept])

    def labels(self, part: np.ndarray) -> np.ndarray:
        """The part of the tensor of each box."""
        label = np.zeros(len(self.count), np.intp)
        label[self.number] = part[self.use]
        return label[self.kept]


def pseudo_gaps(fitted: Fitted, draws: int) -> list[tuple[str, float, float, int]]:
    """Coverage of means of boxes of hidden entries, with the dependence of the other half of the rounds."""
    axes, entries = fitted.observed.axes, np.asarray(fitted.entries)
    signed, logs, rounds, scale = _hidden(fitted)
    covered: dict[tuple[int, int], list[np.ndarray]] = {box: [] for box in BOXES}
    cluster: dict[tuple[int, int], list[np.ndarray]] = {box: [] for box in BOXES}
    numbers = {box: np.ravel(tiles(fitted.observed.shape, box)) for box in BOXES}
    for half in (0, 1):
        other = rounds % 2 != half
        law = learn_dependence(
            entries[other], signed[other], log_weights=logs[other], scale=scale[other], rounds=rounds[other], axes=axes
        )
        order = np.argsort(signed[other])
        sorted_scores, sums = signed[other][order], np.cumsum(np.exp(logs[other][order]))
        used = np.unique(entries[~other])
        fields = _drawn_at(used, law, axes, draws, 7, half)
        for one in np.unique(rounds[~other]):
            own = np.flatnonzero(rounds == one)
            at, hidden = entries[own], fitted.rounds[one].hidden.reshape(-1)
            level = ndtr(fields[:, np.searchsorted(used, at)])
            place = np.minimum(np.searchsorted(sums, level * sums[-1], side="right"), len(sums) - 1)
            drawn = scale[own] * sorted_scores[place]
            for box, number in numbers.items():
                share = np.bincount(number, hidden) / np.maximum(np.bincount(number), 1)
                count = np.bincount(number[at], minlength=len(share))
                kept = np.flatnonzero((share >= MIN_MISSING) & (count >= MIN_SCORED))
                if not len(kept):
                    continue
                inside = np.isin(number[at], kept)
                label = np.searchsorted(kept, number[at][inside])
                size = np.bincount(label)
                means = [np.bincount(label, one_draw[inside]) / size for one_draw in drawn]
                low, high = np.quantile(means, TAILS, axis=0, method="weibull")
                true = np.bincount(label, fitted.residuals[own][inside]) / size
                covered[box].append((low <= true) & (true <= high))
                cluster[box].append(np.full(len(true), one))
    rows = []
    for box in BOXES:
        if covered[box]:
            every = np.concatenate(covered[box])
            rows.append((f"{box[0]} x {box[1]}", *clustered(every, np.concatenate(cluster[box])), len(every)))
    return rows


def _drawn_at(entries: np.ndarray, law: Dependence, axes: Any, draws: int, *seed: int) -> np.ndarray:
    """Fields of normal scores at some entries only, (draws, entries): whole ones of a large field would not fit."""
    each = (law.draw(axes, np.random.default_rng([*seed, k])).reshape(-1)[entries] for k in range(draws))
    return np.stack([one.astype(np.float32) for one in each])


def _hidden(fitted: Fitted) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Signed scores, log-weights, rounds and scales of the hidden entries."""
    signed, logs = signed_scores(fitted), np.asarray(fitted.log_weights, np.float64)
    scale = np.divide(fitted.residuals, signed, out=np.zeros(len(signed)), where=signed != 0)
    return signed, logs, np.asarray(fitted.calibrated.round_numbers), scale


def correlations(field: FieldSet, fitted: Fitted, draws: int) -> list[tuple[str, float, float, float, float]]:
    """Correlation of errors at three distances in a map: of hidden entries, of draws there, and at the real gaps."""
    axes, entries = fitted.observed.axes, np.asarray(fitted.entries)
    signed, logs, rounds, scale = _hidden(fitted)
    z, weight = normal_scores(signed, logs), np.exp(logs) * scale
    first, second = pairs_of(entries, rounds, fitted.observed.shape, seed=5)
    steps = steps_between(entries[first], entries[second], axes)
    used, place = np.unique(entries, return_inverse=True)
    drawn = _drawn_at(used, fitted.dependence, axes, draws, 3)[:, place.ravel()]
    missing = np.flatnonzero(fitted.observed.missing & field.score)
    error = (field.truth - fitted.estimate).reshape(-1)[missing] / fitted.calibrated.scale.at(missing)
    true_z, size = normal_scores(error, np.zeros(len(error))), fitted.calibrated.scale.at(missing)
    real, partner = pairs_of(missing, np.zeros(len(missing), np.intp), fitted.observed.shape, seed=5)
    real_steps = steps_between(missing[real], missing[partner], axes)
    rows = []
    for low, high in DISTANCES:
        near, near_real = (_at(one, low, high) for one in (steps, real_steps))
        a, b = first[near], second[near]
        own = weight[a] * weight[b]
        both = own * (z[a] ** 2 + z[b] ** 2) / 2
        found = float((own * z[a] * z[b]).sum() / both.sum())
        by_round = np.bincount(rounds[a], own * z[a] * z[b]) / np.maximum(np.bincount(rounds[a], both), 1e-300)
        spread = float(by_round.std(ddof=1) / np.sqrt(len(by_round)))
        of_draws = float(np.mean([(own * one[a] * one[b]).sum() / own.sum() for one in drawn]))
        a, b = real[near_real], partner[near_real]
        both = size[a] * size[b] * (true_z[a] ** 2 + true_z[b] ** 2) / 2
        at_gaps = float((size[a] * size[b] * true_z[a] * true_z[b]).sum() / both.sum())
        rows.append((f"{low} to {high}", found, spread, of_draws, at_gaps))
    return rows


def _at(steps: np.ndarray, low: float, high: float) -> np.ndarray:
    """Pairs of one map at a distance."""
    distance = np.hypot(steps[:, 0], steps[:, 1])
    return (steps[:, 2:] == 0).all(axis=1) & (distance >= low) & (distance <= high)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("sets", nargs="*", default=["tec", "ndvi"], choices=list(CROPS))
    asked.add_argument("--draws", type=int, default=200)
    asked.add_argument("--fits", help="folder of fits NAME.corten to use instead of fitting")
    given = asked.parse_args()
    for name in given.sets:
        field = crop(name)
        if given.fits:
            fitted = corten.load(f"{given.fits}/{name}.corten")
        else:
            fitted = corten.ConformalCompleter(calibration="gaps").fit(field.observed, axis_kinds=field.axis_kinds)
        report(name, field, fitted, given.draws)


def report(name: str, field: FieldSet, fitted: Fitted, draws: int) -> None:
    """Print the tables of one field."""
    entries = corten.metrics.coverage(field.truth, fitted.intervals(LEVEL), where=field.score)
    beyond = float(np.mean(fitted.intervals(LEVEL).beyond_array[fitted.observed.missing]))
    print(f"\n{name}: 90 % intervals of means over boxes, {draws} draws")
    tested = f"{100 * beyond:.0f} % lie deeper than calibration tested"
    print(f"{100 * entries:.1f} % of single entries are covered; {tested}\n")
    print("| box | boxes in gaps | covered | width | covered, independent errors | pseudo-gap boxes | covered |")
    print("|---|---|---|---|---|---|---|")
    hidden = {row[0]: row[1:] for row in pseudo_gaps(fitted, draws)}
    for box, mean, error, count, alone, width in real_gaps(field, fitted, draws):
        other = hidden.get(box)
        tail = f"{other[2]:,} | {100 * other[0]:.1f} ± {100 * other[1]:.1f} %" if other else "0 | "
        found = f"{100 * mean:.1f} ± {100 * error:.1f} % | {width:.3g} | {100 * alone:.1f} %"
        print(f"| {box} | {count:,} | {found} | {tail} |", flush=True)
    print("\n| steps apart | errors of hidden entries | of draws there | at the real gaps |\n|---|---|---|---|")
    for steps, found, spread, drawn, real in correlations(field, fitted, draws):
        print(f"| {steps} | {found:.2f} ± {spread:.2f} | {drawn:.2f} | {real:.2f} |")


if __name__ == "__main__":
    main()
