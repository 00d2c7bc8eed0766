"""Show the progress of a run: one live line on a terminal, a plain line at intervals elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

import msgspec

from mpips.monitor.line import LiveLine
from mpips.terminal.device import Terminal, find_terminal

if TYPE_CHECKING:
    from mpips.rundir.files import Progress
    from mpips.scheduler.rank_table import RankTotals
    from mpips.scheduler.run_progress import RunProgress

PLAIN_INTERVAL_S = 30.0  # seconds between two plain lines, at most
PLAIN_SHARE = 0.05  # share of the run between two plain lines, at most
_LOOK_S = 0.25  # seconds between two updates of a display
_BAR = 20  # columns of the bar
_GAP = "  "  # between two fields


class Snapshot(msgspec.Struct, frozen=True):
    """The progress of a run at one moment. None: the value is unknown.

    Attributes:
        share: Share of the whole run that is done, 0 to 1.
        epoch: Number of the current epoch, from 1; 0: none.
        n_epochs: Epochs of the run; 0: unknown, as for scripts that loop over `range`.
        step: Clock of the run.
        samples_per_s: Samples per second of all workers.
        loss: Mean training loss over the last report interval.
        learning_rate: Rate of the newest step; of several the first one.
        staleness: Mean staleness of the last updates, in clocks.
        push_bytes_per_s: Bytes per second that all workers send.
        pull_bytes_per_s: Bytes per second that all workers fetch.
        left_s: Seconds to the end of the run at the current rate.
        link_bytes_per_s: Bytes per second of both kinds that go from one node to another; None if all
            ranks are on one node.
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
    link_bytes_per_s: float | None = None
    learning_rate: float | None = None

    @classmethod
    def of(cls, p: Progress) -> Snapshot:
        """Return the progress that status.json contains."""
        return cls(
            share=p.share,
            epoch=epoch_of(p),
            n_epochs=p.n_epochs,
            step=p.step,
            samples_per_s=p.samples_per_s,
            loss=p.loss,
            staleness=p.staleness,
            push_bytes_per_s=p.push_bytes_per_s,
            pull_bytes_per_s=p.pull_bytes_per_s,
            left_s=p.left_s,
            learning_rate=p.learning_rate,
        )


def epoch_of(p: Progress) -> int:
    """Return the number of the current epoch, from 1; 0: the run counts no epochs."""
    if p.n_epochs:
        return min(p.epoch + 1, p.n_epochs)
    return p.epoch + 1 if p.has_epochs else 0


def duration(seconds: float | None) -> str:
    """Return a duration for people: 1:02:03, 2:03 or 0:03, with days if there are any; "-" for None."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h}:{m:02}:{s:02}"
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def plural(n: int, what: str) -> str:
    """Return a count with its noun: 1 epoch, 2 epochs, 12,345 steps."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def short(n: float) -> str:
    """Return a count in at most seven characters: 98,765; from a million on 1.23M, 1.23G, 1.23T."""
    for unit, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if n >= 0.9995 * scale:
            digits = f"{n / scale:#.3g}".rstrip(".") if n < 999.5 * scale else f"{n / scale:,.0f}"
            return digits + unit
    return f"{n:,.0f}"


def _gigabytes(n_bytes: float | None) -> str:
    """Return bytes as gigabytes, with three digits; "-" for None."""
    if n_bytes is None:
        return "-"
    n = n_bytes / 1e9
    return "<0.001" if 0 < n < 1e-3 else f"{n:.3g}" if n < 999.5 else f"{n:,.0f}"


def _loss(value: float) -> str:
    """Return a loss with four digits after the point, or with an exponent if it is large or small."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or not value else f"{value:.4g}"


def rate_text(value: float) -> str:
    """Return a learning rate with three digits: 0.1, 0.0333, 3e-05."""
    return f"{value:.3g}"


def fields(now: Snapshot) -> list[tuple[int, str]]:
    """Return the fields of the line in their order, as (weight, text); see `fit` for the weight."""
    pushed, pulled = _gigabytes(now.push_bytes_per_s), _gigabytes(now.pull_bytes_per_s)
    traffic = [(1, f"push {pushed} pull {pulled} GB/s")]
    if now.link_bytes_per_s is not None:
        traffic.append((0, f"between nodes {_gigabytes(now.link_bytes_per_s)} GB/s"))
    stale = (2, f"staleness {now.staleness:.1f}" if now.staleness is not None else "staleness -")
    rate = (6, f"{short(now.samples_per_s)} samples/s")
    loss = (5, f"loss {_loss(now.loss)}" if now.loss is not None else "loss -")
    learning = []
    if now.learning_rate is not None:
        learning = [(3, f"lr {rate_text(now.learning_rate)}")]
    if not now.n_epochs:
        # The end of a script may be unknown, and all of these, too.
        return [
            *([(7, f"epoch {now.epoch}")] if now.epoch else []),
            (9, f"step {now.step:,}"),
            *([rate] if now.samples_per_s else []),
            *([loss] if now.loss is not None else []),
            *learning,
            stale,
            *traffic,
        ]
    # A script may count no samples.
    losses = [rate, loss] if now.samples_per_s or now.loss is None else [loss]
    return [
        (9, f"{now.share:4.0%}"),
        (7, f"epoch {now.epoch}/{now.n_epochs}"),
        (4, f"step {now.step:,}"),
        *losses,
        *learning,
        stale,
        *traffic,
        (8, f"{duration(now.left_s)} left"),
    ]


def fit(parts: Sequence[tuple[int, str]], width: int) -> str:
    """Join fields to a line of at most `width` characters; those of least weight are left out first."""
    shown = list(parts)
    while len(shown) > 1 and len(_GAP.join(text for _, text in shown)) > width:
        shown.remove(min(shown))
    return _GAP.join(text for _, text in shown)[: max(width, 1)]


class Display(Protocol):
    """Shows the progress of a run."""

    def update(self, now: Snapshot) -> None:
        """Show the progress if an update is due. Cheap: the caller calls it four times a second."""

    def close(self) -> None:
        """End the display and restore the terminal."""


class PlainDisplay:
    """Prints a line every 5 % of the run or every 30 s, whichever comes first."""

    def __init__(self, share: float = 0.0, out: TextIO | None = None) -> None:
        """Print nothing yet.

        Args:
            share: Share of the run that is done at the start; the first line comes 5 % later.
            out: Stream to print to; None: stderr.
        """
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


class LineDisplay:
    """One live line, as wide as the terminal, with a bar where there is room for it."""

    def __init__(self, terminal: Terminal) -> None:
        """Draw on `terminal`.

        Raises:
            OSError: The terminal cannot be written to.
        """
        self._line = LiveLine(terminal)
        self._last: Snapshot | None = None
        encoding = (getattr(sys.stderr, "encoding", "") or "").lower()
        self._bar = "━━" if encoding.startswith("utf") else "#-"
        self._colours = not os.environ.get("NO_COLOR")

    def update(self, now: Snapshot) -> None:
        """See Display."""
        self._last = now
        self._line.show(self._text(now))

    def _text(self, now: Snapshot) -> str:
        """Return the line for the current width: a bar if there is room, and the fields."""
        # A character in the last column makes some terminals begin a new line.
        width = self._line.width() - 1
        parts = fields(now)
        everything = len(_GAP.join(part for _, part in parts))
        if not now.n_epochs or width < everything + _BAR + len(_GAP):
            return fit(parts, width)
        filled = round(now.share * _BAR)
        done, left = self._bar[0] * filled, self._bar[1] * (_BAR - filled)
        if self._colours:
            done, left = f"\x1b[32m{done}", f"\x1b[90m{left}\x1b[0m"
        elif self._bar[0] == self._bar[1]:
            left = " " * len(left)
        return f"{done}{left}{_GAP}{fit(parts, width)}"

    def close(self) -> None:
        """See Display."""
        self._line.close(self._text(self._last) if self._last is not None else "")

    def erase(self) -> None:
        """End the display and leave no line: what was printed after the last update is newer than it."""
        self._line.close(erase=True)


def make_display(kind: str, share: float = 0.0) -> Display:
    """Return the display that shows progress.

    Args:
        kind: "auto" (a live line on a terminal, plain lines elsewhere), "rich" (a live line, even if
            stderr is not a terminal), "plain" or "none".
        share: Share of the run that is done at the start.
    """
    if kind == "none":
        return NoDisplay()
    terminal = find_terminal() if kind != "plain" else None
    if terminal is None and kind == "rich":
        terminal = Terminal("")
    if terminal is not None:
        try:
            return LineDisplay(terminal)
        except OSError:
            # After `su` the terminal belongs to another user. Plain lines reach it through the launcher.
            return PlainDisplay(share)
    return PlainDisplay(share)


class ProgressMeter:
    """Updates a display from the workers' reports, and between them when `look` is called."""

    def __init__(
        self, display: Display, run_progress: RunProgress, totals: Callable[[], RankTotals]
    ) -> None:
        """Show nothing yet.

        Args:
            display: Shows the progress.
            run_progress: Counts the samples that are reported here.
            totals: Returns the rates and staleness of all ranks.
        """
        self._display = display
        self._run_progress = run_progress
        self._totals = totals
        self._step = 0
        self._learning_rate: float | None = None
        self._next = 0.0
        self._closed = False

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, rates: Sequence[float] = ()
    ) -> None:
        """Add a worker's progress since its last report.

        Args:
            epoch: Its epoch, from 0.
            step: Its step, counted from the start of the run.
            samples: Samples since its last report.
            loss_sum: Loss summed over these samples.
            rates: Its learning rates; empty: they have not changed.
        """
        if rates:
            self._learning_rate = rates[0]
        self._run_progress.add(epoch, samples, loss_sum)
        self._step = max(self._step, step)
        self.look()

    def look(self, at_once: bool = False) -> None:
        """Update the display if an update is due, or `at_once`. Cheap: call it often."""
        now = time.monotonic()
        if (now < self._next or self._closed) and not at_once:
            return
        self._next = now + _LOOK_S
        if self._step:
            self._display.update(self._snapshot())

    def _snapshot(self) -> Snapshot:
        run_progress, totals = self._run_progress, self._totals()
        return Snapshot(
            share=run_progress.share,
            epoch=min(run_progress.epoch + 1, run_progress.n_epochs),
            n_epochs=run_progress.n_epochs,
            step=self._step,
            samples_per_s=run_progress.samples_per_s,
            loss=run_progress.loss,
            staleness=totals.staleness,
            push_bytes_per_s=totals.push_bytes_per_s,
            pull_bytes_per_s=totals.pull_bytes_per_s,
            link_bytes_per_s=totals.link_bytes_per_s,
            left_s=run_progress.left_s,
            learning_rate=self._learning_rate,
        )

    def close(self) -> None:
        """Show the last state and end the display, once."""
        if not self._closed:
            self._closed = True
            self.look(at_once=True)
            self._display.close()
