"""The callbacks of `fit`, one before those of the script and one behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from mpips.keras.part import ModelTables
from mpips.keras.values import array_of


class First(keras.callbacks.Callback):
    """Finds the place of a restart, seeds an epoch, and puts the metrics of all workers into its logs."""

    def __init__(self, part: ModelTables, first_epoch: int, own: list[Any]) -> None:
        """Take the model's tables, the index of the first epoch of the fit, and the script's callbacks."""
        super().__init__()
        self._own = own
        self._part = part
        self._first_epoch = first_epoch
        self._results: dict[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Skip what was complete before a restart. Keras reads the attribute after this call."""
        params = self.params
        self._part.job.callbacks = self._own
        epoch = self._part.begin_fit(self._first_epoch, params["epochs"], params.get("steps"))
        if epoch is not None:
            self.model._initial_epoch = self.params["epochs"] if epoch < 0 else epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Seed the order of the data."""
        self._results = None
        self._part.begin_epoch(epoch)

    def on_test_begin(self, logs: Any = None) -> None:
        """Sum the metrics before the evaluation resets them."""
        self._collect()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the results of all workers into the logs, which the next callbacks read, and report them."""
        self._collect()
        self._part.refresh()  # callbacks read the values, and may set others when the fit ends
        assert self._results is not None
        if logs is not None:
            logs.update({name: x for name, x in self._results.items() if name in logs})
        self._part.report(epoch, {k: x for k, x in (logs or {}).items() if _is_finite(x)})

    def _collect(self) -> None:
        if self._results is None:
            self._part.collect()
            self._results = dict(_flat(self.model.get_metrics_result()))


class Last(keras.callbacks.Callback):
    """Ends the clock of a step when all callbacks have seen it."""

    def __init__(self, part: ModelTables) -> None:
        """Take the model's tables."""
        super().__init__()
        self._part = part

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rates and metrics of a restart."""
        self._part.continue_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the clock, with the rates that callbacks have set."""
        self._part.job.settle()

    def on_train_end(self, logs: Any = None) -> None:
        """Pull the final values."""
        self._part.end_fit()


def _flat(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the results of metrics as Keras logs them: numbers, and arrays of those that have several."""
    for name, result in results.items():
        if isinstance(result, Mapping):
            yield from _flat(result)
        else:
            values = array_of(result)
            yield name, float(values.item()) if values.size == 1 else values.copy()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
