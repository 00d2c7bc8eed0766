"""The common part of the estimators: parameters, training, learned attributes, outputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from mpips.model.consistency import Consistency
from mpips.model.optimizer import Optimizer
from mpips.sklearn.fit import FitArguments
from mpips.sklearn.job import FitJob, ServerRows, fit_job, run_alone
from mpips.sklearn.layout import ModelLayout
from mpips.sklearn.losses import Loss
from mpips.sklearn.settings import settings_of
from mpips.tasks.layers import forward

_LEARNED = ("coef_", "intercept_", "coefs_", "intercepts_")


class LayeredEstimator(BaseEstimator):
    """The common part of classifier and regressor: fully connected layers that mpips trains."""

    n_iter_: int
    loss_curve_: list[float]
    coef_: NDArray[Any]
    intercept_: NDArray[Any]
    coefs_: list[NDArray[Any]]
    intercepts_: list[NDArray[Any]]

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
    ) -> None:
        """Store the parameters; `fit` checks them."""
        self.hidden = hidden
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.shuffle = shuffle
        self.random_state = random_state
        self.consistency = consistency

    def __sklearn_tags__(self) -> Any:
        """Return the tags: X may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy. It has no rows on servers, which are those of this estimator."""
        state = dict(super().__getstate__())
        rows: ServerRows | None = state.get("_rows")
        if rows is not None and rows.job is not None:
            state["_rows"] = None
        return state

    def _validated(self, x: Any, y: Any, reset: bool, **options: Any) -> tuple[Any, Any]:
        """Return X as float32, C-contiguous or CSR, and y."""
        found: tuple[Any, Any] = validate_data(
            self, x, y, accept_sparse="csr", dtype=np.float32, order="C", reset=reset, **options
        )
        return found

    def _train(
        self, x: Any, targets: NDArray[Any], weights: Any, n_outputs: int, loss: Loss, once: bool
    ) -> None:
        """Train and set the learned attributes. Collective over workers; blocks.

        Args:
            x: float32, an array or a CSR matrix.
            targets: Targets of the loss.
            weights: Weights of the samples, shape (n,).
            n_outputs: Number of outputs.
            loss: The loss.
            once: True: go over the data once, from the present values, if there are any.
        """
        settings, job = settings_of(self), fit_job()
        layout = ModelLayout((x.shape[1], *settings.hidden, n_outputs))
        seed, is_new = self._seed(job), not once or not hasattr(self, "n_iter_")
        new_values = layout.initial(np.random.default_rng([seed, 0]))
        fit = FitArguments(
            layout=layout,
            base=new_values if is_new else self._present(layout),
            x=x,
            targets=targets,
            weights=np.ascontiguousarray(weights, np.float32),
            loss=loss,
            settings=settings,
            seed=seed,
            n_before=0 if is_new else self.n_iter_,
            n_epochs=1 if once else settings.max_iter,
        )
        rows: ServerRows | None = None if is_new else getattr(self, "_rows", None)
        if rows is not None and not rows.continues(fit, job):
            rows = None
        trained, rows = run_alone(fit, rows) if job is None else job.run(fit, rows)
        self._set_layers(*layout.views(trained.rows))
        # `fit` leaves no rows: the state of the optimizer is as large as the model, or twice that.
        self._rows = rows if once else None
        losses = trained.curve.losses
        self.loss_curve_ = losses if is_new else [*self.loss_curve_, *losses]
        self.n_iter_ = len(self.loss_curve_)
        if not once and self.tol is not None and not trained.curve.has_converged:
            warnings.warn(
                f"max_iter = {settings.max_iter} epochs were made before the loss converged",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _seed(self, job: FitJob | None) -> int:
        """Return the seed of this fit."""
        if job is not None and self.random_state is None:
            return job.next_seed()
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _present(self, layout: ModelLayout) -> NDArray[np.float32]:
        """Return the rows of the present model, for one more call of partial_fit."""
        weights, biases = self._layers()
        widths = (weights[0].shape[0], *(len(bias) for bias in biases))
        if widths != layout.widths:
            raise ValueError(
                f"partial_fit goes on with a model of other layers: it has the widths {widths}, and now they "
                f"are {layout.widths}; use fit, or a new estimator"
            )
        return layout.pack(weights, biases)

    def _set_layers(self, weights: list[Any], biases: list[Any]) -> None:
        """Set the learned attributes: coef_ and intercept_ of a linear model, else coefs_, intercepts_."""
        for name in _LEARNED:
            if hasattr(self, name):
                delattr(self, name)
        if len(weights) == 1:
            self.coef_ = self._coefficients(weights[0])
            self.intercept_ = biases[0].copy()
        else:
            self.coefs_ = [weight.copy() for weight in weights]
            self.intercepts_ = [bias.copy() for bias in biases]

    def _coefficients(self, weight: Any) -> Any:
        """Return coef_ of a linear model from its weights, shape (d, k)."""
        return np.ascontiguousarray(weight.T)

    def _layers(self) -> tuple[list[Any], list[Any]]:
        """Return weights and biases of all layers."""
        if hasattr(self, "coef_"):
            return [np.atleast_2d(self.coef_).T], [np.atleast_1d(self.intercept_)]
        return self.coefs_, self.intercepts_

    def _outputs(self, x: Any) -> NDArray[np.float64]:
        """Return the outputs, float64, shape (n, k). In float64, so that they depend on no other sample."""
        check_is_fitted(self)
        x = validate_data(self, x, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        weights, biases = self._layers()
        outputs: NDArray[np.float64] = forward(
            x, [w.astype(np.float64) for w in weights], [b.astype(np.float64) for b in biases]
        )[1]
        return outputs
