"""Tensors of low rank: points, tangent vectors, retraction and descent. Knows nothing of missing data."""

from corten.lowrank.checks import SlopeCheck, check_gradient, check_retraction
from corten.lowrank.cp import CP
from corten.lowrank.descent import Descent, descend
from corten.lowrank.line_search import Armijo, BarzilaiBorwein, ConjugateGradient, FixedStep
from corten.lowrank.ranks import check_rank, check_tucker_rank, feasible_rank, feasible_tucker_rank
from corten.lowrank.stopping import (
    GradientNorm,
    MaxEvaluations,
    MaxIterations,
    Progress,
    RelativeChange,
    StoppingRule,
    ValueChange,
)
from corten.lowrank.tangent import Frame, Tangent
from corten.lowrank.tensor_train import TensorTrain
from corten.lowrank.tucker import Tucker
from corten.lowrank.tucker_tangent import TuckerFrame, TuckerTangent

__all__ = [
    "CP", "Armijo", "BarzilaiBorwein", "ConjugateGradient", "Descent", "FixedStep", "Frame", "GradientNorm",
    "MaxEvaluations", "MaxIterations", "Progress", "RelativeChange", "SlopeCheck", "StoppingRule", "Tangent",
    "TensorTrain", "Tucker", "TuckerFrame", "TuckerTangent", "ValueChange", "check_gradient", "check_rank",
    "check_retraction", "check_tucker_rank", "descend", "feasible_rank", "feasible_tucker_rank",
]  # fmt: skip
