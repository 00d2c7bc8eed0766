"""Hooks for saved tensors of a streamed model: autograd refers to parameters by name, not by memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from mpips.errors import CapabilityError, ConfigError
from mpips.torch.streamed_parameter import StreamedParameter

if TYPE_CHECKING:
    from mpips.torch.streamed_table import StreamedTable
    from mpips.torch.streaming import Stream

# Returns the innermost hooks for saved tensors; torch 2.8 and newer have it.
_innermost: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def check_torch() -> None:
    """Raise CapabilityError for a torch whose hooks for saved tensors cannot be nested."""
    if _innermost is None:
        raise CapabilityError(
            f"prepare: stream needs PyTorch 2.8 or newer, this one is {torch.__version__}"
        )


def saving(stream: Stream) -> AbstractContextManager[Any]:
    """Return a block in which autograd saves no values of the parameters of `stream`."""
    others = _innermost(True)
    if others is not None and isinstance(others[0], _Packing) and others[0].stream is stream:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_Packing(stream, others), _unpack)


class _SavedValues:
    """A saved tensor in the memory of a parameter; call it to get the tensor."""

    __slots__ = ("_generation", "_offset", "_size", "_stride", "_table")

    def __init__(self, table: StreamedTable, tensor: torch.Tensor) -> None:
        self._table = table
        self._size = tensor.size()
        # A torch.autograd.Function saves the parameter itself, also while its memory is a placeholder.
        self._stride = tensor.stride() if table.has_values else table.stride
        self._offset = tensor.storage_offset()
        self._generation = table.stream.generation

    def __call__(self) -> torch.Tensor:
        table = self._table
        stream = table.stream
        if self._generation != stream.generation or not stream.is_current:
            raise ConfigError(
                f"backward needs the values of {table.name!r} from before the newest step, which the servers "
                "have replaced: compute the loss again after step()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            stream.need(table, in_backward=True)
            return table.values.as_strided(self._size, self._stride, self._offset)


class _SavedTensor:
    """Any other saved tensor; call it to get the tensor."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()  # a reference to an output of the function would be a cycle
        self._version = tensor._version

    def __call__(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: {self._tensor.type()} of shape {list(self._tensor.shape)} is at version "
                f"{self._tensor._version}; expected version {self._version} instead"
            )
        return self._tensor


class _SavedByOthers:
    """A tensor that the hooks around the stream's have saved; call it to get the tensor."""

    __slots__ = ("_packed", "_unpack")

    def __init__(self, packed: Any, unpack: Callable[[Any], torch.Tensor]) -> None:
        self._packed = packed
        self._unpack = unpack

    def __call__(self) -> torch.Tensor:
        return self._unpack(self._packed)


class _Packing:
    """The hook that saves a tensor.

    Attributes:
        stream: The parameters.
    """

    def __init__(self, stream: Stream, others: tuple[Any, Any] | None) -> None:
        """`others`: hooks for tensors that are no parameters; None: save them as they are."""
        self.stream = stream
        self._others = others

    def __call__(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        with torch._C.DisableTorchFunctionSubclass():
            own = tensor._mpips_table if isinstance(tensor, StreamedParameter) else None
            is_own = own is not None and own.stream is self.stream
            table = own if is_own else self.stream.table_at(tensor)
            if table is not None:
                return _SavedValues(table, tensor)
            if self._others is None:
                return _SavedTensor(tensor)
        pack, unpack = self._others
        return _SavedByOthers(pack(tensor), unpack)


def _unpack(saved: Callable[[], torch.Tensor]) -> torch.Tensor:
    return saved()
