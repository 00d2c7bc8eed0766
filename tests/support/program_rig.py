"""Both ends of a queue of samples: libmpips_client on arrays of NumPy, and the worker's end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpips import _native
from mpips.cli.client import client_folder
from mpips.insitu.layout import DTYPES

OK, FULL, STALLED, INVALID, USAGE, REPLACED, SYSTEM = range(7)
_numbers = itertools.count()


@contextlib.contextmanager
def queue_name() -> Iterator[str]:
    """A name that no other test has; its queues are removed at the end."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    yield name
    for path in Path("/dev/shm").glob(f"mpips_queue.*.{name}.*"):
        path.unlink()


def queue_path(name: str) -> Path:
    """The file of the queue of producer 0."""
    return Path(f"/dev/shm/mpips_queue.{os.geteuid()}.{name}.0")


def serve(
    name: str,
    fields: Sequence[tuple[str, str, Sequence[int]]] = (("x", "float32", (3,)),),
    *,
    slots: int = 4,
    steer: int = 0,
    declaration: int = 7,
    check: bool = True,
    produced: int = 0,
    worker: int = 2,
    number: int = 0,
) -> Any:
    """The worker's end of the queue of producer `number`."""
    listed = [(field, 1 + DTYPES.index(dtype), list(shape)) for field, dtype, shape in fields]
    return _native.QueueServer(
        name, number, listed, slots, steer, declaration, check, produced, worker
    )


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

    def __init__(self, name: str | None, number: int = 0, timeout_s: float = 10.0) -> None:
        self._lib, self._handle = library(), c_void_p()
        text = None if name is None else name.encode()
        self._check(self._lib.mpips_open(byref(self._handle), text, number, timeout_s))

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

    def steer_into(self, values: np.ndarray) -> int:
        """Read as many values as a float32 array has; return the version."""
        version, to = c_int64(), values.ctypes.data_as(POINTER(c_float))
        self._check(self._lib.mpips_steer(self._handle, to, values.size, byref(version)))
        return version.value

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        self._check(self._lib.mpips_close(handle))

    def detach(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        self._check(self._lib.mpips_detach(handle))

    def _check(self, code: int) -> None:
        if code != OK:
            raise ProgramError(code, self._lib.mpips_message().decode())


@contextlib.contextmanager
def refused(code: int, text: str) -> Iterator[None]:
    """A call in the block must fail with a code and a sentence, a regular expression."""
    with pytest.raises(ProgramError, match=text) as caught:
        yield
    assert caught.value.code == code
