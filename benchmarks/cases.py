"""The measurements: each compares corten with a plain version or a peer on the same data, and keeps losses too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.dense import algorithm_two, dense_pass
from corten.engine import MaskPass, Model, Threads
from corten.engine.threads import default_threads
from corten.lowrank import TensorTrain
from corten.propensity import IsingPropensity, Product
from corten.propensity.estimation import Recipe
from corten.propensity.neighborhood import resolve
from corten.propensity.selection import choose_rank

__all__ = ["CASES", "Row"]

STRENGTH = 1 / 15


@dataclass(frozen=True)
class Row:
    """One comparison: how long corten and the other took, what is asked of the ratio, and what to know."""

    what: str
    ours: float
    other: float
    against: str
    asked: str = ""
    note: str = ""

    @property
    def ratio(self) -> float:
        """Times faster than the other (below one: slower)."""
        return self.other / self.ours if self.ours > 0 else float("nan")


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the quickest of several runs, after a first one that compiles and warms."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def draw(side: int, rank: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The paper's parameter and a training mask drawn from its Ising model."""
    from corten import simulate

    parameter = simulate.block_parameter((side,) * 3, rank, seed=seed)
    mask = simulate.ising(parameter, Product(STRENGTH), sweeps=100, seed=seed)
    return parameter, mask & (np.random.default_rng(seed).random(mask.shape) < 0.7)


def engine_for(training: np.ndarray, threads: int | None = None) -> MaskPass:
    """A pass over a training mask under the paper's model."""
    around = resolve("adjacent", training.shape)
    code = Product(STRENGTH).code()
    model = Model(code.kind, code.terms, 0, around.offsets, around.periodic)
    return Threads(threads).mask_pass(np.where(training, np.int8(1), np.int8(-1)), model, 0.7)


def passes(quick: bool) -> Iterator[Row]:
    """One pass with loss and gradient against a dense float32 NumPy pass; threads; growth."""
    seconds = {}
    for side, asked in ((100, "6"), (200, ""), (300, "15"), (400, "")) if not quick else ((60, ""),):
        training = np.random.default_rng(0).random((side,) * 3) < 0.4
        point = TensorTrain.random(training.shape, 3, 0)
        point = point * (side**1.5 / point.norm())
        frame, fused = point.frame(), engine_for(training)
        seconds[side] = best(partial(fused.loss_and_contractions, frame), 7)
        if side > 300:  # a dense pass would only show how much memory it takes
            continue
        w, b = np.where(training, np.float32(1), np.float32(-1)), point.to_dense().astype(np.float32)
        plain = best(partial(dense_pass, b, w, STRENGTH, 0.7), 3)
        yield Row(f"pass with gradient, {side}^3, r=3", seconds[side], plain, "dense NumPy float32", asked)
        if side == 200:
            one = best(partial(engine_for(training, 1).loss_and_contractions, frame), 5)
            note = f"{default_threads()} threads"
            yield Row("threads at 200^3", seconds[side], one, "one thread", "1.7", note)
    if not quick:
        for small, large in ((100, 200), (200, 400)):
            factor = (large / small) ** 3
            note = f"time per entry at {large}^3 against {small}^3: {seconds[large] / seconds[small] / factor:.2f}"
            yield Row(f"growth {small}^3 to {large}^3", seconds[large], seconds[small] * factor, "linear", "0.8", note)


def fits(quick: bool) -> Iterator[Row]:
    """A whole fit against Algorithm 2 in dense NumPy, to no worse an error; then rank searches against one fit."""
    side = 40 if quick else 100
    parameter, training = draw(side)
    model = IsingPropensity(Product(STRENGTH), rank=3)
    ours = best(lambda: model.fit(training, 0.7), 3)

    def error(b: Any) -> float:
        return float(np.linalg.norm(b.to_dense() - parameter) / np.linalg.norm(parameter))

    mine = model.fit(training, 0.7)
    for cheat, asked in ((False, "" if quick else "100"), (True, "")):
        began = time.perf_counter()
        plain, iterations = algorithm_two(training, 3, STRENGTH, 0.7, small_cores=cheat)
        slow = time.perf_counter() - began
        note = f"relative error {error(mine.parameter):.3f} in {mine.passes} passes, theirs {error(plain):.3f} in "
        against = "dense NumPy Algorithm 2" + (", rounding small cores" if cheat else "")
        yield Row(f"Ising fit, {side}^3, r=3", ours, slow, against, asked, note + str(iterations))
    spins, fused = np.where(training, np.int8(1), np.int8(-1)), engine_for(training).model
    for patience, asked in ((2, "1/12"), (None, "1/60")):
        began = time.perf_counter()
        chosen, tried = choose_rank(
            Threads(), spins, model=fused, train_share=0.7, recipe=Recipe(), criterion="p-aic", ranks=range(2, 16),
            patience=patience,
        )  # fmt: skip
        took = time.perf_counter() - began
        name = "rank search 2..15" if patience is None else "rank search, ending after two rises"
        yield Row(f"{name}, {side}^3", took, ours, "one fit", asked, f"took rank {chosen.rank} of {len(tried)} tried")


def sampling(quick: bool) -> Iterator[Row]:
    """Gibbs sweeps against a vectorised NumPy checkerboard."""
    from corten.engine import gibbs
    from corten.simulate import block_parameter

    side = 40 if quick else 100
    parameter = block_parameter((side,) * 3, rank=3, seed=0).astype(np.float32)
    spins = np.ones(parameter.shape, dtype=np.int8)
    around = resolve("adjacent", parameter.shape)
    colours = around.colours(parameter.shape)
    plan = gibbs.prepare(
        parameter,
        parameter,
        coupling=Product(STRENGTH),
        offsets=around.offsets,
        periodic=around.periodic,
        colours=colours.number,
        phases=colours.phases,
    )
    ours = best(lambda: gibbs.sweep(plan, spins, 20, seed=0, threads=default_threads()), 3) / 20
    rng, odd = np.random.default_rng(0), np.indices(spins.shape).sum(axis=0) % 2 == 1

    def plain() -> None:
        from benchmarks.dense import neighbour_sum

        for colour in (odd, ~odd):
            eta = parameter * (2 * STRENGTH * neighbour_sum(parameter * spins) + 1)
            seen = rng.random(spins.shape, dtype=np.float32) < 1 / (1 + np.exp(-eta))
            np.copyto(spins, np.where(seen, np.int8(1), np.int8(-1)), where=colour)

    yield Row(f"Gibbs sweep, {side}^3", ours, best(plain, 5), "NumPy checkerboard", "" if quick else "8")


def conformal(quick: bool) -> Iterator[Row]:
    """The conformal step: many tests and levels, approximate and exact weights."""
    from corten.conformal.quantile import NeighbourFactor, WeightedScores

    count, tests = (10**5, 10**6) if quick else (10**6, 10**7)
    rng = np.random.default_rng(0)
    levels = np.linspace(0.80, 0.99, 20)
    scores = WeightedScores(rng.exponential(size=count), rng.normal(size=count))
    log_test = rng.normal(size=tests).astype(np.float32)
    chunk = 10**6

    def approximate() -> None:
        for start in range(0, tests, chunk):
            part = log_test[start : start + chunk]
            scores.cutoffs(part, levels)

    near = rng.integers(0, count, (chunk, 6)).astype(np.int32)
    near[rng.random(near.shape) > 0.3] = -1
    factor = NeighbourFactor(near, np.where(near >= 0, rng.normal(size=near.shape) * 0.3, 0.0))

    def exact() -> None:
        for start in range(0, tests, chunk):
            part = log_test[start : start + chunk]
            scores.cutoffs(part, levels, factor)

    quick_one, slow_one = best(approximate, 1), best(exact, 1)
    size = f"{count:.0e} scores, {tests:.0e} tests, 20 levels"
    yield Row(f"cutoffs, {size}", quick_one, 20.0, "the 20 s asked for", "" if quick else "1")
    yield Row("exact weights, same size", slow_one, quick_one, "approximate weights", "" if quick else "1/3")


def peers(quick: bool) -> Iterator[Row]:
    """tensorly and pyttb where they do a comparable job (extra `[peers]`); shown whoever wins."""
    side = 30 if quick else 60
    from corten import TuckerCompletion, simulate

    setting = simulate.paper_setting(side, 3, model="bernoulli", noise="constant", seed=0)
    x, mask = setting.observed, np.isfinite(setting.observed)

    def gap(estimate: np.ndarray) -> float:
        return float(np.sqrt(np.mean((estimate - setting.truth_signal)[~mask] ** 2)))

    prepared = TuckerCompletion(3).prepare(x, mask, (), 0)
    ours = best(lambda: prepared.fill(x, mask), 3)
    mine = gap(prepared.fill(x, mask).estimate)
    try:
        import tensorly as tl
        from tensorly.decomposition import parafac, tensor_train, tucker
    except ImportError:
        return
    dense = np.where(mask, x, 0.0)

    def masked_tucker() -> np.ndarray:
        return np.asarray(
            tl.tucker_to_tensor(
                tucker(
                    dense, [3, 3, 3], mask=mask.astype(float), n_iter_max=100, tol=1e-6, init="random", random_state=0
                )
            )
        )

    def masked_cp() -> np.ndarray:
        return np.asarray(
            tl.cp_to_tensor(
                parafac(dense, 3, mask=mask.astype(float), n_iter_max=100, tol=1e-6, init="random", random_state=0)
            )
        )

    theirs = best(masked_tucker, 1)
    note = f"error at missing entries {mine:.4f}, theirs {gap(masked_tucker()):.4f}"
    yield Row(f"Tucker completion with a mask, {side}^3", ours, theirs, "tensorly", note=note)
    theirs = best(masked_cp, 1)
    yield Row(
        f"CP completion with a mask, {side}^3",
        ours,
        theirs,
        "tensorly, CP rank 3",
        note=f"error theirs {gap(masked_cp()):.4f}",
    )
    full = setting.data
    tt_ours = best(lambda: TensorTrain.from_dense(full, 3), 3)
    tt_theirs = best(lambda: tensor_train(full, [1, 3, 3, 1]), 3)
    yield Row(f"TT-SVD of a full tensor, {side}^3", tt_ours, tt_theirs, "tensorly")
    yield from _gcp(setting, side)


def _gcp(setting: Any, side: int) -> Iterator[Row]:
    try:
        import pyttb as ttb
        from pyttb.gcp.handles import Objectives
        from pyttb.gcp.optimizers import LBFGSB
    except ImportError:
        return
    from corten.propensity import BernoulliPropensity

    training = setting.mask
    model = BernoulliPropensity(rank=3)
    ours = best(lambda: model.fit(training, 1.0), 3)
    data = ttb.tensor(training.astype(float))
    began = time.perf_counter()
    logging.disable(logging.WARNING)  # pyttb says at every step that it copies
    found, *_ = ttb.gcp_opt(data, 6, Objectives.BERNOULLI_LOGIT, LBFGSB(maxiter=100), printitn=0)
    logging.disable(logging.NOTSET)
    took = time.perf_counter() - began
    parameter = setting.parameter
    theirs = float(np.linalg.norm(found.full().data - parameter) / np.linalg.norm(parameter))
    own: Any = model.fit(training, 1.0).parameter
    mine = float(np.linalg.norm(own.to_dense() - parameter) / np.linalg.norm(parameter))
    note = f"relative error of the log-odds {mine:.3f}, theirs {theirs:.3f}"
    yield Row(f"Bernoulli-logit decomposition, {side}^3", ours, took, "pyttb GCP, CP rank 6", note=note)


CASES: dict[str, Callable[[bool], Iterator[Row]]] = {
    "passes": passes,
    "fits": fits,
    "sampling": sampling,
    "conformal": conformal,
    "peers": peers,
}
