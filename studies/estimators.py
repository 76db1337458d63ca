"""The estimators that the tables compare: the paper's plain one, ours, and the two that bracket them (unweighted,
oracle).

plain: Algorithm RGrad as printed (fixed step 0.1, stopped at a relative change of 1e-3, no ridge, no thinning
correction), rank by P-AIC, approximate weights.
default: ours (ridge with rescaling, thinning correction, Barzilai-Borwein steps), rank by held-out pseudo-likelihood,
exact weights.
Both are told the right coupling, as in the paper ("correctly specified"). automatic: ours, told nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from corten.engine import Model, as_engine
from corten.lowrank import TensorTrain
from corten.propensity import (
    BernoulliPropensity,
    FittedPropensity,
    IsingPropensity,
    KnownPropensity,
    Product,
    Recipe,
    UniformPropensity,
    Zero,
)
from corten.propensity.coupling import Coupling
from corten.propensity.fitted import spins_of
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve
from corten.propensity.selection import choose_rank
from studies.cells import Cell
from studies.draws import STRENGTH, TRAIN_SHARE

__all__ = [
    "ENGINE",
    "RANKS",
    "Law",
    "coupling_of",
    "laws",
    "model_of",
    "ours",
    "plain",
    "plain_fit",
    "relative_error",
    "weight_error",
]

ENGINE = 1  # a cell runs on one core; the runner spreads cells over cores
RANKS = range(2, 16)


@dataclass(frozen=True)
class Law:
    """A fitted law of the missingness under the name the tables use, with the weights it goes with."""

    name: str
    fitted: FittedPropensity
    weights: str = "approximate"
    seconds: float = 0.0

    @property
    def rank(self) -> float:
        """The rank that was chosen; NaN where there is none."""
        rank = self.fitted.rank
        return float(max(rank)) if rank and self.name not in ("unweighted", "oracle") else float("nan")


def coupling_of(model: str) -> Coupling:
    """g = xy/15 for the Ising model, none for Bernoulli."""
    return Product(STRENGTH) if model == "ising" else Zero()


def model_of(model: str, shape: tuple[int, ...]) -> Model:
    """The model as passes over the mask see it."""
    code = coupling_of(model).code()
    around = resolve("adjacent", shape)
    return Model(code.kind, code.terms, as_link("logit").kind, around.offsets, around.periodic)


def plain_fit(train: np.ndarray, model: str) -> FittedPropensity:
    """The paper's estimator with its P-AIC rank.

    The search over 2..15 ends after two rises; `selection` looks at all ranks.
    """
    spins = spins_of(train)
    best, tried = choose_rank(
        as_engine(ENGINE), spins, model=model_of(model, spins.shape), train_share=TRAIN_SHARE, recipe=Recipe.paper(),
        criterion="p-aic", ranks=RANKS,
    )  # fmt: skip
    fit = best.estimate
    return FittedPropensity(
        fit.train,
        coupling_of(model),
        as_link("logit"),
        resolve("adjacent", spins.shape),
        None,
        TRAIN_SHARE,
        fit.loss,
        sum(one.estimate.passes for one in tried),
        fit.stopped_because,
        fit.history,
        fit.choices,
        ENGINE,
    )


def plain(train: np.ndarray, model: str) -> Law:
    """The paper's plain estimator, fitted."""
    began = perf_counter()
    return Law("plain", plain_fit(train, model), "approximate", perf_counter() - began)


def ours(train: np.ndarray, model: str, name: str = "default") -> Law:
    """Our default estimator, told the coupling ("default") or not ("automatic")."""
    began = perf_counter()
    if name == "automatic":
        maker: IsingPropensity | BernoulliPropensity = IsingPropensity()
    else:
        maker = IsingPropensity(Product(STRENGTH)) if model == "ising" else BernoulliPropensity()
    return Law(name, maker.fit(train, TRAIN_SHARE, engine=ENGINE), "exact", perf_counter() - began)


def laws(cell: Cell, parameter: np.ndarray, train: np.ndarray) -> list[Law]:
    """The four laws of the paper's figures, and ours beside them."""
    known = KnownPropensity(parameter, coupling_of(cell["model"]))
    found = [
        Law("unweighted", UniformPropensity().fit(train, TRAIN_SHARE, engine=ENGINE)),
        Law("oracle", known.fit(train, TRAIN_SHARE, engine=ENGINE), "exact"),
        plain(train, cell["model"]),
        ours(train, cell["model"]),
    ]
    if cell.get("automatic", False):
        found.append(ours(train, cell["model"], "automatic"))
    return found


def relative_error(fitted: FittedPropensity, parameter: np.ndarray) -> float:
    """||B_hat - B*|| / ||B*||, what the paper calls RSE."""
    found = fitted.parameter
    dense = found.to_dense() if isinstance(found, TensorTrain) else found
    return float(np.linalg.norm(dense - parameter) / np.linalg.norm(parameter))


def weight_error(
    log_weights: np.ndarray,
    true_log_weights: np.ndarray,
    calibration: np.ndarray,
    missing: np.ndarray,
    seed: int,
    tests: int = 100,
) -> float:
    """Delta of eq. Delta-definition: total variation between estimated and true weights, averaged over some
    missing entries.

    Example:
        >>> flat = np.zeros(8)
        >>> weight_error(flat, flat, np.arange(5), np.arange(5, 8), seed=0)
        0.0
    """
    rng = np.random.default_rng(seed)
    some = rng.choice(missing, min(tests, missing.size), replace=False)
    shares = []
    for logs in (log_weights.reshape(-1), true_log_weights.reshape(-1)):
        top = float(max(logs[calibration].max(), logs[some].max()))
        shares.append((np.exp(logs[calibration] - top, dtype=np.float64), np.exp(logs[some] - top, dtype=np.float64)))
    (a, a_test), (b, b_test) = shares
    total = 0.0
    for x, y in zip(a_test, b_test):
        sum_a, sum_b = a.sum() + x, b.sum() + y
        total += 0.5 * (np.abs(a / sum_a - b / sum_b).sum() + abs(x / sum_a - y / sum_b))
    return float(total / some.size)
