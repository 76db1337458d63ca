"""What the defaults cover on small fields at 90 % asked, and whether it is the size or the place of the gaps.

    python benchmarks/small_fields.py 4     (fields of each kind; about a minute of processor time each)

Controls: TEC-like fields whose mask was moved to a random place, and smooth random fields under a TEC-like mask, which
has its oceans in the corners of the map.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

import corten
from corten import simulate
from corten.evidence import metrics

SHAPE = (20, 24, 24)
Field = tuple[np.ndarray, np.ndarray]  # truth, mask


def tec(seed: int) -> Field:
    field = simulate.tec_like(SHAPE, seed=seed)
    return field.truth, field.mask


def tec_under_a_moved_mask(seed: int) -> Field:
    truth, mask = tec(seed)
    rng = np.random.default_rng([seed, 77])
    return truth, np.roll(np.flip(mask, int(rng.integers(2))), [int(rng.integers(n)) for n in SHAPE], (0, 1, 2))


def smooth(seed: int, widths: tuple[float, ...], stream: int) -> np.ndarray:
    noise = np.random.default_rng([seed, stream]).standard_normal([n + 20 for n in SHAPE])
    return np.asarray(gaussian_filter(noise, widths)[tuple(slice(10, 10 + n) for n in SHAPE)])


def clouds(seed: int) -> Field:
    field, cover = smooth(seed, (3, 4, 2), 5), smooth(seed, (3.5, 3.5, 0.7), 6)
    noise = np.random.default_rng([seed, 7]).standard_normal(SHAPE)
    return field / field.std() + 0.1 * noise, cover > np.quantile(cover, 0.4)


def smooth_under_a_tec_mask(seed: int) -> Field:
    return clouds(seed)[0], tec(seed)[1]


def stations(seed: int, count: int = 24, times: int = 240) -> Field:
    rng = np.random.default_rng([seed, 9])
    common = np.cumsum(rng.standard_normal((4, times)), axis=1)
    common /= common.std(axis=1, keepdims=True)
    day = rng.uniform(0.5, 1.5, (count, 1)) * np.sin(2 * np.pi * np.arange(times) / 24)
    truth = rng.standard_normal((count, 4)) @ common + day + 0.3 * rng.standard_normal((count, times))
    mask = np.ones(truth.shape, bool)
    while mask.mean() > 0.65:
        length = int(rng.exponential(25)) + 3
        start = int(rng.integers(1 - length, times))
        mask[rng.integers(count), max(start, 0) : start + length] = False
    return truth, mask


KINDS: dict[str, tuple[Callable[[int], Field], dict[str, Any]]] = {
    "`simulate.tec_like`, 20 x 24 x 24": (tec, {}),
    "smooth random fields under clouds": (clouds, {}),
    "24 stations x 240 times with stretches missing": (stations, {"axis_kinds": {0: "unordered"}}),
    "control: `tec_like` fields, their mask moved to a random place": (tec_under_a_moved_mask, {}),
    "control: smooth random fields under the `tec_like` mask": (smooth_under_a_tec_mask, {}),
}


def main(fields: int = 4) -> None:
    print("| small fields | 90 % coverage | fields |\n|---|---|---|")
    for name, (draw, options) in KINDS.items():
        covered = []
        for seed in range(1, fields + 1):
            truth, mask = draw(seed)
            covered.append(
                100 * metrics.coverage(truth, corten.complete(np.where(mask, truth, np.nan), 0.9, **options))
            )
        listed = ", ".join(f"{one:.1f}" for one in covered)
        print(f"| {name} | {np.mean(covered):.1f} %, sd {np.std(covered, ddof=1):.1f} | {listed} |", flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:2]))
