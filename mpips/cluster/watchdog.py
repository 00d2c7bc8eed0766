"""A thread that ends the process where the main thread cannot: stuck in MPI, or told to die.

It makes no MPI calls. A flush to a rank that is gone never returns, whatever the MPI; a signal handler
does not run while the main thread is inside MPI. In both cases this thread says what happened, removes
the job's names from /dev/shm and leaves.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from mpips.errors import StallError

GRACE_S = 0.5
_TICK_S = 0.2
_FATAL = (signal.SIGTERM, signal.SIGINT)


class Guard:
    """`with guard("a flush to rank 3"):` bounds a call that may never return."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self.what: str | None = None
        self.since = 0.0

    def __call__(self, what: str) -> Guard:
        """Name the call that follows."""
        self.since = time.monotonic()
        self.what = what
        return self

    def __enter__(self) -> None:
        """Watch from here."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """The call has returned."""
        self.what = None


class Watchdog:
    """Watches one guard and the signals of the process. One per session, main thread only."""

    def __init__(self, who: str, timeout_s: float, last_rites: Callable[[], None]) -> None:
        """`last_rites` removes what must not stay; it must not call MPI."""
        self.guard = Guard()
        self._who = who
        self._timeout_s = timeout_s
        self._last_rites = last_rites
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="mpips-watchdog", daemon=True)
        self._old_fd: int | None = None

    def start(self) -> None:
        """Begin watching. Signals are watched only where this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give the signals back."""
        self._stop = True
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
        self._writer.send(b"\0")
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _run(self) -> None:
        self._reader.settimeout(_TICK_S)
        dying: tuple[float, int] | None = None
        while not self._stop:
            try:
                received = [b for b in self._reader.recv(64) if b in _FATAL]
            except TimeoutError:
                received = []
            now = time.monotonic()
            if received and dying is None:
                dying = (now + GRACE_S, received[0])
            if dying is not None and now >= dying[0]:
                self._leave(128 + dying[1], None)
            if self.guard.what is not None and now - self.guard.since > self._timeout_s:
                what = self.guard.what
                self._leave(
                    StallError.exit_code,
                    f"{self._who}: {what} has not returned for {now - self.guard.since:.1f} s; that "
                    "process is stopped, gone or cut off",
                )

    def _leave(self, code: int, message: str | None) -> None:
        if message is not None:
            print(f"mpips: error: {message}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        self._last_rites()
        os._exit(code)
