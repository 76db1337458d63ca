"""Maximum pseudo-likelihood of a low-rank missingness parameter (Algorithm RGrad), ridged, rescaled, refreshed.

Steps, each measured to earn its passes:
1. a spectral start from the training mask;
2. Riemannian descent on the loss plus (ridge / 2) ||B||^2, which keeps B bounded and the problem well conditioned;
3. the scalar that minimises the unpenalised loss along B, because a shrunken B flattens the weights and costs coverage;
4. with a train share below one and a product coupling, one refresh in which entries outside the training set count
   with their expected spin instead of -1, then 2 and 3 again from where they ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.choices import Choice
from corten.engine import Engine, MaskPass, ResidualPass
from corten.engine.passes import SoftSpins
from corten.engine.threads import one_library_thread
from corten.lowrank import (
    Armijo,
    BarzilaiBorwein,
    ConjugateGradient,
    Descent,
    FixedStep,
    MaxEvaluations,
    RelativeChange,
    StoppingRule,
    TensorTrain,
    Tucker,
    ValueChange,
    check_rank,
    check_tucker_rank,
    descend,
)
from corten.lowrank.line_search import StepRule
from corten.lowrank.power import spectral_start

__all__ = ["Estimate", "Recipe", "effective_training_size", "estimate", "start_of"]

NOISE = 1e-7  # relative rounding error of the float32 loss: smaller decreases are not trusted
FIRST_STEP = 4.0  # the log-likelihood of a Bernoulli trial curves by at most a quarter
STEPS: dict[str, StepRule] = {
    "barzilai-borwein": BarzilaiBorwein(first_step=FIRST_STEP, noise=NOISE),
    "armijo": Armijo(first_step=FIRST_STEP, noise=NOISE),
    "conjugate": ConjugateGradient(first_step=FIRST_STEP, noise=NOISE),
    "fixed": FixedStep(0.1),
}


@dataclass(frozen=True)
class Recipe:
    """How an estimate is made: everything but the data, the rank and the model."""

    ridge: float = 0.02
    rescale: bool = True
    thinning: bool = True
    bound: float | None = None
    step: str = "barzilai-borwein"
    structure: str = "tensor-train"
    tolerance: float = 1e-6
    max_passes: int = 200
    seed: int = 0

    @staticmethod
    def paper() -> Recipe:
        """Algorithm 2 as printed: fixed step 0.1, no ridge, stopped at a relative change of 1e-3."""
        return Recipe(ridge=0.0, rescale=False, thinning=False, step="fixed", max_passes=2000)

    def stopping(self) -> StoppingRule:
        """When a descent of this recipe ends."""
        if self.step == "fixed":
            return RelativeChange(1e-3) | MaxEvaluations(self.max_passes)
        return ValueChange(self.tolerance, 2) | MaxEvaluations(self.max_passes)


@dataclass(frozen=True)
class Estimate:
    """A fitted parameter, what it cost and why the descent stopped."""

    point: TensorTrain | Tucker
    loss: float
    passes: int
    stopped_because: str
    history: tuple[float, ...]
    scale: float
    choices: tuple[Choice, ...] = ()
    soft: SoftSpins | None = field(default=None, repr=False)

    @property
    def train(self) -> TensorTrain:
        """The parameter as a tensor train."""
        return self.point if isinstance(self.point, TensorTrain) else self.point.to_tensor_train()

    @property
    def dimension(self) -> int:
        """Free parameters, as P-AIC and P-BIC count them."""
        return self.point.dimension


def start_of(
    engine: Engine, spins: np.ndarray, rank: int | tuple[int, ...], recipe: Recipe
) -> tuple[TensorTrain | Tucker, int]:
    """A spectral start of the asked rank from the mask itself, and the passes it took."""
    shape = spins.shape
    guess = (
        Tucker.random(shape, check_tucker_rank(shape, rank), recipe.seed)
        if recipe.structure == "tucker"
        else TensorTrain.random(shape, check_rank(shape, rank), recipe.seed)
    )
    with one_library_thread:
        data: ResidualPass = engine.residual_pass(spins, spins)
        return spectral_start(lambda f: data.contractions_of_data(f)[1], guess), data.passes


def estimate(
    mask_pass: MaskPass,
    start: TensorTrain | Tucker,
    recipe: Recipe,
    start_passes: int = 0,
    keep_soft: bool = False,
) -> Estimate:
    """The recipe above, from a start. keep_soft: hand out the expected spins too, for a held-out loss."""
    before = mask_pass.passes
    soft: SoftSpins | None = None
    choices: list[Choice] = []
    with one_library_thread:
        found = _descend(mask_pass, start, recipe, None)
        point, scale, loss = found.point, 1.0, found.value
        if recipe.ridge > 0 and recipe.rescale:
            point, scale, loss = _rescale(mask_pass, found, recipe.ridge, None)
        history, stopped = found.history, found.stopped_because
        thins = recipe.thinning and mask_pass.train_share < 1 and mask_pass.model.coupling_kind == 1
        if thins:
            soft = mask_pass.soft_spins(_train_frame(point))
            again = _descend(mask_pass, found.point, recipe, soft)
            refreshed, new_scale = again.point, 1.0
            if recipe.ridge > 0 and recipe.rescale:
                refreshed, new_scale, _ = _rescale(mask_pass, again, recipe.ridge, soft)
            had, has = (
                effective_training_size(mask_pass, point),
                effective_training_size(mask_pass, refreshed),
            )
            kept = has >= 0.5 * had
            choices.append(
                Choice(
                    "thinning correction",
                    "kept" if kept else "dropped",
                    f"effective size of the weights {had:.0f} without it, {has:.0f} with it"
                    + ("" if kept else ": it would degrade them"),
                )
            )
            if kept:
                point, scale = refreshed, new_scale
                history, stopped = history + again.history, again.stopped_because
                loss = mask_pass.loss_and_contractions(_train_frame(point))[0]
        if recipe.bound is not None:
            point, shrunk = _bounded(point, recipe.bound)
            if shrunk < 1.0:
                scale *= shrunk
                loss = mask_pass.loss_and_contractions(_train_frame(point))[0]
    passes = mask_pass.passes - before + start_passes
    return Estimate(point, loss, passes, stopped, history, scale, tuple(choices), soft if keep_soft else None)


def effective_training_size(mask_pass: MaskPass, point: TensorTrain | Tucker) -> float:
    """Effective sample size of the weights exp(-eta) on the training entries: what is left of them after weighting."""
    return float(mask_pass.effective_size(_train_frame(point).left))


def _train_frame(point: TensorTrain | Tucker) -> Any:
    frame: Any = point.frame()
    return getattr(frame, "tt", frame)


def _descend(
    mask_pass: MaskPass, start: TensorTrain | Tucker, recipe: Recipe, soft: SoftSpins | None
) -> Descent:
    def objective(point: TensorTrain | Tucker) -> tuple[float, Any]:
        frame: Any = point.frame()
        loss, contractions = mask_pass.loss_and_contractions(getattr(frame, "tt", frame), soft)
        gradient = frame.project(contractions)
        if recipe.ridge > 0:
            loss += 0.5 * recipe.ridge * point.norm() ** 2
            gradient = gradient + frame.radial() * recipe.ridge
        return loss, gradient

    return descend(objective, start, step=STEPS[recipe.step], stop=recipe.stopping())


def _rescale(
    mask_pass: MaskPass, found: Descent, ridge: float, soft: SoftSpins | None
) -> tuple[TensorTrain | Tucker, float, float]:
    """Multiply B by the scalar that minimises the unpenalised loss: a secant on its slope, two passes."""
    point = found.point
    frame: Any = found.gradient.frame
    slope = found.gradient.inner(frame.radial()) - ridge * point.norm() ** 2
    at, loss = 1.0, found.value - 0.5 * ridge * point.norm() ** 2
    trial = 1.1 if slope < 0 else 0.95
    for _ in range(2):
        moved = point * trial
        frame = moved.frame()
        loss, contractions = mask_pass.loss_and_contractions(getattr(frame, "tt", frame), soft)
        new_slope = frame.project(contractions).inner(frame.radial()) / trial
        last = trial
        if new_slope == slope:
            break
        trial = float(
            np.clip(trial - new_slope * (trial - at) / (new_slope - slope), 0.5 * trial, 2.0 * trial)
        )
        at, slope = last, new_slope
    return point * at, at, loss


def _bounded(point: TensorTrain | Tucker, bound: float) -> tuple[TensorTrain | Tucker, float]:
    """Shrink B so that no entry exceeds the bound in size."""
    train = point if isinstance(point, TensorTrain) else point.to_tensor_train()
    step = max(1, 4_000_000 // max(1, train.size // train.shape[0]))
    largest = max(
        float(np.abs(train.slab(a, min(a + step, train.shape[0]))).max())
        for a in range(0, train.shape[0], step)
    )
    shrink = min(1.0, bound / largest) if largest > 0 else 1.0
    return point * shrink, shrink
