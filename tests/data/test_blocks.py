"""A source of blocks: whatever the blocks, the entries are the same; an array in memory is one block."""

import numpy as np
import pytest

from corten.calibration.split import TrainingDraw, score_block, training_entries
from corten.conformal.scores import Absolute, Signed
from corten.data.blocks import blocks, cut
from corten.data.flags import BEYOND, FORECAST, INFINITE, flags
from corten.data.observed import ObservedTensor
from corten.io.lazy import LazyTensor


def tensor(shape=(7, 5, 6), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    x[rng.random(shape) < 0.3] = np.nan
    return x, np.broadcast_to(np.arange(shape[-1]) > 0, shape)


@pytest.mark.parametrize("planes", [None, 1, 3, 7, 100])
def test_a_tensor_in_memory_and_a_lazy_one_have_the_same_blocks(planes):
    x, inside = tensor()
    observed = ObservedTensor.of(x, where=inside)
    one, other = list(blocks(observed, planes)), list(blocks(LazyTensor.of(x, inside), planes))
    assert [block.start for block in one] == list(range(0, 7, planes or 7)) == [block.start for block in other]
    assert one[-1].stop == 7
    expected = np.where(inside, np.where(np.isnan(x), -1, 1), 0)
    for found in (one, other, list(cut(iter(one), 2))):
        np.testing.assert_array_equal(np.concatenate([block.spins for block in found]), expected)
    assert (expected == 1).sum() == observed.n_observed


def test_a_source_says_how_much_was_read():
    told = []
    list(blocks(LazyTensor.of(tensor()[0]), 3, told.append))
    assert told == [3 / 7, 6 / 7, 1.0]


@pytest.mark.parametrize("planes", [1, 2, 5])
def test_the_draw_of_the_training_entries_does_not_depend_on_the_blocks(planes):
    mask = np.random.default_rng(1).random((10, 9, 8)) < 0.7
    draw = TrainingDraw(0.6, seed=3)
    parts = [draw.of(mask[start : start + planes]) for start in range(0, 10, planes)]
    train, share = training_entries(mask, 0.6, seed=3)
    np.testing.assert_array_equal(np.concatenate(parts), train)
    assert share == 0.6 and not (train & ~mask).any() and 0 < train.sum() < mask.sum()


@pytest.mark.parametrize("score", [Absolute(), Signed()])
def test_scores_of_blocks_are_those_of_the_whole(score):
    x, _ = tensor()
    observed, estimate = ObservedTensor.of(x), np.random.default_rng(2).standard_normal(x.shape)
    scale = 1.0 + np.abs(estimate)
    (whole,) = blocks(observed)
    entries = np.flatnonzero(observed.mask)
    scores, residuals = score_block(score, whole, estimate=estimate, entries=entries, scale=scale.reshape(-1)[entries])
    np.testing.assert_array_equal(residuals, (x - estimate).reshape(-1)[entries])
    found = []
    for block in blocks(observed, 2):
        part = slice(block.start, block.stop)
        own = np.flatnonzero(observed.mask[part])
        found.append(
            score_block(score, block, estimate=estimate[part], entries=own, scale=scale[part].reshape(-1)[own])[0]
        )
    np.testing.assert_array_equal(np.concatenate(found), scores)


def test_of_several_flags_the_last_holds_and_only_for_missing_entries():
    spins = np.array([[1, -1, -1], [0, -1, -1]], np.int8)
    late = np.array([[False], [True]])
    marks = [(BEYOND, np.array([0, 1, 4])), (INFINITE, np.array([1])), (FORECAST, late)]
    assert flags(spins, marks).tolist() == [[0, INFINITE, 1], [4, FORECAST, FORECAST]]
