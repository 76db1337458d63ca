"""The summary: about ten lines at 80 columns, the rest with full=True; land stays land in new data."""

import json
from dataclasses import replace

import numpy as np
import pytest

import corten
from corten.data.choices import Choice
from corten.data.matching import matching
from corten.report.content import edge_remark
from corten.results.summary import Summary


@pytest.fixture(scope="module")
def days():
    return corten.simulate.sea_like((8, 9, 16), seed=3, land=0.3)


@pytest.fixture(scope="module")
def fitted(days):
    return corten.ConformalCompleter("smooth", "constant", "random").fit(days["sst"])


def test_the_short_form_has_ten_lines_of_80_columns(fitted):
    text = str(fitted.intervals(0.9).summary())
    lines = text.splitlines()
    assert len(lines) <= 13 and max(map(len, lines)) <= 80
    labels = [line.split()[0] for line in lines[1:-2] if not line.startswith(" ")]
    assert labels == ["filled", "skipped", "intervals", "absolute", "coverage", "beyond", "computed"]
    assert "°C on hidden entries; interpolation along" in text and "of entries hidden at random (most folds" in text
    assert "places never observed" in text and " thread" in text and "full=True" in text


def test_the_full_form_adds_settings_and_keeps_the_numbers(fitted):
    result = fitted.intervals(0.9)
    text = str(result.summary(full=True))
    assert max(map(len, text.splitlines())) <= 80
    assert "Setting" in text and "Value" in text and "Why" in text and "error of the baseline" in text
    facts, full = result.summary().to_dict(), result.summary(full=True).to_dict()
    assert facts == full and json.loads(json.dumps(facts)) == facts
    width = result.width_array[result.observed.missing]
    assert facts["most_widths"] == pytest.approx(np.quantile(width[np.isfinite(width)], (0.1, 0.9)).tolist())
    page = result._repr_html_()
    assert "<details>" in page and "<th" in page and "on hidden entries" in page


def test_depth_is_said_to_depend_on_axes_that_were_found_unordered(fitted):
    given = fitted.intervals(0.9).summary()
    reach = Choice("reach of pseudo-gaps", "deep enough", "", code="pseudo_gaps_deep_enough")
    kinds = [Choice(f"kind of axis_{k}", "unordered", "", code="unordered_axis") for k in (0, 2)]

    def said(*choices):
        return dict(replace(given, choices=choices, beyond_tested=0).short_rows())["beyond tested"]

    assert said(reach).endswith("than what was tested")
    assert said(reach, kinds[1]).endswith("than what was tested, if axis_2 has no order")
    assert said(reach, *kinds).endswith("than what was tested, if axis_0 and axis_2 have no order")


def test_error_and_coverage_are_those_of_the_calibration_entries(fitted):
    facts = fitted.facts(0.8)
    weight = np.exp(fitted.log_weights)
    assert facts["mean_absolute_error_on_hidden_entries"] == pytest.approx(
        np.average(np.abs(fitted.residuals), weights=weight)
    )
    assert abs(facts["coverage_on_hidden_entries"] - 0.8) < 0.05 and facts["engine"].startswith("threads")


def test_a_transform_is_undone_in_the_error(days):
    x = np.exp(days["sst"] / 10)
    fitted = corten.ConformalCompleter("smooth", "constant", "random", transform="log").fit(x)
    truth = fitted.observed.values.reshape(-1)[fitted.entries]
    estimate = np.exp(np.log(truth) - fitted.residuals)
    assert fitted.hidden_error.error == pytest.approx(np.abs(truth - estimate).mean())


def test_land_stays_land_in_new_data(days, fitted):
    land = days["land"].values != 0
    filled = fitted.fill(days["sst"])
    assert (np.asarray(filled.flag)[land] == 4).all() and not (np.asarray(filled.flag)[~land] == 4).any()
    later = matching(fitted.observed, days["sst"].isel(time=slice(2, 8)))
    np.testing.assert_array_equal(later.domain, np.broadcast_to(~land[..., None], (8, 9, 6)))


def test_what_is_careful_about_is_a_row_and_not_repeated():
    because = "The coverage of 5 missing entries is unknown"
    summary = Summary(
        name=None, units=None, axes=(("a", 9), ("b", 9), ("c", 2)), coverage=0.9, observed=100, missing=60, outside=2,
        forecast=4, infinite=3, finite_share=0.95, mean_width=1.0, median_width=1.0, facts={},
        choices=(Choice("reach", "too short", because, code="pseudo_gaps_too_short"),),
        warnings=(because, "Something else."), beyond_tested=5, extrapolated="a 1, 2",
    )  # fmt: skip
    text = str(summary)
    assert because not in text and "! Something else." in text
    parts = ("5 of the entries (8.3%)", "3 entries (5.0%) have no finite", "4 entries before", "a 1, 2", "2 ent")
    assert [part for part in parts if part not in text] == []


def test_a_setting_at_the_edge_of_what_was_tried_has_a_remark():
    tried = tuple({"strength": one, "loss": one} for one in (0.0, 1 / 30, 0.3))
    assert "smallest" in edge_remark(Choice("s", "0", "", tried))
    assert "largest" in edge_remark(Choice("s", "0.3", "", tried))
    assert edge_remark(Choice("s", "0.0333", "", tried)) == "" == edge_remark(Choice("s", "0", "", tried[:2]))


def test_negative_bounds_of_counts_are_said_with_the_remedy():
    rng = np.random.default_rng(0)
    x = rng.poisson(1.0, size=(20, 20)).astype(float)
    x[rng.random(x.shape) < 0.2] = np.nan
    options = {"completion": "smooth", "propensity": "constant", "calibration": "random"}
    result = corten.complete(x, **options)
    below = int((result.lower[np.isnan(x)] < 0).sum())
    assert below and result.summary().below_zero == below and "bounds=(0, None)" in str(result.summary())
    for other in (corten.complete(x, bounds=(0, None), **options), corten.complete(x - 5, **options)):
        assert other.summary().below_zero == 0 and "bounds" not in str(other.summary())
