"""Weights of the members of a stack that depend on how far the members differ at an entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corten.calibration.round_entries import Hidden, cross_fitted_mix
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.stack import PreparedStack
from corten.completion.weights import WeightsByDifference, simplex_weights
from corten.data.axes import Axis
from corten.results.saving import Decoder, Encoder

SHAPE = (20, 10, 30)


def one_fails(seed: int = 0, size: int = 6000) -> tuple[np.ndarray, np.ndarray]:
    """Two members of equal accuracy, the first of which misses rare large values; and the truth."""
    rng = np.random.default_rng(seed)
    rare = 8.0 * (rng.random(size) < 0.05)
    truth = 20.0 + rng.normal(size=size) + rare
    follows = truth + rng.normal(size=size)
    misses = truth - rare + rng.normal(size=size)
    return np.stack([misses, follows], axis=1), truth


def prepared(roots: bool = False) -> PreparedStack:
    values = np.random.default_rng(1).normal(size=(6, 6, 6))
    member: PreparedSmooth = SmoothCompletion().prepare(values, np.ones(values.shape, bool), [Axis("a", 6)] * 3, 0)
    return PreparedStack({"a": member, "b": member}, {"a": 0.5, "b": 0.5}, roots=roots)


def test_the_member_that_fails_has_no_weight_where_members_differ_most() -> None:
    members, truth = one_fails()
    common = simplex_weights(members, truth)
    found = WeightsByDifference.fit(members, truth, common)
    assert found is not None
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0)
    assert (found.weights >= 0).all()
    assert found.weights[-1, 1] > 0.9 > found.weights[0, 1]
    fresh, fresh_truth = one_fails(seed=1)
    for_all = np.mean((fresh @ common - fresh_truth) ** 2)
    assert np.mean((found.mix(list(fresh.T)) - fresh_truth) ** 2) < 0.95 * for_all


def test_differences_beyond_the_knots_have_the_weights_of_the_last() -> None:
    members, truth = one_fails()
    found = WeightsByDifference.fit(members, truth, np.array([0.5, 0.5]))
    assert found is not None
    far = [np.full((2, 3), 0.0), np.full((2, 3), 1000.0)]
    np.testing.assert_allclose(found.mix(far), 1000.0 * found.weights[-1, 1])


@pytest.mark.parametrize("members", [np.ones((50, 2)), np.zeros((50, 1))])
def test_members_that_never_differ_have_no_such_weights(members: np.ndarray) -> None:
    truth = np.arange(50.0)
    assert WeightsByDifference.fit(members, truth, np.full(members.shape[1], 1 / members.shape[1])) is None


@pytest.mark.parametrize("roots", [False, True])
def test_stacks_mix_arrays_and_entries_alike_and_record_the_weights(roots: bool) -> None:
    members, truth = one_fails()
    named = dict(zip("ab", members.T))
    stack = prepared(roots).combine_by_difference(named, truth)
    assert stack.by_difference is not None
    assert stack.choices[0].because.endswith(", ".join(f"{w:.2f}" for w in stack.by_difference.weights[-1]))
    full = stack.mix({name: one.reshape(SHAPE) for name, one in named.items()})
    np.testing.assert_array_equal(full.ravel(), stack.mix(named))
    assert stack.combine(named, truth).by_difference is None


@pytest.mark.parametrize("stations", [False, True])
def test_rounds_use_them_for_stations_only(stations: bool) -> None:
    members, truth = one_fails()
    entries = np.random.default_rng(2).permutation(np.prod(SHAPE))[: len(truth)]
    nothing = np.zeros((len(truth), 0))
    one = Hidden(
        entries,
        truth,
        estimate=members.mean(axis=1),
        members=dict(zip("ab", members.T)),
        features=nothing,
        depths=np.ones(len(truth)),
    )
    final, rounds = cross_fitted_mix(prepared(), [one], SHAPE, 0, stations=stations)
    assert isinstance(final, PreparedStack) and (final.by_difference is not None) == stations
    own = np.abs(final.mix(one.members) - truth).mean()
    # An entry's own weights come from other blocks: they are others than those of the final mix.
    assert not np.array_equal(rounds[0].estimate, final.mix(one.members))
    assert np.abs(rounds[0].estimate - truth).mean() == pytest.approx(own, rel=0.05)


def test_saved_stacks_keep_them() -> None:
    members, truth = one_fails()
    stack = prepared().combine_by_difference(dict(zip("ab", members.T)), truth)
    packer = Encoder()
    node: Any = packer.encode(stack, "")
    back = Decoder(packer.arrays).decode(node)
    np.testing.assert_array_equal(back.mix(dict(zip("ab", members.T))), stack.mix(dict(zip("ab", members.T))))
