"""libmpips_client from Python: what a program in C calls, on arrays of NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any

import numpy as np

from mpips.cli.client import client_folder
from mpips.insitu.layout import DTYPES

OK, FULL, STALLED, INVALID, USAGE, REPLACED, SYSTEM = range(7)


def library() -> Any:
    """The library, with the signatures of mpips.h."""
    lib = ctypes.CDLL(str(client_folder() / "libmpips_client.so"))
    shape = POINTER(c_int64)
    lib.mpips_open.argtypes = [POINTER(c_void_p), c_char_p, c_int, c_double]
    lib.mpips_declare.argtypes = [c_void_p, c_char_p, c_int, c_int, shape, shape]
    lib.mpips_produced.argtypes = [c_void_p]
    lib.mpips_produced.restype = c_int64
    for name in ("mpips_push", "mpips_try_push"):
        getattr(lib, name).argtypes = [c_void_p, POINTER(c_void_p)]
    lib.mpips_steer.argtypes = [c_void_p, POINTER(c_float), c_int64, POINTER(c_int64)]
    for name in ("mpips_flush", "mpips_close", "mpips_detach"):
        getattr(lib, name).argtypes = [c_void_p]
    lib.mpips_message.restype = c_char_p
    return lib


class ProgramError(Exception):
    """A call of the library has failed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Program:
    """A producer as a program has it. It ends without `close` as if the program had been killed."""

    def __init__(self, name: str, number: int = 0, timeout_s: float = 10.0) -> None:
        self._lib, self._handle = library(), c_void_p()
        self._check(self._lib.mpips_open(byref(self._handle), name.encode(), number, timeout_s))

    def declare(
        self,
        field: str,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> None:
        """`strides`: in values."""
        sizes = (c_int64 * len(shape))(*shape)
        steps = None if strides is None else (c_int64 * len(strides))(*strides)
        kind = 1 + DTYPES.index(dtype)
        self._check(
            self._lib.mpips_declare(self._handle, field.encode(), kind, len(shape), sizes, steps)
        )

    def declare_like(self, **arrays: np.ndarray) -> None:
        """Declare fields with the strides of arrays."""
        for name, a in arrays.items():
            self.declare(name, a.dtype.name, a.shape, [s // a.itemsize for s in a.strides])

    @property
    def produced(self) -> int:
        return int(self._lib.mpips_produced(self._handle))

    def push(self, *arrays: np.ndarray, wait: bool = True) -> None:
        """Push views of arrays, from the address of their first value."""
        addresses = (c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
        call = self._lib.mpips_push if wait else self._lib.mpips_try_push
        self._check(call(self._handle, addresses))

    def flush(self) -> None:
        self._check(self._lib.mpips_flush(self._handle))

    def steer(self, n: int) -> tuple[int, list[float]]:
        """Return version and values; values that the library leaves alone are -1."""
        values, version = (c_float * n)(*[-1.0] * n), c_int64()
        self._check(self._lib.mpips_steer(self._handle, values, n, byref(version)))
        return version.value, list(values)

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        self._check(self._lib.mpips_close(handle))

    def detach(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        self._check(self._lib.mpips_detach(handle))

    def _check(self, code: int) -> None:
        if code != OK:
            raise ProgramError(code, self._lib.mpips_message().decode())
