"""The fused pass against a slow dense version of the same formulas, in float64 and with explicit neighbour lists."""

import numpy as np
import pytest

from benchmarks.dense import dense_contractions
from corten.engine.passes import MaskPass, Model
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Linear, Polynomial, Product, Sigmoid, Zero
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve

COUPLINGS = {
    "product": Product(0.2),
    "linear": Linear(0.1),
    "polynomial": Polynomial({(1, 1): 0.1, (2, 2): 0.05, (0, 2): 0.02, (2, 0): 0.02}),
    "sigmoid": Sigmoid(),
    "zero": Zero(),
}


def build(
    shape,
    coupling,
    link="logit",
    neighborhood="adjacent",
    periodic=(),
    q=0.7,
    seed=0,
    scale=1.0,
    rank=2,
    **cut,
):
    rng = np.random.default_rng(seed)
    tt = TensorTrain.random(shape, min(rank, *shape), seed)
    tt = tt * (scale * np.sqrt(tt.size) / tt.norm())
    spins = rng.choice(np.array([-2, -1, -1, -1, 0, 1, 1, 2], np.int8), shape)
    around = resolve(neighborhood, shape, periodic=[axis in periodic for axis in range(len(shape))])
    code = coupling.code()
    model = Model(code.kind, code.terms, as_link(link).kind, around.offsets, around.periodic)
    return tt, spins, around, MaskPass(spins, model, q, **cut)


def dense_log_odds(b, spins, around, coupling, link):
    """eta_i = 2 sum_j g(B_i, B_j) W_j + 2 h(B_i), entry by entry."""
    flat, w = b.ravel(), np.sign(spins).ravel().astype(float)
    eta = 2 * np.asarray(as_link(link).value(flat), float)
    lists = around.neighbours(np.arange(flat.size), b.shape)
    for i, friends in enumerate(lists):
        for j in friends[friends >= 0]:
            eta[i] += 2 * float(coupling.value(flat[i], flat[j])) * w[j]
    return eta


def dense_loss(b, spins, around, coupling, link, q):
    eta, codes = dense_log_odds(b, spins, around, coupling, link), spins.ravel()
    log_p = -np.logaddexp(0, -eta)
    loss = -np.sum(np.log(q) + log_p[codes == 1])
    rest = np.log1p(-q * np.exp(log_p)) if q < 1 else -np.logaddexp(0, eta)
    return loss - np.sum(rest[codes == -1])


def numerical_gradient(b, loss, step=1e-5):
    gradient = np.zeros(b.size)
    for i in range(b.size):
        move = np.zeros(b.size)
        move[i] = step
        move = move.reshape(b.shape)
        gradient[i] = (loss(b + move) - loss(b - move)) / (2 * step)
    return gradient.reshape(b.shape)


def assert_contractions(tt, found, gradient, tolerance=2e-4):
    expected = dense_contractions(tt.frame(), gradient)
    size = max(np.abs(e).max() for e in expected)
    for have, want in zip(found, expected):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, atol=tolerance * size)


@pytest.mark.parametrize("name", COUPLINGS)
@pytest.mark.parametrize("link", ["logit", "probit", "zero"])
def test_loss_and_gradient_match_the_dense_formula(name, link):
    coupling = COUPLINGS[name]
    tt, spins, around, engine = build((4, 3, 5), coupling, link)
    loss, contractions = engine.loss_and_contractions(tt.frame())

    def dense(b):
        return dense_loss(b, spins, around, coupling, link, 0.7)

    assert loss == pytest.approx(dense(tt.to_dense()), rel=1e-5)
    assert_contractions(tt, contractions, numerical_gradient(tt.to_dense(), dense))


@pytest.mark.parametrize(
    ("shape", "neighborhood", "periodic"),
    [
        ((5, 6), "adjacent", ()),
        ((5, 6), "cube", (1,)),
        ((1, 4, 3), "adjacent", ()),
        ((4, 1, 3), "adjacent", (0, 1)),
        ((3, 4, 1), "cube", (2,)),
        ((3, 2, 4), "adjacent", (0, 1, 2)),
        ((3, 4, 4), "cube", (0, 2)),
        ((6, 3, 4), [(2, 0, 1), (-2, 0, -1), (0, 1, 0), (0, -1, 0)], (0,)),
        ((3, 2, 3, 2), "adjacent", (3,)),
        ((2, 3, 2, 2, 2), "adjacent", (1,)),
    ],
)
@pytest.mark.parametrize("q", [0.7, 1.0])
def test_any_order_neighbourhood_and_periodic_axes(shape, neighborhood, periodic, q):
    for name in ("product", "sigmoid"):
        coupling = COUPLINGS[name]
        tt, spins, around, engine = build(shape, coupling, neighborhood=neighborhood, periodic=periodic, q=q)
        loss, contractions = engine.loss_and_contractions(tt.frame())

        def dense(b, coupling=coupling, spins=spins, around=around):
            return dense_loss(b, spins, around, coupling, "logit", q)

        assert loss == pytest.approx(dense(tt.to_dense()), rel=1e-5)
        assert_contractions(tt, contractions, numerical_gradient(tt.to_dense(), dense))
        np.testing.assert_allclose(
            engine.log_odds(tt.cores).ravel(),
            dense_log_odds(tt.to_dense(), spins, around, coupling, "logit"),
            rtol=2e-4,
            atol=2e-5,
        )


@pytest.mark.parametrize("periodic", [(), (0, 1, 2)])
def test_slab_and_tile_size_change_nothing_beyond_rounding(periodic):
    shape = (13, 11, 9)
    tt, _, _, engine = build(shape, Product(0.2), periodic=periodic, slab=13, tile=11)
    loss, contractions = engine.loss_and_contractions(tt.frame())
    eta = engine.log_odds(tt.cores)
    size = max(np.abs(c).max() for c in contractions)
    for slab, tile in [(1, 1), (2, 3), (5, 11), (13, 4), (7, 6)]:
        _, _, _, other = build(shape, Product(0.2), periodic=periodic, slab=slab, tile=tile)
        other_loss, other_contractions = other.loss_and_contractions(tt.frame())
        assert other_loss == pytest.approx(loss, rel=1e-6)
        for a, b in zip(contractions, other_contractions):
            np.testing.assert_allclose(a, b, atol=1e-6 * size)
        np.testing.assert_allclose(other.log_odds(tt.cores), eta, rtol=1e-6, atol=1e-6)


def test_threads_change_no_bit():
    shape = (60, 20, 17)
    results = []
    for threads in (1, 2, 5):
        tt, _, _, engine = build(shape, Product(0.2), slab=4, tile=5, threads=threads)
        results.append(engine.loss_and_contractions(tt.frame()))
    for loss, contractions in results[1:]:
        assert loss == results[0][0]
        for a, b in zip(contractions, results[0][1]):
            assert np.array_equal(a, b)


def test_float32_stays_within_1e_4_of_float64_on_a_larger_tensor():
    shape = (20, 18, 22)
    tt, spins, around, engine = build(shape, Product(1 / 15), rank=4)
    loss, _ = engine.loss_and_contractions(tt.frame())
    assert loss == pytest.approx(dense_loss(tt.to_dense(), spins, around, Product(1 / 15), "logit", 0.7), rel=1e-6)


@pytest.mark.parametrize("q", [0.5, 0.9999, 1.0])
def test_no_overflow_and_no_clipping_at_huge_log_odds(q):
    """-log(q p) grows linearly in |eta|; a clipped probability would flatten it."""
    for scale in (1e2, 1e4):
        tt, spins, around, engine = build((4, 3, 5), Zero(), q=q, scale=scale)
        loss, contractions = engine.loss_and_contractions(tt.frame())
        assert loss == pytest.approx(dense_loss(tt.to_dense(), spins, around, Zero(), "logit", q), rel=1e-4)
        assert all(np.isfinite(c).all() for c in contractions)


def test_held_out_cells_have_no_term_but_are_seen_and_the_outside_is_not():
    coupling = Product(0.3)
    tt, spins, _, engine = build((4, 4, 4), coupling)
    loss, _ = engine.loss_and_contractions(tt.frame())
    shown = np.where(np.abs(spins) == 2, np.sign(spins), spins).astype(np.int8)
    other = MaskPass(shown, engine.model, 0.7)
    assert other.loss_and_contractions(tt.frame())[0] > loss
    np.testing.assert_array_equal(other.log_odds(tt.cores), engine.log_odds(tt.cores))
    flipped = np.where(spins == 0, 1, spins).astype(np.int8)
    assert not np.array_equal(MaskPass(flipped, engine.model).log_odds(tt.cores), engine.log_odds(tt.cores))


@pytest.mark.parametrize("periodic", [(), (0, 2)])
def test_thinning_uses_expected_spins_and_leaves_the_reader_out(periodic):
    """Outside training, j counts for i as tau_j - (1 - tau_j^2) c B0_i B0_j W_i (first-order cavity)."""
    coupling, c = Product(0.2), 0.2
    shape = (4, 3, 5)
    tt, spins, around, engine = build(shape, coupling, periodic=periodic)
    base = TensorTrain.random(shape, 2, 9) * 0.5
    soft = engine.soft_spins(base.frame())
    b0 = base.to_dense().ravel()
    eta0 = dense_log_odds(base.to_dense(), spins, around, coupling, "logit")
    tau = np.tanh((eta0 + np.log(0.3)) / 2)
    np.testing.assert_allclose(soft.values.ravel() / 127, tau, atol=0.5 / 127 + 1e-4)
    tau = np.where(spins.ravel() > 0, 1.0, soft.values.ravel() / 127.0)
    w = np.sign(spins).ravel()
    lists = around.neighbours(np.arange(w.size), shape)

    def dense(b):
        flat = b.ravel()
        eta = flat.copy()
        for i, friends in enumerate(lists):
            for j in friends[friends >= 0]:
                if w[j] != 0:
                    seen = tau[j] - (1 - tau[j] ** 2) * c * b0[i] * b0[j] * w[i]
                    eta[i] += 2 * c * flat[i] * flat[j] * seen
        p = 1 / (1 + np.exp(-eta))
        codes = spins.ravel()
        return -np.sum(np.log(0.7 * p[codes == 1])) - np.sum(np.log(1 - 0.7 * p[codes == -1]))

    loss, contractions = engine.loss_and_contractions(tt.frame(), soft)
    assert loss == pytest.approx(dense(tt.to_dense()), rel=1e-5)
    assert_contractions(tt, contractions, numerical_gradient(tt.to_dense(), dense))


def test_bad_arguments_are_named():
    _, spins, _, engine = build((4, 3, 5), Zero())
    with pytest.raises(TypeError, match="int8"):
        MaskPass(spins.astype(int), engine.model)
    with pytest.raises(ValueError, match="train_share"):
        MaskPass(spins, engine.model, 1.5)
