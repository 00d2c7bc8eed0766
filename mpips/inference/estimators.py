"""A loaded model as a fitted estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from mpips.inference.content import Numbers
from mpips.inference.model import Model, load_model


class _LoadedEstimator(BaseEstimator):
    """The base of both estimators: it has the model, which scikit-learn does not train.

    `fit` changes nothing, and a clone is the estimator itself, as of sklearn.frozen.FrozenEstimator. A pickle
    has the path of the checkpoint, from which it is loaded again.
    """

    def __init__(self, model: Model) -> None:
        """Take a loaded model."""
        self.model = model

    @property
    def n_features_in_(self) -> int:
        """Number of features, or of columns."""
        return len(self.model.inputs) or self.model.info.n_features

    @property
    def feature_names_in_(self) -> Numbers:
        """Names of the columns, if the training data had some.

        Raises:
            AttributeError: It had none.
        """
        if not self.model.inputs:
            raise AttributeError("the training data had no named columns")
        return np.array(self.model.inputs, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        """Return True."""
        return True

    def __sklearn_clone__(self) -> _LoadedEstimator:
        """Return this estimator."""
        return self

    def __sklearn_tags__(self) -> Any:
        """Return the tags: X may be sparse, or have columns of text."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.model.info.kind == "sparse"
        tags.input_tags.string = bool(self.model.info.categorical)
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the path of the checkpoint."""
        return {"path": str(self.model.path.absolute())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model again."""
        self.model = load_model(state["path"])

    def fit(self, X: Any, y: Any = None, **options: Any) -> _LoadedEstimator:
        """Return this estimator, which is fitted."""
        return self

    def predict(self, X: Any) -> Numbers:
        """Return the predictions of samples in any form that `Model.predict` takes."""
        return self.model.predict(X)


class LoadedClassifier(ClassifierMixin, _LoadedEstimator):
    """A model that predicts classes."""

    @property
    def classes_(self) -> Numbers:
        """The labels, ascending; the names of several labels of a sample."""
        return self.model.classes

    def predict_proba(self, X: Any) -> Numbers:
        """Return the probability of each class, float32, shape (n, k), in the order of `classes_`."""
        return self.model.predict_proba(X)


class LoadedRegressor(RegressorMixin, _LoadedEstimator):
    """A model that predicts numbers."""


def estimator_of(model: Model) -> LoadedClassifier | LoadedRegressor:
    """Return a model as an estimator."""
    return (LoadedRegressor if model.info.wants == "targets" else LoadedClassifier)(model)
