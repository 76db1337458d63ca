"""Descent: every step rule finds the minimum of low-rank least squares, counts exactly and says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.dense import dense_contractions
from corten.lowrank import (
    Armijo,
    BarzilaiBorwein,
    FixedStep,
    Progress,
    Stop,
    TensorTrain,
    Tucker,
    descend,
)
from corten.lowrank.line_search import Iterate
from slope_checks import random_tangent

SHAPE = (10, 11, 12)
RULES = [FixedStep(1.0), Armijo(4.0), BarzilaiBorwein(), BarzilaiBorwein(first_step=2.0)]
Objective = Callable[[Any], tuple[float, Any]]


def completion(goal: Any, share: float = 0.6) -> tuple[Objective, np.ndarray]:
    """Squared distance to the goal on a random part of the entries, and the zero-filled data."""
    truth = goal.to_dense()
    seen = np.random.default_rng(0).random(truth.shape) < share

    def objective(point: Any) -> tuple[float, Any]:
        frame, gap = point.frame(), np.where(seen, point.to_dense() - truth, 0.0)
        return 0.5 * float(np.sum(gap**2)), frame.project(dense_contractions(frame, gap))

    return objective, np.where(seen, truth, 0.0) / share


def counted(objective: Objective) -> tuple[Objective, list[int]]:
    calls = [0]

    def inner(point: Any) -> tuple[float, Any]:
        calls[0] += 1
        return objective(point)

    return inner, calls


def watched(stop: Stop, seen: list[Progress]) -> Any:
    """The same stop, which keeps what it is shown after each step."""

    def asked(progress: Progress) -> str | None:
        if progress.iterations:
            seen.append(progress)
        return stop(progress)

    return asked


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("kind", [TensorTrain, Tucker])
def test_every_rule_reaches_the_minimum(rule: Any, kind: type[TensorTrain] | type[Tucker]) -> None:
    goal = kind.random(SHAPE, 2, seed=1)
    objective, data = completion(goal)
    objective, calls = counted(objective)
    end = descend(objective, kind.from_dense(data, 2), step=rule, stop=Stop(gradient=1e-8, iterations=400))
    assert np.linalg.norm(end.point.to_dense() - goal.to_dense()) < 1e-5 * goal.norm()
    assert end.stopped_because.startswith("gradient norm")
    assert end.evaluations == calls[0]
    assert len(end.history) == end.iterations + 1
    assert end.value == min(end.history) == objective(end.point)[0]


def test_curvature_steps_need_fewer_passes_than_the_papers() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 2, seed=1), share=0.4)
    start, stop = TensorTrain.from_dense(data, 2), Stop(gradient=1e-6, iterations=1000)
    passes = {rule: descend(objective, start, step=rule, stop=stop).evaluations for rule in (*RULES, FixedStep(0.1))}
    assert passes[BarzilaiBorwein()] < 0.5 * passes[FixedStep(1.0)] < 0.5 * passes[FixedStep(0.1)]


def test_the_monotone_rule_goes_down_by_the_armijo_amount() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 3, seed=2))
    seen: list[Progress] = []
    end = descend(objective, TensorTrain.from_dense(data, 2), step=Armijo(4.0), stop=watched(Stop(iterations=15), seen))
    assert all(later < earlier for earlier, later in zip(end.history, end.history[1:]))
    assert [p.iterations for p in seen] == list(range(1, 16))
    assert all(p.step is not None and p.step > 0.0 for p in seen)


def test_the_best_point_is_given_back_though_the_default_may_go_up() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 2, seed=1), share=0.3)
    start = TensorTrain.from_dense(data, 2)
    ends = [descend(objective, start, stop=Stop(iterations=n)) for n in range(5, 60)]
    assert any(end.history[-1] > min(end.history) for end in ends)
    for end in ends:
        assert end.value == min(end.history) == objective(end.point)[0]


@pytest.mark.parametrize("rank", [2, 4])
def test_over_specified_and_deficient_starts_still_descend(rank: int) -> None:
    goal = TensorTrain.random(SHAPE, 2, seed=3)
    objective, _ = completion(goal, share=0.9)
    over_specified = TensorTrain.random(SHAPE, 1, seed=4) + 1e-8 * TensorTrain.random(SHAPE, rank - 1, seed=5)
    for start in (over_specified, TensorTrain.zeros(SHAPE, rank)):
        end = descend(objective, start, stop=Stop(iterations=300, gradient=1e-9))
        assert end.value < 1e-6 * objective(start)[0], end


@pytest.mark.parametrize("rule", [FixedStep(1.0), Armijo(8.0), BarzilaiBorwein(8.0)], ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(rule: Any, bad: float) -> None:
    goal = TensorTrain.random(SHAPE, 2, seed=1)
    inside, data = completion(goal)
    start = TensorTrain.from_dense(data, 2)

    def objective(point: TensorTrain) -> tuple[float, Any]:
        value, gradient = inside(point)
        return (bad if (point - start).norm() > 0.4 * start.norm() else value), gradient

    first = inside(start)[1].norm()
    far = 2.0 * start.norm() / first  # the very first trial lands where the objective is not finite
    rule = FixedStep(far) if isinstance(rule, FixedStep) else type(rule)(far)
    end = descend(objective, start, step=rule, stop=Stop(iterations=30))
    assert math.isfinite(end.value) and end.value < inside(start)[0]
    assert end.evaluations > end.iterations + 1


def test_a_start_that_is_not_finite_is_an_error_and_a_wrong_gradient_ends_in_words() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 2, seed=1))
    start = TensorTrain.from_dense(data, 2)
    with pytest.raises(ValueError, match="finite"):
        descend(lambda point: (math.nan, objective(point)[1]), start)
    end = descend(lambda point: (objective(point)[0], -objective(point)[1]), start, step=Armijo(1.0))
    assert end.iterations == 0 and "no step" in end.stopped_because
    assert end.point is start


def test_the_first_limit_reached_stops_and_says_why() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 2, seed=1))
    start = TensorTrain.from_dense(data, 2)

    def reason(stop: Any) -> str:
        return descend(objective, start, stop=stop).stopped_because

    assert reason(Stop(iterations=3)) == "reached the limit of 3 iterations"
    assert reason(Stop(evaluations=4, iterations=50)) == "reached the limit of 4 evaluations"
    assert reason(Stop(relative_change=1e-3, iterations=500)).startswith("relative change")
    assert reason(Stop(value_change=0.5, patience=2, iterations=500)).startswith("objective changed")
    assert reason(Stop(gradient=1e9)).startswith("gradient norm")
    assert reason(lambda p: "enough" if p.iterations == 2 else None) == "enough"


def reached(state: Progress, name: str, limit: float, patience: int) -> bool:
    """Whether a state has reached one limit."""
    if name == "gradient":
        return state.gradient_norm <= limit * state.first_gradient_norm
    if name == "relative_change":
        return state.relative_change is not None and state.relative_change <= limit
    if name == "value_change":
        if state.iterations < patience:
            return False
        last = [state.values[state.iterations - back] for back in range(patience + 1)]
        return all(abs(one - other) <= limit * abs(last[0]) for one in last for other in last)
    return {"iterations": state.iterations, "evaluations": state.evaluations}[name] >= limit


WORDS = {"gradient": "gradient norm", "relative_change": "relative change", "value_change": "objective changed"}


def test_a_stop_is_the_first_limit_reached_of_those_given() -> None:
    """States and limits from a few numbers, so that many are reached exactly; every limit alone, and all together."""
    rng, counts = np.random.default_rng(0), {True: 0, False: 0}
    numbers = (0.0, 0.25, 0.5, 1.0, 2.0)
    for _ in range(2000):
        number, first, moved, *limits = (float(one) for one in rng.choice(numbers, 6))
        many, patience = (int(one) for one in rng.integers(1, 6, 2))
        values = rng.choice([1.0, 1.25, 1.5, 2.0, -1.0], many).tolist()
        calls = many + int(rng.integers(0, 4))
        state = Progress(many - 1, calls, values, number, first, None if many == 1 else moved, 0.1, None)
        given: dict[str, Any] = dict(zip(WORDS, limits))
        given |= {"iterations": int(rng.integers(0, 7)), "evaluations": int(rng.integers(0, 9))}
        holds = {name: reached(state, name, limit, patience) for name, limit in given.items()}
        for name, limit in given.items():
            reason = Stop(**{name: limit}, patience=patience)(state)
            assert (reason is not None) == holds[name]
            assert reason is None or WORDS.get(name, name) in reason
            counts[holds[name]] += 1
        reason = Stop(**given, patience=patience)(state)
        first_name = next((name for name in given if holds[name]), None)
        assert reason is None if first_name is None else WORDS.get(first_name, first_name) in str(reason)
    assert min(counts.values()) > 1000


def test_a_stationary_start_stops_at_once() -> None:
    goal = TensorTrain.random(SHAPE, 2, seed=1)
    end = descend(lambda point: (0.0, random_tangent(point.frame(), 0) * 0.0), goal, stop=Stop(iterations=5))
    assert (end.iterations, end.evaluations, end.stopped_because) == (0, 1, "the gradient is zero")


def test_relative_change_is_the_move_over_the_norm() -> None:
    objective, data = completion(TensorTrain.random(SHAPE, 2, seed=1))
    start = TensorTrain.from_dense(data, 2)
    seen: list[Progress] = []
    descend(objective, start, step=FixedStep(1e-4), stop=watched(Stop(iterations=1), seen))
    moved = (seen[0].point - start).norm() / start.norm()
    assert seen[0].relative_change == pytest.approx(moved, rel=1e-3)  # the retraction bends at second order


def test_gradients_too_small_to_be_squared_do_not_stop_a_descent():
    """Found by a property of `complete`: on constant data the squared change of a gradient was zero, and divided by."""

    class Line(float):
        frame = None

        def inner(self, other):
            return float(self) * float(other)

        def transport(self, _):
            return self

        def norm(self):
            return abs(float(self))

        def __sub__(self, other):
            return Line(float(self) - float(other))

    last = Iterate(None, 1.0, Line(1e-150), None)
    here = Iterate(None, 1.0, Line(1e-150 * (1 - 1e-13)), 0.5)
    assert BarzilaiBorwein().trial(here, last) == (1.0, ())
