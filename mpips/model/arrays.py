"""Arrays of users as float32: converted where no value is lost, refused where one would be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Float32 = NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)


def as_float32(what: str, array: Any, shape: tuple[int, ...]) -> Float32:
    """Return the array as contiguous float32 of this shape, without a copy where it is that already.

    Other floats are rounded to float32.

    Args:
        what: Names the array in errors.
        array: Anything that NumPy makes an array of.
        shape: Expected.

    Raises:
        TypeError: It holds no real numbers, or has a mask.
        ValueError: Wrong shape, or a value that float32 cannot hold: a whole number that would be rounded,
            or a finite number that would become infinite.
    """
    # The usual case, at no cost.
    if type(array) is np.ndarray and array.dtype == _FLOAT32 and array.shape == shape:
        usual: Float32 = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return usual
    given = as_array(what, array, TypeError)
    if given.dtype == object and given.ndim == 0:
        raise TypeError(f"{what} is {_kind_of(array)}; expected an array of shape {shape}")
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array; give what is masked a value: array.filled(0)")
    plain = np.asarray(given, order="C")
    result: Float32 = plain if plain.dtype == np.float32 else _converted(what, plain)
    if result.shape != shape:
        raise ValueError(f"{what} has shape {result.shape}, expected {shape}")
    return result


def as_array(what: str, given: Any, error: type[Exception]) -> NDArray[Any]:
    """Return the array that NumPy makes of what is given, subclasses as they are.

    Raises:
        error: NumPy makes none of it: nested lists of unequal lengths, a tensor that refuses.
    """
    try:
        return np.asanyarray(given)
    except (ValueError, TypeError, RuntimeError) as failure:
        reason = str(failure).split("\n")[0]
        raise error(f"{what} cannot be read as an array: {reason}") from None


def described(given: Any) -> str:
    """Return what is given, in words for an error: its type and shape, or that it is no array."""
    if not isinstance(given, np.ndarray | np.generic):
        return _kind_of(given)
    return f"{given.dtype} of shape {given.shape}"


def _kind_of(given: Any) -> str:
    name = type(given).__name__
    return "None" if given is None else f"a{'n' if name[0] in 'aeiouAEIO' else ''} {name}"


def check_out(out: Any, shape: tuple[int, ...], contiguous: bool) -> None:
    """Refuse what values cannot be written to.

    Raises:
        ValueError: Not a writable float32 array of this shape, or not C-contiguous where that is needed.
    """
    # The usual case, at no cost.
    if (
        type(out) is np.ndarray
        and out.dtype == _FLOAT32
        and out.shape == shape
        and out.flags.carray
    ):
        return
    fits = (
        isinstance(out, np.ndarray)
        and not isinstance(out, np.ma.MaskedArray)
        and out.dtype == np.float32
        and out.shape == shape
        and out.flags.writeable
        and (out.flags.c_contiguous or not contiguous)
    )
    if not fits:
        kind = "C-contiguous float32" if contiguous else "float32"
        lack = described(out)
        if isinstance(out, np.ma.MaskedArray):
            lack = "a masked array"
        elif isinstance(out, np.ndarray) and out.dtype == np.float32 and out.shape == shape:
            lack = "a read-only one" if not out.flags.writeable else "one with gaps"
        raise ValueError(f"out must be a writable {kind} array of shape {shape}, not {lack}")


def _converted(what: str, given: NDArray[Any]) -> Float32:
    """An array of another type than float32 as float32."""
    kind = given.dtype.kind
    # Libraries register types of their own, such as bfloat16, which float32 can hold.
    if kind not in "fiub" and not np.can_cast(given.dtype, np.float32, "safe"):
        raise TypeError(f"{what} holds {given.dtype}; expected real numbers, best as float32")
    with np.errstate(over="ignore"):
        result: Float32 = given.astype(np.float32)
    if kind in "iu":
        lost, why = _rounded(given, result), "which float32 cannot hold; round it first"
    elif kind == "f" and not _native.all_finite(result.reshape(-1), None):
        lost, why = np.isinf(result) & np.isfinite(given), "which is beyond the range of float32"
    else:
        return result
    if lost.any():
        at = int(np.flatnonzero(lost)[0])
        raise ValueError(f"{what} holds {given.reshape(-1)[at]} at position {at}, {why}")
    return result


def _rounded(given: NDArray[Any], result: Float32) -> NDArray[np.bool_]:
    """Where float32 differs from the whole numbers that were given."""
    if given.dtype.itemsize < 4:
        return np.zeros(given.shape, np.bool_)
    # What was rounded up beyond the greatest number of the type cannot be converted back.
    beyond = result >= np.float32(np.iinfo(given.dtype).max)
    back = np.where(beyond, np.float32(0), result).astype(given.dtype)
    differs: NDArray[np.bool_] = beyond | (back != given)
    return differs
