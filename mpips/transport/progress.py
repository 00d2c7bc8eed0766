"""The progress thread: a worker's transfers to and from other nodes go on while its program computes.

MPI moves bytes only within calls. Without this thread an answer that has arrived is read, and what it allows
is started, only when the program calls mpips again. While the gate (gate.py) is open the thread makes short
steps: it tests messages, takes answers, starts to fetch replies that are due, and copies those that have
arrived to where the program expects them. Between two steps it sleeps. Where nothing is under way it waits
for the next `open`, so it costs nothing then. A worker has it only if a server is on another node.

The thread is one of Python: the calls and copies of a step run without the interpreter's lock, the rest needs
it for some tens of microseconds. A program that computes in NumPy or PyTorch releases that lock; one that
computes in Python gives it away every 5 ms, and loses less than one per cent.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from mpips.process import forked
from mpips.transport.gate import Gate

SWITCH = "MPIPS_PROGRESS"  # environment variable; "0": no worker has a progress thread
_SHORT_S, _LONG_S = (
    100e-6,
    1e-3,
)  # pauses between two steps: the first after something moved, the longest
_GROWTH = 1.5  # of the pause, after a step in which nothing moved


class Advancing(Protocol):
    """The part of a remote channel that the progress thread uses."""

    @property
    def is_under_way(self) -> bool:
        """True if a message, an answer or a reply is under way. Makes no MPI call."""

    def advance(self) -> bool:
        """Do what is possible without waiting; return True if something has moved."""


def is_wanted(env: Mapping[str, str] = os.environ) -> bool:
    """Return False if the user has switched progress threads off."""
    return env.get(SWITCH, "1").strip() != "0"


@contextmanager
def ending_with(progress: ProgressThread | None) -> Iterator[None]:
    """Run a worker's program in the block; at its end the progress thread ends, whatever happens."""
    try:
        yield
    except BaseException:
        if progress is not None:
            # The error of the block counts, not one of the thread, which may be its consequence.
            with suppress(Exception):
                progress.stop()
        raise
    if progress is not None:
        progress.stop()


class ProgressThread:
    """The progress thread of one worker. The program's thread calls all methods."""

    def __init__(
        self,
        gate: Gate,
        channels: Sequence[Advancing],
        guard: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Start no thread yet; the first `open` with something under way does.

        Args:
            gate: The gate of this process.
            channels: The channels to servers on other nodes.
            guard: `guard(what)` is a context in which a call that never returns ends the process. This
                thread alone uses it.
        """
        self._gate = gate
        self._channels = channels
        self._guard = guard
        self._opened = threading.Event()
        self._stops = self._has_failed = False
        self._thread: threading.Thread | None = None
        self._n_users = self._n_pauses = 0
        self.n_steps = 0  # steps so far, for tests

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the thread from calling MPI within the block; see Worker.paused."""
        self._n_pauses += 1
        self._show()
        try:
            self._gate.close()
            yield
        finally:
            self._n_pauses -= 1
            self._show()

    def begin_use(self) -> None:
        """Let `open` have an effect; each call needs one of `end_use`."""
        self._n_users += 1
        self._show()

    def end_use(self) -> None:
        """Undo one `begin_use`. Makes no MPI call."""
        self._n_users -= 1
        self._show()

    @property
    def _is_of_use(self) -> bool:
        is_there = not (self._stops or self._has_failed)
        return self._n_users > 0 and self._n_pauses == 0 and is_there

    def _show(self) -> None:
        """Let channels know whether they may leave transfers to the thread."""
        self._gate.is_served = self._is_of_use

    def open(self) -> None:
        """Let transfers go on while the program computes, until it calls mpips again. Cheap.

        Does nothing without a user, in a block of `paused`, and where nothing is under way.
        """
        if not self._is_of_use:
            return
        if not any(channel.is_under_way for channel in self._channels):
            return
        if self._thread is None:
            self._start()
        self._gate.open()
        self._opened.set()

    def stop(self) -> None:
        """End the thread; the gate stays closed from here on. Further calls have no effect.

        Raises:
            BaseException: The error that has ended the thread before.
        """
        if self._stops:
            return
        self._stops = True
        forked.forget(self)
        atexit.unregister(self.stop)
        try:
            self._gate.close()
        finally:
            self._show()
            self._opened.set()
            if self._thread is not None:
                self._thread.join()

    def disown(self) -> None:
        """Forget the thread in a forked child, which does not have it."""
        self._thread, self._stops = None, True

    def _start(self) -> None:
        forked.register(self)
        # End the thread before the hook that finalizes MPI, which is registered earlier.
        atexit.register(self.stop)
        self._thread = threading.Thread(target=self._run, name="mpips-progress", daemon=True)
        self._gate.thread = self._thread
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._opened.wait()
                self._opened.clear()
                if self._stops:
                    return
                self._advance()
        except BaseException as error:
            self._has_failed = True
            self._gate.fail(error)
            self._show()

    def _advance(self) -> None:
        """Make steps while the gate is open and something is under way."""
        pause = _SHORT_S
        while True:
            with self._gate.lock:
                if not self._gate.is_open:
                    return
                with self._guard("a step of the progress thread"):
                    moved = [channel.advance() for channel in self._channels]
                self.n_steps += 1
                if not any(channel.is_under_way for channel in self._channels):
                    return
            pause = _SHORT_S if any(moved) else min(_GROWTH * pause, _LONG_S)
            time.sleep(pause)
