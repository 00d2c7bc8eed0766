"""The workers between which a layer is divided: the part of each, and the values that they exchange.

A gather or reduction compares the calls of all workers, so a worker that computes something else is an error
there. Messages do not compare them: each pass therefore has a gather in front of its first swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from mpips.worker.worker import Worker

AnyArray = NDArray[Any]
_TAG = 1 << 62  # of the messages between parts of a layer; scripts count theirs from 0


class ShardWorkers(Protocol):
    """The workers between which a layer is divided.

    Attributes:
        index: Index of this worker.
        n_workers: Number of workers.
    """

    index: int
    n_workers: int

    def gather(self, what: str, payload: bytes) -> list[bytes]:
        """Return the bytes of all workers, by index. Collective; blocks."""

    def reduce(self, what: str, array: AnyArray, combine: Literal["sum", "max"]) -> AnyArray:
        """Return arrays of all workers combined elementwise. Collective; blocks."""

    def swap(self, parts: Sequence[AnyArray]) -> list[AnyArray]:
        """Send each worker its part, and return those of all workers for this one, by index.

        Collective; blocks. `parts` are copied, except the own one, which is in the result. Call it behind a
        gather or reduction of the same pass.
        """


def own_range(index: int, n_workers: int, n: int) -> tuple[int, int]:
    """Return the first of a worker's part of `n` rows, and the end; the first workers have one more."""
    size, rest = divmod(n, n_workers)
    first = index * size + min(index, rest)
    return first, first + size + (index < rest)


def text_of_tag(tag: int) -> str:
    """Return what a message contains, for errors of the waits for it."""
    return "values of a divided layer" if tag == _TAG else f"tag {tag}"


class JobWorkers:
    """All workers of the job, between which a layer is divided."""

    def __init__(self, worker: Worker, name: str, step: int) -> None:
        """Exchange values of a layer in a step. `name`: that of its table."""
        self.index, self.n_workers = worker.index, worker.n_workers
        self._worker, self._name, self._step = worker, name, step

    def gather(self, what: str, payload: bytes) -> list[bytes]:
        """See ShardWorkers."""
        return self._worker.gather(self._text(what), payload)

    def reduce(self, what: str, array: AnyArray, combine: Literal["sum", "max"]) -> AnyArray:
        """See ShardWorkers."""
        found = self._worker.reduce(self._text(what), array, combine)
        assert found is not None
        return found

    def swap(self, parts: Sequence[AnyArray]) -> list[AnyArray]:
        """See ShardWorkers."""
        found = list(parts)
        # In each round a worker sends to one other worker and receives from another one.
        for distance in range(1, self.n_workers):
            to = (self.index + distance) % self.n_workers
            source = (self.index - distance) % self.n_workers
            self._worker.send(parts[to], to=to, tag=_TAG)
            found[source] = self._worker.recv(source=source, tag=_TAG)
        return found

    def _text(self, what: str) -> str:
        return f"{what} of {self._name!r}, step {self._step}"
