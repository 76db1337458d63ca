"""New data filled by an earlier fit beside a fresh fit: error, coverage, and CPU time.

    python -m benchmarks daily tec ndvi30 ndvi50 ndvi50-2008 years50-2008     (cases)

tec: day 1 of TEC over North America is fitted, day 2 is filled. ndviP: MODIS NDVI with mask P; the years 2004 to 2008
are fitted, 2004 to 2009 are filled and 2009 is scored; ndviP-YEAR: the same for an earlier year. The fit is saved, and
the loaded one must give the same bits. yearsP-YEAR: the errors of each year in a fit up to YEAR over those of the other
years, all relative to their scale: of hidden entries (means) and of missing ones (90 % quantile over the cutoff), and
the coverage without and with that ratio, or with one from a few rounds. The data are in ../shared/data. The standard
error of the coverage takes the 27 coarse blocks as independent; what all blocks of a year have in common comes on top.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import corten
from corten.conformal.local_scale import block_of

DATA = Path(__file__).parents[2] / "shared" / "data"
COVERAGE = 0.9
DRAWS = 12  # of rounds of a year


class Case(NamedTuple):
    """What is scored, old data, new data, the truth of the new data, and where it is scored."""

    title: str
    old: xr.DataArray
    new: xr.DataArray
    truth: np.ndarray
    scored: np.ndarray


def tec() -> Case:
    """Two days of TEC over North America with the same mask."""
    with np.load(DATA / "tec_namerica_20190425-26.npz") as file:
        truth, mask = file["tec"], file["mask"] == 1
        coords = {"lat": file["lat"], "lon": file["lon"], "time": file["time"].astype("datetime64[s]").astype("M8[ns]")}
    whole = xr.DataArray(truth, coords, ("lat", "lon", "time"), name="tec", attrs={"units": "TECU"})
    days = [whole[..., :96].where(mask), whole[..., 96:].where(mask)]
    return Case("TEC over North America, day 2", *days, truth[..., 96:], ~mask)


def ndvi(percent: int, last: int = 2009) -> Case:
    """Years of NDVI up to `last`, with gaps that were added."""
    with np.load(DATA / "ndvi_modis_gapfill.npz") as file:
        truth, mask = file["ndvi"], file[f"mask{percent}"] == 1
        coords = {"doy": file["doy"], "year": file["year"]}
    x = xr.DataArray(np.where(mask, truth, np.nan), coords, ("y", "x", "doy", "year"), name="ndvi")
    known = np.asarray(coords["year"]) <= last
    x, truth, mask = x[..., known], truth[..., known], mask[..., known]
    scored = np.isfinite(truth) & ~mask
    scored[..., :-1] = False
    return Case(f"NDVI, year {last}, mask {percent}", x[..., :-1], x, truth, scored)


def years(name: str) -> dict[int, list[float]]:
    """Whether the hidden entries of a year say how large the errors of its missing entries are, as rows of a table.

    Returns the coverage of the years with a ratio from so many rounds, 0 for none, each from several draws of rounds.
    """
    percent, last = (int(part) for part in name.removeprefix("years").split("-"))
    case = ndvi(percent, last)
    split = corten.ConformalCompleter().fit(case.new, fill_never_observed=True).calibrated
    missing = np.flatnonzero(np.isfinite(case.truth) & np.isnan(case.new.values))
    found = np.abs(case.truth.reshape(-1) - split.estimate.reshape(-1))[missing] / split.scale.at(missing)
    hidden, weights = np.abs(split.scores), np.exp(split.log_weights)
    year, own = (np.unravel_index(entries, case.truth.shape)[-1] for entries in (missing, split.entries))
    rng, number, by_count = np.random.default_rng(0), split.round_numbers, {n: [] for n in range(5)}
    print("| year | ratio of hidden | of missing | coverage without | with it |\n|---|---|---|---|---|", flush=True)
    for k, label in enumerate(case.new.year.values.tolist()):
        others, here = own != k, found[year == k]
        cutoff = np.quantile(hidden[others], COVERAGE, weights=weights[others], method="inverted_cdf")
        usual = np.average(hidden[others], weights=weights[others])
        ratio = np.average(hidden[~others], weights=weights[~others]) / usual
        shares = " | ".join(f"{(here <= cutoff * factor).mean():.1%}" for factor in (1.0, ratio))
        needed = np.quantile(here, COVERAGE) / cutoff
        print(f"| {label}, mask {percent} | {ratio:.2f} | {needed:.2f} | {shares} |", flush=True)
        for count, coverages in by_count.items():
            for _ in range(DRAWS):
                few = ~others & np.isin(number, rng.choice(number.max() + 1, count, replace=False))
                mean = np.average(hidden[few], weights=weights[few]) if few.any() else usual
                factor = (count * mean / usual + 1) / (count + 1)  # a further round has a ratio of 1
                coverages.append(float((here <= cutoff * factor).mean()))
    return by_count


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and its CPU seconds in this process."""
    began = time.process_time()
    return work(), time.process_time() - began


def compared(case: Case, result: corten.Intervals) -> tuple[float, float, float]:
    """Mean absolute error, coverage, and the standard error of the coverage."""
    entries = np.flatnonzero(case.scored)
    truth = case.truth.reshape(-1)[entries]
    estimate, lower, upper = (
        np.asarray(one).reshape(-1)[entries] for one in (result.estimate, result.lower, result.upper)
    )
    hit = (truth >= lower) & (truth <= upper)
    block = np.unique(block_of(entries, case.truth.shape, 3), return_inverse=True)[1]
    off = np.bincount(block, hit - hit.mean())
    error = np.sqrt((off**2).sum() * len(off) / max(len(off) - 1, 1)) / len(hit)
    return float(np.abs(estimate - truth).mean()), float(hit.mean()), float(error)


def run(name: str) -> None:
    """One case, printed as rows of a table."""
    case = tec() if name == "tec" else ndvi(*(int(part) for part in name.removeprefix("ndvi").split("-")))
    completer = corten.ConformalCompleter()
    with tempfile.TemporaryDirectory() as folder:
        fitted, fit_seconds = timed(lambda: completer.fit(case.old, fill_never_observed=True))
        print(f"| {case.title} | fit of the old data | | | {fit_seconds:.1f} |", flush=True)
        path = fitted.save(Path(folder) / "fit.corten")
        result, seconds = timed(lambda: filled(fitted, case.new))
        again, loaded_seconds = timed(lambda: filled(corten.load(path), case.new))
        size = path.stat().st_size / 1e6
    same = all(
        np.array_equal(getattr(result, part), getattr(again, part), equal_nan=True)
        for part in ("estimate", "lower", "upper")
    )
    show("filled by that fit", case, result, seconds)
    print(f"| | after save and load, same bits: {same}; {size:.1f} MB | | | {loaded_seconds:.1f} |", flush=True)
    measured, measured_seconds = timed(lambda: filled(fitted, case.new, rounds=2))
    show("the same, with 2 rounds in new slices", case, measured, measured_seconds)
    moved, moved_seconds = timed(lambda: fitted.update(case.new, window=case.new.shape[-1]))
    show("that fit updated with the new data", case, moved.intervals(COVERAGE), moved_seconds)
    fresh, fresh_seconds = timed(lambda: completer.fit(case.new, fill_never_observed=True))
    show("fit of the new data", case, fresh.intervals(COVERAGE), fresh_seconds)
    ratio = compared(case, result)[0] / compared(case, fresh.intervals(COVERAGE))[0]
    print(f"| | filled / fit of the new data | {ratio:.3f} | | {seconds / fresh_seconds:.4f} |", flush=True)


def filled(fitted: corten.Fitted, x: xr.DataArray, rounds: int = 0) -> corten.Intervals:
    """The filled data, with the bounds computed."""
    result = fitted.fill(x, COVERAGE, rounds=rounds)
    _ = result.lower, result.upper
    return result


def show(what: str, case: Case, result: corten.Intervals, seconds: float) -> None:
    """One row of the table."""
    error, coverage, deviation = compared(case, result)
    print(f"| | {what} | {error:.4f} | {coverage:.2%} ± {deviation:.2%} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    cases = sys.argv[1:] or ["tec", "ndvi30", "ndvi50"]
    if not all(one.startswith("years") for one in cases):
        print("| data | what | mean absolute error | coverage at 90 % | CPU s |\n|---|---|---|---|---|", flush=True)
    of_years = []
    for one in cases:
        if one.startswith("years"):
            of_years.append(years(one))
        else:
            run(one)
    if of_years:
        print("| rounds in a year | root mean square difference from 90 % | outside 87 to 93 % |\n|---|---|---|")
    for count in range(5) if of_years else ():
        off = np.concatenate([one[count] for one in of_years]) - COVERAGE
        print(f"| {count} | {np.sqrt((off**2).mean()):.2%} | {(np.abs(off) > 0.03).mean():.0%} |")
