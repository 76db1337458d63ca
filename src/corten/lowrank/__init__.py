"""Tensors of low rank: points, tangent vectors, retraction and descent. Knows nothing of missing data."""

from corten.lowrank.descent import Descent, descend
from corten.lowrank.line_search import Armijo, BarzilaiBorwein, ConjugateGradient, FixedStep
from corten.lowrank.ranks import check_rank, feasible_rank
from corten.lowrank.stopping import GradientNorm, MaxEvaluations, MaxIterations, RelativeChange, ValueChange
from corten.lowrank.tangent import Frame, Tangent
from corten.lowrank.tensor_train import TensorTrain

__all__ = [
    "Armijo",
    "BarzilaiBorwein",
    "ConjugateGradient",
    "Descent",
    "FixedStep",
    "Frame",
    "GradientNorm",
    "MaxEvaluations",
    "MaxIterations",
    "RelativeChange",
    "Tangent",
    "TensorTrain",
    "ValueChange",
    "check_rank",
    "descend",
    "feasible_rank",
]
