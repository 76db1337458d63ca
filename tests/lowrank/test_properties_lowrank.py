"""Properties of low-rank points: any shape, rank and scale against dense arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dense import dense_contractions
from corten.lowrank import CP, TensorTrain, Tucker, feasible_rank, feasible_tucker_rank
from corten.lowrank.descent import spectral_start
from slope_checks import random_tangent
from strategies import LAYOUTS, laid_out, seeds, shapes

units = st.sampled_from([1e-30, 1e-10, 1.0, 1e10, 1e30])


def close(found: Any, wanted: Any, unit: float = 1.0, tolerance: float = 1e-9) -> None:
    size = max(1.0, float(np.max(np.abs(np.asarray(wanted) / unit), initial=0.0)))
    np.testing.assert_allclose(np.asarray(found) / unit, np.asarray(wanted) / unit, atol=tolerance * size)


@st.composite
def trains(draw: Any) -> TensorTrain:
    shape = draw(shapes(longest=5, most=150))
    rank = feasible_rank(shape, [draw(st.integers(1, 4)) for _ in shape[1:]])
    train = TensorTrain.random(shape, rank, draw(seeds))
    if draw(st.booleans()) and max(rank) > 1:  # rank-deficient: a direction of a bond that nothing uses
        bond = int(np.argmax(rank))
        cores = [core.copy() for core in train.cores]
        cores[bond][:, :, 0] = 0.0
        train = TensorTrain(tuple(cores))
    return train


@st.composite
def tuckers(draw: Any) -> Tucker:
    shape = draw(shapes(longest=5, most=150))
    return Tucker.random(shape, feasible_tucker_rank(shape, draw(st.integers(1, 4))), draw(seeds))


@given(trains(), units)
def test_trains_are_the_tensors_they_stand_for(train, unit):
    dense, point = train.to_dense() * unit, train * unit
    close(point.to_dense(), dense, unit)
    close(point.reversed().to_dense(), dense.transpose(), unit)
    close(point.at_flat(np.arange(dense.size)), dense.reshape(-1), unit)
    close(point.norm() / unit, np.linalg.norm(train.to_dense()))
    close(point.round(point.rank).to_dense(), dense, unit)
    for gauge in point.gauges():
        close(gauge.to_dense(), dense, unit)
    close(point.frame().radial().to_tt().to_dense(), dense, unit)
    leverage = point.leverage()
    assert (leverage >= -1e-9).all() and (leverage <= 1 + 1e-9).all()
    close(leverage.sum(), point.dimension, tolerance=1e-8)


@given(trains(), seeds, units)
def test_tangent_vectors_project_retract_and_move(train, seed, unit):
    """Idempotent and self-adjoint projection, a retraction that starts at the point, transport that is linear."""
    frame, other = train.frame(), TensorTrain.random(train.shape, train.rank, seed)
    dense = np.random.default_rng(seed).normal(size=train.shape)
    moved = frame.project(dense_contractions(frame, dense * unit))
    again = frame.project_tt(moved.to_tt())
    close(again.to_tt().to_dense(), moved.to_tt().to_dense(), unit)
    random = random_tangent(frame, seed)
    close(moved.inner(random) / unit, np.vdot(dense, random.to_tt().to_dense()))
    close(random.retract(0.0).to_dense(), train.to_dense())
    there = other.frame()
    both = (moved + random * unit).transport(there).to_tt().to_dense()
    close(both, (moved.transport(there) + random.transport(there) * unit).to_tt().to_dense(), unit)


@given(tuckers(), units)
def test_tucker_points_are_the_tensors_they_stand_for(point, unit):
    dense = point.to_dense() * unit
    scaled = point * unit
    close(scaled.to_dense(), dense, unit)
    close(scaled.to_tensor_train().to_dense(), dense, unit)
    close(scaled.orthonormal().to_dense(), dense, unit)
    close(scaled.round(scaled.rank).to_dense(), dense, unit)
    close(scaled.norm() / unit, np.linalg.norm(point.to_dense()))
    leverage = scaled.leverage()
    close(leverage.sum(), scaled.dimension, tolerance=1e-8)
    close(scaled.frame().radial().to_tt().to_dense(), dense, unit)


@given(shapes(longest=5, most=120), st.integers(1, 3), seeds)
def test_cp_points_are_the_tensors_they_stand_for(shape, rank, seed):
    point = CP.random(shape, rank, seed)
    dense = np.zeros(shape)
    for a, weight in enumerate(point.weights):
        term = np.array(weight)
        for factor in point.factors:
            term = np.multiply.outer(term, factor[:, a])
        dense += term
    close(point.to_dense(), dense)
    close(point.to_tensor_train().to_dense(), dense)
    close(point.balanced().to_dense(), dense)
    leverage = point.leverage()
    assert (leverage >= -1e-8).all() and (leverage <= 1 + 1e-8).all()


@given(shapes(longest=5, most=150), seeds, units, st.sampled_from(LAYOUTS), st.sampled_from(["f8", "f4", ">f8"]))
def test_decompositions_are_exact_at_full_rank_in_any_layout(shape, seed, unit, layout, dtype):
    dense = (np.random.default_rng(seed).normal(size=shape) * unit).astype(dtype)
    given_array = laid_out(dense, layout)
    tolerance = 1e-4 if dtype == "f4" else 1e-9
    close(TensorTrain.from_dense(given_array, feasible_rank(shape, 10_000)).to_dense(), dense, unit, tolerance)
    close(Tucker.from_dense(given_array, feasible_tucker_rank(shape, 10_000)).to_dense(), dense, unit, tolerance)


@given(trains(), seeds)
def test_a_spectral_start_has_the_rank_it_was_asked_for(train, seed):
    dense = train.to_dense()
    guess = TensorTrain.random(train.shape, train.rank, seed)
    found = spectral_start(lambda frame: dense_contractions(frame, dense), guess)
    assert found.rank == train.rank and np.isfinite(found.to_dense()).all()
    # what it leaves is never more than what there was
    assert np.linalg.norm(found.to_dense() - dense) <= np.linalg.norm(dense) * (1 + 1e-9)
