"""The parameters of a streamed model and their tables: values come into memory and leave it.

torch calls `__torch_function__` of a parameter's class before any function, method or attribute of torch that
receives the parameter, alone or in a list; see "Extending torch" in torch's documentation. So it does not
matter which module uses a parameter: its own, one around it (torch.nn.MultiheadAttention reads the weight of
its out_proj), several, or a line of the script.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.optimizer import Optimizer
from mpips.torch.parameters import ParameterTable
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpips.torch.streaming import Stream

Float32 = NDArray[np.float32]
Init = Callable[[torch.nn.Module], object]


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
        _mpips_stride: Strides of the values of a parameter from the meta device.
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


class Layer:
    """A module that has parameters of its own: those without the name of a submodule before them.

    A parameter that several modules share belongs to the first of them.

    Attributes:
        name: Path of the module in the model; "" for the model itself.
        module: The module.
        tables: Its tables.
    """

    def __init__(
        self, name: str, module: torch.nn.Module, init: Init, is_reset: bool = False
    ) -> None:
        """Take a module. `init` gives it values, if it has come from the meta device.

        `is_reset`: that is the module's reset_parameters.
        """
        self.name = name
        self.module = module
        self.tables: list[StreamedTable] = []
        self._init = init
        self._way = "reset_parameters()" if is_reset else "init"

    def initialise(self) -> None:
        """Give the parameters their initial values, in memory.

        A parameter that belongs to another layer, or has values, gets other memory meanwhile: what the first
        layer gave it counts, and random numbers are those of a model that was made in memory.

        Raises:
            ConfigError: `init` uses parameters of another layer, has made other parameters, or has left
                some without values.
        """
        parameters = dict(self.module._parameters)
        streamed = [p for p in parameters.values() if isinstance(p, StreamedParameter)]
        tables = [p._mpips_table for p in streamed]
        made = {table: table.values for table in tables if table.has_values}
        for table in tables:
            table.allocate()
            if table not in made:
                table.values.fill_(torch.nan)
        with torch.no_grad(), tables[0].stream.initialising(tables) if tables else nullcontext():
            self._init(self.module)
        if any(self.module._parameters.get(key) is not p for key, p in parameters.items()):
            raise ConfigError(
                f"init has replaced a parameter of the layer {self.name!r}: it must fill the parameters in "
                "place, as module.reset_parameters() does"
            )
        for table in tables:
            if table not in made and table.values.min().isnan():
                raise ConfigError(
                    f"the parameter {table.name!r} has come from the meta device, and NaN is left in it "
                    f"after {self._way}: pass an init that fills all parameters of the module itself"
                )
        for table in tables:
            if table in made:
                table.set_values(made[table])
            elif table.layer is not self:
                table.release()


def placeholder(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return what a parameter has instead of values: one NaN, with strides 0."""
    with torch.inference_mode(False):  # see Blocks.empty
        return torch.full((), torch.nan, dtype=dtype, device="cpu").expand(tuple(size))


class ParameterMemory(NamedTuple):
    """New memory of a parameter, and the array into which its values are pulled: this memory or a buffer."""

    values: torch.Tensor
    array: Float32


class StreamedTable(ParameterTable):
    """One parameter of a streamed model, and its table.

    Until the job starts, the parameter has the memory that the script gave it; from the meta device, none.
    Then its memory is a placeholder of one NaN, until `fetch` makes memory for the values.

    Attributes:
        layer: Its layer.
        stream: The parameters of the model.
        has_values: The parameter has its values in memory.
        is_sent: Its gradient has been pushed in the current clock.
    """

    def __init__(
        self,
        name: str,
        parameter: torch.nn.Parameter,
        rule: Optimizer | None,
        layer: Layer,
        stream: Stream,
    ) -> None:
        """Turn a parameter into a streamed one.

        Raises:
            ConfigError: The parameter cannot be a table.
        """
        super().__init__(name, parameter, rule)
        self.layer = layer
        self.stream = stream
        self.has_values = not isinstance(parameter, StreamedParameter)
        self.is_sent = False
        self._size = tuple(parameter.shape)
        if self.has_values:
            # A pull fills memory without gaps, with the strides of the parameter where it has none.
            self._stride = torch.empty_like(parameter, device="meta").stride()
            parameter.__class__ = StreamedParameter
        assert isinstance(parameter, StreamedParameter)
        if not self.has_values:
            self._stride = parameter._mpips_stride
        parameter._mpips_table = self
        self._generation = -1  # of the newest values; see Stream

    @property
    def group(self) -> str:
        """Name of the tables whose initial values are in memory at the same time."""
        return self.name.rpartition(".")[0]

    @property
    def gradient(self) -> torch.Tensor | None:
        """The parameter's gradient."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.parameter.grad

    def check_gradient(self) -> None:
        """Raise ConfigError if the gradient has been sent in this clock."""
        if self.is_sent:
            raise ConfigError(
                f"the gradient of {self.name!r} is used between backward, which has sent and freed it, and "
                "step(): with stream a script cannot clip, scale, drop or read gradients there; use a hook "
                "of the parameter (register_hook), or prepare the model without stream"
            )

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides of the parameter's values."""
        return self._stride

    def check_unchanged(self) -> None:
        """Raise ConfigError if the script has changed the values, or the memory, since the newest fetch."""
        with torch._C.DisableTorchFunctionSubclass():
            super().check_unchanged()
        if self.has_values and self._place and self.address != self._place:
            raise ConfigError(
                f"the memory of the parameter {self.name!r} was replaced after the job had started, as by "
                "model.double() or parameter.data = ...: convert and load a streamed model before the first "
                "forward pass"
            )

    @property
    def address(self) -> int:
        """Address of the parameter's memory."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.parameter.untyped_storage().data_ptr()

    @property
    def values(self) -> torch.Tensor:
        """The parameter's memory as a tensor outside autograd."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.parameter.data

    def allocate(self) -> None:
        """Give the parameter new memory, with any values."""
        self.set_values(self.stream.blocks.empty(self._size, self._stride, self.parameter.dtype))
        self.has_values = True

    def release(self) -> None:
        """Free the parameter's memory, as far as nothing else refers to it.

        Raises:
            ConfigError: The script has changed the values.
        """
        if self.has_values:
            self.check_unchanged()
        if (
            self.has_values and not self._place
        ):  # the script may have converted the model since prepare
            self._stride = torch.empty_like(self.values, device="meta").stride()
        self.has_values = False
        self.set_values(placeholder(self._size, self.parameter.dtype))

    def set_values(self, data: torch.Tensor) -> None:
        """Make `data` the memory of the parameter."""
        with torch._C.DisableTorchFunctionSubclass():
            self.parameter.data = data

    def open(self, worker: Worker) -> None:
        """Take the table's handle, and free the values that the script has made."""
        super().open(worker)
        self.release()

    def initial_values(self) -> Float32:
        """Return the initial values and free the parameter's memory; the array is all that refers to it."""
        if not self.has_values:
            self.layer.initialise()
        with torch._C.DisableTorchFunctionSubclass():
            values = super().initial_values()
        self.release()
        return values

    def fetch(self, generation: int) -> None:
        """Pull the values into new memory. Blocks like DenseHandle.pull.

        Raises:
            ConfigError: The gradient has been sent in this clock, so the table is closed.
        """
        if self.is_sent:
            raise ConfigError(
                f"the values of {self.name!r} are used between backward, which has sent its gradient, and "
                "step(), when they have left memory: make one backward pass for each step, and use values "
                "before it or after step()"
            )
        assert self._handle is not None
        memory = self.memory()
        self._handle.pull(memory.array)
        self.take(memory, generation)

    def ready_parts(self) -> list[tuple[int, int, Float32]] | None:
        """Return the values in the memory of servers; None if that is impossible or the worker would wait."""
        assert self._handle is not None
        return None if self.is_sent else self._handle.ready_views()

    def memory(self) -> ParameterMemory:
        """Return new memory for the values."""
        blocks, dtype = self.stream.blocks, self.parameter.dtype
        values = blocks.empty(self._size, self._stride, dtype)
        if dtype == torch.float32 and values.is_contiguous():
            return ParameterMemory(values, values.numpy().reshape(self._shape))
        stride = torch.empty(self._shape, device="meta").stride()
        return ParameterMemory(values, blocks.empty(self._shape, stride, torch.float32).numpy())

    def take(self, memory: ParameterMemory, generation: int) -> None:
        """Make memory with pulled values the parameter's.

        Raises:
            ConfigError: The script has changed the values through a view while they were out of memory.
        """
        self.check_unchanged()
        if memory.array.ctypes.data != memory.values.data_ptr():
            memory.values.copy_(torch.from_numpy(memory.array).view(self._size))
        self.set_values(memory.values)
        self.has_values = True
        self._place = self.address
        with torch._C.DisableTorchFunctionSubclass():
            # A graph that holds old values by a reference must not be used with the new ones.
            if generation != self._generation:
                torch.autograd.graph.increment_version(self.parameter)
            self._generation = generation
            self._version = self.parameter._version

    def push(self) -> None:
        """Push the gradient, if there is one, and free it; see ParameterTable.push."""
        if self.gradient is None or self.rule is None:
            return
        self.stream.end_copies()
        super().push()
        with torch._C.DisableTorchFunctionSubclass():
            self.parameter.grad = None
        self.is_sent = True
