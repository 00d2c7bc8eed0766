"""Keys of ids that are words or unsigned numbers, as readers of data files make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.data.columns import hash_key
from mpips.data.words import VALUES, text_of, word_of
from mpips.errors import DataError


def ids(values: Any, column: str = "") -> npt.NDArray[np.int64]:
    """Return the keys of ids: words, or whole numbers such as uint64 ones beyond int64.

    An id has the key that its cell has in a categorical column of a data file: its word (`mpips.data.words`)
    is hashed together with the name of the column. So `7`, `7.0` and `"007"` are one id. Keys are 62 bits of
    BLAKE2b, equal on all machines and in all later versions: among a billion ids of a column a collision is
    improbable (about 1 in 10). Keys of different columns differ, so that columns may share a table. Not
    collective; local. Each distinct id takes about a microsecond.

    Args:
        values: Array or sequence of any shape: text (str, or bytes in UTF-8), whole numbers, truth values or
            floats.
        column: Name of the column; "": none. Use the name in the file's header for keys of a model that was
            trained on the file.

    Returns:
        int64, of the shape of `values`, from 0 to 2^62 - 1; the caller's.

    Raises:
        DataError: A value is missing (empty, nan, None, "n/a", ...): a data file has no key for it.
        TypeError: A value is an array, or bytes that are not UTF-8; or `values` is a masked array.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("ids are a masked array: pass the ids to use, values.compressed()")
    array = np.asarray(values)
    # A list that mixes text and numbers would become text here, and 1e6 is then another word than 1000000.
    if array.dtype.kind in "US" and not isinstance(values, np.ndarray | str | bytes):
        array = np.asarray(values, object)
    flat = array.reshape(-1)
    if array.dtype.kind in "iuf":
        distinct, places = np.unique(flat, return_inverse=True)
        keys = np.array([_key(value, column) for value in distinct], np.int64)
        return keys[places.reshape(-1)].reshape(array.shape)
    found = [_key(value, column) for value in flat]
    return np.array(found, np.int64).reshape(array.shape)


def _key(value: Any, column: str) -> int:
    if isinstance(value, np.ndarray | list | tuple):
        raise TypeError(f"ids: {value!r} is no id: must be text or a number")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise TypeError(f"ids: {value!r} is no text in UTF-8: decode it first") from None
    word = word_of(text_of(value), VALUES)
    if not word:
        raise DataError(
            f"ids: the value {value!r} stands for a missing one, which has no key: leave it out"
        )
    return hash_key(column, word)
