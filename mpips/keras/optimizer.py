"""A prepared optimizer: still the model's Keras optimizer, whose updates the servers do.

Its class becomes a subclass of its own class, with the same name. It holds no moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import torch

from mpips.torch.module import prepared_class


class Applying(Protocol):
    """The part of a model that pushes gradients."""

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Push gradients: one step of the optimizer. Blocks only while a ring is full."""


class PreparedKerasOptimizer(keras.optimizers.Optimizer):
    """Methods of a prepared optimizer."""

    _mpips_part: Applying
    _mpips_plain: type[Any]

    def build(self, variables: Any) -> None:
        """Note the variables. The servers have the moments."""
        keras.optimizers.Optimizer.build(self, variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Push the gradients; the servers apply the rule. Not collective; blocks only while a ring is full.

        `clipnorm`, `clipvalue` and `global_clipnorm` bound the gradients of this worker, before the mean over
        all workers is taken.
        """
        if trainable_variables is not None and not self.built:
            self.build(list(trainable_variables))
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        found = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        with torch.no_grad():
            gradients = self._clip_gradients([g for g, _ in found])
            self._mpips_part.apply(gradients, [v for _, v in found])
            self._iterations.assign_add(1)


def make_stepping(optimizer: Any, part: Applying) -> None:
    """Turn an optimizer into a prepared one, in place."""
    plain = type(optimizer)
    optimizer.__class__ = prepared_class(plain, PreparedKerasOptimizer, _mpips_plain=plain)
    optimizer._mpips_part = part
