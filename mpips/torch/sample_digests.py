"""Digests of samples, by which workers find that they read different streams, or batches that have changed.

A digest depends on the contents of a sample: numbers, text, bytes, arrays and tensors, also within lists,
dicts, sets, dataclasses and attributes of objects. It does not depend on memory addresses or the hash seed of
the process. An object without attributes, such as an open file, counts by its class. Entries of dicts that
begin with `__` are left out, but for `__key__`: webdataset puts paths there, which can differ between nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from mpips import _native

# Steps of a stream behind which the samples so far are compared.
COMPARED_STEPS = (1, 8)
_MOST_ITEMS = (
    512  # items of a list that count, besides its length; larger dicts and sets count by length
)
_MOST_LEVELS = 5  # of containers within each other that count
_PLAIN = (bool, int, float, complex, str, type(None))
_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, torch.Generator)


def digest_of_sample(sample: Any) -> int:
    """Return the XXH3-64 of the contents of a sample, or of a batch."""
    return _digest_of((sample,), 0)


class FirstSamples:
    """The samples of the first steps of a stream, those of all workers.

    Attributes:
        is_over: True when all digests have been made: more samples need not be added.
    """

    def __init__(self) -> None:
        """Know no sample yet."""
        self.is_over = False
        self._hashing = _native.Xxh3()
        self._n_steps = 0

    def add(self, sample: Any) -> None:
        """Add the next sample of the stream, in the state in which the stream yields it."""
        _add(self._hashing, sample, 0)

    def end_step(self, is_last: bool) -> tuple[int, int] | None:
        """Note the end of a step.

        Args:
            is_last: The stream has ended.

        Returns:
            Number of the step, 1 or the last one, and digest of all samples so far; None: after other steps.
        """
        self._n_steps += 1
        last = COMPARED_STEPS[-1]
        self.is_over = self._n_steps == last or is_last
        if not self.is_over and self._n_steps not in COMPARED_STEPS:
            return None
        # A stream that ends early is compared with those that go on.
        return (last if is_last else self._n_steps), self._hashing.digest()


def _add(hashing: _native.Xxh3, value: Any, level: int) -> None:
    """Add the contents of a value to a hash."""
    hashing.update(type(value).__name__.encode())
    if isinstance(value, _PLAIN):
        hashing.update(repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray | memoryview):
        hashing.update(str(len(value)).encode())
        hashing.update(bytes(value))
    elif isinstance(value, torch.Tensor):
        _add_tensor(hashing, value.detach())
    elif isinstance(value, np.ndarray | np.generic):
        _add_array(hashing, np.asarray(value), level)
    elif level < _MOST_LEVELS:
        _add_parts(hashing, value, level + 1)


def _add_parts(hashing: _native.Xxh3, value: Any, level: int) -> None:
    """Add the parts of a container, or the attributes of an object."""
    if isinstance(value, Mapping | Set | list | tuple | deque | range):
        hashing.update(str(len(value)).encode())
    if isinstance(value, Mapping | Set) and len(value) > _MOST_ITEMS:
        return
    if isinstance(value, Mapping):
        pairs = [(key, one) for key, one in value.items() if _counts(key)]
        _add_unordered(hashing, [_digest_of(pair, level) for pair in pairs])
    elif isinstance(value, Set):
        _add_unordered(hashing, [_digest_of((one,), level) for one in value])
    elif isinstance(value, list | tuple | deque | range):
        first = list(islice(value, _MOST_ITEMS))
        if {*map(type, first)} <= {*_PLAIN}:
            hashing.update(repr(first).encode("utf-8", "surrogatepass"))
            return
        for one in first:
            _add(hashing, one, level)
    elif not isinstance(value, _NAMED):
        _add_parts(hashing, _attributes(value), level)


def _counts(key: Any) -> bool:
    return not isinstance(key, str) or not key.startswith("__") or key == "__key__"


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, including those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = getattr(cls, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _digest_of(parts: tuple[Any, ...], level: int) -> int:
    hashing = _native.Xxh3()
    for one in parts:
        _add(hashing, one, level)
    return hashing.digest()


def _add_unordered(hashing: _native.Xxh3, digests: list[int]) -> None:
    """Add parts whose order can depend on the hash seed of the process."""
    hashing.update(repr(sorted(digests)).encode())


def _add_tensor(hashing: _native.Xxh3, tensor: torch.Tensor) -> None:
    hashing.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_quantized:
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        hashing.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _add_array(hashing: _native.Xxh3, array: np.ndarray[Any, Any], level: int) -> None:
    hashing.update(f"{array.dtype} {array.shape}".encode())
    if not array.dtype.hasobject:
        hashing.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    elif level < _MOST_LEVELS:
        _add_parts(hashing, array.reshape(-1)[:_MOST_ITEMS].tolist(), level + 1)
