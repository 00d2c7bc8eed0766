"""The communication of DistributedDataParallel by mpips: `register_comm_hook(CommState(model), comm_hook)`.

The gradients of a model lie one behind the other, bucket by bucket, in one flat array. It is cut into
segments, and each segment is a replicated table whose values are replaced by the mean of all pushes: workers
sum it in shared memory, or over messages between nodes (native/src/reduction/reduction.hpp). A segment is
pushed as soon as DDP has brought all its buckets, while backward goes on; a bucket may lie in several
segments. DDP forms new buckets after its first iteration; only their sum must stay the number of the model's
elements, and their order must be equal on all workers, which DDP sees to.

The hook of the last bucket ends the worker's clock, waits for all means and completes the futures of all
buckets. DDP waits for these futures at the end of backward only. Sums are formed in the order of the workers,
so all workers receive the same bits in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.futures import Future

from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.python_rule import PythonRule, replace_values
from mpips.model.table import DenseTable
from mpips.session.init import current
from mpips.torch.parameters import DTYPES
from mpips.worker.replicated.handle import ReplicatedHandle
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

SEGMENT = 1 << 20  # elements


class CommState:
    """The state of `comm_hook` for one DistributedDataParallel model."""

    def __init__(self, model: torch.nn.Module, name: str = "ddp") -> None:
        """Declare the tables of a model's gradients. Not collective; all workers do the same.

        At the first backward pass all ranks start the job together.

        Args:
            model: The DistributedDataParallel model; parameters on the CPU, in float32, bfloat16 or float16.
            name: Prefix of the tables' names, for a second model.

        Raises:
            ConfigError: A parameter is not accepted, nothing is trained, the job has started, the process
                group has another number of processes than the job has workers, `mpips.init` has not been
                called, or the script also uses `mpips.torch.prepare`.
        """
        script = current("mpips.torch.CommState")
        script.own_cursor("mpips.torch.comm_hook")
        self._n = _count(model)
        group = torch.distributed
        is_there = group.is_available() and group.is_initialized()
        size = group.get_world_size() if is_there else 0
        if size != script.n_workers:
            raise ConfigError(
                f"comm_hook: the process group has {size} processes and the job {script.n_workers} workers: "
                "call init_process_group with rank=mpips.rank() and world_size=mpips.world_size()"
            )
        self._script = script
        self._bounds = [*range(0, self._n, SEGMENT), self._n]
        self._names = [f"{name}.gradients.{i}" for i in range(len(self._bounds) - 1)]
        for table, start, stop in zip(self._names, self._bounds, self._bounds[1:], strict=False):
            script.declare(
                DenseTable(
                    table,
                    (stop - start,),
                    optimizer=PythonRule(replace_values),
                    consistency=BSP("mean"),
                    check_finite=False,  # as in DDP, GradScaler may find infinity afterwards
                    placement="replicated",
                )
            )
        self._flat = np.zeros(self._n, np.float32)
        self._worker: Worker | None = None
        self._handles: list[ReplicatedHandle] = []
        self._filled = self._pushed = 0  # elements; segments
        self._open: list[tuple[Future[torch.Tensor], torch.Tensor, int]] = []

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Take the gradients of a bucket; see `comm_hook`."""
        if bucket.index() == 0:
            self._begin()
        buffer = bucket.buffer()
        start, stop = self._filled, self._filled + buffer.numel()
        if buffer.device.type != "cpu" or buffer.dtype not in DTYPES or stop > self._n:
            raise ConfigError(
                f"comm_hook: a bucket of {buffer.numel()} gradients ({buffer.dtype}, {buffer.device}) behind "
                f"{start} of the model's {self._n}: must be on the CPU, in float32, bfloat16 or float16, and "
                "of the model that was given to CommState"
            )
        torch.from_numpy(self._flat[start:stop]).copy_(buffer.view(-1))
        self._filled = stop
        future: Future[torch.Tensor] = Future()
        self._open.append((future, buffer, start))
        self._push(stop)
        if bucket.is_last():
            self._end()
        return future

    def _begin(self) -> None:
        self._worker = self._script.start()
        if not self._handles:
            self._handles = [self._worker.table(name) for name in self._names]
        self._filled = self._pushed = 0
        self._open.clear()

    def _push(self, filled: int) -> None:
        """Push the segments of which all elements are there."""
        while self._pushed < len(self._handles) and self._bounds[self._pushed + 1] <= filled:
            start, stop = self._bounds[self._pushed : self._pushed + 2]
            self._handles[self._pushed].push(self._flat[start:stop], closes=True)
            self._pushed += 1

    def _end(self) -> None:
        """Wait for the means of all workers and complete all futures."""
        assert self._worker is not None
        self._flat[self._filled :] = 0  # parameters that DDP was told to ignore
        self._push(self._n)
        self._worker.clock()
        for handle, start, stop in zip(self._handles, self._bounds, self._bounds[1:], strict=False):
            handle.pull(self._flat[start:stop])
        for future, buffer, start in self._open:
            mean = torch.from_numpy(self._flat[start : start + buffer.numel()])
            buffer.copy_(mean.view(buffer.shape))
            future.set_result(buffer)
        self._open.clear()


def _count(model: torch.nn.Module) -> int:
    """Return the number of elements that are trained."""
    n = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype not in DTYPES or parameter.device.type != "cpu":
            raise ConfigError(
                f"comm_hook: the parameter {name!r} is {parameter.dtype} on {parameter.device}: must be "
                "float32, bfloat16 or float16, on the CPU"
            )
        n += parameter.numel()
    if not n:
        raise ConfigError("comm_hook: the model has no parameter that requires a gradient")
    return n


def comm_hook(state: CommState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Average the gradients of a bucket over all workers, in place of DDP's own communication.

    For `DistributedDataParallel.register_comm_hook(CommState(model), comm_hook)`, in a script that has called
    `mpips.init` and `init_process_group("gloo", ...)` on its workers. DDP calls it on all workers, for the
    buckets in order, within backward. The hook of the last bucket ends the worker's clock and blocks until
    all workers have come there.

    Args:
        state: The state of the model.
        bucket: The gradients, of this worker.

    Returns:
        A future of the bucket's buffer with the mean; complete when the last bucket's hook has returned.

    Raises:
        ConfigError: `state` is not a CommState, or the bucket does not fit it.
        StallError: A worker did not come within the job's timeout; the message names it.
    """
    if not isinstance(state, CommState):
        raise ConfigError(
            f"comm_hook: its state is {type(state).__name__}: register it by "
            "model.register_comm_hook(mpips.torch.CommState(model), mpips.torch.comm_hook)"
        )
    return state.reduce(bucket)


# DDP compares annotations of a hook with its own types, and accepts a hook without any. Here they are text.
comm_hook.__annotations__ = {}
