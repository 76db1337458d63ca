"""Properties of descent: whatever the objective, it never ends higher than it began, counts its cost and says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dense import dense_contractions
from corten.lowrank import (
    Armijo,
    BarzilaiBorwein,
    Descent,
    FixedStep,
    Frame,
    Progress,
    Stop,
    Tangent,
    TensorTrain,
    Tucker,
    TuckerFrame,
    TuckerTangent,
    check_rank,
    check_tucker_rank,
    descend,
    feasible_rank,
    feasible_tucker_rank,
)
from slope_checks import SlopeCheck, check_gradient, check_retraction, random_tangent
from strategies import costly, seeds, shapes

RULES = [FixedStep(0.5), Armijo(4.0), BarzilaiBorwein()]


@st.composite
def points(draw: Any) -> Any:
    shape = draw(shapes((2, 4), longest=5, most=100))
    rank, seed = draw(st.integers(1, 3)), draw(seeds)
    if draw(st.booleans()):
        return TensorTrain.random(shape, feasible_rank(shape, rank), seed)
    return Tucker.random(shape, feasible_tucker_rank(shape, rank), seed)


def squares(goal: np.ndarray, seen: np.ndarray, calls: list[float] | None = None, slope: float = 1.0) -> Any:
    """Half the squared distance to a goal where it is seen, its gradient times `slope`, and a record of the calls."""

    def objective(point: Any) -> tuple[float, Any]:
        frame, gap = point.frame(), np.where(seen, point.to_dense() - goal, 0.0)
        value = 0.5 * float(np.sum(gap**2))
        if calls is not None:
            calls.append(value)
        return value, frame.project(dense_contractions(frame, slope * gap))

    return objective


@given(points(), seeds, st.sampled_from(RULES), st.sampled_from([0.3, 0.7, 1.0]), st.integers(-40, 40))
def test_every_step_rule_goes_down_and_keeps_its_books(start, seed, rule, share, power):
    rng = np.random.default_rng(seed)
    goal, seen = rng.normal(size=start.shape) * 2.0**power, rng.random(start.shape) < share
    start, calls = start * 2.0**power, []
    objective = squares(goal, seen, calls)
    end = descend(objective, start, step=rule, stop=Stop(iterations=15, gradient=1e-6))
    assert isinstance(end, Descent) and end.stopped_because
    assert end.history[0] == calls[0] and len(end.history) == end.iterations + 1
    assert end.evaluations == len(calls)
    assert end.value == min(end.history) <= calls[0]
    assert end.point.shape == start.shape and end.point.rank == start.rank
    assert end.value == objective(end.point)[0]
    history, slack = np.array(end.history), 1e-12 * end.history[0]
    memory = {Armijo: 1, BarzilaiBorwein: 5}.get(type(rule))
    if memory is not None:  # no value above the worst of the last ones that the rule looks back at
        for k in range(1, len(history)):
            assert history[k] <= history[max(0, k - memory) : k].max() + slack


@given(points(), seeds, st.sampled_from(RULES[1:]), st.integers(-30, 30))
def test_another_unit_is_the_same_descent(start, seed, rule, power):
    """Values and goal times a power of two: the same path, to the last bit but for rounding that units shift."""
    rng, unit = np.random.default_rng(seed), 2.0**power
    goal, seen = rng.normal(size=start.shape), rng.random(start.shape) < 0.7
    few = Stop(iterations=4)
    one = descend(squares(goal, seen), start, step=rule, stop=few)
    other = descend(squares(goal * unit, seen), start * unit, step=rule, stop=few)
    np.testing.assert_allclose(np.array(other.history) / unit**2, one.history, rtol=1e-6, atol=1e-9 * one.history[0])


@st.composite
def states(draw: Any) -> Progress:
    many = draw(st.integers(1, 9))
    values = draw(st.lists(st.floats(-1e6, 1e6), min_size=many, max_size=many))
    small = st.floats(0.0, 10.0)
    change = draw(small) if many > 1 else None
    return Progress(many - 1, many + draw(st.integers(0, 5)), values, draw(small), draw(small), change, 0.1, None)


@st.composite
def limits(draw: Any) -> dict[str, Any]:
    number, whole = st.floats(0.0, 10.0), st.integers(0, 10)
    some = {"gradient": number, "relative_change": number, "iterations": whole, "evaluations": whole}
    return draw(st.fixed_dictionaries({}, optional=some | {"value_change": number}))


@given(states(), limits(), st.integers(1, 10))
def test_any_limit_that_is_reached_stops(state, given, patience):
    says = [Stop(**{name: limit}, patience=patience)(state) for name, limit in given.items()]
    assert all(one is None or one for one in says)
    assert Stop(**given, patience=patience)(state) in ([one for one in says if one] or [None])


@given(states(), st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.integers(0, 5), st.integers(0, 5))
def test_a_stricter_rule_never_stops_earlier(state, number, more, whole, many):
    for loose, strict in (
        (Stop(gradient=number + more), Stop(gradient=number)),
        (Stop(relative_change=number + more), Stop(relative_change=number)),
        (Stop(value_change=number + more, patience=1 + whole), Stop(value_change=number, patience=1 + whole)),
        (Stop(value_change=number, patience=1 + whole), Stop(value_change=number, patience=1 + whole + many)),
        (Stop(iterations=whole), Stop(iterations=whole + many)),
        (Stop(evaluations=whole), Stop(evaluations=whole + many)),
    ):
        assert strict(state) is None or loose(state) is not None


@costly(2)
@given(points(), seeds, st.sampled_from([0.5, 0.9, 1.1, 2.0]))
def test_slope_checks_pass_what_is_right_and_fail_what_is_wrong(point, seed, wrong):
    rng = np.random.default_rng(seed)
    goal, seen = rng.normal(size=point.shape), np.ones(point.shape, bool)
    found = check_gradient(squares(goal, seen), point, seed % 100)
    assert isinstance(found, SlopeCheck) and found.ok, found
    assert check_retraction(point, seed % 100).ok
    assert not check_gradient(squares(goal, seen, slope=wrong), point, seed % 100)


@given(points(), seeds, st.integers(-100, 100))
def test_tangent_spaces_are_linear_and_projections_onto_them_orthogonal(point, seed, power):
    frame, kinds = point.frame(), (Frame, Tangent) if isinstance(point, TensorTrain) else (TuckerFrame, TuckerTangent)
    assert isinstance(frame, kinds[0]) and frame.point.shape == point.shape and frame.point.rank == point.rank
    rng, unit = np.random.default_rng(seed), 2.0**power
    one, two = (rng.normal(size=point.shape) * unit for _ in range(2))
    a, b = (frame.project(dense_contractions(frame, dense)) for dense in (one, two))
    assert isinstance(a, kinds[1])
    dense_a, dense_b = a.to_tt().to_dense() / unit, b.to_tt().to_dense() / unit
    size = 1e-9 * point.to_dense().size
    np.testing.assert_allclose((a + b * 2.0).to_tt().to_dense() / unit, dense_a + 2.0 * dense_b, atol=size)
    np.testing.assert_allclose((a - b).to_tt().to_dense() / unit, dense_a - dense_b, atol=size)
    assert a.inner(b) / unit**2 == pytest.approx(float(np.vdot(dense_a, dense_b)), abs=size)
    assert a.norm() / unit == pytest.approx(float(np.linalg.norm(dense_a)), abs=size)
    # what a projection takes away is orthogonal to all that it keeps
    assert float(np.vdot(one / unit - dense_a, dense_b)) == pytest.approx(0.0, abs=size)
    again = frame.project_tt(a.to_tt()).to_tt().to_dense()
    np.testing.assert_allclose(again / unit, dense_a, atol=size)
    np.testing.assert_allclose(a.transport(frame).to_tt().to_dense() / unit, dense_a, atol=size)
    np.testing.assert_allclose(random_tangent(frame, seed % 100).retract(0.0).to_dense(), point.to_dense(), atol=size)


@given(shapes(longest=6), st.data())
def test_ranks_are_feasible_or_refused(shape, data):
    for check, feasible, number in (
        (check_rank, feasible_rank, len(shape) - 1), (check_tucker_rank, feasible_tucker_rank, len(shape))
    ):  # fmt: skip
        asked = tuple(data.draw(st.integers(1, 8)) for _ in range(number))
        allowed = feasible(shape, asked)
        assert all(1 <= have <= want for have, want in zip(allowed, asked))
        assert feasible(shape, allowed) == check(shape, allowed) == allowed
        if asked == allowed:
            assert check(shape, asked) == asked
        else:
            with pytest.raises(ValueError, match="rank"):
                check(shape, asked)
