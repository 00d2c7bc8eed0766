"""Keys that a program passes: whole numbers in one dimension, as int64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.model.arrays import as_array, described

Int64 = NDArray[np.int64]
_INT64 = np.dtype(np.int64)


def as_keys(keys: Any) -> Int64:
    """Return keys as a contiguous int64 array of one dimension; the array itself if it is one.

    Raises:
        TypeError: They are a masked array.
        ValueError: They are not whole numbers in one dimension, or are beyond int64.
    """
    # Return the usual case without a conversion.
    if type(keys) is np.ndarray and keys.dtype == _INT64 and keys.ndim == 1:
        usual: Int64 = keys if keys.flags.c_contiguous else np.ascontiguousarray(keys)
        return usual
    array = as_array("keys", keys, ValueError)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("keys are a masked array: pass the keys to use, keys.compressed()")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        what = keys if array.dtype == object and array.ndim == 0 else array
        raise ValueError(f"keys must be whole numbers in one dimension, not {described(what)}")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise ValueError("keys above 2^63-1 do not fit into int64")
    return np.ascontiguousarray(array, dtype=np.int64)
