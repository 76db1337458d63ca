"""Other people's estimators of the missing propensity: generalized CP (pyttb), binary Tucker, projected gradient with
a dense TT-SVD.

All see the same likelihood, that of a thinned Bernoulli trial, and no neighbours: under the Ising model they are
misspecified, as in the paper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from math import log
from time import perf_counter
from typing import Any

import numpy as np

from corten.lowrank import CP, TensorTrain
from corten.propensity import FittedPropensity, IsingPropensity, Zero
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve
from studies.draws import TRAIN_SHARE
from studies.estimators import ENGINE, Law

__all__ = ["bernoulli_loss", "gcp", "gcp_run", "has_gcp", "projected_gradient", "tucker"]

CP_RANKS = range(1, 13)
PATIENCE = 2
Array = np.ndarray


def has_gcp() -> bool:
    """Whether pyttb is there (extra `peers`)."""
    return find_spec("pyttb") is not None


def bernoulli_loss(observed: Array, eta: Array) -> tuple[Array, Array]:
    """Loss of each entry of a thinned Bernoulli mask at log-odds eta, and its derivative, in forms that never overflow.

    Example:
        >>> loss, slope = bernoulli_loss(np.array([1.0, 0.0]), np.array([800.0, -800.0]))
        >>> bool(np.isfinite(loss).all() and np.isfinite(slope).all())
        True
    """
    q, small = TRAIN_SHARE, np.exp(-np.abs(eta))
    p = np.where(eta >= 0, 1.0, small) / (1.0 + small)
    seen = np.log1p(small) + np.maximum(-eta, 0.0) - log(q)
    unseen = np.log1p(small) - np.where(eta >= 0, np.log(1.0 - q + small), np.log1p((1.0 - q) * small))
    loss = np.where(observed > 0, seen, unseen)
    return loss, np.where(observed > 0, p - 1.0, q * p * (1.0 - p) / (1.0 - q * p))


def gcp_run(
    train: Array, rank: int, seed: int, iterations: int = 300, watch: Callable[[float], None] | None = None
) -> tuple[CP, float, int]:
    """One generalized CP fit by L-BFGS from a small random start: factors, loss, iterations.

    watch: is told the loss whenever it is computed.
    """
    import pyttb

    def loss_of(x: Array, m: Array) -> Array:
        loss = bernoulli_loss(x, m)[0]
        if watch is not None:
            watch(float(loss.sum()))
        return loss

    rng = np.random.default_rng(seed)
    start = pyttb.ktensor([0.3 * rng.standard_normal((length, rank)) for length in train.shape])
    handles = (loss_of, lambda x, m: bernoulli_loss(x, m)[1], -np.inf)
    solver = pyttb.gcp.optimizers.LBFGSB(maxiter=iterations, factr=1e8, pgtol=1e-3)
    data = pyttb.tensor(np.asfortranarray(train.astype(np.float64)))
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # pyttb tells the root logger about every copy it makes
    try:
        found, _, info = pyttb.gcp_opt(data, rank, handles, solver, init=start, printitn=0)
    finally:
        logging.disable(before)
    factors = tuple(np.array(f) for f in found.factor_matrices)
    return CP(np.array(found.weights), factors), float(info["final_f"]), int(info["nit"])


def gcp(train: Array, seed: int) -> Law:
    """Generalized CP at the rank of the smallest BIC; the search ends after two rises."""
    began = perf_counter()
    best: tuple[float, CP] | None = None
    rises, last = 0, np.inf
    for rank in CP_RANKS:
        point, loss, _ = gcp_run(train, rank, seed)
        score = 2 * loss + log(train.size) * rank * (sum(train.shape) - len(train.shape) + 1)
        if best is None or score < best[0]:
            best = score, point
        rises, last = (rises + 1 if score > last else 0), score
        if rises >= PATIENCE:
            break
    assert best is not None
    fitted = FittedPropensity(
        best[1].to_tensor_train(),
        Zero(),
        as_link("logit"),
        resolve("adjacent", train.shape),
        None,
        TRAIN_SHARE,
        stopped_because="pyttb",
        engine=ENGINE,
    )
    return Law("GCP", fitted, "approximate", perf_counter() - began)


def tucker(train: Array) -> Law:
    """Binary Tucker decomposition by Riemannian descent, with the paper's step and stop, at the rank of smallest BIC.

    Run to the end of its likelihood it over-fits (relative error 0.70 instead of 0.41 on one Ising draw at 40^3), and
    BIC then takes too small a rank: stopping early is part of the method.
    """
    began = perf_counter()
    model = replace(IsingPropensity.paper(), coupling=Zero(), criterion="p-bic", structure="tucker")
    return Law("Tucker", model.fit(train, TRAIN_SHARE, engine=ENGINE), "approximate", perf_counter() - began)


def projected_gradient(
    loss_and_gradient: Callable[[Array], tuple[float, Array]],
    start: Array,
    rank: int,
    done: Callable[[float], bool],
    step: float = 0.1,
    iterations: int = 100,
) -> tuple[list[float], list[float]]:
    """Plain gradient steps, each followed by a TT-SVD of the whole tensor: losses and seconds after every iteration."""
    point, began = tt_svd(start, rank), perf_counter()
    losses: list[float] = []
    seconds: list[float] = []
    for _ in range(iterations):
        loss, gradient = loss_and_gradient(point)
        losses.append(loss)
        seconds.append(perf_counter() - began)
        if done(loss):
            break
        point = tt_svd(point - step * gradient, rank)
    return losses, seconds


def tt_svd(dense: Array, rank: int) -> Array:
    """Algorithm TT-SVD: a dense tensor cut to a tensor-train rank by successive full SVDs, dense again.

    Example:
        >>> one = np.ones((4, 5, 6))
        >>> bool(np.allclose(tt_svd(one, 1), one))
        True
    """
    cores: list[Any] = []
    rest, left = dense, 1
    for length in dense.shape[:-1]:
        u, s, v = np.linalg.svd(rest.reshape(left * length, -1), full_matrices=False)
        keep = min(rank, s.size)
        cores.append(u[:, :keep].reshape(left, length, keep))
        rest, left = s[:keep, None] * v[:keep], keep
    cores.append(rest.reshape(left, dense.shape[-1], 1))
    return TensorTrain(tuple(cores)).to_dense()
