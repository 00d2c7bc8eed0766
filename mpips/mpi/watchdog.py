"""A thread that ends the process where the main thread cannot: stuck in MPI, or told to die.

It makes no MPI calls. A flush to a rank that is gone never returns, whatever the MPI; a signal handler
does not run while the main thread is inside MPI. In both cases this thread says what happened, removes
the job's names from /dev/shm and leaves. It also keeps the time that a rank has for a last checkpoint; see
mpips.mpi.signals.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from mpips.errors import StallError
from mpips.mpi import failure_report, launch
from mpips.mpi.signals import ONE_SIGNAL_S, SignalRequests, unwinding_s
from mpips.process import forked

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


@dataclass
class _Dying:
    """From the first signal to the end: when it came, when to send it again, when to leave."""

    number: int
    since: float
    again_at: float
    leave_at: float


class Watchdog:
    """Watches the guarded calls and the signals of the process. One per session, main thread only.

    Attributes:
        signal_requests: Gives the time that a last checkpoint may take, while the job is at work.
        is_hopeless: Whether there cannot be a last checkpoint any more. Must not call MPI.
    """

    def __init__(self, who: str, timeout_s: float, last_rites: Callable[[], None]) -> None:
        """`last_rites` removes what must not stay; it must not call MPI."""
        self.guard = Guard()
        self.signal_requests: SignalRequests | None = None
        self.is_hopeless: Callable[[], bool] = lambda: False
        self._who = who
        self._timeout_s = timeout_s
        self._unwinding_s = unwinding_s()
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
        forked.register(self)

    def disown(self) -> None:
        """Give the signals back in a forked child, which has neither the thread nor its own descriptors."""
        self._stop = True
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    def stop(self) -> None:
        """End the thread and give the signals back."""
        forked.forget(self)
        self._stop = True
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
        self._writer.send(b"\0")
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _run(self) -> None:
        dying: _Dying | None = None
        while not self._stop:
            try:
                self._reader.settimeout(_TICK_S if dying is None else _TICK_S / 4)
                received = self._reader.recv(64)
            except TimeoutError:
                received = b""
            now = time.monotonic()
            if self.signal_requests is not None and signal.SIGCONT in received:
                self.signal_requests.continued()
            fatal = [number for number in received if number in _FATAL]
            if fatal:
                dying = self._hear(fatal[0], now, dying)
            if self.signal_requests is not None and self.signal_requests.is_over:
                dying = None  # the job is done: nobody need die of what came in its last moment
            if dying is not None:
                self._keep_time(dying, now)
            if late := self.guard.overdue(now, self._timeout_s):
                self._leave(
                    StallError.exit_code,
                    f"{self._who}: {late[0]} has not returned for {late[1]:.1f} s; that "
                    "process is stopped, gone or cut off",
                )

    def _hear(self, number: int, now: float, dying: _Dying | None) -> _Dying:
        """A signal came: the first, the same once more, or another that leaves no more time."""
        if dying is None:
            grace_s = self.signal_requests.grace_now() if self.signal_requests is not None else 0.0
            again_at = now + grace_s if grace_s else float("inf")
            return _Dying(number, now, again_at, now + grace_s + self._unwinding_s)
        if now - dying.since > ONE_SIGNAL_S:
            dying.leave_at = min(dying.leave_at, now + self._unwinding_s)
        return dying

    def _keep_time(self, dying: _Dying, now: float) -> None:
        """End the time for a last checkpoint, and then the process."""
        if dying.again_at < float("inf") and (now >= dying.again_at or self.is_hopeless()):
            dying.again_at = float("inf")
            dying.leave_at = now + self._unwinding_s
            if self.signal_requests is not None:
                self.signal_requests.expired = True
            os.kill(os.getpid(), dying.number)
        if now >= dying.leave_at:
            self._leave(128 + dying.number, None)

    def leave(self, message: str, about: int) -> NoReturn:
        """End the process with a StallError of which rank `about` is the reason. Main thread."""
        code = StallError.exit_code
        failure_report.write(kind="silent", message=message, exit_code=code, about=about)
        launch.print_error(message)
        self._last_rites()
        os._exit(code)

    def _leave(self, code: int, message: str | None) -> None:
        if message is not None:
            failure_report.write(kind="StallError", message=message, exit_code=code)
            print(f"mpips: error: {message}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
            launch.explain_launcher()
        self._last_rites()
        os._exit(code)


@contextmanager
def watching(signal_requests: SignalRequests) -> Iterator[None]:
    """Keep the time that `told` leaves for a last checkpoint, in a process without a cluster."""
    if not signal_requests.grace_s:
        yield
        return
    watchdog = Watchdog("this process", float("inf"), lambda: None)
    watchdog.signal_requests = signal_requests
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
