"""Write arrays in the form of safetensors: a header of JSON, then the bytes of all arrays.

The file begins with the length of the header, 8 bytes, little-endian. The header has for each array its
dtype, shape, and first and last byte in what follows; texts about the whole file are under "__metadata__".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8"}
_BLOCK = 1 << 24  # elements that are written at once


def write_arrays(
    arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], file: IO[bytes]
) -> None:
    """Write arrays of float32, float64, int64, int32 or uint8 by name, and texts by name."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        flat = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, len(flat), _BLOCK):
            block = flat[start : start + _BLOCK]
            file.write(block.astype(block.dtype.newbyteorder("<"), copy=False).tobytes())
