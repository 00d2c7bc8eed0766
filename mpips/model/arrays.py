"""Conversion of users' arrays to float32, without a silent loss of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Float32 = NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)


def as_float32(what: str, array: Any, shape: tuple[int, ...]) -> Float32:
    """Return an array as C-contiguous float32 of this shape; the array itself if it is that already.

    Floats of other types are rounded to float32.

    Args:
        what: Name of the array in errors.
        array: An array, or anything that NumPy converts to one.
        shape: The expected shape.

    Raises:
        TypeError: The array contains no real numbers, or has a mask.
        ValueError: The shape differs, or float32 cannot represent a value: a whole number would be rounded,
            or a finite number would become infinite.
    """
    # Return early in the usual case, which is on the hot path.
    if type(array) is np.ndarray and array.dtype == _FLOAT32 and array.shape == shape:
        usual: Float32 = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return usual
    given = as_array(what, array, TypeError)
    if given.dtype == object and given.ndim == 0:
        raise TypeError(f"{what} is {_kind_of(array)}; expected an array of shape {shape}")
    # The name np.ma imports a module that takes 0.05 s.
    if type(given) is not np.ndarray and isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array; give the masked elements a value: array.filled(0)"
        )
    plain = np.asarray(given, order="C")
    result: Float32 = plain if plain.dtype == np.float32 else _converted(what, plain)
    if result.shape != shape:
        raise ValueError(f"{what} has shape {result.shape}, expected {shape}")
    return result


def as_array(what: str, given: Any, error: type[Exception]) -> NDArray[Any]:
    """Return a value as an array of NumPy; a subclass of ndarray is returned as it is.

    Args:
        what: Name of the array in errors.
        given: Anything that NumPy converts to an array.
        error: Class of the exception to raise.

    Raises:
        error: NumPy cannot convert the value, such as nested lists of unequal lengths or some tensors.
    """
    try:
        return np.asanyarray(given)
    except (ValueError, TypeError, RuntimeError) as failure:
        reason = str(failure).split("\n")[0]
        raise error(
            f"{what} cannot be read as an array: {reason}; convert it to a NumPy array first"
        ) from None


def described(given: Any) -> str:
    """Return dtype and shape of an array, or the type of any other value, as text for an error."""
    if not isinstance(given, np.ndarray | np.generic):
        return _kind_of(given)
    return f"{given.dtype} of shape {given.shape}"


def _kind_of(given: Any) -> str:
    name = type(given).__name__
    return "None" if given is None else f"a{'n' if name[0] in 'aeiouAEIO' else ''} {name}"


def check_out(out: Any, shape: tuple[int, ...], contiguous: bool) -> None:
    """Refuse an array that a pull cannot write its values to.

    Args:
        out: The array that the user gave.
        shape: The expected shape.
        contiguous: The array must be C-contiguous.

    Raises:
        ValueError: It is not a writable float32 array of this shape, or not C-contiguous although it must be.
    """
    # Return early in the usual case, which is on the hot path.
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
        # Name the first property that does not fit.
        kind = "C-contiguous float32" if contiguous else "float32"
        lack = described(out)
        if isinstance(out, np.ma.MaskedArray):
            lack = "a masked array"
        elif isinstance(out, np.ndarray) and out.dtype == np.float32 and out.shape == shape:
            lack = "a read-only one" if not out.flags.writeable else "one with gaps"
        raise ValueError(f"out must be a writable {kind} array of shape {shape}, not {lack}")


def _converted(what: str, given: NDArray[Any]) -> Float32:
    """Convert an array of another type than float32; raise TypeError or ValueError if a value is lost."""
    kind = given.dtype.kind
    # Accept types that libraries register, such as bfloat16, if float32 can represent all their values.
    if kind not in "fiub" and not np.can_cast(given.dtype, np.float32, "safe"):
        raise TypeError(f"{what} has dtype {given.dtype}; expected real numbers, best as float32")
    with np.errstate(over="ignore"):
        result: Float32 = given.astype(np.float32)
    if kind in "iu":
        lost, why = (
            _rounded(given, result),
            "which float32 cannot represent; use array.astype(np.float32) if rounding is meant",
        )
    elif kind == "f" and not _native.all_finite(result.reshape(-1), None):
        lost, why = (
            np.isinf(result) & np.isfinite(given),
            "which is beyond the range of float32; scale the values",
        )
    else:
        return result
    if lost.any():
        at = int(np.flatnonzero(lost)[0])
        raise ValueError(f"{what} contains {given.reshape(-1)[at]} at position {at}, {why}")
    return result


def _rounded(given: NDArray[Any], result: Float32) -> NDArray[np.bool_]:
    """Return where float32 differs from the given whole numbers, bool, of their shape."""
    if given.dtype.itemsize < 4:
        return np.zeros(given.shape, np.bool_)
    # A value that was rounded up beyond the greatest number of its type cannot be converted back.
    beyond = result >= np.float32(np.iinfo(given.dtype).max)
    back = np.where(beyond, np.float32(0), result).astype(given.dtype)
    differs: NDArray[np.bool_] = beyond | (back != given)
    return differs
