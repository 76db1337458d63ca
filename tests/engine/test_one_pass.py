"""The operations of solvers that pass over memory once give what plain NumPy does, for each round."""

import numpy as np
import pytest

from corten.engine.arrays import Arrays, HostArrays

SHAPE = (2, 13, 5, 40)  # rounds first; 2,600 numbers of a round are more than one part


def made(dtype, count, shape=SHAPE):
    rng = np.random.default_rng(count)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(count)]


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    return request.param


@pytest.mark.parametrize("weights", [SHAPE, (1, *SHAPE[1:])])
def test_weighted_squares(dtype, weights):
    (values,), (own,) = made(dtype, 1), np.abs(made(dtype, 1, weights))
    found = HostArrays().sum_of_squares(values, own)
    assert found.shape == (2, 1, 1, 1) and found.dtype == dtype
    exact = [np.sum(own[b % len(own)].astype(float) * values[b].astype(float) ** 2) for b in range(2)]
    np.testing.assert_allclose(found.ravel(), exact, rtol=1e-4 if dtype == np.float32 else 1e-12)


def test_steps_of_conjugate_gradients(dtype):
    direction, residual, shrink, image, mean = made(dtype, 5)
    factor, step = (np.array(pair, dtype).reshape(2, 1, 1, 1) for pair in ((0.5, -2.0), (0.25, 0.0)))
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    turned = HostArrays().next_direction(direction.copy(), residual, shrink, factor)
    np.testing.assert_allclose(turned, factor * direction + shrink * residual, **close)
    with_ratio, inner = HostArrays().with_ratio(image.copy(), shrink, direction)
    np.testing.assert_allclose(with_ratio, image + shrink * direction, **close)
    np.testing.assert_allclose(inner.ravel(), [np.sum(a * b) for a, b in zip(with_ratio, direction)], **close)
    moved, left = HostArrays().advanced(mean.copy(), residual.copy(), direction=direction, image=image, step=step)
    np.testing.assert_allclose(moved, mean + step * direction, **close)
    np.testing.assert_allclose(left, residual - step * image, **close)


def test_arrays_that_are_not_contiguous(dtype):
    residual, shrink = made(dtype, 2)
    direction = np.swapaxes(made(dtype, 1, (2, 40, 5, 13))[0], 1, 3)
    expected = 2 * direction + shrink * residual
    turned = HostArrays().next_direction(direction, residual, shrink, np.full((2, 1, 1, 1), 2, dtype))
    np.testing.assert_allclose(turned, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [1, 3])
def test_means_of_arrays(dtype, count, order):
    multipliers, (known,) = made(dtype, count), [np.asarray(one, order=order) for one in made(dtype, 1)]
    kept = np.random.default_rng(9).random(SHAPE) < 0.5
    plain = Arrays().with_means([one.copy() for one in multipliers], known=known, kept=kept, decrease=1.5)
    filled, changed = HostArrays().with_means([one.copy() for one in multipliers], known=known, kept=kept, decrease=1.5)
    mean = sum(multipliers) / count
    np.testing.assert_allclose(filled, np.where(kept, known, mean), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(filled[kept], known[kept])
    for one, before, other in zip(changed, multipliers, plain[1]):
        np.testing.assert_allclose(one, (before - filled) / 1.5, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
