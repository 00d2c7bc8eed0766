"""The tables of a model's buffers, such as the running statistics of batch normalisation.

The rule is that of torch's DistributedDataParallel by default: worker 0's buffers count. Worker 0 pushes a
buffer at the end of each clock that has changed it, and all workers pull it before their next forward pass.
The clock of a step ends with the next forward pass, so a change that the script makes after `step` counts.
With "average" a float32 buffer becomes the mean over all workers, and other buffers follow worker 0.

A push replaces the values (the rule `mpips.model.python_rule.replace_values`). Buffers of other dtypes are
sent bit by bit: each 16 bits are one float32 between 0 and 65535, so integers of any size arrive exactly.

Buffers that do not belong to the model's state_dict (persistent=False) stay with each worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from socket import gethostname
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.model.consistency import BSP, Consistency, Switch
from mpips.model.python_rule import PythonRule, replace_values
from mpips.model.table import DenseTable
from mpips.torch.device import device_errors, place_of
from mpips.worker.dense import DenseHandle
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]
BufferRule = Literal["worker 0", "average"]
BUFFER_RULES = ("worker 0", "average")


class BufferTable:
    """One buffer and its table.

    Attributes:
        name: Name of the table: the buffer's torch name, behind the prefix of the model.
    """

    def __init__(self, name: str, owner: torch.nn.Module, key: str, rule: BufferRule) -> None:
        """Take the buffer `key` of the module `owner`, which may replace the tensor between two steps."""
        self.name = name
        self._owner = owner
        self._key = key
        tensor = self._tensor
        self._plain = tensor.dtype == torch.float32
        self._averages = rule == "average" and self._plain
        n_values = tensor.numel() if self._plain else -(-tensor.nbytes // 2)
        self._values = np.empty(n_values, np.float32)
        self._handle: DenseHandle | None = None
        self._pushes = self._averages
        self._place = f"a worker on {gethostname()}"  # in errors

    @property
    def owner(self) -> torch.nn.Module:
        """The module that has the buffer."""
        return self._owner

    @property
    def _tensor(self) -> torch.Tensor:
        tensor = getattr(self._owner, self._key)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def _errors(self, what: str) -> AbstractContextManager[None]:
        """Return a block whose errors are those of the buffer's device."""
        device = self._tensor.device
        return nullcontext() if device.type == "cpu" else device_errors(device, self._place, what)

    def table(self, consistency: Consistency) -> DenseTable:
        """Return the table to declare."""
        if isinstance(consistency, BSP):
            reduce: Literal["mean", "sum"] = "mean" if self._averages else "sum"
            consistency = replace(consistency, reduce=reduce)
        elif isinstance(consistency, Switch):
            # Values that replace others have no learning rate.
            reduce = "mean" if self._averages else "sum"
            consistency = replace(consistency, first=BSP(reduce=reduce), rate=1.0)
        return DenseTable(
            self.name,
            self._values.shape,
            optimizer=PythonRule(replace_values),
            consistency=consistency,
            check_finite=False,  # a running maximum begins with -inf
        )

    def initial_values(self) -> Float32:
        """Return the buffer's values in the form of the table."""
        return self._encoded()

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""
        self._handle = worker.table(self.name)
        self._place = place_of(worker.index)
        self._pushes = self._averages or worker.pipeline == 0

    def pull(self) -> None:
        """Fetch the values into the buffer. Blocks like DenseHandle.pull."""
        assert self._handle is not None
        self._handle.pull(self._values)
        self.set(self._values)

    def set(self, values: Float32) -> None:
        """Copy values, in the form of the table, into the buffer.

        Raises:
            DeviceError: The buffer's device failed.
        """
        tensor = self._tensor
        with torch.no_grad(), self._errors(f"copied the buffer {self.name!r} there"):
            if self._plain:
                tensor.copy_(torch.from_numpy(values).view(tensor.shape))
            else:
                raw = values.astype(np.uint16).view(np.uint8)[: tensor.nbytes].copy()
                tensor.copy_(torch.from_numpy(raw).view(tensor.dtype).view(tensor.shape))

    def push(self) -> None:
        """Push the values, if this worker's count and they differ from those of the newest pull or push.

        The values are compared, since torch does not count all changes in place: batch normalisation writes
        its running statistics without one.
        """
        if not self._pushes:
            return
        values = self._encoded()
        # The mean is that of all workers of a clock, so each of them pushes.
        if not self._averages and values.tobytes() == self._values.tobytes():
            return
        assert self._handle is not None
        self._values = values
        self._handle.push(values)

    def _encoded(self) -> Float32:
        """Return the buffer's values in the form of the table, as an array of its own."""
        with self._errors(f"copied the buffer {self.name!r} to the host"):
            data = self._tensor.detach().cpu().contiguous().reshape(-1)
        if self._plain:
            plain: Float32 = data.numpy().copy()
            return plain
        raw = np.zeros(2 * len(self._values), np.uint8)
        raw[: data.nbytes] = data.view(torch.uint8).numpy()
        return raw.view(np.uint16).astype(np.float32)


def buffer_tables(model: torch.nn.Module, prefix: str, rule: BufferRule) -> Iterator[BufferTable]:
    """Yield the tables of a model's persistent buffers, each shared buffer once."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is None or key in module._non_persistent_buffers_set or not tensor.numel():
                continue
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            yield BufferTable(".".join(filter(None, (prefix, path, key))), module, key, rule)
