"""Keys of n-grams: the last n tokens at each place of a sequence, hashed into the rows of an embedding table.

The i-th hash of an NgramHash, counted from 0 over (order, head) with the heads of an order side by side, maps
the tokens t_1 ... t_n, of which t_n is that of the place itself, in words of 64 bits that wrap:

    h_0 = mix(mix(seed + STEP) ^ (order * 2**32 + head) + STEP)
    h_k = mix((h_(k-1) ^ t_k) + STEP)         for k = 1 ... n
    key = i * rows + (h_n >> 1) mod rows

`mix` and `STEP` are finaliser and step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014). So each hash has rows of its own in one table, keys depend on the order of
the tokens, and n-grams that share a row under one head have different ones under the next one (Svenstrup et
al., "Hash Embeddings for Efficient Word Representations", NIPS 2017). Places before the beginning of a
sequence have the padding id. Keys are equal on all machines and in all later versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.accepted import is_count
from mpips.model.initializer import STEP, mix

Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

START = -(2**63)  # padding id where none is given: no tokenizer has it
MOST_KEYS = 2**63 - 1
MOST_ORDER = 64
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class NgramHash:
    """The hashes of a table of n-grams.

    Attributes:
        orders: Lengths of the n-grams, ascending, each 1 to 64.
        heads: Number of hashes of each order.
        rows: Number of rows of each hash.
        seed: From 0 to 2**64 - 1.
        pad_id: Token that fills sequences: places with it have no n-gram. It also stands before the first
            token of a sequence. None: every place has n-grams, and the id -2**63 stands there.
    """

    orders: Sequence[int]
    heads: int
    rows: int
    seed: int = 0
    pad_id: int | None = None

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        _check_orders(self.orders)
        object.__setattr__(self, "orders", tuple(int(n) for n in self.orders))
        for name, value, least in (("heads", self.heads, 1), ("rows", self.rows, 1)):
            if not is_count(value) or value < least:
                raise ConfigError(f"n-grams: {name} = {value!r}: must be a whole number, 1 or more")
            object.__setattr__(self, name, int(value))
        if self.n_hashes * self.rows > MOST_KEYS:
            raise ConfigError(
                f"n-grams: rows = {self.rows} with {self.n_hashes} hashes (orders times heads): must be at "
                f"most {MOST_KEYS // self.n_hashes}, since keys are numbers of 63 bits"
            )
        if not is_count(self.seed) or not 0 <= self.seed < 2**64:
            raise ConfigError(
                f"n-grams: seed = {self.seed!r}: must be a whole number from 0 to 2**64 - 1"
            )
        object.__setattr__(self, "seed", int(self.seed))
        if self.pad_id is None:
            return
        if not is_count(self.pad_id) or not _SMALLEST <= self.pad_id <= _LARGEST:
            raise ConfigError(f"n-grams: pad_id = {self.pad_id!r}: must be an int64 number or None")
        object.__setattr__(self, "pad_id", int(self.pad_id))

    @property
    def n_hashes(self) -> int:
        """Number of hashes: orders times heads."""
        return len(self.orders) * self.heads

    @property
    def padding(self) -> int:
        """Id of places before the beginning of a sequence, and of those that a mask leaves out."""
        return START if self.pad_id is None else self.pad_id

    def starts(self) -> NDArray[np.uint64]:
        """Return h_0 of each hash, uint64, shape (n_hashes,)."""
        tags = [n * 2**32 + head for n in self.orders for head in range(self.heads)]
        root = mix(np.array([self.seed], np.uint64) + STEP)
        return mix((root ^ np.array(tags, np.uint64)) + STEP)

    def present(self, tokens: Int64, mask: Flags | None) -> Flags | None:
        """Return which places have n-grams, bool, of the shape of `tokens`; None: all.

        Args:
            tokens: int64, any shape.
            mask: bool, of the same shape: False where there is no token; None: nowhere.
        """
        found = mask
        if self.pad_id is not None:
            is_token = tokens != self.pad_id
            found = is_token if found is None else found & is_token
        return None if found is None or found.all() else found

    def keys(self, tokens: Int64, present: Flags | None = None) -> Int64:
        """Return the key of each place and hash, int64, shape (..., T, n_hashes), 0 to n_hashes * rows - 1.

        Args:
            tokens: int64, any values, shape (..., T): sequences in the last dimension. No n-gram has tokens
                of two sequences.
            present: As of `present`; other places count as padding in the n-grams behind them, and their own
                keys mean nothing. None: all places.
        """
        length, longest = tokens.shape[-1], max(self.orders)
        before = np.full((*tokens.shape[:-1], longest - 1), self.padding, np.int64)
        own = tokens if present is None else np.where(present, tokens, np.int64(self.padding))
        padded = np.concatenate([before, own], axis=-1).view(np.uint64)
        keys = np.empty((*tokens.shape, self.n_hashes), np.int64)
        for i, start in enumerate(self.starts()):
            order = self.orders[i // self.heads]
            words = np.full(tokens.shape, start, np.uint64)
            for back in range(order - 1, -1, -1):
                first = longest - 1 - back
                words = mix((words ^ padded[..., first : first + length]) + STEP)
            words >>= np.uint64(1)
            words %= np.uint64(self.rows)
            np.add(words.view(np.int64), i * self.rows, out=keys[..., i])
        return keys


def _check_orders(orders: Sequence[Any]) -> None:
    """Raise ConfigError unless these are ascending lengths of n-grams."""
    is_list = isinstance(orders, list | tuple) and len(orders) > 0
    is_valid = is_list and all(is_count(n) and 1 <= n <= MOST_ORDER for n in orders)
    if not is_valid or any(a >= b for a, b in pairwise(orders)):
        raise ConfigError(
            f"n-grams: orders = {orders!r}: must be ascending whole numbers from 1 to {MOST_ORDER}, such as "
            "(2, 3)"
        )
