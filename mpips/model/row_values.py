"""The values of rows: their type, and the rounding to it.

Rows of `row_dtype = "bf16"` have the upper 16 bits of each float32: its sign, its exponent and 7 bits of the
fraction. A server widens a row to float32, applies the optimizer, and rounds at random (stochastic rounding)
to one of the two nearest values, with probabilities whose mean is the float32 value. So updates that are
smaller than the distance of two such values (1/256 of the value) count on average, where rounding to the
nearest would lose them all (Gupta, Agrawal, Gopalakrishnan and Narayanan, "Deep Learning with Limited
Numerical Precision", ICML 2015). The random numbers are a function of the key and of the row's count of
updates: results have the same bits on any number of servers, and over restarts. Values that are set, initial
ones among them, are rounded to the nearest.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.python_rule import PythonRule

RowDtype: TypeAlias = Literal["float32", "bf16"]
ROW_DTYPES = get_args(RowDtype)


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite values to the nearest of bf16, ties to even, never to infinity; return their bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + np.uint32(0x7FFF) + ((magnitude >> 16) & 1)) >> 16
    codes = np.minimum(rounded, np.uint32(0x7F7F)) | ((bits >> 16) & np.uint32(0x8000))
    found: NDArray[np.uint16] = codes.astype(np.uint16)
    return found


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the values of bf16 numbers, float32, of the same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def check_row_dtype(name: str, row_dtype: str, rule: object) -> None:
    """Raise ConfigError if rows of a table cannot have a dtype, or its rule is not for rows of it.

    Args:
        name: Name of the table.
        row_dtype: The dtype.
        rule: Optimizer of the table, or its Python rule.
    """
    if row_dtype not in ROW_DTYPES:
        raise ConfigError(
            f"table {name!r}: row_dtype = {row_dtype!r}: must be one of {', '.join(ROW_DTYPES)}"
        )
    if row_dtype != "float32" and isinstance(rule, PythonRule):
        raise ConfigError(
            f"table {name!r}: row_dtype = 'bf16' with a PythonRule, which changes float32 values in "
            "place: use 'float32', or one of the built-in optimizers"
        )
