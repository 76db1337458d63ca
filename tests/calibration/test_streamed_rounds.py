"""Rounds are streamed: only scored entries are kept, and the scores are those of a version that keeps everything."""

from __future__ import annotations

import tracemalloc

import numpy as np

from corten import GapCalibration, ObservedTensor
from corten.calibration import gap_rounds
from corten.calibration.gap_rounds import run_rounds
from corten.calibration.gap_scale import learn_locally
from corten.calibration.task import Round, Task
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import StackedCompletion, simplex_weights
from corten.completion.unfoldings import UnfoldingCompletion
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.local_scale import EntryFeatures, LearnedScale, block_folds
from corten.conformal.scores import as_score


def gappy(shape: tuple[int, ...]) -> ObservedTensor:
    """A smooth field with a block missing and a few entries besides."""
    rng = np.random.default_rng(5)
    x = sum(np.sin((np.indices(shape)[k] + 3 * k) / (4 + k)) for k in range(len(shape)))
    x = x + 0.05 * rng.normal(size=shape)
    x[tuple(slice(n // 3, 2 * n // 3) for n in shape)] = np.nan
    x[rng.random(shape) < 0.05] = np.nan
    return ObservedTensor.of(x, axis_kinds=dict.fromkeys(range(len(shape)), "ordered"))


def task_of(observed: ObservedTensor) -> Task:
    members = {"pyramid": SmoothCompletion(), "low rank": UnfoldingCompletion("mean", iterations=3)}
    return Task(observed, StackedCompletion(members), None, as_score("absolute"), seed=3)


def test_streamed_rounds_give_the_scores_of_a_version_that_keeps_everything() -> None:
    observed = gappy((14, 15, 12))
    task, rounds = task_of(observed), GapCalibration(rounds=4, drawn=0).plan(observed, 0).rounds
    run = run_rounds(task, rounds, changed=observed, change=None)
    local = learn_locally(run, observed, task.seed)
    found = local.at_missing(
        observed, run.final, hidden=run.entries, round_sizes=[len(one.entries) for one in run.rounds]
    )

    values, mask, axes = observed.values, observed.mask, observed.axes
    prepared = task.completion.prepare(values, mask, axes, task.seed)
    first = np.array(list(prepared.weights.values()))
    fills = [np.stack(list(prepared.fill(values, one.train).members.values())) for one in rounds]
    at = [np.flatnonzero(one.hidden) for one in rounds]
    entries, truth = np.concatenate(at), np.concatenate([values.ravel()[i] for i in at])
    members = np.concatenate([fill.reshape(2, -1)[:, i] for fill, i in zip(fills, at)], axis=1).T
    fold = block_folds(entries, mask.shape, task.seed)
    mixed = np.array([members[i] @ simplex_weights(members[fold != f], truth[fold != f]) for i, f in enumerate(fold)])
    np.testing.assert_allclose(run.estimate, mixed, rtol=1e-9)

    describe = EntryFeatures.of(values, mask, axes)

    def features_at(where: np.ndarray, train: np.ndarray, fill: np.ndarray) -> np.ndarray:
        own = {"pyramid": fill[0], "low rank": fill[1]}
        return describe.at(where, values=values, train=train, estimate=np.tensordot(first, fill, 1), members=own)

    features = np.concatenate([features_at(i, one.train, fill) for one, fill, i in zip(rounds, fills, at)])
    scale = LearnedScale.fit(features, truth - mixed, entries=entries, shape=mask.shape, seed=task.seed)
    np.testing.assert_allclose(local.learned.hidden, scale.hidden, rtol=1e-4)
    final = np.stack(list(prepared.fill(values, mask).members.values()))
    missing = np.flatnonzero(observed.missing)
    expected = scale.predict(features_at(missing, mask, final))
    np.testing.assert_allclose(found.scale.at(missing), expected, rtol=1e-4)
    np.testing.assert_allclose(run.final.estimate, np.tensordot(simplex_weights(members, truth), final, 1), rtol=1e-9)

    deep = [depth(one.train, axes, describe.change).ravel()[i] for one, i in zip(rounds, at)]
    by_depth = DepthWeights.of(np.concatenate(deep), depth(mask, axes, describe.change).ravel()[missing])
    np.testing.assert_allclose(found.weights.of_calibration(entries), by_depth.at(np.concatenate(deep)))


def test_memory_does_not_grow_with_the_rounds(monkeypatch) -> None:
    observed = gappy((40, 50, 30))
    monkeypatch.setenv("CORTEN_THREADS", "1")  # rounds that run side by side each have arrays
    monkeypatch.setattr(gap_rounds, "MAX_POOLED_ENTRIES", 2_000)
    peaks = []
    for rounds in (3, 15):
        tracemalloc.start()
        plan = GapCalibration(rounds=rounds, drawn=0).plan(observed, 0)
        run = run_rounds(task_of(observed), plan.rounds, changed=observed, change=None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(one.entries.size for one in run.rounds) <= 2_000
    assert peaks[1] - peaks[0] < 2 * 12 * observed.values.size  # bytes: two for each entry and round


def test_a_round_keeps_its_masks_as_bits() -> None:
    rng = np.random.default_rng(0)
    train = rng.random((7, 11, 3)) < 0.5
    hidden = ~train & (rng.random(train.shape) < 0.5)
    one = Round(train, hidden, 0.5)
    np.testing.assert_array_equal(one.train, train)
    np.testing.assert_array_equal(one.hidden, hidden)
    assert one.train.dtype == bool and one.shape == train.shape and one.train_share == 0.5
    assert sum(kept.nbytes for kept in vars(one).values() if isinstance(kept, np.ndarray)) <= train.size / 4 + 2
