"""Keys of ids that are words or unsigned numbers, as readers of data files make them."""

from __future__ import annotations

import datetime
import reprlib
import uuid
from array import array
from collections.abc import Collection, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.columns import hash_key
from mpips.data.words import VALUES, text_of, word_of
from mpips.errors import DataError

Keys: TypeAlias = npt.NDArray[np.int64]

_BUFFERS = (memoryview, array, bytearray)  # sequences whose elements have the type of an array
_KINDS = "biufOSTU"  # of NumPy's dtypes: truth values, numbers, objects and text
_MOST_AXES = 32  # of nested sequences; sequences of characters contain themselves
# Types of ids beside text and int; the last three are in cells of Parquet.
_PLAIN = (bool, float, np.bool_, np.integer, np.floating, Decimal, datetime.date, uuid.UUID)


def ids(values: Any, column: str = "") -> Keys:
    """Return the keys of ids: words, or whole numbers such as uint64 ones beyond int64.

    An id has the key that its cell has in a categorical column of a data file: its word (`mpips.data.words`)
    is hashed together with the name of the column. So `7`, `7.0` and `"007"` are one id. Keys are 62 bits of
    BLAKE2b, equal on all machines and in all later versions: among a billion ids of a column a collision is
    improbable (about 1 in 10). Keys of different columns differ, so that columns may share a table. Not
    collective; local. Each distinct id takes about a microsecond.

    Args:
        values: One id; or an array or a sequence of ids, of any shape: text (str, or bytes in UTF-8), whole
            numbers, truth values, floats, or objects of Python for decimal numbers, dates and UUIDs. In a
            sequence each id has its own type: `[2**63 + 1, 0.5]` has a whole number and a float.
        column: Name of the column; "": none. Use the name in the file's header for keys of a model that was
            trained on the file.

    Returns:
        int64, of the shape of `values`, from 0 to 2^62 - 1; the caller's.

    Raises:
        DataError: A value is missing (empty, nan, None, "n/a", ...): a data file has no key for it.
        TypeError: A value is of another type, or text that has no form in UTF-8; `values` is a masked array,
            a set, a dict or an iterator, or lists of different lengths; or `column` is not a str.
    """
    if not isinstance(column, str):
        raise TypeError(f"ids: column is {column!r}: must be a str, the name of the column")
    _check_text(column)
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("ids are a masked array: pass the ids to use, values.compressed()")
    if _is_array(type(values)):
        dtypes: Any = getattr(values, "dtypes", None)
        if np.ndim(dtypes) == 1 and len({*dtypes}) > 1:
            raise TypeError("ids: the columns of a frame have different types: pass each by itself")
        return _of_array(np.asarray(values), column)
    if _is_sequence(type(values)):
        return _of_sequence(values, column)
    return np.array(_key(values, column), np.int64)


def _is_array(kind: type) -> bool:
    """Return True for arrays of any library, and for sequences with the elements of an array."""
    return hasattr(kind, "__array__") or issubclass(kind, _BUFFERS)


def _is_sequence(kind: type) -> bool:
    return issubclass(kind, Sequence) and not issubclass(kind, (str, bytes, *_BUFFERS))


def _of_array(values: npt.NDArray[Any], column: str) -> Keys:
    if values.dtype.kind not in _KINDS:
        raise TypeError(f"ids: an array of {values.dtype}: must be of text or real numbers")
    flat = values.reshape(-1)
    if values.dtype.kind in "iuf":
        distinct, places = np.unique(flat, return_inverse=True)
        # A float of Python has other digits than one of float32.
        found = distinct if values.dtype.kind == "f" else distinct.tolist()
        keys = np.array([_key(value, column) for value in found], np.int64)
        return keys[places.reshape(-1)].reshape(values.shape)
    return np.array([_key(value, column) for value in flat], np.int64).reshape(values.shape)


def _of_sequence(values: Sequence[Any], column: str) -> Keys:
    flat, shape = _flattened(values)
    types = {*map(type, flat)}
    # NumPy would make 2**63 + 1 beside 1 a float, True beside 2 a 1, and 1e6 beside text another word than
    # 1000000. So only numbers of one type become an array.
    if types in ({int}, {float}):
        numbers = np.asarray(flat)
        if numbers.dtype.kind in ("f" if types == {float} else "iu"):
            return _of_array(numbers, column).reshape(shape)
    if not any(_is_sequence(t) or (_is_array(t) and not issubclass(t, np.generic)) for t in types):
        return np.array([_key(value, column) for value in flat], np.int64).reshape(shape)
    parts = [ids(value, column) for value in flat]
    _check_equal({part.shape for part in parts})
    return np.stack(parts).reshape(*shape, *parts[0].shape)


def _flattened(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the elements in sequences of equal depth, in order, and the shape of the sequences."""
    flat = list(values)
    shape: tuple[int, ...] = (len(flat),)
    while flat and all(map(_is_sequence, {*map(type, flat)})):
        lengths = {*map(len, flat)}
        _check_equal({(n,) for n in lengths})
        if len(shape) == _MOST_AXES:
            raise TypeError(f"ids: sequences are nested in each other more than {_MOST_AXES} times")
        flat = list(chain.from_iterable(flat))
        shape = (*shape, *lengths)
    return flat, shape


def _check_equal(shapes: Collection[tuple[int, ...]]) -> None:
    """Raise TypeError if the parts of a sequence have different shapes."""
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise TypeError(
            f"ids: the parts of a sequence have different shapes, such as {first} and {second}: must be "
            "equal"
        )


def _key(value: Any, column: str) -> int:
    word = word_of(_text(value), VALUES)
    if not word:
        raise DataError(
            f"ids: the value {value!r} stands for a missing one, which has no key: leave it out"
        )
    _check_text(word)
    return hash_key(column, word)


def _check_text(text: str) -> None:
    """Raise TypeError for text that cannot be hashed."""
    # Most text is ASCII.
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TypeError(
            f"ids: {reprlib.repr(text)} has no form in UTF-8, because it has half of a surrogate pair: "
            "decode the text again with its encoding"
        ) from None


def _text(value: Any) -> str:
    """Return the text of one id; "" for a missing one."""
    # The text of a member of an enumeration is its name, not its value.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return int.__repr__(value)
        except ValueError:
            raise TypeError("ids: a whole number has more digits than Python converts") from None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise TypeError(
                f"ids: {reprlib.repr(value)} is not text in UTF-8: decode it first"
            ) from None
    if _is_array(type(value)) and not isinstance(value, np.generic) and np.ndim(value) == 0:
        return _text(np.asarray(value)[()])
    if value is None or isinstance(value, _PLAIN) or type(value).__name__ == "NAType":
        return text_of(value)
    hint = ", or pass an array or a list of ids" if hasattr(value, "__iter__") else ""
    raise TypeError(
        f"ids: {reprlib.repr(value)}, of type {type(value).__name__}, is not an id: must be text or a real "
        f"number{hint}"
    )
