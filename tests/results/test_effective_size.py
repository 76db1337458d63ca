"""Low effective sample sizes are reported: the size, the highest coverage with finite intervals, what to do instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import corten
from corten.propensity.selection import Candidate, choose_model


def fitted(odds: np.ndarray, seed: int = 0) -> corten.Fitted:
    """A smooth field whose entries go missing with these known log-odds of being observed."""
    rng = np.random.default_rng(seed)
    x = np.add.outer(np.sin(np.arange(30) / 5), np.cos(np.arange(40) / 7)) + 0.1 * rng.normal(size=(30, 40))
    mask = rng.random(x.shape) < 1 / (1 + np.exp(-odds))
    completer = corten.ConformalCompleter("smooth", corten.KnownPropensity(odds), "random")
    return completer.fit(np.where(mask, x, np.nan))


def test_the_highest_finite_coverage_is_where_one_in_a_hundred_turns_infinite():
    steep = np.linspace(4, -4, 30)[:, None] * np.ones((1, 40))
    one = fitted(steep)
    assert 0.0 < one.highest_finite_coverage < 0.99
    infinite = [np.isinf(one.intervals(c).width_array[one.observed.missing]).mean() for c in
                (one.highest_finite_coverage - 0.005, one.highest_finite_coverage + 0.005)]  # fmt: skip
    assert infinite[0] <= 0.01 < infinite[1]


def test_a_small_effective_sample_size_is_warned_of():
    steep = np.linspace(4, -4, 30)[:, None] * np.ones((1, 40))
    one = fitted(steep)
    warning = one.warnings()[-1]  # after the one of rows without training entries
    assert f"effective sample size is {one.calibrated.effective_sample_size():.0f} of {len(one.scores)}" in warning
    assert f"coverage of {one.highest_finite_coverage:.3g}" in warning
    assert "calibration='gaps'" in warning
    assert warning in one.intervals(0.9).summary().warnings
    assert "No propensity model that was tried" not in warning
    candidates = {name: Candidate(1, 1.0, None, 3.0) for name in ("0", "1")}
    _, choice = choose_model(candidates, 1000, "coupling strength")
    object.__setattr__(one, "choices", (replace(choice, because="warning in another way"),))
    assert "No propensity model that was tried" in one.warnings()[-1]


def test_flat_weights_are_not_warned_of_until_more_is_asked_than_is_finite():
    one = fitted(np.full((30, 40), 1.0))
    assert one.warnings() == []
    assert one.intervals(0.9).summary().warnings == ()
    assert "highest_finite_coverage" not in one.facts(0.9)
    few = fitted(np.linspace(3.0, 0.2, 30)[:, None] * np.ones((1, 40)))
    assert 0.95 < few.highest_finite_coverage < 0.99
    assert "above the highest coverage with finite intervals" in few.intervals(0.995).summary().warnings[0]
    assert few.intervals(0.5).summary().warnings == ()


@pytest.mark.parametrize("score", ["absolute", "signed"])
def test_two_tails_have_a_lower_finite_coverage(score):
    steep = np.linspace(4, -4, 30)[:, None] * np.ones((1, 40))
    one = fitted(steep)
    two = one.calibrated.with_scores(score, one.scores)
    object.__setattr__(one, "calibrated", two)
    assert one.highest_finite_coverage > 0.4
    infinite = np.isinf(one.intervals(one.highest_finite_coverage - 0.005).width_array[one.observed.missing]).mean()
    assert infinite <= 0.01
