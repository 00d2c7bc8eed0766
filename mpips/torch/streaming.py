"""Models larger than a worker: at most k layers of a model have their parameters in the worker's memory.

A layer is a module that has parameters of its own (streamed_table.Layer). When a function of torch receives a
parameter (streamed_table.StreamedParameter), its values are pulled into new memory, which becomes the
parameter's. Before the pull the layers that were used longest ago leave: their parameters get a placeholder
of one NaN, and the memory is freed as soon as no tensor refers to it. So values in use stay valid, such as a
transposed weight. A function that receives parameters of more than k layers has all of them.

Autograd would refer to weights from forward to backward. So every function that receives parameters runs
under hooks for saved tensors (torch.autograd.graph.saved_tensors_hooks), and so does the whole forward pass
of the model, for functions that receive views of parameters. A saved tensor that lies in the memory of a
parameter is replaced by the parameter's name and the view's strides, and backward pulls the values again. All
other tensors go to the hooks that were there before, such as those of torch.utils.checkpoint; without them
they are saved as torch does, with its check of changes in place.

Backward must find the values of forward. Under BSP without backup workers a table does not change before this
worker ends its clock or closes the table, and it closes a table with the parameter's gradient. Values from
before the newest step are gone: `generation` counts the times that values have become new, and a graph of an
older generation is an error.

Gradients are pushed and freed one by one; see streamed_gradients.py. The bits are those of the same model
without a stream: the same functions run on the same values in memory of the same strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch

from mpips.errors import CapabilityError, ConfigError
from mpips.model.optimizer import Optimizer
from mpips.torch.ahead import Ahead
from mpips.torch.blocks import Blocks
from mpips.torch.model_part import ModelPart
from mpips.torch.streamed_table import Layer, StreamedParameter, StreamedTable
from mpips.worker.worker import Worker

Value = TypeVar("Value")

# Returns the innermost hooks for saved tensors; torch 2.8 and newer have it.
_innermost: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def check_torch() -> None:
    """Raise CapabilityError for a torch whose hooks for saved tensors cannot be nested."""
    if _innermost is None:
        raise CapabilityError(
            f"prepare: stream needs PyTorch 2.8 or newer, this one is {torch.__version__}"
        )


class Stream:
    """The parameters of one model.

    Attributes:
        layers: All modules of the model.
        tables: All tables.
        blocks: Memory for values.
        generation: Counts the times that values have become new.
    """

    def __init__(self, layers: Sequence[Layer], limit: int) -> None:
        """Take the layers of a model.

        Args:
            layers: All modules, also those without parameters.
            limit: Number of layers that may have their parameters in memory.
        """
        self.layers = layers
        self.tables: list[StreamedTable] = []
        self.blocks = Blocks()
        self.generation = 0
        self._limit = limit
        self._part: ModelPart
        self._resident: dict[Layer, None] = {}  # layers in memory; the last one was used last
        self._places: dict[int, StreamedTable] = {}  # tables in memory by address
        self._initialising: Sequence[StreamedTable] | None = None
        self._ahead = Ahead()

    def add(
        self, name: str, parameter: torch.nn.Parameter, rule: Optimizer | None, layer: Layer
    ) -> StreamedTable:
        """Turn a parameter into a streamed one and return its table; see StreamedTable.

        Raises:
            ConfigError: The parameter cannot be a table.
        """
        table = StreamedTable(name, parameter, rule, layer, self)
        layer.tables.append(table)
        self.tables.append(table)
        return table

    def attach(self, part: ModelPart) -> None:
        """Take the model's part in the job."""
        self._part = part

    def open(self, worker: Worker) -> None:
        """Do nothing: each table opens itself."""

    def pull(self) -> None:
        """Drop all values: servers have new ones."""
        for layer in list(self._resident):
            self._drop(layer)
        self.generation += 1

    def end_copies(self) -> None:
        """Wait until no helper reads the memory of servers; before a gradient is pushed or a clock ends."""
        self._ahead.end()

    @property
    def is_current(self) -> bool:
        """True if the values of this generation are those of the servers."""
        return not self._part.is_stale

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def call(self, used: Iterable[StreamedTable], function: Callable[[], Value]) -> Value:
        """Call a function with the values of some parameters in memory.

        Args:
            used: Tables of the parameters.
            function: Calls a function of torch, without a request for the values of a parameter.
        """
        with torch._C.DisableTorchFunctionSubclass():
            if self._initialising is not None:
                self._check_own(used)
                return function()
            if not self._part.is_started and all(table.has_values for table in used):
                return function()
            _check_modes()
            self._part.refresh()
            for table in used:
                self.need(table, used)
            try:
                with self.saving():
                    return function()
            finally:
                self._make_room(self._limit, ())

    def need(
        self,
        table: StreamedTable,
        used: Iterable[StreamedTable] = (),
        in_backward: bool = False,
    ) -> None:
        """Bring the values of a table into memory. Blocks like a pull.

        Args:
            table: The table.
            used: Tables whose layers stay in memory, whatever the limit is.
            in_backward: Autograd asks for the values.
        """
        layer = table.layer
        if layer not in self._resident:
            self._make_room(self._limit - 1, {t.layer for t in used})
        self._resident.pop(layer, None)
        self._resident[layer] = None
        if not table.has_values:
            memory = self._ahead.take(table)
            if memory is None:
                table.fetch(self.generation)
            else:
                table.take(memory, self.generation)
            self._places[table.address] = table
        following = self._ahead.next_after(table, in_backward)
        if following and self._limit > 1:
            self._copy_ahead(following, {layer, *(t.layer for t in used)})

    def _copy_ahead(self, following: Sequence[StreamedTable], used: set[Layer]) -> None:
        """Start to copy the values of the layer that is used next, if there is place for one."""
        layer = following[0].layer
        if layer in self._resident:
            return
        self._make_room(self._limit - 1, used)
        if len(self._resident) < self._limit:
            self._resident[layer] = None
            for table in following:
                self._ahead.start(table)

    def _make_room(self, limit: int, used: Iterable[Layer]) -> None:
        """Drop the layers that were used longest ago, until `limit` are left or all others are in `used`."""
        for layer in [layer for layer in self._resident if layer not in used]:
            if len(self._resident) <= limit:
                return
            self._drop(layer)

    def _drop(self, layer: Layer) -> None:
        for (
            table
        ) in layer.tables:  # before anything changes, so that each later use is an error, too
            table.check_unchanged()
        del self._resident[layer]
        for table in layer.tables:
            self._ahead.take(table)
            if table.has_values:
                del self._places[table.address]
                table.release()

    def table_at(self, tensor: torch.Tensor) -> StreamedTable | None:
        """Return the table in whose memory a tensor lies, with elements of the parameter's type and sign."""
        if not self._places or tensor.layout != torch.strided or tensor.is_neg():
            return None
        table = self._places.get(tensor.untyped_storage().data_ptr())
        return table if table is not None and table.parameter.dtype == tensor.dtype else None

    def saving(self) -> AbstractContextManager[Any]:
        """Return a block in which autograd saves no values of parameters."""
        others = _innermost(True)
        if others is not None and isinstance(others[0], _Packing) and others[0].stream is self:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(_Packing(self, others), _unpack)

    @contextmanager
    def initialising(self, tables: Sequence[StreamedTable]) -> Iterator[None]:
        """Let functions use the memory of `tables`, those of one layer, and of no others."""
        self._initialising = tables
        try:
            yield
        finally:
            self._initialising = None

    def _check_own(self, used: Iterable[StreamedTable]) -> None:
        assert self._initialising is not None
        for table in used:
            if table not in self._initialising:
                raise ConfigError(
                    f"init uses the parameter {table.name!r} while another layer gets its initial values: it "
                    "must fill only the parameters that the module itself has, not those of submodules"
                )


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


class _Packing:
    """The hook that saves a tensor.

    Attributes:
        stream: The parameters.
    """

    def __init__(self, stream: Stream, others: tuple[Any, Any] | None) -> None:
        """`others`: hooks for tensors that are not parameters; None: save them as they are."""
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
        return partial(unpack, pack(tensor))


def _unpack(saved: Callable[[], torch.Tensor]) -> torch.Tensor:
    return saved()


def _check_modes() -> None:
    """Raise ConfigError where something else than a parameter would hold its values.

    Within torch.autocast autograd would hold converted copies of all weights. A trace keeps the memory.
    """
    if torch._C._get_tracing_state() is not None:
        raise ConfigError(
            "stream and torch.jit.trace exclude each other, since a trace keeps the memory of all "
            "parameters: trace a copy of the model, copy.deepcopy(model)"
        )
    if torch.is_autocast_enabled("cpu"):
        raise ConfigError(
            "stream and torch.autocast exclude each other, since autograd would hold converted copies of all "
            "parameters: convert the model instead, for example by model.bfloat16() before prepare"
        )
