"""Progress of a run for people: one rich line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from mpips.monitor.terminal import Terminal, find_terminal

if TYPE_CHECKING:
    from mpips.course import Course
    from mpips.panel import Totals
    from mpips.rundir import Progress

PLAIN_INTERVAL_S = 30.0
PLAIN_SHARE = 0.05
_LOOK_S = 0.25
_BAR = 20
_GAP = "  "


@dataclass(frozen=True)
class Snapshot:
    """What there is to say of a run.

    Attributes:
        share: Of the whole run that is done, 0 to 1.
        epoch: The one that is under way, from 1; 0: none.
        n_epochs: Of the run; 0: unknown.
        step: Clock of the run.
        samples_per_s: Of all workers.
        push_bytes_per_s, pull_bytes_per_s: Of all workers.
        loss, staleness, left_s, bytes: None: not known.
    """

    share: float = 0.0
    epoch: int = 0
    n_epochs: int = 0
    step: int = 0
    samples_per_s: float = 0.0
    loss: float | None = None
    staleness: float | None = None
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    left_s: float | None = None

    @classmethod
    def of(cls, p: Progress) -> Snapshot:
        """What status.json has."""
        return cls(
            share=p.share,
            epoch=min(p.epoch + 1, p.n_epochs or p.epoch + 1),
            n_epochs=p.n_epochs,
            step=p.step,
            samples_per_s=p.samples_per_s,
            loss=p.loss,
            staleness=p.staleness,
            push_bytes_per_s=p.push_bytes_per_s,
            pull_bytes_per_s=p.pull_bytes_per_s,
            left_s=p.left_s,
        )


def duration(seconds: float | None) -> str:
    """1:02:03, 2:03 or 0:03, for people; days where there are any."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h}:{m:02}:{s:02}"
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def _gigabytes(n_bytes: float | None) -> str:
    if n_bytes is None:
        return "-"
    n = n_bytes / 1e9
    return "<0.001" if 0 < n < 1e-3 else f"{n:.3g}"


def fields(now: Snapshot) -> list[tuple[int, str]]:
    """The parts of the line in their order, each with its weight: the lightest go first for want of room."""
    pushed, pulled = _gigabytes(now.push_bytes_per_s), _gigabytes(now.pull_bytes_per_s)
    epochs = f"/{now.n_epochs}" if now.n_epochs else ""
    return [
        (9, f"{now.share:4.0%}"),
        (7, f"epoch {now.epoch}{epochs}"),
        (4, f"step {now.step:,}"),
        (6, f"{now.samples_per_s:,.0f} samples/s"),
        (5, f"loss {now.loss:.4f}" if now.loss is not None else "loss -"),
        (2, f"staleness {now.staleness:.1f}" if now.staleness is not None else "staleness -"),
        (1, f"push {pushed} pull {pulled} GB/s"),
        (8, f"{duration(now.left_s)} left"),
    ]


def fit(parts: Sequence[tuple[int, str]], width: int) -> str:
    """The parts on one line of at most `width` characters; those of least weight are left out."""
    kept = list(parts)
    while len(kept) > 1 and len(_GAP.join(text for _, text in kept)) > width:
        kept.remove(min(kept))
    return _GAP.join(text for _, text in kept)[: max(width, 1)]


class Display(Protocol):
    """Shows progress."""

    def update(self, now: Snapshot) -> None:
        """Show it, if it is time. Cheap enough for four times a second."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainDisplay:
    """A line every 5 % or 30 s, whichever comes first."""

    def __init__(self, share: float = 0.0, out: TextIO | None = None) -> None:
        """`share`: of the run that is done at the start; the first line comes 5 % after it."""
        self._out = out
        self._last_share = share
        self._last_time = time.monotonic()

    def update(self, now: Snapshot) -> None:
        """See Display."""
        at = time.monotonic()
        due = now.share - self._last_share >= PLAIN_SHARE - 1e-9
        ended = now.share >= 1.0 > self._last_share
        if due or ended or at - self._last_time >= PLAIN_INTERVAL_S:
            self._last_share, self._last_time = now.share, at
            text = _GAP.join(text for _, text in fields(now))
            print(text, file=self._out or sys.stderr, flush=True)

    def close(self) -> None:
        """See Display."""


class NoDisplay:
    """Shows nothing."""

    def update(self, now: Snapshot) -> None:
        """See Display."""

    def close(self) -> None:
        """See Display."""


class RichDisplay:
    """One live line with a bar, as wide as the terminal."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        """Needs the package rich; `terminal`: where stderr ends, if that is a pipe to a launcher."""
        from rich.console import Console
        from rich.live import Live

        self._terminal = terminal
        self._console = Console(
            stderr=True,
            force_terminal=True if terminal is not None else None,
            width=terminal.width() if terminal is not None else None,
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, now: Snapshot) -> None:
        """See Display."""
        from rich.text import Text

        width = self._terminal.width() if self._terminal is not None else self._console.width
        parts = fields(now)
        text = fit(parts, width - 1)
        everything = len(_GAP.join(part for _, part in parts))
        line = Text(no_wrap=True, overflow="crop")
        if width - 1 >= everything + _BAR + len(_GAP):
            filled = round(now.share * _BAR)
            line.append("━" * filled, "green").append("━" * (_BAR - filled), "bright_black")
            line.append(_GAP)
        line.append(text)
        self._live.update(line, refresh=True)

    def close(self) -> None:
        """See Display."""
        self._live.stop()


def make_display(kind: str, share: float = 0.0) -> Display:
    """ "auto" is rich on a terminal where it is installed, else plain; "rich", "plain", "none".

    Args:
        kind: One of these.
        share: Of the run that is done at the start.
    """
    if kind == "none":
        return NoDisplay()
    terminal = find_terminal()
    if kind == "rich" or (kind == "auto" and terminal is not None):
        try:
            return RichDisplay(terminal)
        except ImportError:
            if kind == "rich":
                raise
    return PlainDisplay(share)


class ProgressMeter:
    """Shows where a run stands, driven by reports and by looks in between."""

    def __init__(self, display: Display, course: Course, totals: Callable[[], Totals]) -> None:
        """`course`: counts what is reported here; `totals`: what all ranks send and fetch."""
        self._display = display
        self._course = course
        self._totals = totals
        self._step = 0
        self._next = 0.0
        self._closed = False

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """A worker's progress since its last report; `step` of the run."""
        self._course.add(epoch, samples, loss_sum)
        self._step = max(self._step, step)
        self.look()

    def look(self, at_once: bool = False) -> None:
        """Show the present, if it is time. Call it often."""
        now = time.monotonic()
        if (now < self._next or self._closed) and not at_once:
            return
        self._next = now + _LOOK_S
        if self._step:
            self._display.update(self._snapshot())

    def _snapshot(self) -> Snapshot:
        course, totals = self._course, self._totals()
        return Snapshot(
            share=course.share,
            epoch=min(course.epoch + 1, course.n_epochs),
            n_epochs=course.n_epochs,
            step=self._step,
            samples_per_s=course.samples_per_s,
            loss=course.loss,
            staleness=totals.staleness,
            push_bytes_per_s=totals.push_bytes_per_s,
            pull_bytes_per_s=totals.pull_bytes_per_s,
            left_s=course.left_s,
        )

    def close(self) -> None:
        """Show the last state and end the display, once."""
        if not self._closed:
            self._closed = True
            self.look(at_once=True)
            self._display.close()
