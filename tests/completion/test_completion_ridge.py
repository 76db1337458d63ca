"""The ridge of the default completion, and the mean alone, chosen by held-out error."""

from __future__ import annotations

import numpy as np
import pytest

from corten.completion.riemannian import MEAN_ONLY, TensorTrainCompletion, TuckerCompletion
from corten.options import as_completion


def low_rank(shape: tuple[int, ...], rank: int, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    letters = "abcde"[: len(shape)]
    factors = [rng.normal(size=(n, rank)) for n in shape]
    x = np.einsum(",".join(f"{c}r" for c in letters) + "->" + letters, *factors)
    return x / x.std() + noise * rng.normal(size=shape)


@pytest.mark.parametrize("maker", [TuckerCompletion, TensorTrainCompletion])
def test_noise_alone_is_filled_with_the_mean(maker: type) -> None:
    x = 7 + np.random.default_rng(0).normal(size=(15, 12, 10))
    mask = np.random.default_rng(1).random(x.shape) < 0.6
    prepared = maker(ridge="auto").prepare(x, mask, (), seed=0)
    assert prepared.ridge == MEAN_ONLY
    assert {choice.taken for choice in prepared.choices} == {"mean only"}
    fill = prepared.fill(x, mask)
    np.testing.assert_allclose(fill.estimate, x[mask].mean())
    leverage = fill.leverage()
    np.testing.assert_allclose(leverage, leverage.flat[0])
    assert leverage.flat[0] > 0


def test_clean_data_keep_the_usual_ridge() -> None:
    x = low_rank((20, 18, 15), 2, 0.05, seed=0)
    mask = np.random.default_rng(1).random(x.shape) < 0.6
    prepared = TuckerCompletion(ridge="auto").prepare(x, mask, (), seed=0)
    assert prepared.ridge == 1e-3
    usual = TuckerCompletion(rank=2).prepare(x, mask, (), seed=0)
    errors = [np.sqrt(np.mean((one.fill(x, mask).estimate - x)[~mask] ** 2)) for one in (prepared, usual)]
    assert errors[0] < 1.1 * errors[1]


def test_a_sparse_noisy_matrix_gets_a_larger_ridge_and_a_smaller_error() -> None:
    x = low_rank((25, 30), 1, 0.6, seed=0)
    mask = np.random.default_rng(10).random(x.shape) < 0.25
    chosen = TuckerCompletion(ridge="auto").prepare(x, mask, (), seed=0)
    assert chosen.ridge > 1e-3
    usual = TuckerCompletion(rank=chosen.rank).prepare(x, mask, (), seed=0)
    errors = [np.sqrt(np.mean((one.fill(x, mask).estimate - x)[~mask] ** 2)) for one in (chosen, usual)]
    assert errors[0] < errors[1]


def test_the_default_completion_chooses_its_ridge_and_others_do_not() -> None:
    assert as_completion("auto", gaps=False, mixed=False) == TuckerCompletion(ridge="auto")
    assert as_completion("tucker", gaps=False) == TuckerCompletion(ridge=1e-3)
    for wrong in ({"ridge": "some"}, {"ridge": "auto", "rank": 2}, {"ridge": "auto", "criterion": "aic"}):
        with pytest.raises(ValueError, match="ridge is"):
            TuckerCompletion(**wrong)


def test_the_completion_of_random_splits_mixes_where_sizes_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corten.completion.auto.MIN_STACK_ENTRIES", 300)
    completion = as_completion("auto", gaps=False)
    x = low_rank((25, 30), 1, 0.1, seed=0)
    mask = np.random.default_rng(11).random(x.shape) < 0.6
    mix = completion.prepare(x, mask, (), seed=0)
    assert set(mix.weights) == {"smooth", "Gaussian process", "low rank", "effects", "Tucker"}
    alone = TuckerCompletion(ridge="auto").prepare(x, mask, (), seed=0)
    errors = [np.abs(one.fill(x, mask).estimate - x)[~mask].mean() for one in (mix, alone)]
    assert errors[0] < 1.05 * errors[1]


def test_few_entries_are_mixed_where_that_is_clearly_better() -> None:
    completion = as_completion("auto", gaps=False)
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=(12, 1)) + 2 * rng.normal(size=(1, 10)) + 0.3 * rng.normal(size=(12, 10))
    mask = rng.random(x.shape) < 0.5
    mix, alone = (one.prepare(x, mask, (), seed=0) for one in (completion, TuckerCompletion(ridge="auto")))
    assert mix.weights["effects"] == max(mix.weights.values())
    errors = [np.abs(one.fill(x, mask).estimate - x)[~mask].mean() for one in (mix, alone)]
    assert errors[0] < 0.6 * errors[1]
    np.testing.assert_array_equal(
        completion.prepare(np.where(mask, x, 1e9), mask, (), seed=0).fill(x, mask).estimate, mix.fill(x, mask).estimate
    )
    eleven = np.zeros(x.shape, bool)
    eleven.flat[rng.permutation(x.size)[:11]] = True
    assert not hasattr(completion.prepare(x, eleven, (), seed=0), "weights")
