"""Tensors of low rank: points, tangent vectors, retraction and descent. Knows nothing of missing data."""

from corten.lowrank.cp import CP
from corten.lowrank.descent import Descent, Progress, Stop, descend, spectral_start
from corten.lowrank.line_search import Armijo, BarzilaiBorwein, FixedStep
from corten.lowrank.ranks import check_rank, check_tucker_rank, feasible_rank, feasible_tucker_rank
from corten.lowrank.tensor_train import Frame, Tangent, TensorTrain
from corten.lowrank.tucker import Tucker, TuckerFrame, TuckerTangent

__all__ = [
    "CP", "Armijo", "BarzilaiBorwein", "Descent", "FixedStep", "Frame", "Progress", "Stop", "Tangent",
    "TensorTrain", "Tucker", "TuckerFrame", "TuckerTangent", "check_rank", "check_tucker_rank", "descend",
    "feasible_rank", "feasible_tucker_rank", "spectral_start",
]  # fmt: skip
