"""Maximum pseudo-likelihood estimate of a low-rank parameter B (equation low-rank-MPLE, Algorithm RGrad).

Steps:
1. a spectral start from the training mask;
2. Riemannian descent on the loss plus (ridge / 2) ||B||^2, which bounds B and conditions the problem;
3. multiplication of B by the scalar that minimises the unpenalised loss: a shrunk B flattens the weights, which costs
   coverage;
4. with a train share below one and a product coupling, the thinning correction: entries outside the training set enter
   with their expected spin instead of -1, and steps 2 and 3 are repeated from the current point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, MaskPass, ResidualPass
from corten.engine.passes import SoftSpins
from corten.engine.threads import one_library_thread
from corten.lowrank import Descent, Frame, Stop, TensorTrain, Tucker, descend, spectral_start
from corten.lowrank.line_search import Armijo, BarzilaiBorwein, FixedStep, StepRule
from corten.lowrank.points import TangentFrame, TangentVector
from corten.lowrank.tucker import STRUCTURES

LOSS_ROUNDING = 1e-7  # relative rounding error of the float32 loss: smaller decreases are ignored
RIDGE_PER_PARAMETER = 7.0  # measured: the ridge with the smallest error of B grows with the parameters per entry
RIDGE_RANGE = (0.01, 0.15)  # below, fits take more passes; above, B is flattened more than a scalar can correct
FIRST_STEP = 4.0  # the second derivative of a Bernoulli log-likelihood is at most a quarter
MIN_KEPT_EFFECTIVE_SIZE = 0.5  # share of the effective sample size that the thinning correction must keep
BOUND_CHECK_ENTRIES = 4_000_000  # entries of B computed at once to find its largest absolute value
STEPS: dict[str, StepRule] = {
    "barzilai-borwein": BarzilaiBorwein(first_step=FIRST_STEP, noise=LOSS_ROUNDING),
    "armijo": Armijo(first_step=FIRST_STEP, noise=LOSS_ROUNDING),
    "fixed": FixedStep(0.1),
}


@dataclass(frozen=True)
class Recipe:
    """The settings of an estimate, apart from the data, the rank and the model.

    Parameters
    ----------
    ridge, thinning, bound, step, structure, seed
        As for `IsingPropensity`.
    tolerance : float
        The descent ends when the loss changes by less than this share, twice in a row. Default 1e-6.
    max_passes : int, optional
        The largest number of passes of a descent; default 200, or 2000 with a fixed step.

    Examples
    --------
    >>> Recipe.paper().step
    'fixed'
    """

    ridge: float | str = "auto"
    thinning: bool = True
    bound: float | None = None
    step: str = "barzilai-borwein"
    structure: str = "tensor-train"
    tolerance: float = 1e-6
    max_passes: int | None = None
    seed: int = 0

    @staticmethod
    def paper() -> Recipe:
        """Algorithm RGrad as printed: fixed step 0.1, no ridge, stopped at a relative change of 1e-3."""
        return Recipe(ridge=0.0, thinning=False, step="fixed")

    def ridge_of(self, point: TensorTrain | Tucker) -> float:
        """The ridge of a fit with as many parameters and entries as `point` has."""
        if not isinstance(self.ridge, str):
            return self.ridge
        return float(np.clip(RIDGE_PER_PARAMETER * point.dimension / prod(point.shape), *RIDGE_RANGE))

    def stopping(self) -> Stop:
        """The stopping rule of a descent."""
        if self.step == "fixed":
            return Stop(relative_change=1e-3, evaluations=self.max_passes or 2000)
        return Stop(value_change=self.tolerance, patience=2, evaluations=self.max_passes or 200)


@dataclass(frozen=True)
class Estimate:
    """A fitted parameter B, its loss, the passes it took, and why the descent stopped."""

    point: TensorTrain | Tucker
    loss: float
    passes: int
    stopped_because: str
    history: tuple[float, ...]
    choices: tuple[Choice, ...] = ()
    soft: SoftSpins | None = field(default=None, repr=False)

    @property
    def train(self) -> TensorTrain:
        """The parameter as a tensor train."""
        return self.point if isinstance(self.point, TensorTrain) else self.point.to_tensor_train()

    @property
    def dimension(self) -> int:
        """The number of free parameters, as P-AIC and P-BIC count them."""
        return self.point.dimension


def start_of(
    engine: Engine, spins: np.ndarray, rank: int | tuple[int, ...], recipe: Recipe
) -> tuple[TensorTrain | Tucker, int]:
    """A spectral start of the given rank from the mask, and the passes it took."""
    random = STRUCTURES[recipe.structure].random(spins.shape, rank, recipe.seed)
    with one_library_thread:
        data: ResidualPass = engine.residual_pass(spins, spins)
        return spectral_start(lambda f: data.contractions_of_data(f)[1], random), data.passes


def estimate(
    mask_pass: MaskPass, start: TensorTrain | Tucker, *, recipe: Recipe, start_passes: int = 0, keep_soft: bool = False
) -> Estimate:
    """The estimate by steps 2 to 4 from a start; `keep_soft` keeps the expected spins, for a held-out loss."""
    before = mask_pass.passes
    soft: SoftSpins | None = None
    choices: list[Choice] = []
    ridge = recipe.ridge_of(start)
    if isinstance(recipe.ridge, str):
        low, high = RIDGE_RANGE
        because = f"{RIDGE_PER_PARAMETER:g} times the parameters per entry, between {low} and {high}"
        choices.append(Choice("ridge", f"{ridge:.3g}", because, code="ridge_by_parameters", values={"ridge": ridge}))
    with one_library_thread:
        found = descend_in(mask_pass, start, recipe=recipe, ridge=ridge, soft=None)
        point, loss = _rescaled(mask_pass, found, ridge, None)
        history, stopped = found.history, found.stopped_because
        thins = recipe.thinning and mask_pass.train_share < 1 and mask_pass.model.coupling_kind == 1
        if thins:
            soft = mask_pass.soft_spins(train_frame(point))
            again = descend_in(mask_pass, found.point, recipe=recipe, ridge=ridge, soft=soft)
            refreshed, _ = _rescaled(mask_pass, again, ridge, soft)
            without = effective_training_size(mask_pass, point)
            with_correction = effective_training_size(mask_pass, refreshed)
            kept = with_correction >= MIN_KEPT_EFFECTIVE_SIZE * without
            because = (
                f"the effective sample size of the training weights is {without:.0f} without it and "
                f"{with_correction:.0f} with it" + ("" if kept else ", less than half")
            )
            taken, values = "kept" if kept else "dropped", {"effective_size_without": without}
            values["effective_size_with"] = with_correction
            choices.append(Choice("thinning correction", taken, because, code=f"thinning_{taken}", values=values))
            if kept:
                point = refreshed
                history, stopped = history + again.history, again.stopped_because
                loss = mask_pass.loss_and_contractions(train_frame(point))[0]
        if recipe.bound is not None:
            bounded = _bounded(point, recipe.bound)
            if bounded is not point:
                point, loss = bounded, mask_pass.loss_and_contractions(train_frame(bounded))[0]
    passes = mask_pass.passes - before + start_passes
    kept_soft = soft if keep_soft else None
    return Estimate(point, loss, passes, stopped, history, choices=tuple(choices), soft=kept_soft)


def effective_training_size(mask_pass: MaskPass, point: TensorTrain | Tucker) -> float:
    """Effective sample size of the weights exp(-eta) of the training entries."""
    return float(mask_pass.effective_size(train_frame(point).left))


def train_frame(point: TensorTrain | Tucker) -> Frame:
    """The point in the form that passes read: a tensor train in both gauges."""
    return point.frame().tt


def descend_in(
    mask_pass: MaskPass, start: TensorTrain | Tucker, *, recipe: Recipe, ridge: float, soft: SoftSpins | None
) -> Descent:
    """The Riemannian descent on the loss plus (ridge / 2) ||B||^2."""

    def objective(point: TensorTrain | Tucker) -> tuple[float, TangentVector[TensorTrain | Tucker]]:
        frame: TangentFrame[TensorTrain | Tucker] = point.frame()
        loss, contractions = mask_pass.loss_and_contractions(frame.tt, soft)
        gradient = frame.project(contractions)
        if ridge > 0:
            radial = frame.radial()  # the point itself: its norm needs no orthogonalisation
            loss += 0.5 * ridge * radial.norm() ** 2
            gradient = gradient + radial * ridge
        return loss, gradient

    return descend(objective, start, step=STEPS[recipe.step], stop=recipe.stopping())


def _rescaled(
    mask_pass: MaskPass, found: Descent, ridge: float, soft: SoftSpins | None
) -> tuple[TensorTrain | Tucker, float]:
    """B times the scalar that minimises the unpenalised loss, and the loss: two secant steps; without ridge B itself.

    The scalar is at most 2.2, twice the first trial. The limit matters where ranks are large for the tensor: the
    minimum (2.4 to 3.3 there) gives better coverage at a given rank, but a larger error of B, and the held-out
    likelihood then prefers smaller ranks, which gives worse coverage.
    """
    if ridge == 0:
        return found.point, found.value
    radial = found.gradient.frame.radial()
    square = ridge * radial.norm() ** 2
    slope = found.gradient.inner(radial) - square
    at, loss = 1.0, found.value - 0.5 * square
    trial = 1.1 if slope < 0 else 0.95
    for _ in range(2):
        frame: TangentFrame[TensorTrain | Tucker] = (found.point * trial).frame()
        loss, contractions = mask_pass.loss_and_contractions(frame.tt, soft)
        new_slope = frame.project(contractions).inner(frame.radial()) / trial
        last = trial
        if new_slope == slope:
            break
        trial = float(np.clip(trial - new_slope * (trial - at) / (new_slope - slope), 0.5 * trial, 2.0 * trial))
        at, slope = last, new_slope
    return found.point * at, loss


def _bounded(point: TensorTrain | Tucker, bound: float) -> TensorTrain | Tucker:
    """B multiplied so that no |B_i| exceeds the bound."""
    train = point if isinstance(point, TensorTrain) else point.to_tensor_train()
    step = max(1, BOUND_CHECK_ENTRIES // max(1, train.size // train.shape[0]))
    largest = max(
        float(np.abs(train.slab(a, min(a + step, train.shape[0]))).max()) for a in range(0, train.shape[0], step)
    )
    return point * (bound / largest) if largest > bound else point
