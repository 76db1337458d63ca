"""Tensors of low rank: points, tangent vectors, retraction and descent. Knows nothing of missing data."""

from corten.lowrank.cp import CP
from corten.lowrank.descent import (
    Descent,
    GradientNorm,
    MaxEvaluations,
    MaxIterations,
    Progress,
    RelativeChange,
    StoppingRule,
    ValueChange,
    descend,
)
from corten.lowrank.line_search import Armijo, BarzilaiBorwein, FixedStep
from corten.lowrank.ranks import check_rank, check_tucker_rank, feasible_rank, feasible_tucker_rank
from corten.lowrank.tensor_train import Frame, Tangent, TensorTrain
from corten.lowrank.tucker import Tucker, TuckerFrame, TuckerTangent

__all__ = [
    "CP", "Armijo", "BarzilaiBorwein", "Descent", "FixedStep", "Frame", "GradientNorm", "MaxEvaluations",
    "MaxIterations", "Progress", "RelativeChange", "StoppingRule", "Tangent", "TensorTrain", "Tucker", "TuckerFrame",
    "TuckerTangent", "ValueChange", "check_rank", "check_tucker_rank", "descend", "feasible_rank",
    "feasible_tucker_rank",
]  # fmt: skip
