"""The covariance chosen on real fields, and its error: `python -m benchmarks covariance tec-america-1 lst ndvi-50`.

Truth is used for scoring only. With `--full` the whole completer is run as well: error, coverage, width and interval
score at 90 and 95 %. Data are looked for in `../shared/data`, or in the folder given with `--data`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from corten import ConformalCompleter, metrics
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.data.observed import ObservedTensor
from corten.engine.threads import one_library_thread
from studies.field_sets import FieldSet, data_folder, load_set


def load(name: str, folder: Path) -> FieldSet:
    """A set of the studies, or `lst`: one satellite map with a large gap."""
    if name != "lst":
        return load_set(name, folder)
    with np.load(folder / "lst_simulated.npz") as data:
        mask = data["mask"].astype(bool)
        return FieldSet(name, data["temperature"], mask, ~mask, ("lat", "lon"), units="deg C")


def member(one: FieldSet, seed: int) -> None:
    """The chosen covariance, the time to choose it, and the error of the process by itself."""
    observed = ObservedTensor.of(one.observed, periodic=one.periodic, axis_kinds=one.axis_kinds)
    began, worked = time.perf_counter(), time.process_time()
    with one_library_thread:  # as in a fit
        prepared = GaussianProcessCompletion().prepare(observed.values, observed.mask, observed.axes, seed)
    chosen, worked_choosing = time.perf_counter() - began, time.process_time() - worked
    began, worked = time.perf_counter(), time.process_time()
    estimate = prepared.fill(observed.values, observed.mask).estimate
    filled, worked = time.perf_counter() - began, time.process_time() - worked
    error = np.abs(estimate - one.truth)[one.score].mean()
    print(f"{one.name} seed {seed}: {prepared.choices[0].taken}", flush=True)
    for tried in prepared.choices[0].candidates:
        print(f"    {tried}")
    print(
        f"  chosen in {chosen:.1f} s ({worked_choosing:.1f} CPU s), filled in {filled:.1f} s ({worked:.1f} CPU s), "
        f"MAE {error:.4g}",
        flush=True,
    )


def whole(one: FieldSet, seed: int) -> None:
    """The defaults on the same set."""
    began, worked = time.perf_counter(), time.process_time()
    fitted = ConformalCompleter(seed=seed).fit(one.observed, periodic=one.periodic, axis_kinds=one.axis_kinds)
    truth = one.truth[one.score]
    for coverage in (0.9, 0.95):
        result = fitted.intervals(coverage)
        lower, upper = result.lower_array[one.score], result.upper_array[one.score]
        print(
            f"  {one.name} seed {seed} defaults at {coverage:.0%}: "
            f"MAE {np.abs(result.estimate_array[one.score] - truth).mean():.4g}, "
            f"covers {np.mean((lower <= truth) & (truth <= upper)):.2%}, mean width {np.mean(upper - lower):.4g}, "
            f"interval score {np.mean(metrics.interval_scores(truth, lower, upper, coverage)):.4g}",
            flush=True,
        )
    mix = next((c.taken for c in fitted.choices if c.what == "weights of the stack"), "")
    print(f"  mix {mix}; {time.perf_counter() - began:.0f} s, {time.process_time() - worked:.0f} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", help="names such as tec-america-1, ndvi-50, lst")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--full", action="store_true", help="also run the whole completer")
    options = parser.parse_args()
    folder = data_folder(options.data)
    for name in options.sets:
        one = load(name, folder)
        member(one, options.seed)
        if options.full:
            whole(one, options.seed)


if __name__ == "__main__":
    main()
