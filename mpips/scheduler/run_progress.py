"""How far a run is on its way: share done, pace, time left. Plain numbers; counts what workers report."""

from __future__ import annotations

import time
from collections import deque

_PACE_S = 10.0  # the pace shown is that of so many seconds
_POINT_S = 0.5  # between points that it is computed from


class RunProgress:
    """The way of a run from its very beginning, over all its launches.

    Attributes:
        n_epochs: Of the whole run.
        total: Samples of all its epochs and workers.
        done: Of these, those trained on, with the launches before this one.
        epoch: Greatest epoch that a worker has reported, from 0.
        loss: Mean over about the last twentieth of the run, or None.
    """

    def __init__(self, n_epochs: int, total: int, before: int = 0, epoch: int = 0) -> None:
        """`before`: samples of `total` that launches before this one have trained on; `epoch`: begun."""
        self.n_epochs = n_epochs
        self.total = max(1, total)
        self.done = self._before = before
        self.epoch = epoch
        self._began = time.monotonic()
        self._points: deque[tuple[float, int]] = deque([(self._began, before)])
        self._loss_sum = 0.0
        self._loss_samples = 0

    def add(self, epoch: int, samples: int, loss_sum: float) -> None:
        """Count a worker's report."""
        now = time.monotonic()
        self.done += samples
        self.epoch = max(self.epoch, epoch)
        self._loss_sum += loss_sum
        self._loss_samples += samples
        if self._loss_samples > self.total / 20:
            self._loss_samples //= 2
            self._loss_sum /= 2
        if now - self._points[-1][0] >= _POINT_S:
            self._points.append((now, self.done))
        while len(self._points) > 2 and now - self._points[1][0] > _PACE_S:
            self._points.popleft()

    @property
    def loss(self) -> float | None:
        """See the class."""
        return self._loss_sum / self._loss_samples if self._loss_samples else None

    @property
    def share(self) -> float:
        """Of the whole run that is done, 0 to 1."""
        return min(1.0, self.done / self.total)

    @property
    def samples_per_s(self) -> float:
        """Over the last seconds."""
        at, done = self._points[0]
        return (self.done - done) / max(time.monotonic() - at, 1e-9)

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the mean pace of this launch, evaluations and waits in it; None: unknown."""
        gained = self.done - self._before
        if gained <= 0:
            return None
        spent = time.monotonic() - self._began
        return max(self.total - self.done, 0) * spent / gained
