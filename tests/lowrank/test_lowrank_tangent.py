"""Tangent spaces of tensor trains and Tucker tensors against dense least squares on a spanning set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.dense import dense_contractions
from corten.lowrank import (
    CP,
    Frame,
    TensorTrain,
    Tucker,
    TuckerFrame,
    check_tucker_rank,
    feasible_tucker_rank,
)
from slope_checks import check_gradient, check_retraction, random_tangent

TRAINS = [
    TensorTrain.random((5, 6), 2, seed=1),
    TensorTrain.random((3, 4, 5), 2, seed=2),
    TensorTrain.random((3, 4, 5), (3, 2), seed=3),
    TensorTrain.random((3, 3, 2, 4), (2, 3, 2), seed=4),
    TensorTrain.random((1, 4, 5), (1, 2), seed=5),
    TensorTrain.random((4, 1, 3), 2, seed=6),
]
TUCKERS = [
    Tucker.random((5, 6), 2, seed=1),
    Tucker.random((4, 5, 3), 2, seed=2),
    Tucker.random((4, 5, 6), (2, 3, 4), seed=3),
    Tucker.random((3, 4, 3, 4), 2, seed=4),
    Tucker.random((3, 4, 3, 4), (1, 2, 3, 2), seed=5),
    Tucker.random((1, 4, 5), (1, 2, 2), seed=6),
    Tucker.random((2, 3, 2, 3, 2), (2, 1, 2, 2, 2), seed=7),
]
CPS = [CP.random((4, 5, 6), 2, seed=1), CP.random((3, 4, 3, 2), 2, seed=2), CP.random((5, 6), 2, seed=3)]
POINTS = [*TRAINS, *TUCKERS]


Point = TensorTrain | Tucker | CP


def blocks(point: Point) -> tuple[list[np.ndarray], Callable[[list[np.ndarray]], np.ndarray]]:
    """The parameters of a point and the multilinear map from them to the dense tensor, by einsum."""
    if isinstance(point, TensorTrain):
        letters = "abcdefg"
        terms = [f"{letters[k]}{chr(110 + k)}{letters[k + 1]}" for k in range(point.order)]
        spec = ",".join(terms) + "->" + "".join(chr(110 + k) for k in range(point.order))
        return list(point.cores), lambda parts: np.einsum(spec, *parts)
    names = "abcdefg"[: point.order]
    outs = "".join(chr(110 + k) for k in range(point.order))
    if isinstance(point, Tucker):
        spec = ",".join([names, *(o + n for o, n in zip(outs, names))]) + "->" + outs
        return [point.core, *point.factors], lambda parts: np.einsum(spec, *parts)
    spec = ",".join(["a", *(o + "a" for o in outs)]) + "->" + outs
    return list(point.factors), lambda parts: np.einsum(spec, point.weights, *parts)


def dense_projector(point: Point) -> np.ndarray:
    """Orthogonal projector on the span of all derivatives of the parametrisation, the tangent space."""
    parts, build = blocks(point)
    columns = []
    for k, part in enumerate(parts):
        for position in np.ndindex(part.shape):
            unit = np.zeros(part.shape)
            unit[position] = 1.0
            columns.append(build([*parts[:k], unit, *parts[k + 1 :]]).ravel())
    u, s, _ = np.linalg.svd(np.array(columns).T, full_matrices=False)
    u = u[:, s > 1e-9 * s[0]]
    return u @ u.T


@pytest.mark.parametrize("point", [*POINTS, *CPS], ids=repr)
def test_dimension_is_that_of_the_tangent_space(point: Point) -> None:
    assert round(np.trace(dense_projector(point))) == point.dimension


@pytest.mark.parametrize("point", POINTS, ids=repr)
def test_projection_is_the_least_squares_projection(point: TensorTrain | Tucker) -> None:
    frame = point.frame()
    gradient = np.random.default_rng(0).standard_normal(point.shape)
    expected = (dense_projector(point) @ gradient.ravel()).reshape(point.shape)
    vector = frame.project(dense_contractions(frame, gradient))
    np.testing.assert_allclose(vector.to_tt().to_dense(), expected, atol=1e-11)
    np.testing.assert_allclose(vector.norm(), np.linalg.norm(expected), rtol=1e-11)


@pytest.mark.parametrize("point", POINTS, ids=repr)
def test_projection_is_idempotent_and_self_adjoint(point: TensorTrain | Tucker) -> None:
    frame = point.frame()
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, *point.shape))
    a, b = (frame.project(dense_contractions(frame, z)) for z in (x, y))
    again = frame.project(dense_contractions(frame, a.to_tt().to_dense()))
    assert (again - a).norm() < 1e-12 * a.norm()
    np.testing.assert_allclose(np.vdot(x, b.to_tt().to_dense()), np.vdot(a.to_tt().to_dense(), y), atol=1e-11)
    np.testing.assert_allclose(a.inner(b), np.vdot(a.to_tt().to_dense(), b.to_tt().to_dense()), atol=1e-11)


@pytest.mark.parametrize("point", POINTS, ids=repr)
def test_low_rank_and_dense_contractions_agree(point: TensorTrain | Tucker) -> None:
    frame = point.frame()
    other = TensorTrain.random(point.shape, 1, seed=8) + TensorTrain.random(point.shape, 1, seed=9)
    dense = other.to_dense()
    for a, b in zip(getattr(frame, "tt", frame).contractions_of(other), dense_contractions(frame, dense)):
        np.testing.assert_allclose(a, b, atol=1e-12)
    direct = frame.project(dense_contractions(frame, dense))
    assert (frame.project_tt(other) - direct).norm() < 1e-11


def test_contractions_are_what_the_contract_says() -> None:
    frame = TRAINS[2].frame()
    g = np.random.default_rng(2).standard_normal(frame.point.shape)
    (u1, u2, _), (_, v2, v3) = frame.left, frame.right
    first, second, third = dense_contractions(frame, g)
    np.testing.assert_allclose(first, np.einsum("ijk,bjc,ckz->ib", g, v2, v3)[None], atol=1e-12)
    np.testing.assert_allclose(second, np.einsum("ijk,zia,ckw->ajc", g, u1, v3), atol=1e-12)
    np.testing.assert_allclose(third, np.einsum("ijk,zia,ajb->bk", g, u1, u2)[..., None], atol=1e-12)
    for delta, core in zip(frame.project((first, second, third)).parts[:-1], frame.left):
        np.testing.assert_allclose(np.tensordot(core, delta, ([0, 1], [0, 1])), 0.0, atol=1e-12)


@pytest.mark.parametrize("point", POINTS, ids=repr)
def test_vector_space_and_the_point_in_it(point: TensorTrain | Tucker) -> None:
    frame = point.frame()
    a, b = random_tangent(frame, 1), random_tangent(frame, 2)
    dense = a.to_tt().to_dense() * 3.0 - b.to_tt().to_dense()
    np.testing.assert_allclose((3.0 * a - b).to_tt().to_dense(), dense, atol=1e-12)
    np.testing.assert_allclose((a + b - a).to_tt().to_dense(), b.to_tt().to_dense(), atol=1e-12)
    np.testing.assert_allclose(frame.radial().to_tt().to_dense(), point.to_dense(), atol=1e-11)
    assert abs(a.norm() - 1.0) < 1e-12
    with pytest.raises(ValueError, match="transport"):
        a.inner(random_tangent(point.frame(), 1))
    with pytest.raises(ValueError, match="transport"):
        a + random_tangent(point.frame(), 1)


@pytest.mark.parametrize("point", POINTS, ids=repr)
def test_retraction_agrees_to_second_order(point: TensorTrain | Tucker) -> None:
    check = check_retraction(point, seed=3)
    assert check.ok, check
    assert random_tangent(point.frame(), 3).retract(0.5).rank == point.rank
    back = random_tangent(point.frame(), 3).retract(0.0)
    np.testing.assert_allclose(back.to_dense(), point.to_dense(), atol=1e-11)


@pytest.mark.parametrize("point", [TRAINS[1], TRAINS[3], TUCKERS[1], TUCKERS[4]], ids=repr)
def test_transport_is_the_projection_at_the_other_point(point: TensorTrain | Tucker) -> None:
    vector = random_tangent(point.frame(), 5)
    there = random_tangent(point.frame(), 6).retract(0.7)
    carried = vector.transport(there.frame())
    expected = dense_projector(there) @ vector.to_tt().to_dense().ravel()
    np.testing.assert_allclose(carried.to_tt().to_dense().ravel(), expected, atol=1e-11)


@pytest.mark.parametrize("point", [*POINTS, *CPS], ids=repr)
def test_leverage_is_the_squared_projection_of_unit_tensors(point: Point) -> None:
    expected = np.diag(dense_projector(point)).reshape(point.shape)
    np.testing.assert_allclose(point.leverage(), expected, atol=1e-9)
    np.testing.assert_allclose(point.leverage().sum(), point.dimension, rtol=1e-9)
    if not isinstance(point, CP):
        np.testing.assert_allclose(point.leverage(0, 1), expected[:1], atol=1e-9)


@pytest.mark.parametrize("point", [*TUCKERS, *CPS], ids=repr)
def test_tucker_and_cp_against_their_definition(point: Tucker | CP) -> None:
    parts, build = blocks(point)
    dense = build(parts)
    np.testing.assert_allclose(point.to_dense(), dense, atol=1e-12)
    np.testing.assert_allclose(point.to_tensor_train().to_dense(), dense, atol=1e-12)
    np.testing.assert_allclose(point.slab(0, 1), dense[:1], atol=1e-12)
    if isinstance(point, Tucker):
        np.testing.assert_allclose(point.norm(), np.linalg.norm(dense), rtol=1e-12)
        flat = np.random.default_rng(0).integers(0, point.size, (2, 4))
        np.testing.assert_allclose(point.at_flat(flat), dense.ravel()[flat], atol=1e-12)


@pytest.mark.parametrize("point", TUCKERS, ids=repr)
def test_higher_order_svd(point: Tucker) -> None:
    found = Tucker.from_dense(point.to_dense(), point.rank)
    np.testing.assert_allclose(found.to_dense(), point.to_dense(), atol=1e-11)
    x = np.random.default_rng(1).standard_normal(point.shape)
    error = float(np.linalg.norm(Tucker.from_dense(x, point.rank).to_dense() - x))
    lost = [
        float(np.linalg.norm(np.linalg.svd(np.moveaxis(x, k, 0).reshape(d, -1), compute_uv=False)[r:]))
        for k, (d, r) in enumerate(zip(point.shape, point.rank))
    ]
    assert max(lost) <= error + 1e-12
    assert error <= np.linalg.norm(lost) + 1e-12
    skew = Tucker(point.core, tuple(f @ np.triu(np.ones((f.shape[1],) * 2)) for f in point.factors))
    np.testing.assert_allclose(skew.orthonormal().to_dense(), skew.to_dense(), atol=1e-11)


def test_tucker_ranks_are_named() -> None:
    assert feasible_tucker_rank((2, 10, 10), 9) == (2, 9, 9)
    assert feasible_tucker_rank((10, 10, 10), (1, 2, 9)) == (1, 2, 2)
    with pytest.raises(ValueError, match=r"mode 3 asks for 9, .* at most 2"):
        check_tucker_rank((10, 10, 10), (1, 2, 9))
    with pytest.raises(ValueError, match=r"mode 1 asks for 3, .* at most 2"):
        check_tucker_rank((2, 10, 10), 3)


@pytest.mark.parametrize(
    "point",
    [
        TensorTrain.zeros((4, 5, 6), 2),
        TensorTrain.random((4, 5, 6), 1, seed=1) + 1e-8 * TensorTrain.random((4, 5, 6), 2, seed=2),
        TensorTrain.random((4, 5, 6), 1, seed=1) + TensorTrain.zeros((4, 5, 6), 2),
        Tucker(np.zeros((2, 2, 2)), Tucker.random((4, 5, 6), 2).factors),
        Tucker(np.eye(4).reshape(2, 2, 2, 2) * np.array([1.0, 0.0]), Tucker.random((4, 3, 4, 3), 2).factors),
    ],
    ids=repr,
)
def test_over_specified_points_stay_regular(point: TensorTrain | Tucker) -> None:
    frame = point.frame()
    g = np.random.default_rng(0).standard_normal(point.shape)
    vector = frame.project(dense_contractions(frame, g))
    dense = vector.to_tt().to_dense()
    assert np.isfinite(dense).all() and vector.norm() <= np.linalg.norm(g) * (1 + 1e-12)
    # still an orthogonal projection: what is left over is orthogonal to it (1e-6: bases of nudged cores)
    np.testing.assert_allclose(np.vdot(g - dense, dense), 0.0, atol=1e-5 * np.vdot(g, g))
    moved = vector.retract(-0.1)
    assert moved.rank == point.rank
    assert np.isfinite(moved.to_dense()).all()
    # and a step along it does lower the distance to the target
    before = np.linalg.norm(frame.point.to_dense() + g)
    assert np.linalg.norm(moved.to_dense() + g) < before


def test_tucker_frame_serves_the_passes_written_for_tensor_trains() -> None:
    frame = TUCKERS[2].frame()
    assert isinstance(frame, TuckerFrame) and isinstance(frame.tt, Frame)
    np.testing.assert_allclose(frame.tt.point.to_dense(), TUCKERS[2].to_dense(), atol=1e-12)
    assert frame.tt.point.rank == (2, 4)


def test_slope_checks_tell_right_from_wrong() -> None:
    goal = TensorTrain.random((4, 5, 6), 3, seed=1).to_dense()

    def right(point: TensorTrain) -> tuple[float, object]:
        frame, gap = point.frame(), point.to_dense() - goal
        return float(np.sum(gap**2) / 2 + np.sum(np.cos(point.to_dense()))), frame.project(
            dense_contractions(frame, gap - np.sin(point.to_dense()))
        )

    def wrong(point: TensorTrain) -> tuple[float, object]:
        value, gradient = right(point)
        return value, gradient * 1.001  # type: ignore[operator]

    for point in (TensorTrain.random((4, 5, 6), 2, seed=2), Tucker.random((4, 5, 6), 2, seed=2)):
        for seed in range(10):
            good, bad = check_gradient(right, point, seed), check_gradient(wrong, point, seed)
            assert good.ok and good.slope < 2.5 and "ok" in repr(good), good
            assert not bad.ok and bad.slope < 1.5 and "WRONG" in repr(bad), bad
