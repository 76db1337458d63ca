"""The learned scale and the weights by depth: against brute force, and by what they are for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from corten.conformal.depth import DepthWeights, depth, distance_along, steps_of_change
from corten.conformal.local_scale import EntryFeatures, LearnedScale, block_folds


@dataclass(frozen=True)
class Axis:
    name: str
    length: int
    kind: str = "ordered"
    periodic: bool = False


def axes_for(shape: tuple[int, ...], units: tuple[int, ...] = (), periodic: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    return tuple(Axis(f"a{k}", n, "unordered" if k in units else "ordered", k in periodic) for k, n in enumerate(shape))


def test_depth_is_the_distance_to_the_nearest_training_cell_of_the_same_unit() -> None:
    rng = np.random.default_rng(0)
    shape, step = (6, 3, 7), np.array([0.5, np.nan, 2.0])
    train = rng.random(shape) < 0.15
    train[:, 1] = False
    answer = depth(train, axes_for(shape, units=(1,), periodic=(2,)), step)
    for cell in np.ndindex(shape):
        same = [c for c in np.argwhere(train) if c[1] == cell[1]]
        if not same:
            assert answer[cell] == pytest.approx(np.hypot(0.5 * 6, 2.0 * 7))
            continue
        around = [min(abs(c[2] - cell[2]), 7 - abs(c[2] - cell[2])) for c in same]
        nearest = min(np.hypot(0.5 * (c[0] - cell[0]), 2.0 * a) for c, a in zip(same, around))
        assert answer[cell] == pytest.approx(nearest, rel=1e-5)


@pytest.mark.parametrize("periodic", [False, True])
def test_distance_along_a_fibre(periodic: bool) -> None:
    train = np.random.default_rng(1).random((5, 9)) < 0.2
    train[0] = False
    answer = distance_along(train, 1, periodic)
    for row, cells in enumerate(train):
        for column in range(9):
            apart = np.abs(np.flatnonzero(cells) - column)
            apart = np.minimum(apart, 9 - apart) if periodic else apart
            assert answer[row, column] == min([*apart, 9])


def test_an_edge_of_longer_data_has_the_features_of_an_edge() -> None:
    """No training entry on one side is the same feature whatever the length of the axis of new data is."""
    rng = np.random.default_rng(3)
    values, train = rng.normal(size=(4, 20)), np.arange(20) < np.array([[17], [17], [0], [17]])
    describe = EntryFeatures.of(values, train, axes_for((4, 20)))

    def features(described: EntryFeatures, before: int) -> np.ndarray:
        """Of the last entries, with so many more positions, which repeat the first ones, before them."""
        more, kept = (np.concatenate([one[:, :before], one], 1) for one in (values, train))
        entries = np.flatnonzero(np.arange(20 + before) >= np.full((4, 1), 18 + before))
        return described.at(entries, values=more, train=kept, estimate=np.zeros(more.shape), members={})

    sides = slice(4, 6)  # logarithms of the distances along the second axis
    near, far = features(describe, 0)[:, sides].T
    assert np.allclose(far, np.log1p(40)) and near[4] == pytest.approx(np.log1p(20))
    longer = describe.on_axes(axes_for((4, 30)))
    assert np.array_equal(features(longer, 10)[:, sides], np.column_stack([near, far]))
    assert longer.on_axes(axes_for((4, 25))).lengths == (4, 20)


def test_weights_turn_hidden_depths_into_missing_ones() -> None:
    rng = np.random.default_rng(2)
    hidden, missing = rng.exponential(1.0, 20_000), rng.exponential(2.0, 20_000)
    weighted = np.average(hidden, weights=np.exp(DepthWeights.of(hidden, missing).at(hidden)))
    assert abs(weighted - 2.0) < 0.25 < abs(hidden.mean() - 2.0)
    np.testing.assert_allclose(DepthWeights.of(np.zeros(5), np.zeros(3)).at(np.zeros(5)), 0)
    assert np.abs(DepthWeights.of(np.zeros(5), np.ones(3)).at(np.ones(3))).max() <= np.log(20) + 1e-12


def test_change_per_step_tells_axes_apart() -> None:
    x = np.add.outer(np.linspace(0, 10, 30), np.linspace(0, 1, 40))
    change = steps_of_change(x, np.ones(x.shape, bool), axes_for(x.shape))
    assert change[0] > 5 * change[1]
    assert np.isfinite(steps_of_change(np.ones((3, 4)), np.ones((3, 4), bool), axes_for((3, 4)))).all()


@pytest.mark.parametrize(
    ("shape", "units", "periodic"),
    [((9, 7), (), ()), ((6, 5), (0, 1), ()), ((5, 1, 4), (), (0,)), ((4, 3, 4, 3, 2), (3,), (0,))],
)
def test_features_are_finite_for_any_tensor(
    shape: tuple[int, ...], units: tuple[int, ...], periodic: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape)
    train = rng.random(shape) < 0.5
    train[0] = False
    describe = EntryFeatures.of(np.where(train, x, np.nan), train, axes_for(shape, units, periodic))
    missing = np.flatnonzero(~train)
    members = {"a": x, "b": x + 1}
    features = describe.at(missing, np.where(train, x, np.nan), train=train, estimate=x, members=members)
    assert features.shape[0] == missing.size
    assert np.isfinite(features).all()
    elsewhere = describe.at(missing, np.where(train, x, 1e9), train=train, estimate=x, members=members)
    np.testing.assert_array_equal(features, elsewhere)


def simulated(n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Errors whose spread depends on two of four features, in a 40 x 40 x 20 tensor."""
    rng = np.random.default_rng(4)
    features = rng.standard_normal((n, 4))
    spread = np.exp(0.8 * features[:, 0] + 0.5 * (features[:, 1] > 0.5))
    return features, spread, spread * rng.standard_normal(n), rng.integers(32_000, size=n)


def test_scale_is_learned_and_equalises_coverage() -> None:
    features, spread, residuals, entries = simulated()
    scale = LearnedScale.fit(features, residuals, entries=entries, shape=(40, 40, 20), seed=0)
    assert np.corrcoef(np.log(scale.hidden), np.log(spread))[0, 1] > 0.95
    assert np.corrcoef(np.log(scale.predict(features)), np.log(spread))[0, 1] > 0.95
    wild = spread > np.quantile(spread, 0.9)
    plain = np.abs(residuals) <= np.quantile(np.abs(residuals), 0.9)
    score = np.abs(residuals) / scale.hidden
    scaled = score <= np.quantile(score, 0.9)
    assert plain[wild].mean() < 0.7
    # 400 cells: four standard deviations of a share of 0.9.
    assert abs(scaled[wild].mean() - 0.9) < 4 * np.sqrt(0.09 / wild.sum())


def test_scale_repeats_by_seed_and_never_sees_its_own_block() -> None:
    features, _, residuals, entries = simulated(1000)
    first = LearnedScale.fit(features, residuals, entries=entries, shape=(40, 40, 20), seed=1)
    again = LearnedScale.fit(features, residuals, entries=entries, shape=(40, 40, 20), seed=1)
    np.testing.assert_array_equal(first.hidden, again.hidden)
    fold = block_folds(entries, (40, 40, 20), seed=1)
    changed = residuals.copy()
    changed[fold == 0] *= 50
    # Only the unit of size, the median, may carry news from a fold to itself.
    other = LearnedScale.fit(features, changed, entries=entries, shape=(40, 40, 20), seed=1)
    ratio = other.hidden[fold == 0] / first.hidden[fold == 0]
    assert ratio.std() / ratio.mean() < 0.2
    assert ratio.mean() < 2
    same_cell = block_folds(np.array([5, 5, 6, 31_999]), (40, 40, 20), seed=1)
    assert same_cell[0] == same_cell[1] == same_cell[2]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_few_or_perfect_residuals_give_a_usable_scale(count: int) -> None:
    features = np.random.default_rng(5).standard_normal((count, 3))
    for residuals in (np.zeros(count), np.ones(count)):
        scale = LearnedScale.fit(features, residuals, entries=np.arange(count), shape=(5, 8), seed=0)
        assert (scale.hidden > 0).all()
        assert np.isfinite(scale.predict(features)).all()


def test_cells_that_were_learned_from_get_the_model_that_left_their_block_out() -> None:
    class Says:
        def __init__(self, number: float) -> None:
            self.number = number

        def predict(self, features: np.ndarray) -> np.ndarray:
            return np.full(len(features), self.number)

    learned = LearnedScale(np.array([1.0, 4.0]), {0: Says(1.0), 2: Says(4.0)}, lambda entries: entries % 3)
    answer = learned.predict_unseen(np.zeros((6, 1)), np.arange(6))
    np.testing.assert_allclose(answer, [1, 2, 4, 1, 2, 4])  # fold 1 has no model of its own: the mean of all


@pytest.mark.parametrize("rich", [False, True])
def test_more_than_the_depth_is_used_only_where_it_predicts_errors_better(rich: bool) -> None:
    # Entries of a block share one error size that no feature tells: the second feature names the block, and a model of
    # all features learns that by heart. `rich`: the second feature sets the size everywhere.
    rng = np.random.default_rng(0)
    shape = (24, 30)
    entries = rng.choice(24 * 30, 500, replace=False)
    row, column = np.unravel_index(entries, shape)
    place = (row // 8 * 3 + column // 10).astype(float)
    features = np.stack([rng.normal(size=500), place if not rich else rng.normal(size=500)], axis=1).astype(np.float32)
    log_size = 0.5 * features[:, 0] + (2.0 * features[:, 1] if rich else rng.normal(size=9)[place.astype(int)])
    scale = LearnedScale.fit(features, np.exp(log_size) * rng.normal(size=500), entries=entries, shape=shape, seed=0)
    slope = np.diff(np.log(scale.predict(np.array([[0.0, 0.0], [0.0, 1.0]], np.float32))))[0]
    assert slope > 1.0 if rich else slope == 0.0


@pytest.mark.parametrize("length", [16, 24, 36, 60, 96])
def test_blocks_of_a_short_axis_are_as_long_as_its_errors_are_correlated(length: int) -> None:
    """Blocks of two or three positions let the scale of an entry be learned from errors next to it."""
    fold = block_folds(np.arange(length), (length,), seed=0)
    lengths = np.diff(np.flatnonzero(np.diff(fold, prepend=-1, append=-1)))
    assert min(8, length // 3) <= lengths.min() and len(lengths) <= 6


def test_one_entry_far_from_the_others_does_not_decide_the_model_of_the_scale() -> None:
    """A line through the features is far off at an entry beyond the data; that entry alone made the choice before."""
    rng = np.random.default_rng(5)
    shape = (40, 40)
    entries = rng.choice(1600, 1500, replace=False)
    features = rng.normal(size=(1500, 6)).astype(np.float32)
    residuals = np.exp(features[:, 1]) * rng.normal(size=1500)
    plain = LearnedScale.fit(features, residuals, entries=entries, shape=shape, seed=0)
    assert np.corrcoef(np.log(plain.hidden), features[:, 1])[0, 1] > 0.8
    features[0, 1], residuals[0] = -20, 1
    learned = LearnedScale.fit(features, residuals, entries=entries, shape=shape, seed=0)
    assert np.corrcoef(np.log(learned.hidden[1:]), features[1:, 1])[0, 1] > 0.8
