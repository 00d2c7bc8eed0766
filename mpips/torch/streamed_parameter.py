"""The parameters of a streamed model: torch asks them for their values whenever a function receives them.

torch calls `__torch_function__` of a parameter's class before any function, method or attribute of torch that
receives the parameter, alone or in a list; see "Extending torch" in torch's documentation. So it does not
matter which module uses a parameter: its own, one around it (torch.nn.MultiheadAttention reads the weight of
its out_proj), several, or a line of the script.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from mpips.torch.streamed_table import StreamedTable

# Attributes and methods that read no values.
_GETTERS = (
    "_backward_hooks",
    "_grad_fn",
    "_post_accumulate_grad_hooks",
    "_version",
    "device",
    "dtype",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_mps",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "is_sparse_csr",
    "is_xla",
    "is_xpu",
    "layout",
    "name",
    "names",
    "ndim",
    "output_nr",
    "requires_grad",
    "retains_grad",
    "shape",
)
_SETTERS = ("_backward_hooks", "_post_accumulate_grad_hooks", "requires_grad")
_METHODS = (
    "__len__",
    "dim",
    "element_size",
    "get_device",
    "is_complex",
    "is_floating_point",
    "is_signed",
    "ndimension",
    "nelement",
    "numel",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
    "size",
)
_GRADIENT = (torch.Tensor.grad.__get__, torch.Tensor.grad.__set__)  # type: ignore[union-attr]


def _without_values() -> Iterator[Any]:
    """Yield the functions that read no values, as `__torch_function__` receives them."""
    for name in _GETTERS:
        if hasattr(torch.Tensor, name):
            yield getattr(torch.Tensor, name).__get__
    for name in _SETTERS:
        yield getattr(torch.Tensor, name).__set__
    for name in _METHODS:
        yield getattr(torch.Tensor, name)
    yield from (torch.is_complex, torch.is_floating_point, torch.is_signed, torch.numel)


_WITHOUT_VALUES = frozenset(_without_values())


class StreamedParameter(torch.nn.Parameter):
    """A parameter whose values are in the worker's memory only while a function uses them.

    Copies and pickles are plain parameters with the values at that time.

    Attributes:
        _mpips_table: Its table.
        _mpips_stride: Of a parameter from the meta device: strides of its values.
    """

    _mpips_table: StreamedTable
    _mpips_stride: tuple[int, ...]

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with the values of all parameters that it receives."""
        kwargs = kwargs or {}
        if func in _WITHOUT_VALUES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _GRADIENT:
            args[0]._mpips_table.check_gradient()
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        used = list(_tables((args, kwargs)))
        function = partial(func, *args, **kwargs)
        for stream in {table.stream for table in used}:
            own = [table for table in used if table.stream is stream]
            function = partial(stream.call, own, function)
        return function()

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(torch.nn.Parameter(self.data, self.requires_grad))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        copied: torch.nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild: Callable[..., Any] = torch._utils._rebuild_parameter  # as torch.nn.Parameter does
        return rebuild, (self.data, self.requires_grad, OrderedDict())


def _tables(value: Any) -> Iterator[StreamedTable]:
    """Yield the tables of the streamed parameters in the arguments of a function."""
    if isinstance(value, StreamedParameter):
        yield value._mpips_table
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tables(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tables(one)
