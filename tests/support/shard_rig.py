"""Workers in threads, between which a layer is divided: the exchanges of mpips.torch.shard_workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class Crowd:
    """Workers in threads; what they exchange has the order of the workers."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.barrier = threading.Barrier(n, timeout=20)
        self.calls: list[Any] = [None] * n

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """Call `work` for each worker; return its results, errors too."""
        found: list[Any] = [None] * self.n

        def one(index: int) -> None:
            try:
                found[index] = work(Member(self, index))
            except BaseException as error:
                found[index] = error

        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(self.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    def results(self, work: Callable[[Any], Any]) -> list[Any]:
        """Return the results of `work` for each worker; raise the first error."""
        found = self.run(work)
        errors = [one for one in found if isinstance(one, BaseException)]
        own = [one for one in errors if not isinstance(one, threading.BrokenBarrierError)]
        for error in own or errors:
            raise error
        return found

    def exchange(self, index: int, call: Any) -> list[Any]:
        """Return the calls of all workers."""
        self.calls[index] = call
        self.barrier.wait()
        found = list(self.calls)
        self.barrier.wait()
        return found


class Member:
    """One of them.

    Attributes:
        sent: Parts that it has sent to others, by swap: the part for each worker.
    """

    def __init__(self, crowd: Crowd, index: int) -> None:
        self.index, self.n_workers, self._crowd = index, crowd.n, crowd
        self.sent: list[list[Any]] = []

    def gather(self, what: str, payload: bytes) -> list[bytes]:
        """Return the payloads of all workers."""
        found = self._crowd.exchange(self.index, (what, payload))
        assert {name for name, _ in found} == {what}
        return [one for _, one in found]

    def reduce(self, what: str, array: np.ndarray, combine: str) -> np.ndarray:
        """Return the arrays of all workers, combined in the order of the workers."""
        found = self._crowd.exchange(self.index, (what, array.copy()))
        assert {name for name, _ in found} == {what}
        assert {(one.dtype, one.shape) for _, one in found} == {(array.dtype, array.shape)}
        arrays = [one for _, one in found]
        rule = {"sum": np.add, "max": np.maximum}[combine]
        total = arrays[0].copy()
        for one in arrays[1:]:
            total = rule(total, one)
        return total

    def swap(self, parts: Any) -> list[np.ndarray]:
        """Return the parts of all workers for this one."""
        assert len(parts) == self.n_workers
        self.sent.append(list(parts))
        found = self._crowd.exchange(self.index, ("swap", [part.copy() for part in parts]))
        assert {name for name, _ in found} == {"swap"}
        return [one[self.index] for _, one in found]
