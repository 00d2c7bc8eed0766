"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_sample_weight

from mpips.sklearn.estimator import LayeredEstimator
from mpips.sklearn.settings import settings_of
from mpips.tasks.losses import squared_loss


class MpipsRegressor(RegressorMixin, LayeredEstimator):
    """Regressor that the parameter server trains: linear regression, or layers with ReLU.

    `fit` minimises (1 / 2n) sum_i w_i |y_i - prediction_i|^2 + alpha / 2 |W|^2 by steps on batches. y has one
    or more numbers for each sample. Features and targets are computed with in float32: scale both. All else,
    parameters included, is as in MpipsClassifier.

    Attributes:
        coef_: Weights of a linear model: float32, shape (d,), or (k, d) for k targets.
        intercept_: Biases of a linear model: float32, shape (1,) or (k,).
        coefs_: With hidden layers: weights of each layer, float32, shape (width before, width after).
        intercepts_: With hidden layers: biases of each layer.
        loss_curve_: Loss of each epoch with the penalty, as training went on.
        n_iter_: Number of epochs.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X was a data frame with names.
    """

    def __sklearn_tags__(self) -> Any:
        """Return the tags: several targets are accepted."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MpipsRegressor:
        """Train a new model. Collective over the workers of a script; blocks.

        Args:
            X: Samples, shape (n, d), an array, a data frame or a sparse matrix.
            y: Their targets, shape (n,) or (n, k).
            sample_weight: Weights of the samples, shape (n,), 0 or more; None: all are 1.

        Raises:
            ValueError: The data or a parameter is not accepted, or the loss is not finite.
            ConfigError: See MpipsClassifier.fit.
        """
        return self._fit(X, y, sample_weight, False)

    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
    ) -> MpipsRegressor:
        """Go over samples once, from the present model; see MpipsClassifier.partial_fit."""
        return self._fit(X, y, sample_weight, True)

    def _fit(self, x: Any, y: Any, sample_weight: Any, once: bool) -> MpipsRegressor:
        settings_of(self)
        is_first = not once or not hasattr(self, "n_iter_")
        x, y = self._validated(x, y, is_first, multi_output=True, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        with np.errstate(over="ignore"):
            targets = y.reshape(len(y), -1).astype(np.float32)
        if not np.isfinite(targets).all():
            raise ValueError("y has numbers beyond float32, in which mpips computes: scale y")
        n_outputs = targets.shape[1]
        if not is_first and n_outputs != self._layers()[1][-1].shape[0]:
            raise ValueError(
                f"y has {n_outputs} targets, the model has {self._layers()[1][-1].shape[0]}"
            )
        weights = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        self._train(x, targets, weights, n_outputs, squared_loss, once)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted targets, float64, shape (n,), or (n, k) for k targets."""
        outputs = self._outputs(X)
        return outputs.reshape(-1) if outputs.shape[1] == 1 else outputs

    def _coefficients(self, weight: Any) -> Any:
        """Return coef_: without an axis for the only target, as linear models of scikit-learn do."""
        found = super()._coefficients(weight)
        return found[0] if len(found) == 1 else found
