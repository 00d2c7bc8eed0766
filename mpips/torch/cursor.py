"""Optimizers and schedulers of a torch script in the worker's cursor; see Worker.set_cursor."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

NOT_PLAIN: Any = object()  # of a value that a cursor cannot hold


def to_plain(value: Any) -> Any:
    """Return int, float, bool, str, None or a list of them; infinity and NaN become {"float": text}.

    Tensors and NumPy scalars are their numbers. NOT_PLAIN: a cursor cannot hold the value.
    """
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list | tuple):
        items = [to_plain(item) for item in value]
        return NOT_PLAIN if any(item is NOT_PLAIN for item in items) else items
    return NOT_PLAIN


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given, lists for tuples."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return float(value["float"]) if isinstance(value, Mapping) else value


class SchedulerState:
    """The place of an LRScheduler: the numbers of its state_dict. Everything else its constructor sets."""

    def __init__(self, scheduler: Any) -> None:
        """Take the scheduler."""
        self._scheduler = scheduler
        self._saved: dict[str, Any] | None = None  # in the newest cursor

    def position(self) -> dict[str, Any]:
        """Return the numbers, flags and lists of numbers of the state."""
        self._saved = _plain(self._scheduler.state_dict())
        return self._saved

    def resume(self, position: Mapping[str, Any]) -> None:
        """Load a state."""
        self._scheduler.load_state_dict(_merged(self._scheduler.state_dict(), position))

    def warn_if_late(self) -> None:
        """Warn if the scheduler was stepped after the clock of its optimizer's step had ended."""
        if self._saved is not None and _plain(self._scheduler.state_dict()) != self._saved:
            warnings.warn(
                "the values of the model were read between optimizer.step() and scheduler.step(): step the "
                "scheduler directly after the optimizer, or a restart is one scheduler step behind",
                stacklevel=5,
            )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state that a cursor can hold, including those of schedulers within it."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        plain = to_plain(value)
        if plain is not NOT_PLAIN:
            found[name] = plain
        elif isinstance(value, list | tuple) and all(isinstance(v, dict) for v in value):
            found[name] = [_plain(v) for v in value]
    return found


def _merged(state: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with the entries that `_plain` has saved."""
    merged = dict(state)
    for name, value in saved.items():
        old = state.get(name)
        if isinstance(value, list) and isinstance(old, list | tuple):
            inner = all(isinstance(v, dict) for v in old) and len(old) == len(value)
            merged[name] = (
                [_merged(a, b) for a, b in zip(old, value, strict=True)]
                if inner
                else from_plain(value)
            )
        else:
            merged[name] = from_plain(value)
    return merged
