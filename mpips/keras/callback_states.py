"""Best values and counts of Keras' own callbacks, with which a restart continues.

A callback decides by what it has seen since its fit began: EarlyStopping by the best value and the epochs
without a better one, ModelCheckpoint by the best value that its file has. These numbers are part of the
cursor of each worker, as they are at the end of each clock. Callbacks of the script's own begin anew, and so
does an EarlyStopping that restores the best weights, which no cursor has.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from mpips.keras.values import array_of

_CONTINUED: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (keras.callbacks.EarlyStopping, ("best", "wait", "best_epoch", "stopped_epoch")),
    (keras.callbacks.ReduceLROnPlateau, ("best", "wait", "cooldown_counter")),
    (keras.callbacks.ModelCheckpoint, ("best",)),
)


def states_of(callbacks: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the numbers of each callback by its name; None for one that is not known yet."""
    return {
        name: [_plain(getattr(callback, attribute, None)) for attribute in attributes]
        for name, callback, attributes in _continued(callbacks)
    }


def set_states(callbacks: Sequence[Any], states: Mapping[str, Sequence[Any]]) -> None:
    """Set what `states_of` returned. Callbacks without an entry stay as they are.

    Warns of an EarlyStopping whose best weights are lost.
    """
    for name, callback, attributes in _continued(callbacks):
        known = states.get(name, ())
        if getattr(callback, "restore_best_weights", False) and known and known[0] is not None:
            warnings.warn(
                "EarlyStopping(restore_best_weights=True) begins anew after this restart: it counts and "
                "restores epochs from here on, since the best weights of before are lost; ModelCheckpoint("
                "save_best_only=True) on worker 0 continues with its best value and has them in its file",
                stacklevel=2,
            )
            continue
        for attribute, value in zip(attributes, known, strict=False):
            setattr(callback, attribute, value)


def _continued(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield name, callback and attributes of each callback that a restart continues."""
    numbers: dict[str, int] = {}
    for callback in callbacks:
        for kind, attributes in _CONTINUED:
            if isinstance(callback, kind):
                number = numbers[kind.__name__] = numbers.get(kind.__name__, 0) + 1
                yield f"{kind.__name__} {number}", callback, attributes


def _plain(value: Any) -> float | int | None:
    """Return a number for a cursor; None for another value, and for one that is not finite."""
    if value is None or isinstance(value, int):
        return value
    number = float(array_of(value))
    return number if math.isfinite(number) else None
