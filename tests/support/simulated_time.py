"""Time that a test sets, for waits: it passes during sleeps, and the process can be suspended in it."""

from __future__ import annotations

import time

import pytest

from mpips.process import patience


class SimulatedTime:
    """Replaces `time.monotonic` and `time.sleep` of this process.

    Attributes:
        suspend_at: A sleep that reaches this running time contains a suspension of `suspend_s` seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self._begin = 1000.0
        self.suspend_at, self.suspend_s = float("inf"), 0.0
        self._suspended_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.pass_by)
        monkeypatch.setattr(patience, "_clock", patience.RunningClock())

    @property
    def ran_s(self) -> float:
        """Seconds in which the process ran."""
        return self.now - self._begin - self._suspended_s

    def pass_by(self, seconds: float) -> None:
        """Let the process run; the watchdog's thread reads the clock meanwhile."""
        until = self.now + seconds
        while self.now < until:
            step = min(until - self.now, 0.125)
            self.now = until if self.now + step >= until else self.now + step
            if self.ran_s >= self.suspend_at:
                self.suspend_at = float("inf")
                self.suspend(self.suspend_s)
                until += self.suspend_s
            patience.running_s()

    def suspend(self, seconds: float) -> None:
        """Stop the process and continue it; nothing reads the clock meanwhile."""
        self.now += seconds
        self._suspended_s += seconds
