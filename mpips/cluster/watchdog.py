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

from mpips.cluster import lastwords
from mpips.errors import StallError

GRACE_S = 0.5
_TICK_S = 0.2
_FATAL = (signal.SIGTERM, signal.SIGINT)


class Guard:
    """`with guard("a flush to rank 3"):` bounds a call that may never return.

    Guards may nest: the outer call goes on while an inner one begins and returns. The main thread alone
    changes the list of open calls; the watchdog reads a copy, which the interpreter's lock makes whole.
    """

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self._what = ""
        self._open: list[tuple[str, float]] = []

    def __call__(self, what: str) -> Guard:
        """Name the call that follows."""
        self._what = what
        return self

    def __enter__(self) -> None:
        """Watch from here."""
        self._open.append((self._what, time.monotonic()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """The call has returned."""
        self._open.pop()

    def overdue(self, now: float, limit_s: float) -> tuple[str, float] | None:
        """The innermost call that has been open for longer than `limit_s`, and for how long."""
        late = [(what, now - since) for what, since in list(self._open) if now - since > limit_s]
        return late[-1] if late else None


class Watchdog:
    """Watches the guarded calls and the signals of the process. One per session, main thread only."""

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
            if late := self.guard.overdue(now, self._timeout_s):
                self._leave(
                    StallError.exit_code,
                    f"{self._who}: {late[0]} has not returned for {late[1]:.1f} s; that "
                    "process is stopped, gone or cut off",
                )

    def _leave(self, code: int, message: str | None) -> None:
        if message is not None:
            lastwords.speak(kind="StallError", message=message, exit_code=code)
            print(f"mpips: error: {message}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        self._last_rites()
        os._exit(code)
