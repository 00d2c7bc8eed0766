"""Training loops of the script's own whose optimizer is not that of the prepared model.

Such an optimizer changes the values of this process alone, so each worker would train a model of its own, and
the job would never start. It shows as values that differ from those of the call before, with a backward pass
in between. A loop with `model.optimizer.apply` starts the job in its first step.
"""

from __future__ import annotations

from typing import Any

import torch

from mpips import _native
from mpips.errors import ConfigError
from mpips.keras.shares import add_to_hash


class LocalSteps:
    """Compares the values of a model between its calls, before the job starts."""

    def __init__(self, model: Any) -> None:
        """Take the model, which need not be built."""
        self._model = model
        self._digest: int | None = None  # of the trainable variables at the newest call
        self._had_backward = False  # since that call
        self._handles: list[Any] = []

    def look(self) -> None:
        """Compare the values with those of the call before. Not collective.

        Raises:
            ConfigError: They have changed behind a backward pass.
        """
        if not self._model.built or not torch.is_grad_enabled():
            return
        tensors = [variable._value for variable in self._model.trainable_variables]
        if not self._handles:
            self._handles = [
                tensor.register_post_accumulate_grad_hook(self._note)
                for tensor in tensors
                if tensor.requires_grad
            ]
        hashing = _native.Xxh3()
        add_to_hash(hashing, tensors)
        digest, before = hashing.digest(), self._digest
        if self._had_backward and before is not None and digest != before:
            raise ConfigError(
                f"the model {self._model.name!r} was changed by another optimizer than its own, so each "
                "worker would train alone: compile the model with its optimizer before mpips.keras.prepare, "
                "and let the loop call model.optimizer.apply(gradients, model.trainable_weights)"
            )
        self._digest, self._had_backward = digest, False

    def close(self) -> None:
        """Note no further backward passes."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _note(self, tensor: Any) -> None:
        self._had_backward = True
