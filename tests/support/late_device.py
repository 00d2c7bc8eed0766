"""An imitated accelerator: parameters of the CPU are those of a device with copies as late as they may be.

A copy is made when the host or the compute stream waits for its event, or at the third query, and with it
those that were requested before it on its stream. Until then its target is full of NaN. Code that misses a
wait, or that writes the source of a copy too early, computes other bits in every run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import ClassVar

import torch

from mpips.torch.device import COPIES, device_errors


class LateCopied:
    """The event of one late copy."""

    def __init__(
        self, copies: LateCopies, queue: deque[LateCopied], work: Callable[[], None]
    ) -> None:
        self._copies = copies
        self._queue = queue
        self._work = work
        self._queries = 0
        self.has_ended = False
        queue.append(self)

    def _make(self) -> None:
        while not self.has_ended:
            first = self._queue.popleft()
            first._work()
            first.has_ended = True

    def is_done(self) -> bool:
        self._copies.count("queries")
        self._queries += 1
        if self._queries > self._copies.queries:
            self._make()
        return self.has_ended

    def wait(self) -> None:
        self._copies.count("waits")
        self._make()

    def follow(self) -> None:
        self._copies.count("follows")
        self._make()

    def order(self) -> None:
        self._copies.count("orders")
        self._make()


class LateCopies:
    """Late copies of "the device", which is the CPU.

    Attributes:
        queries: A query after so many makes the copy.
        counted: Number of calls by their name, of all objects.
        fails: Name of a call that raises the error of torch.
    """

    queries = 2
    counted: ClassVar[Counter[str]] = Counter()
    fails = ""

    def __init__(self, device: torch.device, place: str) -> None:
        self.device = device
        self.place = place
        self._out: deque[LateCopied] = deque()
        self._in: deque[LateCopied] = deque()
        self._registered: list[torch.Tensor] = []

    def count(self, what: str) -> None:
        self.counted[what] += 1
        if self.fails == what:
            with device_errors(self.device, self.place, f"made {what}"):
                raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> LateCopied:
        self.count("to_host")
        return self._copy(self._out, source, target)

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> LateCopied:
        self.count("to_device")
        return self._copy(self._in, source, target)

    def _copy(
        self, queue: deque[LateCopied], source: torch.Tensor, target: torch.Tensor
    ) -> LateCopied:
        assert source.shape == target.shape
        assert source.dtype == target.dtype
        source = source.detach()

        def work() -> None:
            with torch.no_grad():
                target.copy_(source)

        with torch.no_grad():
            target.fill_(torch.nan if target.is_floating_point() else -7)
        return LateCopied(self, queue, work)

    def new_host(self, n_bytes: int) -> torch.Tensor:
        self.count("new_host")
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def register(self, memory: torch.Tensor) -> None:
        self.count("registered")
        self._registered.append(memory)

    def close(self, limit_s: float = 0.0) -> None:
        for queue in (self._out, self._in):
            if queue:
                queue[-1].wait()
        self.counted["released"] += len(self._registered)
        self._registered.clear()


def imitate() -> None:
    """Let parameters and ids of the CPU be those of the imitated device in this process, from now on."""
    COPIES["cpu"] = LateCopies
