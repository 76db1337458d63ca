"""Propensity models: the probability that an entry is observed, given the other entries of the mask."""

from corten.propensity.additive import AdditivePropensity
from corten.propensity.coupling import Linear, Polynomial, Product, Sigmoid, Zero
from corten.propensity.estimation import Recipe
from corten.propensity.evidence import AutoPropensity
from corten.propensity.fitted import FittedPropensity, PropensityModel
from corten.propensity.ising import BernoulliPropensity, IsingPropensity, KnownPropensity, UniformPropensity
from corten.propensity.link import Logit, NoLink, Probit
from corten.propensity.neighborhood import Neighborhood

__all__ = [
    "AdditivePropensity", "AutoPropensity", "BernoulliPropensity", "FittedPropensity", "IsingPropensity",
    "KnownPropensity", "Linear", "Logit", "Neighborhood", "NoLink", "Polynomial", "Probit", "Product",
    "PropensityModel", "Recipe", "Sigmoid", "UniformPropensity", "Zero",
]  # fmt: skip
