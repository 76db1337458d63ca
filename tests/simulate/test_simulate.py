"""Generators keep to their stated scales, shapes and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from corten import simulate
from corten.propensity.coupling import Product
from corten.simulate import masks


def test_block_parameter_is_blocks_plus_noise_at_scale_two():
    b = simulate.block_parameter((40, 40, 40), rank=3, seed=1)
    assert b.shape == (40, 40, 40)
    np.testing.assert_allclose(np.abs(b).max(), 2.0)
    clean = simulate.block_parameter((40, 40, 40), rank=3, seed=1, noise=0.0)
    assert np.unique(clean).size == 27
    assert np.unique(clean[:14, :14, :14]).size == 1  # ceil(40/3) consecutive indices
    assert np.unique(clean[:15, 0, 0]).size == 2
    # the noise moves no block: block means with and without it are proportional
    means = [
        np.array([t[i, j, k].mean() for i in c for j in c for k in c])
        for t in (b, clean)
        for c in [[slice(0, 14), slice(14, 28), slice(28, 40)]]
    ]
    assert np.corrcoef(*means)[0, 1] > 0.999


def test_block_parameter_noise_and_mixture_have_the_stated_spread():
    b = simulate.block_parameter((60, 60, 60), rank=60, seed=0, noise=0.0, maximum=1.0)
    means = b / np.abs(b).mean()
    # compare a scale-free moment with a direct draw of 0.5 N(1, sd 0.5) + 0.5 N(-1, sd 0.5)
    draw = np.random.default_rng(5)
    reference = draw.choice([-1.0, 1.0], size=200_000) + 0.5 * draw.standard_normal(200_000)
    reference /= np.abs(reference).mean()
    np.testing.assert_allclose((means**2).mean(), (reference**2).mean(), rtol=0.02)
    usual = simulate.block_parameter((60, 60, 60), rank=1, seed=0)
    double = simulate.block_parameter((60, 60, 60), rank=1, seed=0, noise=0.4)
    ratio = (double.std() / abs(double.mean())) / (usual.std() / abs(usual.mean()))
    assert abs(ratio - 2.0) < 0.02


def test_block_parameter_takes_any_order_and_rank_per_axis():
    assert simulate.block_parameter((6, 7), rank=(2, 3)).shape == (6, 7)
    assert simulate.block_parameter((4, 5, 6, 7), rank=2).shape == (4, 5, 6, 7)
    with pytest.raises(ValueError, match="rank is"):
        simulate.block_parameter((4, 4), rank=5)


def test_signal_has_its_tucker_rank_and_scale():
    x = simulate.tucker_signal((10, 12, 14), seed=3)
    np.testing.assert_allclose(np.abs(x).max(), 2.0)
    for axis in range(3):
        assert np.linalg.matrix_rank(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)) == 3


@pytest.mark.parametrize("kind", ["constant", "adversarial"])
def test_noise_has_the_stated_ratio_and_shape(kind):
    b = simulate.block_parameter((40, 40, 40), rank=3, seed=2)
    x = simulate.tucker_signal(b.shape, seed=2)
    e = simulate.noise(b, kind, x, seed=4)
    np.testing.assert_allclose(np.abs(x).max() / np.abs(e).max(), 2.0)
    low, high = e[b < -1].std(), e[b > 1].std()
    spread = 0.5 * (1 + np.exp(-b))
    expected = 1.0
    if kind == "adversarial":
        expected = np.sqrt((spread[b < -1] ** 2).mean() / (spread[b > 1] ** 2).mean())
    np.testing.assert_allclose(low / high, expected, rtol=0.05)


def test_noise_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="kind is"):
        simulate.noise(np.zeros((2, 2)), "heavy", np.ones((2, 2)))
    with pytest.raises(ValueError, match="make them equal"):
        simulate.noise(np.zeros((2, 2)), "constant", np.ones((2, 3)))


def test_bernoulli_observes_with_the_logit_probability():
    b = simulate.block_parameter((50, 50, 50), rank=3, seed=0)
    mask = simulate.bernoulli(b, seed=1)
    p = expit(b)
    for part in (b < -0.5, b > 0.5, np.ones_like(mask)):
        error = mask[part].mean() - p[part].mean()
        assert abs(error) < 4.5 * np.sqrt((p[part] * (1 - p[part])).sum()) / part.sum()


def test_ising_samples_seeds_and_domain():
    b = simulate.block_parameter((12, 13, 14), rank=2, seed=0)
    one = simulate.ising(b, sweeps=20, seed=3)
    assert one.dtype == bool
    assert one.shape == b.shape
    assert np.array_equal(one, simulate.ising(b, sweeps=20, seed=3, threads=2))
    assert not np.array_equal(one, simulate.ising(b, sweeps=20, seed=4))
    many = simulate.ising(b, sweeps=40, samples=3, burn_in=10, thin=10, seed=3)
    assert many.shape == (3, *b.shape)
    assert not np.array_equal(many[0], many[1])
    # the last sample is where the chain stands after all its sweeps
    assert np.array_equal(many[-1], simulate.ising(b, sweeps=40, seed=3))
    domain = masks.block_mask(b.shape, seed=1)
    assert not simulate.ising(b, sweeps=5, domain=domain)[~domain].any()


def test_ising_refusals():
    b = np.zeros((4, 4))
    with pytest.raises(ValueError, match="raise sweeps"):
        simulate.ising(b, sweeps=10, samples=3, thin=5)
    with pytest.raises(ValueError, match="at least one sweep"):
        simulate.ising(b, sweeps=1, samples=3)
    with pytest.raises(ValueError, match="finite"):
        simulate.ising(b * np.nan)
    with pytest.raises(ValueError, match="two axes"):
        simulate.ising(np.zeros(4))
    with pytest.raises(ValueError, match="domain has shape"):
        simulate.ising(b, domain=np.ones((3, 3), dtype=bool))


def test_coupling_makes_neighbours_agree():
    b = np.ones((30, 30, 30))
    free = simulate.ising(b, Product(0.0), sweeps=60)
    tied = simulate.ising(b, Product(-0.3), sweeps=60)
    agree_free = (free[1:] == free[:-1]).mean()
    agree_tied = (tied[1:] == tied[:-1]).mean()
    assert agree_tied < agree_free - 0.1


def test_masks_hide_the_share_asked_for():
    shape = (30, 40, 20)
    assert abs(1 - masks.random_mask(shape, 0.3).mean() - 0.3) < 0.02
    assert 0.3 <= 1 - masks.block_mask(shape, 0.3, size=(3, 4, 5)).mean() < 0.31
    assert abs(1 - masks.patch_mask(shape, 0.4).mean() - 0.4) < 1e-3
    assert abs(1 - masks.ising_mask(shape, 0.4).mean() - 0.4) < 0.06
    for maker in (masks.random_mask, masks.block_mask, masks.patch_mask, masks.ising_mask):
        assert np.array_equal(maker((8, 9)), maker((8, 9)))
        assert not np.array_equal(maker((8, 9), seed=0), maker((8, 9), seed=1))
        with pytest.raises(ValueError, match="missing is"):
            maker((8, 9), missing=1.0)


def test_tec_like_resembles_the_real_thing():
    for seed in range(3):
        field = simulate.tec_like(seed=seed)
        x, mask = field.truth, field.mask
        assert x.shape == mask.shape == (32, 48, 48)
        assert 0.40 <= 1 - mask.mean() <= 0.45
        assert 0.0 < x.min() < 6.0
        assert 20.0 < x.max() < 40.0
        # gaps come in patches (real mask: 0.72 to 0.76 between neighbours) and the field is smooth
        w = mask.astype(float)
        for axis in range(3):
            ahead = np.take(w, range(1, w.shape[axis]), axis).ravel()
            behind = np.take(w, range(w.shape[axis] - 1), axis).ravel()
            assert 0.6 < np.corrcoef(ahead, behind)[0, 1] < 0.95
            assert np.abs(np.diff(x, axis=axis)).mean() < 0.08 * x.mean()
            assert np.abs(np.diff(x, n=2, axis=axis)).mean() < np.abs(np.diff(x, axis=axis)).mean()
        # oceans are seen at no time, the interior nearly always
        share = mask.mean(axis=2)
        assert (share == 0).mean() > 0.1
        assert (share > 0.9).mean() > 0.25


def test_tec_like_gives_a_labelled_dataset():
    field = simulate.tec_like((10, 12, 8), seed=0)
    data = field.to_dataset()
    assert data["tec"].dims == ("lat", "lon", "time")
    assert np.array_equal(np.isnan(data["tec"].values), ~field.mask)
    assert np.array_equal(field.truth, simulate.tec_like((10, 12, 8), seed=0).truth)
    with pytest.raises(ValueError, match="three lengths"):
        simulate.tec_like((10, 12))
    with pytest.raises(ValueError, match="missing is"):
        simulate.tec_like(missing=1.5)


@pytest.mark.parametrize("model", ["bernoulli", "ising"])
def test_paper_setting_hangs_together(model):
    s = simulate.paper_setting(20, rank=3, model=model, seed=1, sweeps=20)
    assert np.array_equal(np.isnan(s.observed), ~s.mask)
    assert np.array_equal(s.observed[s.mask], s.data[s.mask])
    np.testing.assert_allclose(np.abs(s.truth_signal).max() / np.abs(s.data - s.truth_signal).max(), 2.0)
    again = simulate.paper_setting(20, rank=3, model=model, seed=1, sweeps=20)
    assert np.array_equal(again.mask, s.mask)
    with pytest.raises(ValueError, match="model is"):
        simulate.paper_setting(10, rank=2, model="potts")
