"""The versions of pulled arrays, which give `base` of a push its meaning.

A handle notes each array that a pull has filled, by a weak reference to the owner of the memory, so that a
note keeps no memory alive. A push that names such an array as `base`, or a part or view of it, counts as
computed on the version that the array contains, however many pulls came after it. The address identifies the
array, so a copy is unknown: then the newest pull counts, as without `base`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Versions = Mapping[int, int]  # server -> version of its shard

_REMEMBERED = 64  # pulls of one table; older ones are forgotten


class _Note(NamedTuple):
    owner: weakref.ref[Any]
    start: int | None  # address of the array; None: that of its owner
    n_bytes: int
    versions: Versions


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _owner(array: Any) -> Any:
    """Return the array at the end of the chain of views; while it exists its memory is not reused."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class NotedPulls:
    """The newest pulls of one table. Not thread-safe."""

    def __init__(self) -> None:
        self._notes: deque[_Note] = deque(maxlen=_REMEMBERED)

    def note(self, array: Float32, versions: Versions) -> None:
        """Remember that the array contains these versions now."""
        whole = array.base is None
        owner = array if whole else _owner(array)
        start = None if whole else _address(array)
        self._notes.append(_Note(weakref.ref(owner), start, array.nbytes, versions))

    def find(self, base: object) -> Versions | None:
        """Return the versions in the memory of `base`; None if none of the last 64 pulls filled it."""
        if not isinstance(base, np.ndarray):
            return None
        address = _address(base)
        for note in reversed(self._notes):
            owner = note.owner()
            if owner is None:
                continue
            low = _address(owner) if note.start is None else note.start
            if low <= address < low + note.n_bytes:
                found: Versions = note.versions
                return found
        return None
