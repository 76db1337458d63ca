"""The law of the missingness: how likely each entry was to be seen, given the others."""

from corten.propensity.additive import AdditivePropensity
from corten.propensity.coupling import Linear, Polynomial, Product, Sigmoid, Zero
from corten.propensity.estimation import Recipe
from corten.propensity.evidence import AutoPropensity
from corten.propensity.fitted import FittedPropensity
from corten.propensity.ising import BernoulliPropensity, IsingPropensity, KnownPropensity, UniformPropensity
from corten.propensity.link import Logit, NoLink, Probit
from corten.propensity.neighborhood import Neighborhood

__all__ = [
    "AdditivePropensity",
    "AutoPropensity",
    "BernoulliPropensity",
    "FittedPropensity",
    "IsingPropensity",
    "KnownPropensity",
    "Linear",
    "Logit",
    "Neighborhood",
    "NoLink",
    "Polynomial",
    "Probit",
    "Product",
    "Recipe",
    "Sigmoid",
    "UniformPropensity",
    "Zero",
]
