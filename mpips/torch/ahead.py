"""Values that are copied while the worker computes: those of the layer that is used next.

The layer behind each layer is the one that followed it when it was last used, in forward and in backward.
When a layer gets its values, those of the next one are copied by a helper thread, from the memory of servers
on this node. numpy copies without the interpreter's lock, so functions of torch run meanwhile.

One thread alone uses the worker: the main thread looks whether the servers have the values of this clock, and
gives the helper plain arrays. The helper reads memory that servers do not write before this worker closes the
table or ends its clock (see DenseHandle.view), and `Stream` ends all copies before it does either: in `pull`,
and before it pushes a gradient. The helper writes new memory, which no other thread uses before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from mpips.torch.streamed_table import Layer, ParameterMemory, StreamedTable

Float32 = NDArray[np.float32]
Part = tuple[int, int, Float32]  # start and stop in the flat tensor, and its values


class Ahead:
    """The copies under way of one model."""

    def __init__(
        self,
        make_executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1),
        from_elements: int = 1 << 14,
    ) -> None:
        """Copy nothing yet.

        Args:
            make_executor: Makes the helper, when it is first needed.
            from_elements: Smaller parameters are not worth a helper, and are pulled when they are used.
        """
        self._make_executor = make_executor
        self._from_elements = from_elements
        self._executor: Executor | None = None
        self._coming: dict[StreamedTable, tuple[ParameterMemory, Future[None]]] = {}
        # A use of a layer is the layer and True in backward.
        self._tables: dict[tuple[Layer, bool], list[StreamedTable]] = {}
        self._following: dict[tuple[Layer, bool], tuple[Layer, bool]] = {}
        self._current: tuple[Layer, bool] | None = None

    def next_after(self, table: StreamedTable, in_backward: bool) -> Sequence[StreamedTable]:
        """Note that a table is used; return the tables of the layer that is expected next.

        Empty unless the use of the layer has just begun.
        """
        use = (table.layer, in_backward)
        tables = self._tables.setdefault(use, [])
        if table not in tables:
            tables.append(table)
        if use == self._current:
            return ()
        if self._current is not None:
            self._following[self._current] = use
        self._current = use
        following = self._following.get(use)
        return self._tables[following] if following is not None else ()

    def start(self, table: StreamedTable) -> None:
        """Start to copy the values of a table, if they can be copied. Does not block."""
        parts = table.ready_parts() if table.parameter.numel() >= self._from_elements else None
        if parts is None:
            return
        if self._executor is None:
            self._executor = self._make_executor()
        memory = table.memory()
        self._coming[table] = memory, self._executor.submit(_copy, memory.array, parts)

    def take(self, table: StreamedTable) -> ParameterMemory | None:
        """Return the memory with the values of a table when the copy has ended; None if none is under way."""
        if table not in self._coming:
            return None
        memory, copying = self._coming.pop(table)
        copying.result()  # a copy in memory, which ends
        return memory

    def end(self) -> None:
        """Wait until all copies have ended."""
        for _, copying in self._coming.values():
            copying.result()


def _copy(array: Float32, parts: Sequence[Part]) -> None:
    flat = array.reshape(-1)
    for start, stop, values in parts:
        np.copyto(flat[start:stop], values)
