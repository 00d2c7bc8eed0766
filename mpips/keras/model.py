"""A prepared model: the class that `prepare` gives a Keras model.

The model keeps its identity; its class becomes a subclass of its own class, with the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from mpips.errors import ConfigError
from mpips.keras.callbacks import First, Last
from mpips.keras.part import ModelTables
from mpips.torch.module import prepared_class


class PreparedModel(keras.Model):
    """Methods of a prepared model. Each that reads values first pulls them if a step has changed them."""

    _mpips_part: ModelTables
    _mpips_plain: type[Any]

    def compile(self, *arguments: Any, **named: Any) -> None:
        """As in Keras, before the first fit, evaluation or prediction.

        Raises:
            ConfigError: The job has started, or the servers cannot apply the optimizer.
        """
        super().compile(*arguments, **named)
        self._mpips_part.take_optimizer()

    def fit(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras: `batch_size` is that of all workers together; worker 0 prints.

        Collective over all ranks. Blocks.

        Raises:
            ConfigError: `callbacks` is a CallbackList.
        """
        bound = inspect.signature(super().fit).bind(*arguments, **named)
        given = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            raise ConfigError("fit: callbacks is a CallbackList: pass the callbacks in a list")
        own = keras.tree.flatten(given) if given else []
        part = self._mpips_part
        first = First(part, bound.arguments.get("initial_epoch", 0), own)
        bound.arguments["callbacks"] = [first, *own, Last(part)]
        if part.job.script.rank:
            bound.arguments["verbose"] = 0
        try:
            return super().fit(*bound.args, **bound.kwargs)
        finally:
            self._initial_epoch = None

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values: every worker evaluates all data. Worker 0 prints."""
        return super().evaluate(*arguments, **self._quietly(named))

    def predict(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values. Worker 0 prints."""
        return super().predict(*arguments, **self._quietly(named))

    def train_step(self, data: Any) -> Any:
        """Make the model's own training step with this worker's share of the batch."""
        return self._mpips_part.train(data, super().train_step)

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras; the loss of a training step is that of its report."""
        loss = super().compute_loss(*arguments, **named)
        self._mpips_part.note_loss(loss)
        return loss

    def test_step(self, data: Any) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.read()
        return super().test_step(data)

    def predict_step(self, data: Any) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.read()
        return super().predict_step(data)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.refresh_started()
        return super().__call__(*arguments, **named)

    def get_weights(self) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.refresh_started()
        return super().get_weights()

    def save(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values. The servers have the optimizer's moments, not the file."""
        self._mpips_part.refresh_started()
        with self._plain():
            return self.save(*arguments, **named)

    def save_weights(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.refresh_started()
        with self._plain():
            return self.save_weights(*arguments, **named)

    def export(self, *arguments: Any, **named: Any) -> Any:
        """As in Keras, with the current values."""
        self._mpips_part.refresh_started()
        with self._plain():
            return self.export(*arguments, **named)

    def _quietly(self, named: dict[str, Any]) -> dict[str, Any]:
        # A fit evaluates with its own list of callbacks, in which worker 0 has the progress bar.
        return {**named, "verbose": 0} if self._mpips_part.job.script.rank else named

    @contextmanager
    def _plain(self) -> Iterator[None]:
        """Give model and optimizer their own classes for a while, whose names files contain."""
        optimizer = self.optimizer if self.compiled else None
        prepared = [(one, type(one)) for one in (self, optimizer) if one is not None]
        for one, kind in prepared:
            one.__class__ = kind._mpips_plain
        try:
            yield
        finally:
            for one, kind in prepared:
                one.__class__ = kind


def make_prepared(model: Any, part: ModelTables) -> None:
    """Turn a model into a prepared one, in place."""
    plain = type(model)
    model.__class__ = prepared_class(plain, PreparedModel, _mpips_plain=plain)
    # Not by Keras, which would look for layers and variables in it.
    object.__setattr__(model, "_mpips_part", part)
