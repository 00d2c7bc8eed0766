"""The progress of a run: share that is done, rate, time that is left. Plain numbers from workers' reports."""

from __future__ import annotations

import time
from collections import deque

_PACE_S = 10.0  # s over which the rate of samples is measured
_POINT_S = 0.5  # s between two points of that measurement


class RunProgress:
    """The progress of a run since its beginning, over all its launches.

    Attributes:
        n_epochs: Number of epochs of the whole run.
        total: Number of samples of all epochs and workers, at least 1.
        done: Number of these samples that are trained on, including those of earlier launches.
        epoch: Greatest epoch that a worker has reported, from 0.
    """

    def __init__(self, n_epochs: int, total: int, before: int = 0, epoch: int = 0) -> None:
        """Begin with the state of the run at the start of this launch.

        Args:
            n_epochs: Number of epochs of the whole run.
            total: Number of samples of all epochs and workers.
            before: Number of these samples that earlier launches have trained on.
            epoch: Epoch in which this launch begins, from 0.
        """
        self.n_epochs = n_epochs
        self.total = max(1, total)
        self.done = self._before = before
        self.epoch = epoch
        self._began = time.monotonic()
        # Monotonic s and `done` at points of the last seconds, the oldest first.
        self._points: deque[tuple[float, int]] = deque([(self._began, before)])
        self._loss_sum = 0.0
        self._loss_samples = 0

    def add(self, epoch: int, samples: int, loss_sum: float) -> None:
        """Add a worker's progress since its last report.

        Args:
            epoch: Epoch of the worker, from 0.
            samples: Number of samples since its last report.
            loss_sum: Sum of their losses.
        """
        now = time.monotonic()
        self.done += samples
        self.epoch = max(self.epoch, epoch)
        self._loss_sum += loss_sum
        self._loss_samples += samples
        # Halve the weight of older losses, so that the mean follows the last twentieth of the run.
        if self._loss_samples > self.total / 20:
            self._loss_samples //= 2
            self._loss_sum /= 2
        if now - self._points[-1][0] >= _POINT_S:
            self._points.append((now, self.done))
        while len(self._points) > 2 and now - self._points[1][0] > _PACE_S:
            self._points.popleft()

    @property
    def loss(self) -> float | None:
        """Mean loss over about the last twentieth of the run; None before the first report."""
        return self._loss_sum / self._loss_samples if self._loss_samples else None

    @property
    def share(self) -> float:
        """Share of the whole run that is done, 0 to 1."""
        return min(1.0, self.done / self.total)

    @property
    def samples_per_s(self) -> float:
        """Number of samples per second, of all workers, over the last seconds."""
        at, done = self._points[0]
        return (self.done - done) / max(time.monotonic() - at, 1e-9)

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the mean rate of this launch, with evaluations and waits; None: unknown."""
        gained = self.done - self._before
        if gained <= 0:
            return None
        spent = time.monotonic() - self._began
        return max(self.total - self.done, 0) * spent / gained
