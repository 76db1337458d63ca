"""The adaptive level: its bound holds for any errors, and it keeps the coverage under drift where a fixed one fails."""

import numpy as np
import pytest

import corten
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.weights import UniformWeights


@pytest.mark.parametrize("kind", ["adversarial", "always", "never", "random"])
def test_the_bound_holds_for_any_errors_that_respect_infinite_intervals(kind):
    rng, adaptive, outside = np.random.default_rng(0), corten.AdaptiveCoverage(0.9, rate=0.05), []
    for _ in range(300):
        wanted = {"adversarial": adaptive.present > 0.02, "always": True, "never": False, "random": rng.random() < 0.5}
        # Infinite intervals miss nothing, empty ones everything.
        missed = 0.0 if adaptive.present <= 0 else 1.0 if adaptive.present >= 1 else float(wanted[kind])
        adaptive = adaptive.after(missed)
        outside.append(missed)
        assert -adaptive.rate <= adaptive.present <= 1 + adaptive.rate
        assert abs(np.mean(outside) - 0.1) <= adaptive.bound + 1e-12
    assert adaptive.bound == pytest.approx((0.9 + 0.05) / (0.05 * 300))


def test_drift_breaks_a_fixed_level_and_not_an_adaptive_one():
    rng = np.random.default_rng(1)
    scores = np.abs(rng.normal(size=2000))
    given = CalibratedScores("absolute", scores, np.arange(2000), UniformWeights())

    def share_outside(coverage, errors):
        lower, upper = given.intervals(np.array([0]), [0.0], [1.0], coverage)
        return float(np.mean((errors < lower) | (errors > upper)))

    adaptive, fixed, followed = corten.AdaptiveCoverage(0.9), [], []
    for step in range(200):
        errors = (1 + step / 100) * rng.normal(size=100)  # three times as large in the end
        fixed.append(share_outside(0.9, errors))
        followed.append(share_outside(adaptive.next_coverage, errors))
        adaptive = adaptive.after(followed[-1])
    assert np.mean(fixed) > 0.25
    assert abs(np.mean(followed) - 0.1) <= 0.01


@pytest.mark.parametrize("bad", [{"coverage": 90}, {"rate": 0.0}])
def test_wrong_options_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        corten.AdaptiveCoverage(**bad)
