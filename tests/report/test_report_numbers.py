"""Every number of the report is that of the result, whatever the transform, the limits and the promise."""

import json
from itertools import pairwise

import numpy as np
import pytest

import corten
from corten.conformal.depth import depth
from corten.evidence.audit_table import GAP_RMS_ERROR, Audit
from corten.report.content import page_content, safe_json
from report_source import unpack_levels

QUICK = {"completion": "smooth", "propensity": "bernoulli", "calibration": "random"}
OPTIONS = {
    "plain": {},
    "log": {"transform": "log"},
    "box-cox": {"transform": "box-cox"},
    "standardise": {"transform": "standardise:axis_1"},
    "climatology": {"climatology": "axis_2"},
    "limits": {"transform": "log", "bounds": (0.5, 6)},
    "cross": {"calibration": corten.CrossCalibration(folds=2), "transform": "log"},
    "gaps": {"calibration": corten.GapCalibration(rounds=2, drawn=0.0), "transform": "log"},
}
PROMISES = {"entries": {}, "joint": {"joint": "axis_0"}, "groups": {"groups": 1}, "odds": {"odds_error": 1.5}}


def data(dtype=np.float64):
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(9, 1, 1)) + rng.normal(size=(1, 8, 1)) + 0.3 * rng.normal(size=(9, 8, 6)))
    x[rng.random(x.shape) < 0.3] = np.nan
    return x.astype(dtype)


def shown(result):
    """The content as the browser gets it, numbers as numbers."""
    return json.loads(safe_json(page_content(result)))


def same(rows, widths_of, places):
    """Rows of quantiles of finite widths against the result's own widths at `places`."""
    assert sum(row["count"] for row in rows) == places.size
    for row, here in zip(rows, widths_of):
        finite = here[np.isfinite(here)].astype(float)
        assert row["count"] == here.size and row["infinite_share"] == pytest.approx(1 - finite.size / here.size)
        for name, level in (("low", 0.1), ("median", 0.5), ("high", 0.9)):
            assert row[name] == (pytest.approx(np.quantile(finite, level), rel=1e-12) if finite.size else None)


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_page_shows_the_numbers_of_the_result(options, promise):
    if promise != "entries" and options not in ("plain", "log", "limits"):
        pytest.skip("promises do not depend on the transform beyond these")
    fitted = corten.ConformalCompleter(**QUICK | OPTIONS[options]).fit(
        data(np.float32 if options == "log" else float), axis_kinds=dict.fromkeys(range(3), "ordered")
    )
    result = fitted.intervals(0.8, **PROMISES[promise])
    page, gap = shown(result), result.observed.missing
    summary = result.summary()
    for row in page["evidence"]["coverage"]:
        width = fitted.intervals(row["coverage"], **PROMISES[promise]).width_array[gap]
        finite = width[np.isfinite(width)].astype(np.float64)
        assert row["median"] == (pytest.approx(float(np.median(finite)), rel=1e-12) if finite.size else None)
        assert row["infinite_share"] == pytest.approx(1 - finite.size / width.size)
    width = result.width_array[gap]
    at = next(row for row in page["evidence"]["coverage"] if row["coverage"] == 0.8)
    assert at["median"] == summary.median_width and f"{summary.median_width:.3g}" == page["headline"][2]["value"]
    assert summary.median_width == float(np.median(width[np.isfinite(width)].astype(np.float64)))
    far = depth(result.observed.mask, result.observed.axes, np.ones(3))[gap]
    ends = [0.0, *(row["at"] for row in page["evidence"]["depth"])]
    same(page["evidence"]["depth"], [width[(far > a) & (far <= b)] for a, b in pairwise(ends)], width)
    p = result.source.probabilities[gap].astype(float)
    place = np.searchsorted(np.unique(np.quantile(p, np.linspace(0, 1, 13)))[1:-1], p, side="right")
    same(page["evidence"]["propensity"], [width[place == k] for k in np.unique(place)], width)
    for name, ours in (("estimate", result.estimate_array), ("below", result.estimate_array - result.lower_array)):
        ours = ours.astype(np.float64)
        back, finite = unpack_levels(page["tensor"][name]).reshape(ours.shape), np.isfinite(ours)
        assert np.abs(back[finite] - ours[finite]).max() <= 1e-4 * np.ptp(ours[finite])
    assert page["numbers"] == [list(row) for row in summary.rows()]


@pytest.mark.parametrize("options", [*OPTIONS, "function"])
@pytest.mark.parametrize("promise", ["entries", "joint"])
def test_do_it_again_gives_the_same_bounds(options, promise):
    if promise != "entries" and options != "limits":
        pytest.skip("a promise is one line more, whatever the options")
    given = QUICK | OPTIONS.get(options, {"completion": column_mean, "score": "adaptive"})
    names = {"x": data(), "where": np.ones((9, 8, 1), bool), "column_mean": column_mean}
    names["where"][0, 0] = False
    fitted = corten.ConformalCompleter(seed=3, **given).fit(names["x"], where=names["where"], periodic=(1,))
    result = fitted.intervals(0.8, **PROMISES[promise])
    exec(page_content(result)["reproduce"], names)
    assert np.array_equal(names["result"].lower_array, result.lower_array, equal_nan=True)
    assert np.array_equal(names["result"].upper_array, result.upper_array, equal_nan=True)


def column_mean(x):
    return np.where(np.isnan(x), np.nanmean(x, axis=0, keepdims=True), x)


@pytest.mark.parametrize("off", [0.055, 0.065])
def test_page_and_verdict_of_an_audit_agree_on_its_tolerance(off):
    """5.5 points too few were "too few" on the page, and nothing to speak of in the verdict."""
    fitted = corten.ConformalCompleter(**QUICK).fit(data())
    audit = fitted.audit(rounds=2, levels=(0.9,))
    row = audit.rows[0]
    found = Audit(
        audit.observed,
        (0.9,),
        samples=audit.samples,
        log_weights=audit.log_weights,
        probability=audit.probability,
        gap_shaped=True,
        effective_sample_size=1.0,
        notes=(),
        seconds=0.0,
    )
    found.__dict__["rows"] = (row.__class__(0.9, "all", "all", 0.9 - off, 1e-4, row.width, 0.0, row.count),)
    page = page_content(fitted.intervals(0.9), found)["notices"][-1]
    assert ("too narrow" in found.verdict()) == (page["kind"] == "warn") == (off > GAP_RMS_ERROR)
