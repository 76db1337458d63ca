"""The paper's tables as data, typed from its LaTeX source.

(mean, standard deviation) over 30 repetitions, one B* each.
"""

from __future__ import annotations

__all__ = ["METHODS", "REPETITIONS", "SCORES", "SCORE_COLUMNS", "SELECTION", "TEC", "Number"]

Number = tuple[float, float]
REPETITIONS = 30

# tab:Model-Selection: (model, criterion, true rank) -> d -> mean rank chosen
_SELECTION_ROWS: dict[tuple[str, str, int], tuple[Number, Number, Number, Number]] = {
    ("bernoulli", "P-AIC", 3): ((3.0, 0), (3.0, 0), (3.0, 0), (3.0, 0)),
    ("bernoulli", "P-AIC", 5): ((5.0, 0), (5.0, 0), (5.0, 0), (5.0, 0)),
    ("bernoulli", "P-AIC", 7): ((6.2, 0.4), (7.0, 0), (7.0, 0), (7.0, 0)),
    ("bernoulli", "P-AIC", 9): ((6.0, 0.8), (8.8, 0.4), (9.0, 0), (9.0, 0)),
    ("bernoulli", "P-BIC", 3): ((2.0, 0), (2.0, 0), (3.0, 0), (3.0, 0)),
    ("bernoulli", "P-BIC", 5): ((2.0, 0), (2.1, 0.3), (4.0, 0), (5.0, 0)),
    ("bernoulli", "P-BIC", 7): ((2.0, 0), (2.0, 0), (2.0, 0), (2.3, 0.4)),
    ("bernoulli", "P-BIC", 9): ((2.0, 0), (2.0, 0), (2.0, 0), (2.0, 0)),
    ("ising", "P-AIC", 3): ((3.4, 2.0), (3.0, 0), (3.0, 0), (3.0, 0)),
    ("ising", "P-AIC", 5): ((7.7, 4.1), (5.0, 0), (5.0, 0), (5.0, 0)),
    ("ising", "P-AIC", 7): ((13.9, 0.2), (7.0, 0), (7.0, 0), (7.0, 0)),
    ("ising", "P-AIC", 9): ((13.9, 0.2), (9.0, 0), (9.0, 0), (9.0, 0)),
    ("ising", "P-BIC", 3): ((2.0, 0), (3.0, 0), (3.0, 0), (3.0, 0)),
    ("ising", "P-BIC", 5): ((2.0, 0), (4.0, 0), (5.0, 0), (5.0, 0)),
    ("ising", "P-BIC", 7): ((2.0, 0), (2.1, 0.2), (4.0, 0.2), (4.7, 0.4)),
    ("ising", "P-BIC", 9): ((2.0, 0), (2.0, 0), (2.0, 0), (3.9, 0.3)),
}
SELECTION: dict[tuple[str, str, int, int], Number] = {
    (model, criterion, rank, d): number
    for (model, criterion, rank), row in _SELECTION_ROWS.items()
    for d, number in zip((40, 60, 80, 100), row)
}

# tab:conformal_compare_method: (d, model, method) -> constant mis-coverage, adversarial mis-coverage, relative error
# (None: not given)
METHODS: dict[tuple[int, str, str], tuple[Number, Number, Number | None]] = {
    (40, "bernoulli", "unweighted"): ((0.463, 0.244), (11.1, 0.389), None),
    (40, "bernoulli", "oracle"): ((0.381, 0.205), (0.409, 0.232), None),
    (40, "bernoulli", "GCP"): ((0.373, 0.183), (1.66, 0.965), (0.522, 0.069)),
    (40, "bernoulli", "Tucker"): ((0.380, 0.219), (0.841, 0.431), (0.295, 0.008)),
    (40, "bernoulli", "RGrad"): ((0.377, 0.235), (0.773, 0.404), (0.345, 0.010)),
    (60, "bernoulli", "unweighted"): ((0.401, 0.165), (11.0, 0.241), None),
    (60, "bernoulli", "oracle"): ((0.202, 0.082), (0.207, 0.105), None),
    (60, "bernoulli", "GCP"): ((0.203, 0.092), (0.380, 0.298), (0.281, 0.036)),
    (60, "bernoulli", "Tucker"): ((0.199, 0.079), (0.842, 0.231), (0.244, 0.005)),
    (60, "bernoulli", "RGrad"): ((0.200, 0.078), (0.821, 0.226), (0.271, 0.004)),
    (40, "ising", "unweighted"): ((1.19, 0.298), (17.3, 0.528), None),
    (40, "ising", "oracle"): ((0.568, 0.278), (0.666, 0.331), None),
    (40, "ising", "GCP"): ((0.870, 0.597), (1.24, 0.840), (1.81, 0.621)),
    (40, "ising", "Tucker"): ((0.504, 0.241), (1.80, 0.653), (0.444, 0.010)),
    (40, "ising", "RGrad"): ((0.713, 0.377), (1.13, 1.21), (0.341, 0.304)),
    (60, "ising", "unweighted"): ((1.35, 0.243), (17.2, 0.310), None),
    (60, "ising", "oracle"): ((0.302, 0.136), (0.370, 0.242), None),
    (60, "ising", "GCP"): ((0.349, 0.181), (0.638, 0.506), (1.59, 1.16)),
    (60, "ising", "Tucker"): ((0.329, 0.216), (2.03, 0.368), (0.404, 0.007)),
    (60, "ising", "RGrad"): ((0.356, 0.154), (0.580, 0.339), (0.224, 0.003)),
}

# tab:ncs-compare: (noise, model, d) -> unweighted, oracle, RGrad, RGrad normalized, RGrad two-sided
SCORE_COLUMNS = ("unweighted", "oracle", "RGrad", "RGrad normalized", "RGrad two-sided")
SCORES: dict[tuple[str, str, int], tuple[Number, Number, Number, Number, Number]] = {
    ("constant", "bernoulli", 40): ((0.46, 0.24), (0.38, 0.21), (0.38, 0.23), (0.44, 0.25), (0.38, 0.23)),
    ("constant", "bernoulli", 60): ((0.40, 0.17), (0.20, 0.08), (0.20, 0.08), (0.21, 0.11), (0.20, 0.08)),
    ("constant", "bernoulli", 80): ((0.44, 0.10), (0.12, 0.06), (0.12, 0.06), (0.12, 0.06), (0.12, 0.06)),
    ("constant", "bernoulli", 100): ((0.37, 0.08), (0.09, 0.06), (0.09, 0.06), (0.09, 0.04), (0.09, 0.06)),
    ("constant", "ising", 40): ((1.19, 0.30), (0.57, 0.28), (0.71, 0.38), (0.82, 0.41), (0.71, 0.38)),
    ("constant", "ising", 60): ((1.35, 0.24), (0.30, 0.14), (0.36, 0.15), (0.36, 0.17), (0.36, 0.15)),
    ("constant", "ising", 80): ((1.40, 0.11), (0.22, 0.12), (0.21, 0.15), (0.23, 0.14), (0.21, 0.15)),
    ("constant", "ising", 100): ((1.26, 0.09), (0.12, 0.07), (0.12, 0.07), (0.16, 0.11), (0.12, 0.07)),
    ("adversarial", "bernoulli", 40): ((11.12, 0.39), (0.41, 0.23), (0.77, 0.40), (0.73, 0.46), (0.79, 0.41)),
    ("adversarial", "bernoulli", 60): ((11.05, 0.24), (0.21, 0.10), (0.82, 0.23), (0.72, 0.24), (0.83, 0.23)),
    ("adversarial", "bernoulli", 80): ((11.24, 0.14), (0.14, 0.07), (0.89, 0.15), (0.82, 0.16), (0.89, 0.15)),
    ("adversarial", "bernoulli", 100): ((10.81, 0.12), (0.10, 0.07), (0.81, 0.12), (0.74, 0.10), (0.81, 0.12)),
    ("adversarial", "ising", 40): ((17.31, 0.53), (0.67, 0.33), (1.13, 1.21), (1.17, 0.83), (1.06, 1.21)),
    ("adversarial", "ising", 60): ((17.23, 0.31), (0.37, 0.24), (0.58, 0.34), (0.51, 0.28), (0.59, 0.35)),
    ("adversarial", "ising", 80): ((17.61, 0.20), (0.25, 0.14), (0.50, 0.26), (0.43, 0.27), (0.51, 0.25)),
    ("adversarial", "ising", 100): ((17.08, 0.12), (0.17, 0.12), (0.53, 0.20), (0.49, 0.19), (0.53, 0.19)),
}

# tab:application-numerical-results, 15 days of September 2017: mis-coverage, coverage of 90 % and of 95 % intervals,
# all in percent
TEC: dict[str, tuple[Number, Number, Number]] = {
    "unweighted": ((42.1, 6.49), (46.3, 6.58), (52.3, 7.23)),
    "Bernoulli": ((23.1, 5.34), (64.6, 5.97), (76.8, 5.03)),
    "Ising": ((6.01, 2.45), (90.0, 6.06), (94.2, 3.74)),
}
