"""An imputer for scikit-learn: missing values of a matrix are filled, with prediction intervals, inside a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from corten.completer import ConformalCompleter
from corten.data.coverage import check_coverage
from corten.data.observed import ObservedTensor
from corten.options import CalibrationOption, CompletionOption, EngineOption, PropensityOption, ScoreOption
from corten.results.intervals import Intervals

if TYPE_CHECKING:
    from sklearn.utils import Tags

ROW, FEATURE = "row", "feature"


class ConformalImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Fill missing values (NaN) of a table of samples and features, with a prediction interval for each.

    Rows and features have no order. The default completion is of low rank: it uses what features have in common.

    Parameters
    ----------
    coverage : float, default 0.9
        Nominal coverage of the intervals, between 0 and 1.
    completion, propensity, calibration : str or object
        As for `corten.complete`.
    conformity_score : str or score, default "auto"
        ``score`` of `corten.complete`; scikit-learn keeps that name for a method.
    standardise : bool, default True
        Whether features get the same mean and spread before the fit. Use False if they have the same unit.
    seed : int, default 0
        Seed of every random choice. The same seed and data give the same bits.
    engine : str or int, default "auto"
        As for `corten.complete`.

    Attributes
    ----------
    result_ : Intervals
        Estimate and intervals of the training data.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of str
        Names of the features, if the training data have them.

    Notes
    -----
    New rows with missing values are completed together with the training rows, so `transform` takes about as long as
    `fit`, and the estimate of a row depends on the other new rows that are given with it.

    Examples
    --------
    >>> import numpy as np
    >>> from corten.sklearn import ConformalImputer
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 1)) * rng.normal(size=(1, 6)) + 0.1 * rng.normal(size=(40, 6))
    >>> x[rng.random(x.shape) < 0.2] = np.nan
    >>> imputer = ConformalImputer(coverage=0.8)
    >>> bool(np.isfinite(imputer.fit_transform(x)).all())
    True
    >>> lower, upper = imputer.intervals(x)
    """

    def __init__(
        self,
        coverage: float = 0.9,
        *,
        completion: CompletionOption = "auto",
        propensity: PropensityOption = "auto",
        calibration: CalibrationOption = "auto",
        conformity_score: ScoreOption = "auto",
        standardise: bool = True,
        seed: int = 0,
        engine: EngineOption = "auto",
    ) -> None:
        self.coverage = coverage
        self.completion = completion
        self.propensity = propensity
        self.calibration = calibration
        self.conformity_score = conformity_score
        self.standardise = standardise
        self.seed = seed
        self.engine = engine

    def fit(self, X: ArrayLike, y: object = None) -> ConformalImputer:
        """Complete the training data X, an array-like of shape (n_samples, n_features); returns the imputer itself."""
        self._rows = self._checked(X, reset=True)
        self.result_ = self._complete(self._rows)
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Fill the missing values of X, the training data or new rows with the same features."""
        return self._arrays(X, "estimate_array")[0]

    def intervals(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the missing values of X, the training data or new rows with the same features.

        Both are the value itself where it was present, and infinite where the calibration entries do not suffice.
        """
        lower, upper = self._arrays(X, "lower_array", "upper_array")
        return lower, upper

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _checked(self, X: ArrayLike, *, reset: bool) -> np.ndarray:
        floats = [np.float64, np.float32]
        return np.array(validate_data(self, X, reset=reset, dtype=floats, ensure_all_finite="allow-nan"), copy=True)

    def _arrays(self, X: ArrayLike, *names: str) -> list[np.ndarray]:
        """Arrays of the result for these rows, which are the training rows or new ones."""
        check_is_fitted(self)
        rows = self._checked(X, reset=False)
        if not np.isnan(rows).any():
            return [rows.copy() for _ in names]
        if np.array_equal(rows, self._rows, equal_nan=True):
            return [np.array(getattr(self.result_, name)) for name in names]
        result = self._complete(np.concatenate([self._rows.astype(rows.dtype, copy=False), rows]))
        return [np.array(getattr(result, name)[len(self._rows) :]) for name in names]

    def _complete(self, rows: np.ndarray) -> Intervals:
        check_coverage(self.coverage)
        completer = ConformalCompleter(
            completion=self.completion, propensity=self.propensity, calibration=self.calibration,
            score=self.conformity_score, seed=self.seed, engine=self.engine,
            transform=f"standardise:{FEATURE}" if self.standardise else None,
        )  # fmt: skip
        kinds: dict[str | int, str] = {ROW: "unordered", FEATURE: "unordered"}
        x = ObservedTensor.of(rows, axes=(ROW, FEATURE), axis_kinds=kinds)
        return completer.fit(x, coverage=self.coverage).intervals(self.coverage)
