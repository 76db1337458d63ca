"""Scores of calibration entries, their scales and weights, and the weighted quantiles that give intervals."""

from corten.conformal.calibrated import Calibrated, CalibratedScores
from corten.conformal.diagnostics import effective_sample_size, largest_share, weight_gap
from corten.conformal.quantile import NeighbourFactor, WeightedScores, weighted_cutoffs
from corten.conformal.scale import LeverageScale, Scale, UnitScale
from corten.conformal.scores import Absolute, Adaptive, Normalized, Score, Signed, Tails, as_score
from corten.conformal.weights import ExactIsingWeights, OddsWeights, UniformWeights, Weights

__all__ = [
    "Absolute", "Adaptive", "Calibrated", "CalibratedScores", "ExactIsingWeights", "LeverageScale",
    "NeighbourFactor", "Normalized", "OddsWeights", "Scale", "Score", "Signed", "Tails", "UniformWeights", "UnitScale",
    "WeightedScores", "Weights", "as_score", "effective_sample_size", "largest_share", "weight_gap", "weighted_cutoffs",
]  # fmt: skip
