"""The place of a learning rate scheduler in the cursor of a torch script."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mpips.torch.plain import NOT_PLAIN, from_plain, to_plain


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
                stacklevel=4,
            )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state that a cursor can hold; those of schedulers within it, too."""
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
