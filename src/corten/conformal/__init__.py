"""Scores of hidden entries, weights, and the cutoffs that turn them into intervals."""

from corten.conformal.quantile import NeighbourFactor, WeightedScores, weighted_cutoffs

__all__ = ["NeighbourFactor", "WeightedScores", "weighted_cutoffs"]
