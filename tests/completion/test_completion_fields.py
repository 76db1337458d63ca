"""Completions of fields: their mathematics against dense oracles, and what they must never do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.fft

import corten
from corten.completion import spectral_solver
from corten.completion.axes_kinds import along, axis_kinds, basis_of, move_gap, standardise
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.protocol import Completion, Prepared
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import StackedCompletion, simplex_weights
from corten.completion.unfoldings import UnfoldingCompletion, _unfoldings
from corten.completion.unordered import PositionCorrelation, position_correlations
from corten.data.axes import Axis
from corten.engine.arrays import HostArrays


def axes_for(shape: tuple[int, ...], units: tuple[int, ...] = (), periodic: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    return tuple(
        Axis(f"a{k}", n, None, "unordered" if k in units else "ordered", k in periodic) for k, n in enumerate(shape)
    )


def wave(shape: tuple[int, ...]) -> np.ndarray:
    """A smooth field of any number of modes."""
    grids = np.meshgrid(*[np.linspace(0, 1, n) for n in shape], indexing="ij")
    return np.sin(3 * sum((k + 1) * 0.7 * g for k, g in enumerate(grids))) + 2 * grids[0]


COMPLETIONS = [SmoothCompletion(), GaussianProcessCompletion(), UnfoldingCompletion(), StackedCompletion()]


@pytest.mark.parametrize("kind", ["ordered", "periodic"])
def test_basis_is_orthonormal_and_long_axes_use_the_same_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((3, 11, 2))
    dense = basis_of(kind, 1, length=11)
    monkeypatch.setattr("corten.completion.axes_kinds.MAX_PRODUCT_LENGTH", 1)
    fast = basis_of(kind, 1, length=11)
    assert dense.rows is not None
    assert fast.rows is None
    np.testing.assert_allclose(dense.rows @ dense.rows.T, np.eye(11), atol=1e-12)
    np.testing.assert_allclose(fast.forward(x), dense.forward(x), atol=1e-12)
    np.testing.assert_allclose(fast.inverse(fast.forward(x)), x, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("length", [40, 41])
def test_folded_basis_is_the_cosine_basis_in_another_order(axis: int, length: int) -> None:
    shape = [3, 4, 5]
    shape[axis] = length
    x = np.random.default_rng(0).standard_normal(shape)
    basis = basis_of("ordered", axis, length=length)
    assert basis.folded is not None and basis.rows is not None
    expected = np.take(scipy.fft.dct(x, axis=axis, norm="ortho"), np.r_[0:length:2, 1:length:2], axis)
    np.testing.assert_allclose(basis.forward(x), expected, atol=1e-12)
    np.testing.assert_allclose(along(basis.rows, x, axis), expected, atol=1e-12)
    np.testing.assert_allclose(basis.inverse(expected), x, atol=1e-12)
    np.testing.assert_allclose(basis.frequencies, np.pi * np.r_[0:length:2, 1:length:2] / length)


@pytest.mark.parametrize("shape", [(3, 500), (500, 3), (401, 2, 2)])
def test_systems_on_modes_of_long_axes_are_those_of_short_ones(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (np.random.default_rng(0).random(shape) < 0.7).astype(np.float32)
    modes = [tuple(range(min(n, 5))) for n in shape]
    box = tuple((k, one, one, n) for k, (one, n) in enumerate(zip(modes, shape)))
    ratio = np.full(math.prod(len(one) for one in modes), 0.1)
    found = []
    for limit in (384, 1000):
        monkeypatch.setattr(spectral_solver, "MAX_PRODUCT_LENGTH", limit)
        found.append(spectral_solver.system_on_modes(HostArrays(), (), ratio, kept, box=box))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("completion", COMPLETIONS, ids=lambda c: type(c).__name__)
def test_reads_only_entries_under_the_mask_and_changes_nothing(completion: Completion) -> None:
    x = wave((9, 8, 5))
    mask = np.random.default_rng(3).random(x.shape) < 0.6
    one, other = np.where(mask, x, np.nan), np.where(mask, x, 1e9)
    kept = one.copy()
    answers = [completion.prepare(v, mask, axes_for(x.shape), 0).fill(v, mask).estimate for v in (one, other)]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(one, kept)
    assert np.abs(answers[0] - x)[~mask].mean() < 0.25 * np.abs(x - x[mask].mean())[~mask].mean()


@pytest.mark.parametrize("completion", COMPLETIONS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(
    ("shape", "units", "periodic"),
    [
        ((9, 7), (), ()),
        ((6, 5), (0, 1), ()),
        ((5, 1, 4), (), (0,)),
        ((4, 3, 4, 3), (3,), ()),
        ((3, 2, 3, 2, 3), (0, 1), (4,)),
    ],
)
def test_any_number_of_modes_units_and_empty_fibres(
    completion: Completion, shape: tuple[int, ...], units: tuple[int, ...], periodic: tuple[int, ...]
) -> None:
    x = wave(shape)
    mask = np.random.default_rng(4).random(shape) < 0.6
    mask[0] = False
    mask.ravel()[-1] = True
    prepared = completion.prepare(x, mask, axes_for(shape, units, periodic), 0)
    assert isinstance(prepared, Prepared)
    filled = prepared.fill(x, mask).estimate
    low, high = x[mask].min(), x[mask].max()
    assert filled.shape == shape
    assert np.isfinite(filled).all()
    assert filled.min() >= low - (high - low)
    assert filled.max() <= high + (high - low)


@pytest.mark.parametrize("completion", COMPLETIONS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("count", [1, 2, 20])
def test_constant_data_stay_constant(completion: Completion, count: int) -> None:
    x = np.full((6, 5), 7.25)
    mask = np.zeros(x.size, bool)
    mask[np.random.default_rng(5).choice(x.size, count, replace=False)] = True
    mask = mask.reshape(x.shape)
    filled = completion.prepare(x, mask, axes_for(x.shape), 0).fill(x, mask).estimate
    np.testing.assert_allclose(filled, 7.25, rtol=1e-6)


def test_pyramid_rolls_with_a_periodic_axis_and_permutes_with_units() -> None:
    rng = np.random.default_rng(6)
    x, mask = rng.standard_normal((5, 12)), rng.random((5, 12)) < 0.5
    axes = axes_for(x.shape, units=(0,), periodic=(1,))
    order = rng.permutation(5)

    def fill(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
        return SmoothCompletion().prepare(values, kept, axes, 0).fill(values, kept).estimate

    np.testing.assert_allclose(fill(np.roll(x, 4, 1), np.roll(mask, 4, 1)), np.roll(fill(x, mask), 4, 1), atol=1e-4)
    np.testing.assert_allclose(fill(x[order], mask[order]), fill(x, mask)[order], atol=1e-4)


def test_standardise_undoes_itself_and_shrinks_unseen_units() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((4, 50)) * np.array([[1], [100], [1], [1]]) + np.array([[0], [500], [3], [0]])
    mask = rng.random(x.shape) < 0.8
    mask[3] = False
    data = standardise(x, mask, ("unordered", "ordered"))
    np.testing.assert_allclose(data.undo(data.values)[mask], x[mask], rtol=1e-5, atol=1e-5)  # single precision
    spreads = [float(data.values[k][mask[k]].std()) for k in range(3)]
    assert max(spreads) < 4 * min(spreads)
    assert np.isfinite(data.scale).all()


def test_low_rank_is_found_by_thresholds() -> None:
    rng = np.random.default_rng(8)
    x = np.einsum("ia,ja,ka->ijk", *[rng.standard_normal((14, 3)) for _ in range(3)])
    mask = rng.random(x.shape) < 0.7
    axes = axes_for(x.shape, units=(0, 1, 2))
    prepared = UnfoldingCompletion().prepare(x, mask, axes, 0)
    assert np.abs(prepared.fill(x, mask).estimate - x)[~mask].mean() < 0.1 * np.abs(x).mean()


def low_rank_with_a_patch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A 40 x 60 matrix of rank two with noise 0.3, and the mask of one missing rectangle inside it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 60)) + 0.3 * rng.standard_normal((40, 60))
    mask = np.ones(x.shape, bool)
    mask[12:24, 20:38] = False
    return x, mask


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("origin", ["mean", "lowest"])
def test_low_rank_fill_of_a_gap_forgets_its_start(seed: int, origin: str) -> None:
    # With the last rank from the beginning the gap keeps its start: errors of 0.9 to 1.4.
    x, mask = low_rank_with_a_patch(seed)
    for iterations in (22, 45):
        prepared = UnfoldingCompletion(origin, iterations).prepare(x, mask, (), 0)
        assert np.abs(prepared.fill(x, mask).estimate - x)[~mask].mean() < 0.5, iterations  # noise alone: 0.24


def test_low_rank_fill_starts_from_the_pyramid_where_all_stations_are_missing_at_once() -> None:
    # Rows without any observed entry keep their start: from the mean the error is 0.43 standard deviations.
    rng = np.random.default_rng(0)
    x = np.outer(np.sin(np.arange(120) / 9) + 2, 1 + np.arange(12) / 6) + 0.02 * rng.standard_normal((120, 12))
    mask = rng.random(x.shape) > 0.2
    mask[50:54] = False
    estimate = UnfoldingCompletion().prepare(x, mask, (), 0).fill(x, mask).estimate
    assert np.abs(estimate - x)[50:54].mean() < 0.15 * x.std()


def test_counts_are_filled_by_their_powers() -> None:
    rng = np.random.default_rng(4)
    root = np.einsum("ia,ja,ka->ijk", *[rng.gamma(1.0, 1.0, (n, 2)) for n in (20, 12, 30)])
    x = np.abs(root + 0.3 * rng.standard_normal(root.shape)) ** 2 + 5
    mask = rng.random(x.shape) < 0.6
    prepared = UnfoldingCompletion().prepare(x, mask, (), 0)
    assert prepared.origin == "power"
    small = ~mask & (root < np.median(root))
    powers, plain = (one.fill(x, mask).estimate for one in (prepared, replace(prepared, origin="lowest")))
    assert powers.min() >= x[mask].min()
    assert np.abs(powers - x)[small].mean() < 0.9 * np.abs(plain - x)[small].mean()
    again = UnfoldingCompletion().prepare(-x, mask, (), 0)  # the long tail is below: no powers
    assert again.origin != "power"


@pytest.mark.parametrize("shape", [(9, 7), (7, 9), (3, 4, 5), (2, 30, 3), (40, 3, 2)])
def test_threshold_reduces_the_singular_values_of_every_unfolding(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(3).standard_normal(shape)
    parts = _unfoldings(shape)
    assert len(parts) == (1 if len(shape) == 2 else len(shape))
    for part in parts:
        matrix = np.moveaxis(array, part.axis, 0).reshape(shape[part.axis], -1)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        kept = np.where(np.arange(len(values)) < 2, values, np.maximum(values - 1.5, 0))
        found = np.moveaxis(part.threshold(array, 1.5, 2), part.axis, 0).reshape(matrix.shape)
        np.testing.assert_allclose(found, (left * kept) @ right, atol=1e-10)


def test_a_long_axis_needs_no_large_eigenproblem(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda a: sizes.append(len(a)) or eigh(a))
    rng = np.random.default_rng(5)
    for shape in ((3000, 6, 5), (3000, 12), (600, 700)):
        array = sum(
            np.multiply.outer(rng.standard_normal(shape[0]), rng.standard_normal(shape[1:])) for _ in range(3)
        ).astype(np.float32)
        mask = rng.random(shape) < 0.5
        fill = UnfoldingCompletion("mean", 40).prepare(array, mask, (), 0).fill(array, mask).estimate
        assert np.abs(fill - array)[~mask].mean() < 0.2 * np.abs(array).mean()
    assert max(sizes) <= 512


def test_simplex_weights_minimise_the_squared_error() -> None:
    rng = np.random.default_rng(9)
    members = rng.standard_normal((400, 3))
    truth = members @ np.array([0.2, 0.8, 0.0]) + 0.1 * rng.standard_normal(400)
    weights = simplex_weights(members, truth)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    tried = rng.dirichlet(np.ones(3), 4000)
    best = min(float(np.sum((members @ w - truth) ** 2)) for w in tried)
    assert np.sum((members @ weights - truth) ** 2) <= 1.01 * best
    np.testing.assert_allclose(simplex_weights(members[:, ::-1], truth)[::-1], weights, atol=1e-6)
    np.testing.assert_allclose(simplex_weights(members[:, [0, 0]], truth), [0.5, 0.5], atol=1e-6)


def test_stack_follows_the_member_that_is_right() -> None:
    x = wave((10, 9, 4))
    mask = np.random.default_rng(10).random(x.shape) < 0.7
    prepared = StackedCompletion({"pyramid": SmoothCompletion(), "low rank": UnfoldingCompletion()}).prepare(
        x, mask, axes_for(x.shape), 0
    )
    fill = prepared.fill(x, mask)
    np.testing.assert_allclose(prepared.mix(fill.members), fill.estimate)
    hidden = {name: member[~mask] for name, member in fill.members.items()}
    learned = prepared.combine({**hidden, "low rank": x[~mask]}, x[~mask])
    assert learned.weights["low rank"] > 0.9
    assert "hidden entries" in learned.choices[0].because


def test_gaps_keep_their_size_when_moved() -> None:
    rng = np.random.default_rng(13)
    gap = np.zeros((6, 8, 4), bool)
    gap[1:3, 2:6, 0] = True
    moved = move_gap(gap, ("ordered", "periodic", "unordered"), rng=rng)
    assert moved.sum() == gap.sum()
    assert sorted(moved.sum(axis=(0, 1))) == sorted(gap.sum(axis=(0, 1)))


def test_axes_must_match_the_array() -> None:
    assert axis_kinds((), (3, 4)) == ("ordered", "ordered")
    with pytest.raises(ValueError, match="2 axes were given for 3 dimensions"):
        axis_kinds(axes_for((3, 4)), (3, 4, 5))
    np.testing.assert_array_equal(along(np.eye(3)[:2], np.arange(12).reshape(2, 3, 2), 1).shape, (2, 2, 2))


def test_very_many_units_share_one_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    x = rng.standard_normal(60) + rng.standard_normal((30, 60))
    mask = rng.random(x.shape) < 0.8
    y = standardise(x, mask, ("ordered", "ordered")).values
    monkeypatch.setattr("corten.completion.unordered.MAX_MATRIX_LENGTH", 20)
    one = position_correlations(y, mask, ("unordered", "ordered"))[0]
    assert one.matrix is None
    assert one.common == pytest.approx(0.5, abs=0.15)
    basis, eigenvalues = one.spectrum(0, np.float64)
    dense = basis.inverse(eigenvalues[:, None] * basis.forward(np.eye(30)))
    every = np.arange(30)
    np.testing.assert_allclose(dense, one.between(every[:, None], every[None, :]), atol=1e-9)
    assert PositionCorrelation(2, np.eye(2)).between(np.array([0]), np.array([1])) == 0


def test_constant_data_are_filled_by_their_value():
    pytest.importorskip("tensorly", reason="needs tensorly: pip install 'corten[peers]'")
    mask = np.random.default_rng(0).random((6, 5, 4)) < 0.8
    ready = corten.CPCompletion(1).prepare(np.ones(mask.shape), mask, (), 0)
    assert (ready.fill(np.ones(mask.shape), mask).estimate == 1.0).all()
