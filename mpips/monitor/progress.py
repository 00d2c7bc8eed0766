"""Progress of a run for people: one rich line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Protocol

PLAIN_INTERVAL_S = 30.0
PLAIN_SHARE = 0.05


@dataclass
class Totals:
    """What all workers have reported so far."""

    samples: int = 0
    window_samples: int = 0
    window_loss: float = 0.0

    def add(self, samples: int, loss_sum: float) -> None:
        """Count a report."""
        self.samples += samples
        self.window_samples += samples
        self.window_loss += loss_sum


class Display(Protocol):
    """Shows progress; driven by reports."""

    def update(self, done: float, text: str) -> None:
        """Show the share `done` (0 to 1) and a line of figures."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainDisplay:
    """A line every 5 % or 30 s, whichever comes first."""

    def __init__(self) -> None:
        """The first line comes with the first 5 %."""
        self._last_share = 0.0
        self._last_time = time.monotonic()

    def update(self, done: float, text: str) -> None:
        """See Display."""
        now = time.monotonic()
        if done - self._last_share >= PLAIN_SHARE or now - self._last_time >= PLAIN_INTERVAL_S:
            self._last_share, self._last_time = done, now
            print(f"{done:4.0%}  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """See Display."""


class NoDisplay:
    """Shows nothing."""

    def update(self, done: float, text: str) -> None:
        """See Display."""

    def close(self) -> None:
        """See Display."""


class RichDisplay:
    """One live line."""

    def __init__(self) -> None:
        """Needs the package rich and a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=1.0)
        self._progress.start()

    def update(self, done: float, text: str) -> None:
        """See Display."""
        self._progress.update(self._task, completed=done, description=text)

    def close(self) -> None:
        """See Display."""
        self._progress.stop()


def make_display(kind: str) -> Display:
    """ "auto" is rich on a terminal where it is installed, else plain; "rich", "plain", "none"."""
    if kind == "none":
        return NoDisplay()
    if kind == "rich":
        return RichDisplay()
    if kind == "auto" and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        try:
            return RichDisplay()
        except ImportError:
            pass
    return PlainDisplay()


class ProgressMeter:
    """Turns the workers' reports into one line: epoch, samples/s, loss."""

    def __init__(self, display: Display, n_epochs: int, total_samples: int) -> None:
        """`total_samples`: of the whole run, all workers and epochs."""
        self._display = display
        self._n_epochs = n_epochs
        self._total = max(1, total_samples)
        self._totals = Totals()
        self._start = time.monotonic()
        self._text = ""

    def report(self, epoch: int, samples: int, loss_sum: float) -> None:
        """A worker's progress since its last report."""
        t = self._totals
        t.add(samples, loss_sum)
        rate = t.samples / max(1e-9, time.monotonic() - self._start)
        loss = t.window_loss / max(1, t.window_samples)
        self._text = (
            f"epoch {min(epoch + 1, self._n_epochs)}/{self._n_epochs}  {rate:,.0f} samples/s  "
            f"loss {loss:.4f}"
        )
        self._display.update(min(1.0, t.samples / self._total), self._text)
        # The loss shown is that of about the last twentieth of the run.
        if t.window_samples > self._total * PLAIN_SHARE:
            t.window_samples //= 2
            t.window_loss /= 2

    def close(self) -> None:
        """End the display."""
        self._display.close()
