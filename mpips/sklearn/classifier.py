"""The classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from mpips.model.consistency import Consistency
from mpips.model.optimizer import Optimizer
from mpips.sklearn.estimator import LayeredEstimator
from mpips.sklearn.losses import binary_loss, class_loss
from mpips.sklearn.settings import settings_of
from mpips.tasks.losses import softmax


class MpipsClassifier(ClassifierMixin, LayeredEstimator):
    """Classifier that the parameter server trains: logistic or softmax regression, or layers with ReLU.

    `fit` minimises (1 / n) sum_i w_i loss_i + alpha / 2 |W|^2 by steps on batches, where loss is the logistic
    loss of two classes or the cross-entropy of more, w the weights of samples and W all weights without
    biases. X is an array or a sparse matrix, and is computed with in float32. Scale features as for
    sklearn.neural_network. Labels are numbers or text.

    Without `mpips.init` it trains in this process, without MPI. In a script that `mpips.init` has begun,
    `fit` and `partial_fit` are collective: all workers call them in the same order, with the same data and
    parameters, in the main thread. Each batch is divided among the workers, so `batch_size` is that of all
    workers together, and under BSP the steps are those of one process. Learned attributes have equal bits
    on all workers. Other methods are not collective.

    Args:
        hidden: Numbers of units of hidden layers with ReLU; (): a linear model.
        optimizer: "adam", "adagrad", "rmsprop", "sgd", "momentum", "nesterov", or a value such as
            mpips.Momentum(0.01), without weight decay.
        learning_rate: Rate of a named optimizer; None: 0.01, for adagrad and sgd 0.1.
        alpha: Factor of the penalty of squared weights.
        batch_size: Number of samples of a step, of all workers together.
        max_iter: Greatest number of epochs of `fit`.
        tol: `fit` ends when the loss of n_iter_no_change epochs in a row was not less by tol than the least
            one before; None: it makes max_iter epochs.
        n_iter_no_change: See tol.
        shuffle: Take the samples of each epoch in a new order.
        random_state: Seed of initial weights and orders: a number, or as elsewhere in scikit-learn in one
            process. None in a script that `mpips.init` has begun: the job's seed.
        consistency: "bsp", "ssp", "asp" or a value such as mpips.SSP(2). Under SSP and ASP the gradient of
            each worker is a step of its own. All fits of a script on several ranks have the same.
        class_weight: Factors of the weights of samples by their class, a dict; "balanced": n / (number of
            classes * samples of the class), for `fit` only; None: 1.

    Attributes:
        classes_: The labels, sorted.
        coef_: Weights of a linear model: float32, shape (1, d) for two classes, else (k, d).
        intercept_: Biases of a linear model: float32, shape (1,) or (k,).
        coefs_: With hidden layers: weights of each layer, float32, shape (width before, width after).
        intercepts_: With hidden layers: biases of each layer.
        loss_curve_: Loss of each epoch with the penalty, as training went on.
        n_iter_: Number of epochs.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X was a data frame with names.
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        hidden: tuple[int, ...] = (),
        *,
        optimizer: str | Optimizer = "adam",
        learning_rate: float | None = None,
        alpha: float = 1e-4,
        batch_size: int = 128,
        max_iter: int = 200,
        tol: float | None = 1e-4,
        n_iter_no_change: int = 10,
        shuffle: bool = True,
        random_state: Any = None,
        consistency: str | Consistency = "bsp",
        class_weight: Mapping[Any, float] | str | None = None,
    ) -> None:
        """Store the parameters; `fit` checks them."""
        super().__init__(
            hidden,
            optimizer=optimizer,
            learning_rate=learning_rate,
            alpha=alpha,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            shuffle=shuffle,
            random_state=random_state,
            consistency=consistency,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MpipsClassifier:
        """Train a new model. Collective over the workers of a script; blocks.

        Args:
            X: Samples, shape (n, d), an array, a data frame or a sparse matrix.
            y: Their labels, shape (n,).
            sample_weight: Weights of the samples, shape (n,), 0 or more; None: all are 1.

        Raises:
            ValueError: The data or a parameter is not accepted, or the loss is not finite.
            ConfigError: In a script on several ranks: the workers pass different arguments, or the
                consistency is not that of the first fit; or a launcher has started several ranks, and
                `mpips.init` has not been called.
        """
        x, y = self._validated(X, y, True)
        return self._fit(x, y, None, sample_weight, False)

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> MpipsClassifier:
        """Go over samples once, from the present model. Collective over the workers of a script; blocks.

        The state of the optimizer goes on from the call of `partial_fit` before, if nothing has changed the
        learned attributes since. In a script on several ranks the servers have it, and a copy of the
        estimator begins with a new one.

        Args:
            X: Samples, shape (n, d).
            y: Their labels, shape (n,).
            classes: All labels that any call will have; needed in the first call.
            sample_weight: Weights of the samples, shape (n,), 0 or more; None: all are 1.

        Raises:
            ValueError: As in `fit`; or y has a label that is not in `classes`.
            ConfigError: As in `fit`.
        """
        is_first = not hasattr(self, "classes_")
        if is_first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if classes is not None:
            classes = np.unique(np.asarray(classes))
            if not is_first and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    f"classes = {classes} are not those of the first call to partial_fit: {self.classes_}"
                )
        x, y = self._validated(X, y, is_first)
        return self._fit(x, y, self.classes_ if classes is None else classes, sample_weight, True)

    def _fit(self, x: Any, y: Any, classes: Any, sample_weight: Any, once: bool) -> MpipsClassifier:
        settings_of(self)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if classes is None:
            classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of two classes or more; the data has one class: "
                f"{classes.tolist()[0]!r}"
            )
        unknown = np.setdiff1d(y, classes)
        if len(unknown):
            raise ValueError(
                f"y has the label {unknown.tolist()[0]!r}, which is not in classes: {classes}"
            )
        weights = self._weights(x, y, sample_weight, once)
        labels = np.searchsorted(classes, y).astype(np.int64)
        self.classes_ = classes
        is_binary = len(classes) == 2
        loss = binary_loss if is_binary else class_loss
        self._train(x, labels, weights, 1 if is_binary else len(classes), loss, once)
        return self

    def _weights(self, x: Any, y: Any, sample_weight: Any, once: bool) -> NDArray[Any]:
        weights: NDArray[Any] = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        if self.class_weight is None:
            return weights
        if once and isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight = {self.class_weight!r} needs all samples: partial_fit takes a dict"
            )
        found: NDArray[Any] = weights * compute_sample_weight(self.class_weight, y)
        return found

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return log(p1 / p0) of two classes, shape (n,), or the logits of all classes, shape (n, k)."""
        outputs = self._outputs(X)
        return outputs.reshape(-1) if outputs.shape[1] == 1 else outputs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each sample, shape (n,)."""
        scores = self.decision_function(X)
        indices = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        found: NDArray[Any] = self.classes_[indices]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of the classes, in the order of `classes_`, float64, shape (n, k)."""
        outputs: Any = self._outputs(X)
        if outputs.shape[1] == 1:
            outputs = np.hstack([np.zeros_like(outputs), outputs])
        found: NDArray[Any] = softmax(outputs)
        return found

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithms of the probabilities of the classes, float64, shape (n, k)."""
        with np.errstate(divide="ignore"):
            found: NDArray[np.float64] = np.log(self.predict_proba(X))
        return found
