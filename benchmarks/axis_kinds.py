"""Kinds of axes without labels: what is chosen, and the error of the completion with it and with the kinds told.

    python -m benchmarks axis_kinds [--data ../shared/data] [--completion smooth|process|complete] [--only WORD]

Prints one row per set: the kinds chosen and told (o ordered, u unordered, one letter per axis), the mean absolute
error in the gaps with each, and their ratio. With `--completion complete` it is that of `corten.complete(x)` and
`corten.complete(x, axis_kinds=told)`. Sets from the data folder are left out where it is absent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

import corten
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.smooth import SmoothCompletion
from corten.data.axes import Axis
from corten.data.order import unordered_axes
from corten.engine.threads import one_library_thread

Case = tuple[str, np.ndarray, np.ndarray, np.ndarray, str]
"""Name, truth, mask (True = observed), entries that are scored, and the kinds told."""


def sensors(count: int, similar: float, spread: float, gaps: str, seed: int) -> Case:
    """Daily profiles, sensor x day x slot; neighbours share a part `similar`, scales differ by `spread`."""
    rng = np.random.default_rng(seed)
    days, slots = 40, 18
    distance = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    root = np.linalg.cholesky(np.exp(-distance / (0.15 * count + 1)) + 1e-9 * np.eye(count))

    def draw(columns: int) -> np.ndarray:
        shared, own = root @ rng.normal(size=(count, columns)), rng.normal(size=(count, columns))
        return np.sqrt(similar) * shared + np.sqrt(1 - similar) * own

    time_of_day = np.arange(slots) / slots
    peaks = [np.exp(-(((time_of_day - peak) / 0.09) ** 2)) for peak in (0.3, 0.7)]
    profiles = np.stack([np.sin(np.pi * time_of_day) ** 2, *peaks])
    week = 1 + 0.3 * np.cos(2 * np.pi * np.arange(days)[:, None] / 7) * np.array([1, 0.5, -0.5])
    weather = gaussian_filter(rng.normal(size=(days, 3)), (2, 0)) * 0.5
    x = np.einsum("sp,dp,pt->sdt", np.abs(1 + 0.5 * draw(3)), week + weather, profiles)
    x += 0.1 * rng.normal(size=x.shape)
    x = np.exp(spread * draw(1))[..., None] * (x + spread * draw(1)[..., None])
    hidden = rng.random((count, days, 1 if gaps == "days" else slots)) < 0.3
    mask = np.broadcast_to(~hidden, x.shape).copy()
    order = rng.permutation(count)
    x, mask = x[order], mask[order]
    return f"permuted sensors {count} similar {similar} spread {spread} {gaps}", x, mask, ~mask, "uoo"


def field(shape: tuple[int, ...], length: float, seed: int) -> Case:
    """A smooth field with clouds."""
    rng = np.random.default_rng(seed)
    x = gaussian_filter(rng.normal(size=[n + 20 for n in shape]), length)[tuple(slice(10, 10 + n) for n in shape)]
    cloud = gaussian_filter(rng.normal(size=shape), 2.0)
    mask = cloud < np.quantile(cloud, 0.65)
    x = x / x.std() + 0.1 * rng.normal(size=shape)
    return f"field {shape} length {length}", x, mask, ~mask, "o" * len(shape)


def ratings(seed: int) -> Case:
    """People x products of rank three with a level per person."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(150, 3)) @ rng.normal(size=(3, 60)) + rng.normal(size=(150, 1))
    mask = rng.random(x.shape) < 0.4
    return "people x products", x + 0.5 * rng.normal(size=x.shape), mask, ~mask, "uu"


def simulated() -> Iterator[Case]:
    for count in (8, 30, 80):
        for similar in (0.0, 0.9):
            for spread in (0.3, 1.0):
                yield sensors(count, similar, spread, "days", seed=0)
                yield sensors(count, similar, spread, "entries", seed=1)
    for shape, length in (((5, 40, 40), 3.0), ((12, 30, 30), 1.5), ((60, 80), 4.0), ((200, 10), 2.0)):
        yield field(shape, length, seed=0)
    yield ratings(seed=0)


def real(folder: Path) -> Iterator[Case]:
    """The shared sets; stations in their own order and in a random one."""
    from studies.field_sets import load_set

    for name in ("tec-america-1", "tec-global-1", "ndvi-20", "ndvi-50"):
        one = load_set(name, folder)
        yield name, one.truth, one.mask, one.score, "o" * one.mask.ndim
    with np.load(folder / "lst_simulated.npz") as data:
        mask = data["mask"] == 1
        yield "lst_simulated", data["temperature"], mask, ~mask, "oo"
    for name in ("air-random", "air-block"):
        one = load_set(name, folder)
        yield name, one.truth, one.mask, one.score, "uoo"
    with np.load(folder / "metro_hangzhou.npz") as data, np.load(folder / "metro_hangzhou_masks.npz") as masks:
        flow = data["flow"].astype(float)
        for gaps in ("NM30", "RM30"):
            mask = (flow != 0) & (masks[gaps] == 1)
            score = (flow != 0) & ~mask
            yield f"metro {gaps}", flow, mask, score, "uoo"
            order = np.random.default_rng(0).permutation(len(flow))
            yield f"metro {gaps} permuted", flow[order], mask[order], score[order], "uoo"
    with np.load(folder / "aqi36_dev.npz") as data:
        x, dev = data["pm25"].astype(float), data["dev_mask"]
        known = np.isfinite(x)
        order = np.random.default_rng(0).permutation(36)
        yield "AQI-36", x, known & ~dev, known & dev, "ou"
        yield "AQI-36 permuted", x[:, order], (known & ~dev)[:, order], (known & dev)[:, order], "ou"
        yield "AQI-36 permuted, transposed", x[:, order].T, (known & ~dev)[:, order].T, (known & dev)[:, order].T, "uo"


def error(case: Case, kinds: str, completion: str) -> float:
    """Mean absolute error in the scored gaps."""
    _, truth, mask, score, _ = case
    values = np.where(mask, truth, np.nan)
    if completion == "complete":
        said = {k: "unordered" if kind == "u" else "ordered" for k, kind in enumerate(kinds)}
        return float(np.abs(corten.complete(values, axis_kinds=said).estimate_array - truth)[score].mean())
    axes = [Axis(f"axis_{k}", n, kind="unordered" if kind == "u" else "ordered") for k, (n, kind) in
            enumerate(zip(mask.shape, kinds))]  # fmt: skip
    model = SmoothCompletion() if completion == "smooth" else GaussianProcessCompletion()
    with one_library_thread:
        estimate = model.prepare(values, mask, axes, 0).fill(values, mask).estimate
    return float(np.abs(estimate - truth)[score].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--completion", choices=["smooth", "process", "complete"], default="process")
    parser.add_argument("--only", default="", help="sets whose name contains this word")
    options = parser.parse_args()
    print("| set | chosen | told | error, chosen | error, told | ratio | choice, s of CPU |")
    print("|---|---|---|---|---|---|---|")
    for case in (*simulated(), *(real(options.data) if options.data.is_dir() else ())):
        name, truth, mask, _, told = case
        if options.only not in name:
            continue
        start = time.process_time()
        found = {int(choice.what) for choice in unordered_axes(np.where(mask, truth, np.nan), mask)}
        seconds = time.process_time() - start
        chosen = "".join("u" if k in found else "o" for k in range(mask.ndim))
        if chosen == told:
            print(f"| {name} | {chosen} | {told} | | | 1 | {seconds:.1f} |", flush=True)
            continue
        own, other = (error(case, kinds, options.completion) for kinds in (chosen, told))
        print(
            f"| {name} | {chosen} | {told} | {own:.4g} | {other:.4g} | {own / other:.3f} | {seconds:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
