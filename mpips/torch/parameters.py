"""The tables of a model's parameters: one dense table for each, by its torch name.

A table holds float32 values. Parameters in bfloat16 or float16 receive them rounded, so the server has the
master values. A worker writes pulled values into the memory of the parameter itself where that memory is a
contiguous float32 array of the CPU, and through a buffer elsewhere; see device_table.py for CUDA.

The worker is the only writer of a parameter between two pulls, and a script must not change parameters in
place once the job has started: the next pull would overwrite the change. `ParameterTable` notices one and
raises ConfigError: torch counts changes of a tensor in place, memory that is replaced (`w.data = ...`) has
another address and other bits, and for other writes bits are compared from time to time (watching.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import UninitializedParameter

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import Consistency
from mpips.model.optimizer import SGD, Optimizer
from mpips.model.replicated import TablePlacement
from mpips.model.table import DenseTable
from mpips.torch.fingerprints import Fingerprint, differing, digest_of
from mpips.torch.row_gradients import RowParameter
from mpips.worker.by_use import PullsByUse
from mpips.worker.dense import DenseHandle
from mpips.worker.requests import PushResult, Request
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ParameterTable:
    """One parameter and its table.

    Attributes:
        name: Name of the table: the parameter's torch name, behind the prefix of the model.
        parameter: The parameter.
        rule: Rule of the table; None: no optimizer has the parameter, and its values never change.
        state: States and number of updates with which the rule begins, until the start of the job; None:
            those of a new table. See optimizer_state.py.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, rule: Optimizer | None) -> None:
        """Check the parameter.

        Raises:
            ConfigError: The parameter cannot be a table.
        """
        _check(name, parameter)
        self.name = name
        self.parameter = parameter
        self.rule = rule
        self.state: tuple[list[torch.Tensor], int] | None = None
        self._is_rule_known = True
        self._handle: DenseHandle | None = None
        self._can_change = False  # the parameter was trained since the start
        self._buffer: Float32 | None = None
        self._version = (
            -1
        )  # torch's count of changes in place after the newest pull; -1: no pull yet
        self._array: Float32 | None = None  # the parameter's memory, if pulls can write into it
        self._place = 0  # address of that memory
        self._storage: torch.UntypedStorage | None = None  # the storage of that memory
        self._storage_place = 0  # its address
        self._pulled = 0  # address of the parameter's memory after the newest pull
        self._window = 0, 0  # elements that are watched from the next pull on
        # Those of the newest pull, with the parameter's dtype and their bits.
        self._seen: tuple[int, int, torch.dtype, Fingerprint] | None = None

    def table(
        self,
        consistency: Consistency,
        placement: TablePlacement = "servers",
        compression: PushCodec | None = None,
        pull_compression: PullCodec | None = None,
    ) -> DenseTable:
        """Return the table to declare."""
        return DenseTable(
            self.name,
            self._shape,
            optimizer=self.rule or SGD(0.0),
            consistency=consistency,
            placement=placement,
            compression=compression,
            pull_compression=pull_compression,
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the table. A table has at least one dimension."""
        return tuple(self.parameter.shape) or (1,)

    def initial_values(self) -> Float32:
        """Return the parameter's values as float32, C-contiguous, of the table's shape."""
        return _as_array(self.parameter.detach()).reshape(self._shape)

    def initial_state(self) -> tuple[list[Float32], int] | None:
        """Return `state` as arrays of the table's shape."""
        if self.state is None:
            return None
        states, steps = self.state
        return [_as_array(one.detach()).reshape(self._shape) for one in states], steps

    def n_updates(self) -> int:
        """Return the number of updates of the rule. Blocks like DenseHandle.n_updates after the start."""
        if self._handle is not None:
            return self._handle.n_updates()
        return self.state[1] if self.state is not None else 0

    def optimizer_state(self, slot: int) -> torch.Tensor:
        """Return a state of the rule as a new tensor like the parameter. Blocks as `n_updates`."""
        assert self.rule is not None
        # The values of a streamed parameter are not wanted.
        with torch._C.DisableTorchFunctionSubclass():
            found = torch.empty_like(self.parameter, requires_grad=False)
        with torch.no_grad():
            if self._handle is None:
                begins = self.rule.native().initial_state(slot)
                return found.copy_(self.state[0][slot]) if self.state else found.fill_(begins)
            is_direct = found.dtype == torch.float32 and found.is_contiguous()
            if is_direct and found.device.type == "cpu":
                self._handle.optimizer_state(slot, found.numpy().reshape(self._shape))
            else:
                self._bring(self._handle.optimizer_state(slot), found)
        return found

    def _bring(self, values: Float32, target: torch.Tensor) -> None:
        """Copy values, of the table's shape, into a tensor like the parameter."""
        target.copy_(torch.from_numpy(values).view(target.shape))

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""
        self._handle = worker.table(self.name)
        self.state = None  # the servers have it

    @property
    def group(self) -> str:
        """Name of the tables whose initial values are in memory at the same time; see Declared.add."""
        return ""

    @property
    def is_fixed(self) -> bool:
        """True while nothing trains the parameter: it is frozen, or no optimizer has it."""
        return self.rule is None or not self.parameter.requires_grad

    def configure(self, rule: Optimizer) -> None:
        """Send new hyperparameters, if they differ from those in force. See Handle.set_optimizer."""
        if rule != self.rule or not self._is_rule_known:
            assert self._handle is not None
            self._handle.set_optimizer(rule)
            self.rule = rule
            self._is_rule_known = True

    def forget_rule(self) -> None:
        """Note that servers may have other hyperparameters in force, since the job continues a run."""
        self._is_rule_known = False

    def pull(self) -> None:
        """Fetch the values into the parameter. Blocks like DenseHandle.pull.

        A parameter that has been fixed since the start is pulled once: its values cannot change. One that is
        frozen later is pulled on, since a server may still apply updates to it.
        """
        if not self._needs_pull():
            self._look()
            return
        assert self._handle is not None
        self._receive(self._handle.pull(self._target()))
        self._note_change()

    def _needs_pull(self) -> bool:
        """Return True if the values may differ from those of the newest pull."""
        self._can_change = self._can_change or not self.is_fixed
        self.check_unchanged()
        return self._version < 0 or self._can_change

    def _note_change(self) -> None:
        p = self.parameter
        # A graph that was recorded before the pull must not be used with the new values.
        torch.autograd.graph.increment_version(p)
        self._version = p._version
        self._pulled = p.data_ptr()
        self._look()

    def _look(self) -> None:
        """Take the bits of the elements that are watched from now on."""
        start, stop = self._window
        dtype = self.parameter.dtype
        self._seen = (start, stop, dtype, self._bits(start, stop)) if start < stop else None

    @property
    def n_elements(self) -> int:
        """See Watched."""
        return self.parameter.numel()

    @property
    def is_watched_whole(self) -> bool:
        """See Watched. Elements of other layouts have no flat memory."""
        return not self.parameter.is_contiguous()

    def watch(self, start: int, stop: int) -> None:
        """See Watched."""
        self._window = start, stop

    def _bits(self, start: int, stop: int) -> Fingerprint:
        """Return a fingerprint of elements of the parameter."""
        p = self.parameter
        if self._array is None or p.data_ptr() != self._place or p.dtype != torch.float32:
            return digest_of(p.detach().reshape(-1)[start:stop])
        hashing = _native.Xxh3()
        hashing.update(self._array.reshape(-1)[start:stop].view(np.uint8))
        return hashing.digest()

    def ask(self) -> tuple[DenseHandle, Float32] | None:
        """Return table and array to ask for, if values come from other nodes; `wait_for` must follow.

        Returns:
            None: `pull` brings the values.
        """
        if not isinstance(self._handle, DenseHandle) or not self._handle.is_apart:
            return None
        return (self._handle, self._target()) if self._needs_pull() else None

    def wait_for(self, pulls: PullsByUse) -> None:
        """Wait for values that were asked for, and take them into the parameter."""
        self._receive(pulls.wait(self.name))
        self._note_change()

    def _target(self) -> Float32:
        """Return the array that receives pulled values: the parameter's memory, or a buffer."""
        target = self._memory()
        if target is not None:
            return target
        if self._buffer is None:
            self._buffer = np.empty(self._shape, np.float32)
        return self._buffer

    def _receive(self, values: Float32) -> None:
        """Take pulled values into the parameter. `values`: the array that `_target` has returned."""
        if values is not self._array:
            self.set(values)

    def set(self, values: Float32) -> None:
        """Copy values, of the table's shape, into the parameter."""
        with torch.no_grad():
            self.parameter.copy_(torch.from_numpy(values).view(self.parameter.shape))

    def check_unchanged(self) -> None:
        """Raise ConfigError if the script has changed the parameter since the newest pull.

        Raises:
            ConfigError: Names the parameter.
        """
        p = self.parameter
        if self._version < 0:
            return
        if p._version != self._version or self._is_replaced() or not self._is_as_seen():
            raise ConfigError(
                f"the parameter {self.name!r} was changed in place after the job had started; its values are "
                "those of the servers, and the next pull would overwrite the change: prepare the optimizer "
                "that steps it, and change parameters before the first forward pass; for bounds on weights "
                "use its weight_decay, or clamp them in forward(); for values that the script itself sets, "
                "use a buffer"
            )

    def _is_replaced(self) -> bool:
        """Return True if the script has given the parameter other memory, with other values."""
        p = self.parameter
        if p.data_ptr() == self._pulled:
            return False
        pulled = self._newest()
        if pulled is None or p.dtype != pulled.dtype:
            return False
        return digest_of(p) != digest_of(pulled.reshape(p.shape))

    def _newest(self) -> torch.Tensor | None:
        """Return the values of the newest pull on the host, if the parameter's memory then is known."""
        # The array refers to that memory and keeps it, unless the storage itself was moved or freed.
        storage = self._storage
        if self._array is None or storage is None or storage.data_ptr() != self._storage_place:
            return None
        return torch.from_numpy(self._array)

    def _is_as_seen(self) -> bool:
        """Return True if the elements that are watched have the bits of the newest pull."""
        if self._seen is None:
            return True
        start, stop, dtype, bits = self._seen
        if dtype != self.parameter.dtype:
            return True  # the script has converted the model
        now = self._bits(start, stop)
        return now == bits if type(now) is int else not differing([(0, now, bits)])

    def fingerprint(self) -> Fingerprint:
        """Return a fingerprint of the gradient, by which changes of it are found."""
        return digest_of(self.parameter.grad)

    def begin_push(self) -> bool:
        """Request what a push needs, ahead of it; return True if that is under way. See DeviceTable."""
        return False

    def is_ready(self) -> bool:
        """Return True if a push would not wait for a device."""
        return True

    def push(self) -> None:
        """Push the gradient, if there is one, as the last push to the table in this clock.

        Blocks only while a ring is full.

        Raises:
            ConfigError: The gradient is sparse.
            ValueError: The gradient contains NaN or infinity; the message names the table.
        """
        self._push()

    def order(self, place: int) -> None:
        """Push as `push` does, by the urgency of the table's values where that is possible.

        Args:
            place: Place of the table in the order of use.
        """
        gradient, handle = self.parameter.grad, self._handle
        strided = gradient is not None and gradient.layout == torch.strided
        if self.rule is None or not strided or not isinstance(handle, DenseHandle):
            return self.push()
        assert gradient is not None
        self._can_change = True
        if not handle.order(self._gradient(gradient), place):
            self.push()

    def _push(self) -> Request[PushResult] | None:
        """Push the gradient; return the request, or None if there is no gradient."""
        gradient = self.parameter.grad
        if gradient is None or self.rule is None:
            return None
        self._can_change = True
        if gradient.layout != torch.strided:
            raise ConfigError(
                f"the parameter {self.name!r} has a sparse gradient: use mpips.torch.Embedding, which "
                "pushes only the rows of a step, or sparse=False"
            )
        assert self._handle is not None
        return self._handle.push(self._gradient(gradient), closes=True)

    def _gradient(self, gradient: torch.Tensor) -> Float32:
        """Return the gradient as an array of the table's shape."""
        return _as_array(gradient.detach()).reshape(self._shape)

    def _memory(self) -> Float32 | None:
        """Return the parameter's memory as an array of the table's shape; None: pull through a buffer."""
        data = self.parameter.data
        if data.data_ptr() != self._place or data.dtype != torch.float32:
            direct = (
                data.dtype == torch.float32 and data.device.type == "cpu" and data.is_contiguous()
            )
            self._array = data.numpy().reshape(self._shape) if direct else None
            self._place = data.data_ptr()
            self._storage = data.untyped_storage() if direct else None
            self._storage_place = self._storage.data_ptr() if self._storage is not None else 0
        return self._array


def _as_array(tensor: torch.Tensor) -> Float32:
    """Return a tensor as a float32, C-contiguous array; without a copy where it is one already."""
    array: Float32 = tensor.to("cpu", torch.float32).contiguous().numpy()
    return array


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise ConfigError(
            f"the parameter {name!r} has no shape yet (a lazy module): call the model once before prepare"
        )
    if parameter.dtype not in DTYPES:
        raise ConfigError(
            f"the parameter {name!r} is {_dtype(parameter)}: parameters must be float32, bfloat16 or "
            "float16; convert the model, for example by model.float()"
        )
    if parameter.device.type == "meta":
        raise ConfigError(f"the parameter {name!r} is on the meta device: materialise it first")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_memory(named: Mapping[str, torch.Tensor]) -> None:
    """Raise ConfigError if two parameters share memory. Each has a table, and one would overwrite the other.

    Slices of one buffer, such as those of flattened recurrent weights, share a storage and no memory.

    Args:
        named: The parameters by name, each once.
    """
    ranges = sorted(
        (*_memory_of(p), name)
        for name, p in named.items()
        # Streamed and uninitialized parameters have no memory yet, and neither have those on the meta device.
        if type(p) is torch.nn.Parameter and p.numel() and p.data_ptr()
    )
    for (_, end, name), (start, _, other) in pairwise(ranges):
        if start < end:
            first, second = sorted((name, other))
            raise ConfigError(
                f"the parameters {first!r} and {second!r} share memory, but are two objects: tie them by the "
                "object (decoder.weight = encoder.weight), or give one its own values (.clone())"
            )


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses at which a tensor begins and ends."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    n_elements = 1 + sum((size - 1) * stride for size, stride in pairs)
    start = tensor.data_ptr()
    return start, start + n_elements * tensor.element_size()


def table_names(model: torch.nn.Module, prefix: str) -> dict[str, Any]:
    """Return the model's parameters by the names of their tables; a shared parameter once, by its first name.

    Args:
        model: The model.
        prefix: Text before each name; "": none.
    """
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for name, parameter in model.named_parameters()
        if isinstance(parameter, UninitializedParameter)
        or (parameter.numel() and not isinstance(parameter, RowParameter))
    }
