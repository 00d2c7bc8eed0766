"""Vocabularies: the names of entities, users, words, each with its key, in an array for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.words import whole
from mpips.errors import DataError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64: TypeAlias = npt.NDArray[np.int64]

VOCABULARY = "vocabulary/"  # first part of the paths of vocabularies in a checkpoint
_END = "\n"  # behind each name


class Vocabulary:
    """Distinct names; key i is the i-th name. Lookups take time independent of the number of names.

    Attributes:
        names: The names in the order of their keys.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Take distinct names in the order of their keys.

        Raises:
            DataError: A name is empty or contains a line break, which a line of text cannot hold.
        """
        self.names = tuple(names)
        self._keys = {name: key for key, name in enumerate(self.names)}
        self._by_number: dict[str, int] | None = None
        if "" in self._keys or any(_END in name for name in self.names):
            bad = next(name for name in self.names if not name or _END in name)
            raise DataError(
                f"name {bad!r}: must be text without line breaks, at least one character"
            )

    @classmethod
    def of(cls, names: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of all distinct names, sorted by their characters' code points."""
        return cls(sorted(set(names)))

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.names)

    def key(self, name: str) -> int:
        """Return the key of a name; -1 for an unknown one."""
        return self._keys.get(name, -1)

    def find(self, name: str) -> int:
        """Return the key of a name, which may have another form of a whole number, such as 7.0 for 7.

        -1 for an unknown one.
        """
        key = self._keys.get(name, -1)
        if key >= 0 or name[-1:] not in "0123456789.":
            return key
        if self._by_number is None:
            # Of several forms of a number, the first name in the order of the keys is meant.
            self._by_number = {}
            for own, other in enumerate(self.names):
                self._by_number.setdefault(whole(other), own)
        return self._by_number.get(whole(name), -1)

    def find_all(self, names: Iterable[str]) -> Int64:
        """Return the keys of names as `find` does, int64, shape (n,)."""
        return np.fromiter(map(self.find, names), np.int64)

    def keys(self, names: Iterable[str]) -> Int64:
        """Return the keys of names, int64, shape (n,); -1 for unknown ones."""
        return np.fromiter((self._keys.get(name, -1) for name in names), np.int64)

    def to_array(self) -> Bytes:
        """Return the names as UTF-8, each with a line break behind it, uint8, shape (n_bytes,)."""
        return np.frombuffer("".join(f"{name}{_END}" for name in self.names).encode(), np.uint8)

    @classmethod
    def from_array(cls, array: Bytes) -> Vocabulary:
        """Return the vocabulary that `to_array` wrote."""
        return cls(array.tobytes().decode().split(_END)[:-1])


def size_of(name: str, array: npt.NDArray[Any]) -> int:
    """Return the number of names in a vocabulary, or the length of another array; `name`: its path."""
    if name.startswith(VOCABULARY):
        return int(np.count_nonzero(array == ord(_END)))
    return len(array)
