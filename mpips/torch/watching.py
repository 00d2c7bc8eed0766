"""Looks for changes of parameters that torch does not count: writes through `.data`, NumPy or C++.

The next pull would overwrite them. To compare all bits at each step would take a fifth of the time of push
and pull. So the first WHOLE pulls of a model are watched as a whole: scripts that clamp weights do so at each
step. Later each pull is watched in one of N_WINDOWS windows of the model's elements, one after the other. A
write to all parameters is found at once, one to a few elements that is repeated at each step within N_WINDOWS
steps. Two hashes of a window take 0.3 % of the time of push and pull, for a layer with 4 million elements.

Parameters on a device are watched at the first pulls and at every N_WINDOWS-th one, as a whole, since the
host waits for the device there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

WHOLE = 3
N_WINDOWS = 32


class Watched(Protocol):
    """A parameter that is watched."""

    @property
    def n_elements(self) -> int:
        """Number of its elements."""

    @property
    def is_watched_whole(self) -> bool:
        """True if it cannot be watched in windows."""

    def watch(self, start: int, stop: int) -> None:
        """Watch these elements from the next pull on, until the one after it."""


Part = tuple[
    Watched, int, int
]  # a parameter, and the first and last elements, the last one exclusive


class Watch:
    """The windows of a model's parameters."""

    def __init__(self, parameters: Sequence[Watched]) -> None:
        """Take the parameters."""
        self._parameters = parameters
        self._windows: list[list[Part]] | None = None
        self._n_pulls = 0
        self._watched: list[Part] = []

    def next(self) -> None:
        """Choose what is watched from the next pull on."""
        number, self._n_pulls = self._n_pulls, self._n_pulls + 1
        if self._windows is None:
            self._windows = _windows(self._parameters)
        for one, _, _ in self._watched:
            one.watch(0, 0)
        if number < WHOLE:
            self._watched = [(one, 0, one.n_elements) for one in self._parameters]
        else:
            self._watched = self._windows[number % N_WINDOWS]
        for one, start, stop in self._watched:
            one.watch(start, stop)


def _windows(parameters: Sequence[Watched]) -> list[list[Part]]:
    """Return the parts of each window. Parameters that are watched whole are in the first one."""
    found: list[list[Part]] = [[] for _ in range(N_WINDOWS)]
    found[0] += [(one, 0, one.n_elements) for one in parameters if one.is_watched_whole]
    divided = [one for one in parameters if not one.is_watched_whole]
    total, begin = sum(one.n_elements for one in divided), 0
    bounds = [total * i // N_WINDOWS for i in range(N_WINDOWS + 1)]
    for one in divided:
        for window, (first, last) in enumerate(pairwise(bounds)):
            start, stop = max(first - begin, 0), min(last - begin, one.n_elements)
            if start < stop:
                found[window].append((one, start, stop))
        begin += one.n_elements
    return found
