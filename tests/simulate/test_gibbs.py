"""The Gibbs sampler draws from the stated law, whatever the threads, and leaves the domain's outside alone.

Statistical tests compare with critical values of false-alarm rate 1e-4; seeds are fixed.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2

from corten.engine import gibbs
from corten.propensity.coupling import Linear, Polynomial, Product, Sigmoid, Zero
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve
from corten.simulate import ising

FALSE_ALARM = 1e-4
REPLICAS = 6000


def exact_law(parameter, coupling, link, neighborhood, periodic, domain=None):
    """Probabilities of all masks of a small model, from its energy: g W W over pairs plus h W over cells."""
    hood = resolve(neighborhood, parameter.shape, periodic=periodic)
    table = hood.neighbours(np.arange(parameter.size), parameter.shape)
    pairs = {(min(i, j), max(i, j)) for i in range(parameter.size) for j in table[i].tolist() if j >= 0}
    b = parameter.ravel()
    inside = np.ones(b.size, bool) if domain is None else domain.ravel()
    states = np.array(list(product((-1, 1), repeat=b.size)))
    spins = states * inside
    energy = spins @ as_link(link).value(b)
    for i, j in pairs:
        energy = energy + float(coupling.value(b[i], b[j])) * spins[:, i] * spins[:, j]
    weight = np.exp(energy) * np.all(inside | (states == -1), axis=1)
    return weight / weight.sum()


def surprise(masks, law):
    """Chi-square statistic over masks expected 5 times or more (others pooled), and its critical value."""
    bits = masks.reshape(len(masks), -1)
    code = bits @ (1 << np.arange(bits.shape[1])[::-1])
    counts = np.bincount(code, minlength=len(law)).astype(float)
    assert counts[law == 0].sum() == 0
    expected = law * len(masks)
    large = expected >= 5
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    return ((seen - wanted) ** 2 / wanted).sum(), chi2.isf(FALSE_ALARM, len(wanted) - 1)


def independent_masks(parameter, coupling, link, neighborhood, periodic, replica_axis, domain=None):
    """Many independent copies of a small model side by side, as slices of one tensor that do not touch."""
    order = parameter.ndim
    axes = [a if a < replica_axis else a + 1 for a in range(order)]
    hood = resolve(neighborhood, parameter.shape, periodic=periodic)
    offsets = np.zeros((len(hood.offsets), order + 1), dtype=int)
    offsets[:, axes] = hood.offsets
    if not all((offsets == -o).all(1).any() for o in offsets):  # a ring of two lists its neighbour once
        offsets = np.concatenate([offsets, -offsets])
    wraps = [False] * (order + 1)
    for a, flag in zip(axes, periodic or (False,) * order):
        wraps[a] = flag

    def copies(array):
        return np.repeat(np.expand_dims(array, replica_axis), REPLICAS, axis=replica_axis)

    masks = ising(
        copies(parameter), coupling, link, sweeps=60, seed=5, neighborhood=offsets, periodic=wraps,
        domain=None if domain is None else copies(domain),
    )  # fmt: skip
    return np.moveaxis(masks, replica_axis, 0)


LAWS = [
    ("product", (2, 2, 2), Product(0.5), "logit", "adjacent", ()),
    ("strong product", (2, 3), Product(-0.9), "logit", "adjacent", ()),
    ("sigmoid", (2, 3), Sigmoid(1.5), "probit", "adjacent", ()),
    ("linear", (2, 3), Linear(0.4), "logit", "adjacent", ()),
    ("plain Ising", (2, 3), Polynomial({(0, 0): 0.3}), "zero", "adjacent", ()),
    ("odd ring", (2, 3), Product(0.6), "logit", "adjacent", (True, True)),
    ("odd ring, pairs", (2, 3), Sigmoid(2.0), "logit", "adjacent", (True, True)),
    ("cube", (2, 3), Product(0.4), "logit", "cube", ()),
    ("zero", (2, 3), Zero(), "probit", "adjacent", ()),
]


@pytest.mark.parametrize("replica_axis", [0, -1])
@pytest.mark.parametrize(
    ("shape", "coupling", "link", "where", "periodic"), [c[1:] for c in LAWS], ids=[c[0] for c in LAWS]
)
def test_masks_follow_the_exact_law(shape, coupling, link, where, periodic, replica_axis):
    parameter = np.random.default_rng(7).normal(0.1, 1.0, size=shape)
    masks = independent_masks(parameter, coupling, link, where, periodic, replica_axis % (len(shape) + 1))
    statistic, critical = surprise(masks, exact_law(parameter, coupling, link, where, periodic))
    assert statistic < critical


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_a_flipped_coupling_is_noticed(strength):
    parameter = np.random.default_rng(7).normal(0.1, 1.0, size=(2, 2, 2))
    masks = independent_masks(parameter, Product(strength), "logit", "adjacent", (), 0)
    statistic, critical = surprise(masks, exact_law(parameter, Product(-strength), "logit", "adjacent", ()))
    assert statistic > 2 * critical


def test_law_with_a_cell_outside_the_domain():
    parameter = np.random.default_rng(8).normal(size=(2, 3))
    domain = np.array([[True, True, False], [True, True, True]])
    masks = independent_masks(parameter, Product(0.7), "logit", "adjacent", (), 0, domain)
    law = exact_law(parameter, Product(0.7), "logit", "adjacent", (), domain)
    statistic, critical = surprise(masks, law)
    assert statistic < critical
    assert not masks[:, ~domain].any()


def plan_for(parameter, coupling, where, periodic=()):
    hood = resolve(where, parameter.shape, periodic=periodic)
    colours = hood.colours(parameter.shape)
    return gibbs.prepare(
        parameter,
        parameter,
        coupling=coupling,
        offsets=hood.offsets,
        periodic=hood.periodic,
        colours=colours.number,
        phases=colours.phases,
    )


@pytest.mark.parametrize("coupling", [Product(0.3), Sigmoid(0.5), Zero()], ids=repr)
@pytest.mark.parametrize(
    ("where", "periodic"), [("adjacent", ()), ("cube", ()), ("adjacent", (True, True, True))], ids=str
)
def test_threads_and_tasks_change_no_bit(coupling, where, periodic, monkeypatch):
    rng = np.random.default_rng(3)
    parameter = rng.normal(size=(31, 45, 47)).astype(np.float32)
    spins = rng.choice(np.array([-1, 0, 1], dtype=np.int8), size=parameter.shape, p=[0.4, 0.2, 0.4])
    plan = plan_for(parameter, coupling, where, periodic)
    before = spins.copy()
    alone = gibbs.sweep(plan, spins, 3, seed=11)
    assert np.array_equal(spins, before)
    for threads, entries in [(2, gibbs.TASK_ENTRIES), (2, 7), (4, 4 * 45 * 47), (4, 10**9)]:
        monkeypatch.setattr(gibbs, "TASK_ENTRIES", entries)
        assert np.array_equal(gibbs.sweep(plan, spins, 3, seed=11, threads=threads), alone)
    in_steps = gibbs.sweep(plan, gibbs.sweep(plan, spins, 1, seed=11), 2, seed=11, first=1, threads=2)
    assert np.array_equal(in_steps, alone)
    assert not np.array_equal(gibbs.sweep(plan, spins, 3, seed=12), alone)
    assert np.array_equal(alone == 0, spins == 0)


def test_uniform_draws_look_independent():
    """Fair coins: neighbouring columns, rows and sweeps are uncorrelated (5 standard errors, 6e-7 each)."""
    parameter = np.zeros((40, 100, 100), dtype=np.float32)
    plan = plan_for(parameter, Zero(), "adjacent")
    one = np.ones(parameter.shape, dtype=np.int8)
    a, b = (gibbs.sweep(plan, one, 1, seed=0, first=k).astype(float) for k in (0, 1))
    other = gibbs.sweep(plan, one, 1, seed=1).astype(float)
    limit = 5 / np.sqrt(a.size * 0.97)
    assert abs(a.mean()) < limit
    for x, y in [(a, b), (a, other), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a[..., 1:], a[..., :-1])]:
        assert abs((x * y).mean()) < limit
    assert abs((a[..., 2:] * a[..., 1:-1] * a[..., :-2]).mean()) < limit


@pytest.mark.parametrize("eta", [-1e4, -12.0, -3.0, -0.1, 0.0, 0.7, 4.0, 1e4])
def test_probability_of_a_draw(eta):
    field = np.full((400, 1000), eta, dtype=np.float32)
    hood = resolve("adjacent", field.shape)
    plan = gibbs.prepare(
        field,
        field,
        coupling=Zero(),
        offsets=hood.offsets,
        periodic=hood.periodic,
        colours=1,
        phases=[np.zeros(n, int) for n in field.shape],
    )
    drawn = gibbs.sweep(plan, np.ones(field.shape, dtype=np.int8), 10, seed=2)
    share, expected = (drawn > 0).mean(), 1 / (1 + np.exp(-np.clip(eta, -700, 700)))
    assert abs(share - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / field.size) + 1e-9


def test_refusals():
    with pytest.raises(ValueError, match="two axes or more"):
        ising(np.zeros(5))
    with pytest.raises(ValueError, match="spins has shape"):
        square = np.zeros((3, 3), dtype=np.float32)
        gibbs.sweep(plan_for(square, Zero(), "adjacent"), np.ones((3, 4), np.int8), 1, seed=0)
