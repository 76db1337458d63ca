"""The variable of the stack: square roots of skewed values where they lower the error, else the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import corten
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import PreparedStack, StackedCompletion
from corten.completion.unfoldings import UnfoldingCompletion
from corten.completion.variable import choose_root
from corten.data.axes import Axis

SHAPE = (12, 14, 16)
AXES = [Axis("station", 12, kind="unordered"), Axis("day", 14), Axis("hour", 16)]
MEMBERS = {"pyramid": SmoothCompletion(), "low rank": UnfoldingCompletion()}


def counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of stations of very different size with a daily cycle, and where they are observed."""
    rng = np.random.default_rng(seed)
    cycle = 1.5 * np.sin(2 * np.pi * np.arange(16) / 16)
    level = np.exp(rng.normal(3, 1.2, (12, 1, 1)) + rng.normal(0, 0.3, (1, 14, 1)) + cycle)
    return rng.poisson(level * rng.gamma(4, 1 / 4, SHAPE)).astype(float), rng.random(SHAPE) < 0.5


def prepared(values: np.ndarray, mask: np.ndarray) -> PreparedStack:
    return StackedCompletion(MEMBERS).prepare(np.where(mask, values, np.nan), mask, AXES, 0)


def test_square_roots_lower_the_errors_of_counts() -> None:
    values, mask = counts(0)
    stack = prepared(values, mask)
    assert stack.roots and stack.variable[0].taken == "square roots of the values"
    fill = stack.fill(np.where(mask, values, np.nan), mask)
    np.testing.assert_allclose(stack.mix(fill.members), fill.estimate, rtol=1e-12)
    assert fill.estimate.min() >= 0
    plain = StackedCompletion(MEMBERS)
    plain_stack = PreparedStack({n: m.prepare(values, mask, AXES, 0) for n, m in plain.members.items()}, stack.weights)
    errors = [
        np.abs(one - values)[~mask] / (1 + values[~mask])
        for one in (fill.estimate, plain_stack.fill(values, mask).estimate)
    ]
    assert errors[0].mean() < 0.95 * errors[1].mean()


def test_the_choice_does_not_depend_on_the_unit_and_is_recorded() -> None:
    values, mask = counts(0)
    (used, (one,)), (_, (other,)) = choose_root(values, mask, AXES, 0), choose_root(4 * values, mask, AXES, 0)
    assert used and one.code == "square_roots_modelled"
    np.testing.assert_allclose(one.values["gain"], other.values["gain"], rtol=1e-6)


def test_values_that_gain_nothing_are_not_changed() -> None:
    """Smooth skewed values with noise that does not grow with them; symmetric ones and negative ones are not tried."""
    rng = np.random.default_rng(2)
    field = 3 + sum(
        np.cos(2 * np.pi * np.arange(n) / n).reshape([-1 if j == k else 1 for j in range(3)])
        for k, n in enumerate(SHAPE)
    )
    mask = np.broadcast_to(rng.random((1, 14, 16)) < 0.7, SHAPE)
    skewed = np.maximum(field**3 + rng.normal(0, 8, SHAPE), 0)
    used, choices = choose_root(skewed, mask, [Axis("x", 12), *AXES[1:]], 0)
    assert not used and choices[0].taken == "values"
    assert choose_root(field, mask, AXES, 0) == (False, ())
    assert choose_root(counts(0)[0] - 1, mask, AXES, 0) == (False, ())


def test_a_saved_fit_keeps_the_variable(tmp_path: Path) -> None:
    values, mask = counts(3)
    completer = corten.ConformalCompleter(
        StackedCompletion(MEMBERS), calibration=corten.GapCalibration(rounds=3, drawn=0)
    )
    fitted = completer.fit(np.where(mask, values, np.nan), axis_kinds={0: "unordered"})
    assert any(one.what == "variable of the stack" for one in fitted.choices)
    loaded = corten.load(fitted.save(tmp_path / "fit.corten"))
    again, first = (one.completion.fill(np.where(mask, values, np.nan), mask).estimate for one in (loaded, fitted))
    np.testing.assert_array_equal(again, first)
