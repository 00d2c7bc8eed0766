"""A tree of workers whose other workers come to each operation only after some looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpips.mpi.tree import Operation


class LateTree:
    """Stands in for WorkerTree; the result of an operation is this worker's own value."""

    def __init__(self, looks: int, at_look: Callable[[], None] = lambda: None) -> None:
        """`at_look`: called at each look at which the others have not come yet."""
        self.looks, self.at_look = looks, at_look
        self.looked = 0
        self.waits = False
        self._open: list[tuple[Operation, Any]] = []

    def reduce(self, call: str, value: Any, merge: Any, everyone: bool) -> Operation:
        operation = Operation(0, call)
        self._open.append((operation, value))
        return operation

    def poll(self) -> None:
        if not self._open:
            return
        self.looked += 1
        if self.looks:
            self.looks -= 1
            self.at_look()
            return
        operation, operation.result = self._open.pop()
        operation.done = True

    glance = poll

    def late(self) -> list[tuple[int, str]]:
        return []
