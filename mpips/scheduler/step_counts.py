"""The numbers of steps that workers have made at the same places of their programs.

Servers number the clocks of a worker by its steps. Where a clock is common to all workers (BSP), gradients of
a worker that has made fewer steps than the others are averaged with those of other batches from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mpips.errors import ConfigError
from mpips.mpi.messages import END_OF_SCRIPT
from mpips.terminal.screen import say

_MOST_NAMED = 8  # workers that the message names for each number of steps


class StepCounts:
    """The numbers of steps at places that not all workers have passed."""

    def __init__(self, n_workers: int, warn: Callable[[str], None] | None = None) -> None:
        """Know no place yet.

        Args:
            n_workers: Number of workers.
            warn: Prints a warning; None: to stderr.
        """
        self._n_workers = n_workers
        self._warn = warn or _warn
        self._places: dict[str, dict[int, int]] = {}  # steps by worker

    def note(self, worker: int, place: str, steps: int) -> None:
        """Store the steps of a worker at a place; warn of different numbers at the end of the script.

        The job has done its work there, so it saves what it has.

        Raises:
            ConfigError: Another worker had another number at a place before the end. The message names both.
        """
        counts = self._places.setdefault(place, {})
        counts[worker] = steps
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
        if len(counts) == self._n_workers:
            del self._places[place]


def _warn(sentence: str) -> None:
    say(f"mpips: warning: {sentence}")


def _described(counts: dict[int, int]) -> str:
    """Return the numbers of steps with their workers, the most steps first."""
    found = []
    for steps in sorted(set(counts.values()), reverse=True):
        found.append(f"{names_of(w for w, n in counts.items() if n == steps)}: {steps}")
    return "; ".join(found)


def names_of(workers: Iterable[int]) -> str:
    """Return "worker 3", or "workers 0, 1 and 7 more" for many."""
    found = sorted(workers)
    names = ", ".join(map(str, found[:_MOST_NAMED]))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"worker{'s' * (len(found) > 1)} {names}{more}"
