"""Couplings, links and neighbourhoods: symmetry, safe tails, neighbours by brute force."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from corten.propensity import coupling as couplings
from corten.propensity.coupling import Linear, Polynomial, Product, Sigmoid, Zero, as_coupling
from corten.propensity.link import Logit, NoLink, Probit, as_link
from corten.propensity.neighborhood import resolve

COUPLINGS = [
    Product(0.3),
    Linear(-0.2),
    Polynomial({(1, 1): 0.5, (2, 1): -0.1, (1, 2): -0.1, (0, 3): 0.02, (3, 0): 0.02, (0, 0): 0.4}),
    Sigmoid(),
    Sigmoid(2.5),
    Zero(),
]
LINKS = [Logit(), Probit(), NoLink()]


@pytest.mark.parametrize("g", COUPLINGS, ids=repr)
def test_coupling_is_symmetric(g):
    x, y = np.random.default_rng(0).normal(size=(2, 200)) * 2
    np.testing.assert_allclose(g.value(x, y), g.value(y, x), rtol=1e-13)


@pytest.mark.parametrize("g", COUPLINGS, ids=repr)
def test_coupling_is_safe_and_broadcasts_and_keeps_float32(g):
    huge = np.array([-1e4, -1.0, 0.0, 1e4])
    grid = g.value(huge[:, None], huge[None, :])
    assert grid.shape == (4, 4)
    assert np.isfinite(grid).all()
    assert g.value(huge.astype(np.float32), np.float32(2)).dtype == np.float32
    assert g.value(2, 3).shape == ()


def test_sigmoid_coupling_saturates():
    assert Sigmoid().value(1e200, 1e200) == 0.5
    np.testing.assert_allclose(Sigmoid(3.0).value(1.2, 0.7), 3 * (expit(0.84) - 0.5), rtol=1e-14)


@pytest.mark.parametrize("g", COUPLINGS, ids=repr)
def test_kernel_code_says_the_same_as_the_value(g):
    kind, terms = g.code()
    assert terms.dtype == np.float64
    assert terms.shape[1] == 3
    x, y = np.random.default_rng(1).normal(size=(2, 50))
    polynomial = sum((c * x**a * y**b for c, a, b in terms), np.zeros(50))
    if kind == couplings.SIGMOID:
        polynomial = terms[0, 0] * (expit(x * y) - 0.5)
    np.testing.assert_allclose(g.value(x, y), polynomial, rtol=1e-10, atol=1e-14)
    assert pickle.loads(pickle.dumps(g)) == g
    assert hash(g) == hash(pickle.loads(pickle.dumps(g)))


def test_couplings_from_what_users_give():
    assert as_coupling(0.25) == Product(0.25)
    assert as_coupling("auto") == Product() == Product("auto")
    assert as_coupling(Zero()) == Zero()
    for wrong in ("ising", None, True, Product):
        with pytest.raises(ValueError, match="coupling is"):
            as_coupling(wrong)
    with pytest.raises(ValueError, match="not chosen yet"):
        Product("auto").code()
    with pytest.raises(ValueError, match="not symmetric"):
        Polynomial({(2, 1): 1.0})
    with pytest.raises(ValueError, match="exponents"):
        Polynomial({(-1, -1): 1.0})
    with pytest.raises(ValueError, match="finite"):
        Linear(np.nan)


@pytest.mark.parametrize(("name", "h"), list(zip(("logit", "probit", "zero"), LINKS)))
def test_links_are_odd_and_their_tails_are_safe(name, h):
    x = np.linspace(-8, 8, 161)
    tail = np.array([-1e4, 1e4])
    assert np.isfinite(h.value(tail)).all()
    np.testing.assert_allclose(h.value(-x), -h.value(x), atol=1e-12)
    assert h.value(x.astype(np.float32)).dtype == np.float32
    assert as_link(name) == as_link(h) == h


def test_links_alone_give_their_probability():
    x = np.linspace(-5, 5, 21)
    np.testing.assert_allclose(expit(2 * Logit().value(x)), expit(x), rtol=1e-13)
    np.testing.assert_allclose(expit(2 * Probit().value(x)), norm.cdf(x), rtol=1e-10)
    # far out, h ~ x^2/4
    np.testing.assert_allclose(Probit().value(1e4), 0.5 * (0.5e8 + np.log(1e4 * np.sqrt(2 * np.pi))), rtol=1e-12)
    with pytest.raises(ValueError, match="link is"):
        as_link("cauchit")


CASES = [
    ("adjacent", (3, 4), ()),
    ("adjacent", (3, 4, 5), ()),
    ("adjacent", (3, 4, 5), (True, False, True)),
    ("adjacent", (1, 2, 3), (True, True, True)),
    ("adjacent", (7, 7), (True, True)),
    ("adjacent:0,2", (3, 4, 5), (False, False, True)),
    ("cube", (3, 4, 5), ()),
    ("cube", (4, 5, 3), (True, True, True)),
    ("cube", (1, 2, 2), (True, True, True)),
    ("cube", (3, 2, 3, 4), (False, True, False, True)),
    ([(2, 1), (-2, -1), (0, 1), (0, -1)], (5, 7), (True, True)),
    ([(1, -2), (-1, 2), (3, 0), (-3, 0)], (4, 6), (False, True)),
    ([(5, 0), (-5, 0), (1, 0), (-1, 0)], (5, 3), (True, False)),
    ([(9, 9), (-9, -9)], (5, 3), ()),
]


def brute_force(spec, shape, periodic):
    """Neighbour sets from the definition: every raw offset, wrapped or dropped, as a set."""
    order = len(shape)
    periodic = periodic or (False,) * order
    if isinstance(spec, str):
        kind, _, axes = spec.partition(":")
        chosen = [int(a) for a in axes.split(",")] if axes else range(order)
        steps = [(-1, 0, 1) if a in chosen else (0,) for a in range(order)]
        raw = [o for o in product(*steps) if any(o) and (kind == "cube" or np.abs(o).sum() == 1)]
    else:
        raw = spec
    found = {}
    for cell in np.ndindex(*shape):
        reached = set()
        for offset in raw:
            there = [i + o for i, o in zip(cell, offset)]
            there = [t % n if w else t for t, n, w in zip(there, shape, periodic)]
            if all(0 <= t < n for t, n in zip(there, shape)) and tuple(there) != cell:
                reached.add(int(np.ravel_multi_index(there, shape)))
        found[int(np.ravel_multi_index(cell, shape))] = reached
    return found


@pytest.mark.parametrize(("spec", "shape", "periodic"), CASES, ids=str)
def test_neighbours_are_those_of_the_definition_each_once(spec, shape, periodic):
    hood = resolve(spec, shape, periodic=periodic)
    table = hood.neighbours(np.arange(np.prod(shape)), shape)
    for cell, reached in brute_force(spec, shape, periodic).items():
        listed = [j for j in table[cell].tolist() if j >= 0]
        assert len(listed) == len(set(listed))
        assert set(listed) == reached
    assert hood.radius == tuple(np.abs(hood.offsets).max(axis=0, initial=0))


@pytest.mark.parametrize(("spec", "shape", "periodic"), CASES, ids=str)
def test_neighbours_never_share_a_colour(spec, shape, periodic):
    hood = resolve(spec, shape, periodic=periodic)
    colouring = hood.colours(shape)
    colour = np.zeros((), np.int64)
    for phase in colouring.phases:
        colour = np.add.outer(colour, phase)
    colour = (colour % colouring.number).ravel()
    assert colour.min() >= 0
    assert colour.max() < colouring.number
    for cell, reached in brute_force(spec, shape, periodic).items():
        assert all(colour[j] != colour[cell] for j in reached)


def test_colours_are_few():
    def number(spec, shape, periodic=()):
        return resolve(spec, shape, periodic=periodic).colours(shape).number

    assert number("adjacent", (4, 5, 6)) == 2
    assert number("adjacent", (4, 6, 8), (True, True, True)) == 2
    assert number("adjacent", (4, 7, 9), (True, True, True)) == 3
    assert number("cube", (4, 5)) == 4
    assert number("cube", (4, 5, 6)) == 8
    assert number("cube", (4, 5, 6, 7)) == 16


def test_neighborhood_names_and_refusals():
    named = resolve("adjacent:lat,lon", (3, 4, 5), axis_names=("lat", "lon", "time"))
    assert np.array_equal(named.offsets, resolve("adjacent:0,1", (3, 4, 5)).offsets)
    assert resolve(named, (3, 4, 5)).offsets.shape == (4, 3)
    assert len(resolve("adjacent", (1, 5), periodic=(True, False)).offsets) == 2
    for spec, words in [
        ("diagonal", "neighborhood is"),
        ("adjacent:", "neighborhood is"),
        ("adjacent:height", "unknown axis"),
        ([(1, 0, 0)], "symmetric"),
        ([(0, 0, 0), (1, 0, 0), (-1, 0, 0)], "zero offset"),
        ([(1, 0), (-1, 0)], "shape"),
        ([(0.5, 0, 0), (-0.5, 0, 0)], "whole numbers"),
    ]:
        with pytest.raises(ValueError, match=words):
            resolve(spec, (3, 4, 5), axis_names=("lat", "lon", "time"))
    with pytest.raises(ValueError, match="periodic has 1"):
        resolve("adjacent", (3, 4), periodic=(True,))
