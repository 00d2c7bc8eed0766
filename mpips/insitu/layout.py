"""A sample as a row of float32 values, and back.

A row begins with five values: the number of the sample, from 1 and in two parts; its producer; and its
ordinal among the samples of its kind, for training or held out, in two parts. The fields follow. float32 is
stored as it is. Values of other types are stored as whole numbers of 16 bits, which float32 holds exactly,
since not each pattern of 32 bits survives as a float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.kernels import all_finite, copy_finite

Float32 = NDArray[np.float32]
# A shape, of float32 values; or a shape and the name of a type.
FieldSpec: TypeAlias = tuple[int, ...] | tuple[tuple[int, ...], str]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("float32", "float64", *_INTEGERS, "bool")
HEAD = 5  # values before the fields
PART = 1 << 24  # whole numbers below it are exact in float32


def split(number: int) -> tuple[int, int]:
    """Return a whole number below 2**48 in two parts that are exact in float32."""
    return number % PART, number // PART


def joined(parts: Float32) -> NDArray[np.int64]:
    """Return the numbers whose parts are the last axis, float32, shape (..., 2)."""
    low_high = parts.astype(np.int64)
    numbers: NDArray[np.int64] = low_high[..., 0] + low_high[..., 1] * PART
    return numbers


class SampleField:
    """One array of a sample.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: Its type.
        size: float32 values that it takes in a row.
    """

    def __init__(self, table: str, name: object, spec: object) -> None:
        """Check the declaration of a field.

        Raises:
            ConfigError: Names the table, the field and what is accepted.
        """
        where = f"table {table!r}: field {name!r}"
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{where}: the name of a field must be a text")
        shape, dtype = spec, "float32"
        if isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], tuple):
            shape, dtype = spec
        if not isinstance(shape, tuple) or not all(_is_size(n) for n in shape):
            raise ConfigError(
                f"{where} = {spec!r}: must be a shape such as (64, 64), or () for one number, or a shape and "
                "a type such as ((64, 64), 'float64')"
            )
        if dtype not in DTYPES:
            raise ConfigError(f"{where}: type {dtype!r}: must be one of {', '.join(DTYPES)}")
        self.name, self.shape, self.dtype = name, tuple(map(int, shape)), np.dtype(dtype)
        self.count = math.prod(self.shape)
        n_bytes = self.count * self.dtype.itemsize
        self.size = self.count if self.dtype == np.float32 else (n_bytes + 1) // 2

    def is_finite(self, array: NDArray[Any]) -> bool:
        """Return False if an array of this field's type contains NaN or infinity."""
        if self.dtype == np.float32 and array.flags.c_contiguous:
            return all_finite(array.reshape(-1))
        return self.dtype.kind != "f" or bool(np.isfinite(array).all())

    def encode(self, array: NDArray[Any], out: Float32) -> bool:
        """Write an array of this field's shape and type into its part of a row.

        Returns:
            False if it contains NaN or infinity; the row is then not to be used.
        """
        if self.dtype == np.float32:
            if array.flags.c_contiguous:
                return copy_finite(out, array.reshape(-1))  # in one pass
            out.reshape(self.shape)[...] = array
            return all_finite(out)
        if not self.is_finite(array):
            return False
        words = np.zeros(self.size, np.uint16)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        words.view(np.uint8)[: len(raw)] = raw
        out[:] = words
        return True

    def decode(self, part: Float32) -> NDArray[Any]:
        """Return the arrays of rows, shape (n, *shape). `part`: float32, shape (n, size)."""
        n = len(part)
        if self.dtype == np.float32:
            return np.ascontiguousarray(part).reshape(n, *self.shape)
        raw = part.astype(np.uint16).view(np.uint8)[:, : self.count * self.dtype.itemsize]
        return np.ascontiguousarray(raw).view(self.dtype).reshape(n, *self.shape)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class DecodedRows(NamedTuple):
    """The content of rows; all arrays int64, shape (n,).

    Attributes:
        producers: The producers.
        numbers: Numbers of the samples, from 0; -1: the row holds no sample.
        ordinals: Ordinals of the samples among those of their kind, from 0.
        arrays: The arrays by field.
    """

    producers: NDArray[np.int64]
    numbers: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    arrays: dict[str, NDArray[Any]]


class SampleLayout:
    """All fields of a sample.

    Attributes:
        fields: The fields, in the order of their declaration.
        dim: float32 values of a row.
    """

    def __init__(self, table: str, specs: Mapping[str, FieldSpec]) -> None:
        """Check the declaration.

        Raises:
            ConfigError: There is no field, or one is not accepted.
        """
        if not isinstance(specs, Mapping) or not specs:
            raise ConfigError(
                f"table {table!r}: fields = {specs!r}: must name at least one array, such as "
                "{'x': (64, 64), 't': ()}"
            )
        self._table = table
        self.fields = [SampleField(table, name, spec) for name, spec in specs.items()]
        self.dim = HEAD + sum(field.size for field in self.fields)

    def checked(
        self, sample: Mapping[str, Any], keeps_float64: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample in the types of their fields; no copies where they have them.

        Args:
            sample: The arrays by field.
            keeps_float64: Leave arrays of float64 for fields of float32 alone: the caller converts them.

        Raises:
            TypeError: A field has values that its type cannot hold.
            ValueError: A field is missing, unknown, or of another shape, or a number is beyond its type.
        """
        names = [field.name for field in self.fields]
        if not isinstance(sample, Mapping) or {*sample} != {*names}:
            given = (
                ", ".join(map(str, sample)) if isinstance(sample, Mapping) else repr(type(sample))
            )
            raise ValueError(
                f"table {self._table!r}: a sample has the fields {', '.join(names)}; given: {given or 'none'}"
            )
        return {
            field.name: self._checked(field, sample[field.name], keeps_float64)
            for field in self.fields
        }

    def _checked(self, field: SampleField, value: Any, keeps_float64: bool) -> NDArray[Any]:
        array = np.asarray(value)
        where = f"table {self._table!r}: field {field.name!r}"
        if array.shape != field.shape:
            raise ValueError(f"{where} has shape {array.shape}, declared is {field.shape}")
        if array.dtype == field.dtype:
            return array
        if keeps_float64 and field.dtype == np.float32 and array.dtype == np.float64:
            return array
        # Integers are compared by value below: those of a list are int64.
        are_integers = array.dtype.kind in "iu" and field.dtype.kind in "iu"
        if not are_integers and not np.can_cast(array.dtype, field.dtype, "same_kind"):
            raise TypeError(f"{where} has values of {array.dtype}, declared is {field.dtype}")
        with np.errstate(over="ignore"):
            converted = array.astype(field.dtype)
        lost = (
            np.isfinite(array) & ~np.isfinite(converted)
            if field.dtype.kind == "f"
            else converted != array
        )
        if lost.any():
            first = array.reshape(-1)[int(np.argmax(lost))]
            raise ValueError(f"{where} contains {first}, which is beyond {field.dtype}")
        return converted

    def encode(
        self,
        producer: int,
        number: int,
        ordinal: int,
        arrays: Mapping[str, NDArray[Any]],
        row: Float32,
    ) -> str | None:
        """Write a checked sample into a row, float32, shape (1, dim). Number and ordinal count from 0.

        Returns:
            The name of the first field that contains NaN or infinity: the row is then not to be used.
        """
        row[0, :HEAD] = (*split(number + 1), producer, *split(ordinal))
        at = HEAD
        for field in self.fields:
            if not field.encode(arrays[field.name], row[0, at : at + field.size]):
                return field.name
            at += field.size
        return None

    def first_invalid(self, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Return the name of the first field of a checked sample that contains NaN or infinity."""
        for field in self.fields:
            if not field.is_finite(arrays[field.name]):
                return field.name
        return None

    def decode(self, rows: Float32) -> DecodedRows:
        """Return what rows, float32, shape (n, dim), contain. The arrays are the caller's own."""
        arrays, at = {}, HEAD
        for field in self.fields:
            arrays[field.name] = field.decode(rows[:, at : at + field.size])
            at += field.size
        return DecodedRows(
            rows[:, 2].astype(np.int64), joined(rows[:, :2]) - 1, joined(rows[:, 3:HEAD]), arrays
        )
