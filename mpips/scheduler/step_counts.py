"""The numbers of steps that workers have made at the same places of their programs, and their rates.

Servers number the clocks of a worker by its steps. Where a clock is common to all workers (BSP), gradients of
a worker that has made fewer steps than the others are averaged with those of other batches from then on.

A worker sends hyperparameters when they change. Servers compare those that are sent in the same clock; where
one worker has changed them and the others have not, only this comparison finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mpips.errors import ConfigError
from mpips.mpi.messages import END_OF_SCRIPT
from mpips.terminal.screen import say

Value = TypeVar("Value", int, str)

_MOST_NAMED = 8  # workers that the message names for each number of steps


class StepCounts:
    """The numbers of steps, and their hyperparameters, at places that not all workers have passed."""

    def __init__(self, n_workers: int, warn: Callable[[str], None] | None = None) -> None:
        """Know no place yet.

        Args:
            n_workers: Number of workers.
            warn: Prints a warning; None: to stderr.
        """
        self._n_workers = n_workers
        self._warn = warn or _warn
        self._places: dict[str, dict[int, int]] = {}  # steps by worker
        self._rates: dict[
            str, dict[int, str]
        ] = {}  # hyperparameters by worker, where they are known

    def note(self, worker: int, place: str, steps: int, rates: str = "") -> None:
        """Store the steps of a worker at a place; warn of different numbers at the end of the script.

        The job has done its work there, so it saves what it has.

        Args:
            worker: The worker.
            place: The place.
            steps: Its steps so far.
            rates: Hyperparameters of the newest of them, as text; "": unknown.

        Raises:
            ConfigError: Another worker had another number, or other hyperparameters, at a place before the
                end. The message names both.
        """
        counts = self._places.setdefault(place, {})
        counts[worker] = steps
        if rates:
            self._rates.setdefault(place, {})[worker] = rates
        differs, is_last = len(set(counts.values())) > 1, place == END_OF_SCRIPT
        if differs and (not is_last or len(counts) == self._n_workers):
            text = (
                f"the workers have made different numbers of steps at {place}: {_described(counts)}; since "
                "then gradients of different batches have been averaged. Let all workers make equally many: "
                "for a batch that a worker skips it makes an empty step (torch: optimizer.zero_grad() and "
                "optimizer.step(); JAX: mpips.jax.step()), data of different lengths need the same number "
                "of batches; or use consistency='asp'"
            )
            if not is_last:
                raise ConfigError(text)
            self._warn(text)
        elif not differs:
            self._compare_rates(place, is_last)
        if len(counts) == self._n_workers:
            del self._places[place]
            self._rates.pop(place, None)

    def _compare_rates(self, place: str, is_last: bool) -> None:
        """Refuse different hyperparameters of workers that have made equally many steps, as `note` does."""
        rates = self._rates.get(place, {})
        if len(set(rates.values())) < 2 or (is_last and len(self._places[place]) < self._n_workers):
            return
        text = (
            f"the workers have trained with different hyperparameters up to {place}: {_described(rates)}; "
            "under BSP servers apply one of them to the mean of all gradients. Let all workers set the same: "
            "a rate that follows from a loss (ReduceLROnPlateau) needs a loss on the same data"
        )
        if not is_last:
            raise ConfigError(text)
        self._warn(text)


def _warn(sentence: str) -> None:
    say(f"mpips: warning: {sentence}")


def _described(values: dict[int, Value]) -> str:
    """Return the values with their workers, the greatest first."""
    found = []
    for value in sorted(set(values.values()), reverse=True):
        found.append(f"{names_of(w for w, one in values.items() if one == value)}: {value}")
    return "; ".join(found)


def names_of(workers: Iterable[int]) -> str:
    """Return "worker 3", or "workers 0, 1 and 7 more" for many."""
    found = sorted(workers)
    names = ", ".join(map(str, found[:_MOST_NAMED]))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"worker{'s' * (len(found) > 1)} {names}{more}"
