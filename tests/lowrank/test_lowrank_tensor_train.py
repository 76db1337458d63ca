"""Tensor trains against dense NumPy: decomposition, evaluation, algebra, gauges, leverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corten.lowrank import TensorTrain, check_rank, feasible_rank
from corten.lowrank.cores import leading_left

CASES = [
    ((5, 6), 2),
    ((4, 5, 6), 2),
    ((4, 5, 6), (3, 2)),
    ((3, 4, 3, 4), (2, 3, 2)),
    ((1, 4, 5), (1, 3)),
    ((4, 1, 5), 2),
    ((3, 4, 1), (2, 1)),
    ((1, 1, 1), 1),
]


def unfold(x: np.ndarray, k: int) -> np.ndarray:
    return x.reshape(math.prod(x.shape[:k]), -1)


def tails(x: np.ndarray, rank: tuple[int, ...]) -> list[float]:
    """Distance of each unfolding to its best approximation of the given rank: no tensor train is nearer."""
    return [float(np.linalg.norm(np.linalg.svd(unfold(x, k + 1), compute_uv=False)[r:])) for k, r in enumerate(rank)]


@pytest.mark.parametrize("shape", [(5, 6), (4, 5, 6), (3, 2, 4, 3), (1, 4, 5), (4, 1, 5), (1, 1, 3), (7,)])
def test_tt_svd_is_exact_at_full_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    tt = TensorTrain.from_dense(x, feasible_rank(shape, 1000))
    np.testing.assert_allclose(tt.to_dense(), x, atol=1e-12)


def test_tt_svd_recovers_a_low_rank_tensor_also_through_the_sketch() -> None:
    # 70 and 3 * 70 rows are past the size where the random range finder takes over
    truth = TensorTrain.random((70, 70, 70), 3, seed=1)
    found = TensorTrain.from_dense(truth.to_dense(), 3, seed=5)
    assert (found - truth).norm() < 1e-10 * truth.norm()


@pytest.mark.parametrize(("shape", "rank"), [((6, 7, 8), (2, 3)), ((4, 5, 4, 5), (2, 3, 2)), ((60, 61, 62), (3, 3))])
def test_tt_svd_is_quasi_optimal(shape: tuple[int, ...], rank: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).standard_normal(shape)
    error = float(np.linalg.norm(TensorTrain.from_dense(x, rank).to_dense() - x))
    bounds = tails(x, rank)
    assert max(bounds) <= error * (1 + 1e-12)
    assert error <= math.sqrt(sum(b * b for b in bounds)) * 1.02


def test_the_sketch_is_as_good_as_an_svd_on_a_slowly_falling_spectrum() -> None:
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((200, 200)))[0] for _ in range(2))
    spectrum = 1.0 / np.sqrt(np.arange(1, 201))
    matrix = (u * spectrum) @ v.T
    basis = leading_left(matrix, 5, rng)
    np.testing.assert_allclose(basis.T @ basis, np.eye(5), atol=1e-12)
    lost = np.linalg.norm(matrix) ** 2 - np.linalg.norm(basis.T @ matrix) ** 2
    assert lost < 1.01 * float(np.sum(spectrum[5:] ** 2))  # 1.16 without power iterations


def test_tt_svd_is_the_same_for_the_same_seed_and_keeps_float32_accuracy() -> None:
    x = np.random.default_rng(3).standard_normal((60, 60, 60))
    one, two = TensorTrain.from_dense(x, 2, seed=7), TensorTrain.from_dense(x, 2, seed=7)
    assert all(np.array_equal(a, b) for a, b in zip(one.cores, two.cores))
    single = TensorTrain.from_dense(x.astype(np.float32), 2, seed=7)
    assert (single - one).norm() < 1e-4 * one.norm()


def test_tt_svd_refuses_gaps() -> None:
    with pytest.raises(ValueError, match="NaN"):
        TensorTrain.from_dense(np.full((3, 3), np.nan), 1)


def test_infeasible_ranks_are_named() -> None:
    with pytest.raises(ValueError, match=r"bond 1 .* asks for 5, .* at most 2"):
        check_rank((2, 10, 10), 5)
    with pytest.raises(ValueError, match=r"bond 2 .* asks for 5, .* at most 3"):
        check_rank((10, 3, 10), (1, 5))
    with pytest.raises(ValueError, match="3 ranks for 3 modes"):
        check_rank((4, 4, 4), (2, 2, 2))
    with pytest.raises(ValueError, match="at least 1"):
        check_rank((4, 4, 4), 0)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_clipped_ranks_are_allowed_and_maximal(shape: list[int], data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.integers(1, 40), min_size=len(shape) - 1, max_size=len(shape) - 1))
    bonds = feasible_rank(shape, asked)
    assert check_rank(shape, bonds) == bonds
    assert all(b <= a for a, b in zip(asked, bonds))
    for k in range(len(bonds)):
        if bonds[k] < asked[k]:
            more = [*bonds[:k], bonds[k] + 1, *bonds[k + 1 :]]
            with pytest.raises(ValueError):
                check_rank(shape, more)


@pytest.mark.parametrize(("shape", "rank"), CASES)
def test_entries(shape: tuple[int, ...], rank: int) -> None:
    tt = TensorTrain.random(shape, rank, seed=3)
    dense = np.einsum({2: "aib,bjc->ij", 3: "aib,bjc,ckd->ijk", 4: "aib,bjc,ckd,dle->ijkl"}[len(shape)], *tt.cores)
    np.testing.assert_allclose(tt.to_dense(), dense, atol=1e-13)
    half = max(1, shape[0] // 2)
    np.testing.assert_allclose(tt.slab(half - 1, half), dense[half - 1 : half], atol=1e-13)
    flat = np.random.default_rng(0).integers(0, tt.size, (3, 5))
    np.testing.assert_allclose(tt.at_flat(flat), dense.ravel()[flat], atol=1e-13)
    corner = tuple(np.array([0, d - 1]) for d in shape)
    np.testing.assert_allclose(tt.at(corner), dense[corner], atol=1e-13)


@pytest.mark.parametrize(("shape", "rank"), CASES)
def test_algebra(shape: tuple[int, ...], rank: int) -> None:
    a, b = TensorTrain.random(shape, rank, seed=1), TensorTrain.random(shape, 1, seed=2)
    x, y = a.to_dense(), b.to_dense()
    np.testing.assert_allclose((a + b).to_dense(), x + y, atol=1e-13)
    np.testing.assert_allclose((a - b * 2.0).to_dense(), x - 2 * y, atol=1e-13)
    np.testing.assert_allclose((-a * 0.25).to_dense(), -x / 4, atol=1e-13)
    np.testing.assert_allclose(a.inner(b), np.vdot(x, y), atol=1e-12)
    np.testing.assert_allclose(a.norm(), np.linalg.norm(x), rtol=1e-13)
    np.testing.assert_allclose(a.reversed().to_dense(), x.transpose(), atol=1e-13)
    assert a.reversed().rank == a.rank[::-1]


def test_norm_of_a_small_difference_does_not_cancel() -> None:
    a = TensorTrain.random((5, 6, 7), 3, seed=1)
    b = a + TensorTrain.random((5, 6, 7), 1, seed=2) * 1e-11
    exact = 1e-11 * TensorTrain.random((5, 6, 7), 1, seed=2).norm()
    assert abs((b - a).norm() - exact) < 1e-3 * exact  # sqrt(<d, d>) would be off by a factor of thousands


@pytest.mark.parametrize(("shape", "rank"), CASES)
def test_gauges_are_orthogonal_and_keep_the_tensor(shape: tuple[int, ...], rank: int) -> None:
    tt = TensorTrain.random(shape, rank, seed=4)
    left, right = tt.left_orthogonal(), tt.right_orthogonal()
    for core in left.cores[:-1]:
        flat = core.reshape(-1, core.shape[2])
        np.testing.assert_allclose(flat.T @ flat, np.eye(core.shape[2]), atol=1e-13)
    for core in right.cores[1:]:
        flat = core.reshape(core.shape[0], -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(core.shape[0]), atol=1e-13)
    np.testing.assert_allclose(left.to_dense(), tt.to_dense(), atol=1e-13)
    np.testing.assert_allclose(right.to_dense(), tt.to_dense(), atol=1e-13)


def test_rounding_is_exact_where_the_rank_suffices_and_quasi_optimal_elsewhere() -> None:
    a = TensorTrain.random((5, 6, 7, 4), (2, 3, 2), seed=1)
    doubled = a + a
    assert doubled.rank == (4, 6, 4)
    assert (doubled.round(a.rank) - a * 2.0).norm() < 1e-12 * a.norm()
    x = (a + TensorTrain.random(a.shape, 2, seed=9)).to_dense()
    rounded = TensorTrain.from_dense(x, feasible_rank(x.shape, 99)).round((2, 2, 2))
    bounds = tails(x, (2, 2, 2))
    error = float(np.linalg.norm(rounded.to_dense() - x))
    assert max(bounds) <= error * (1 + 1e-12) <= math.sqrt(sum(b * b for b in bounds)) * (1 + 1e-12)


@pytest.mark.parametrize(
    "start", [TensorTrain.zeros((4, 5, 6), 2), TensorTrain.random((4, 5, 6), 1, 0) + TensorTrain.zeros((4, 5, 6), 2)]
)
def test_rank_deficient_points_do_not_break(start: TensorTrain) -> None:
    left, right = start.gauges()
    for tt in (left, right, start.round(2), start.reversed(), start + start):
        assert np.isfinite(tt.to_dense()).all()
    assert left.rank == right.rank == start.rank
    np.testing.assert_allclose(start.leverage().sum(), start.dimension, rtol=1e-12)


@pytest.mark.parametrize(("shape", "rank"), CASES)
def test_leverage_sums_to_the_dimension(shape: tuple[int, ...], rank: int) -> None:
    tt = TensorTrain.random(shape, rank, seed=5)
    leverage = tt.leverage()
    np.testing.assert_allclose(leverage.sum(), tt.dimension, rtol=1e-12)
    np.testing.assert_allclose(tt.leverage(0, 1), leverage[:1], atol=1e-13)
    np.testing.assert_allclose(tt.reversed().leverage(), leverage.transpose(), atol=1e-12)


def test_ranks_beyond_the_shape_come_down_in_both_gauges() -> None:
    a, b = (TensorTrain.random((2, 5, 5), 2, seed=s) for s in (1, 2))
    left, right = (a + b).gauges()
    assert (a + b).rank == (4, 4)
    assert left.rank == right.rank == (2, 4)
    for tt in (left, right):
        np.testing.assert_allclose(tt.to_dense(), a.to_dense() + b.to_dense(), atol=1e-12)
    np.testing.assert_allclose((a + b).leverage().sum(), (a + b).dimension, rtol=1e-12)


def test_points_are_immutable() -> None:
    mine = np.ones((1, 3, 1))
    tt = TensorTrain((mine, np.ones((1, 2, 1))))
    mine[:] = 7.0
    assert tt.to_dense().max() == 1.0
    with pytest.raises(ValueError):
        tt.cores[0][0, 0, 0] = 2.0
    with pytest.raises(AttributeError):
        tt.cores = ()  # type: ignore[misc]


def test_cores_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="neighbouring ranks"):
        TensorTrain((np.ones((1, 3, 2)), np.ones((3, 2, 1))))
    with pytest.raises(ValueError, match="cannot add"):
        TensorTrain.zeros((3, 4)) + TensorTrain.zeros((4, 3))
