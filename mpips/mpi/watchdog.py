"""A thread that ends the process where the main thread cannot: in an MPI call that never returns.

A flush to a rank that is gone never returns, with any MPI. A signal handler does not run while the main
thread is inside MPI. In both cases this thread prints what happened, removes the job's files from /dev/shm
and ends the process. It makes no MPI call itself. It also measures the time that a rank has for a last
checkpoint; see mpips.mpi.signals.

Signals reach this thread through the wakeup descriptor: Python's C-level handler writes the number of every
signal to a socket, in whichever thread the signal arrives, and this thread reads the other end.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

import msgspec

from mpips.errors import StallError
from mpips.mpi import failure_report, launch
from mpips.mpi.signals import ONE_SIGNAL_S, SignalRequests, unwinding_s
from mpips.process import forked, patience
from mpips.terminal.screen import say

_TICK_S = 0.2
_FATAL = (signal.SIGTERM, signal.SIGINT)


class Guard:
    """Bounds calls that may never return, as in `with guard("a flush to rank 3"):`.

    Guards may nest: the outer call goes on while an inner one begins and returns. Only one thread changes the
    list of open calls: the main thread, or that for which the guard was made. The watchdog copies the list
    before it reads it; the interpreter's lock makes the copy consistent.
    """

    def __init__(self) -> None:
        """Start without open calls."""
        self._what = ""
        self._open: list[tuple[str, float]] = []  # with the running s of their begin

    def __call__(self, what: str) -> Guard:
        """Name the call that the next block contains, for the error."""
        self._what = what
        return self

    def __enter__(self) -> None:
        """Start to measure the time of the named call."""
        self._open.append((self._what, patience.running_s()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Forget the innermost call: it has returned."""
        self._open.pop()

    def overdue(self, limit_s: float) -> tuple[str, float] | None:
        """Return the innermost call that has been open for longer than `limit_s`, and its time in seconds."""
        late = [entry for entry in list(self._open) if patience.is_over(entry[1], limit_s)]
        return (late[-1][0], patience.running_s() - late[-1][1]) if late else None


class _Termination(msgspec.Struct):
    """The schedule from the first SIGTERM or SIGINT to the end of the process, in running seconds."""

    number: int  # of the signal
    since: float  # when it came
    again_at: float  # when to send it again; infinite: it is not sent again
    leave_at: float  # when to end the process


class Watchdog:
    """Watches the guarded calls and the signals of the process. One per session; main thread only.

    Attributes:
        guard: Bounds calls of the main thread that may never return.
        thread_guard: Does the same for another thread, the progress thread of a worker.
    """

    def __init__(self, who: str, timeout_s: float, clean_shared_memory: Callable[[], None]) -> None:
        """Prepare the watchdog; `start` starts its thread.

        Args:
            who: Names this process in errors.
            timeout_s: Longest time of a guarded call, seconds.
            clean_shared_memory: Removes this job's files from /dev/shm before the process ends. It must not
                call MPI.
        """
        self.guard, self.thread_guard = Guard(), Guard()
        self._signal_requests: SignalRequests | None = None
        self._is_hopeless: Callable[[], bool] = lambda: False
        self._who = who
        self._timeout_s = timeout_s
        self._unwinding_s = unwinding_s()
        self._clean_shared_memory = clean_shared_memory
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="mpips-watchdog", daemon=True)
        self._old_fd: int | None = None

    def allow_checkpoint(
        self, signal_requests: SignalRequests, is_hopeless: Callable[[], bool] = lambda: False
    ) -> None:
        """Let a last checkpoint delay the end after a signal, from here on.

        Args:
            signal_requests: Gives the time that the checkpoint may take.
            is_hopeless: Returns True if a checkpoint is no longer possible. The watchdog's thread calls it;
                it must not call MPI.
        """
        self._is_hopeless = is_hopeless
        self._signal_requests = signal_requests

    def start(self) -> None:
        """Start the thread. Signals reach it only if the caller is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        forked.register(self)

    def disown(self) -> None:
        """Restore the wakeup descriptor in a forked child, which has no such thread and shares sockets."""
        self._stop = True
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    def stop(self) -> None:
        """End the thread and restore the wakeup descriptor."""
        forked.forget(self)
        self._stop = True
        if self._old_fd is not None:
            signal.set_wakeup_fd(self._old_fd)
        self._writer.send(b"\0")
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _run(self) -> None:
        dying: _Termination | None = None
        while not self._stop:
            # Wait for numbers of signals.
            try:
                self._reader.settimeout(_TICK_S if dying is None else _TICK_S / 4)
                received = self._reader.recv(64)
            except TimeoutError:
                received = b""
            now = patience.running_s()
            if self._signal_requests is not None and signal.SIGCONT in received:
                self._signal_requests.continued()
            fatal = [number for number in received if number in _FATAL]
            if fatal:
                dying = self._on_signal(fatal[0], now, dying)
            # Ignore a signal that came when the job was already done.
            if self._signal_requests is not None and self._signal_requests.is_over:
                dying = None
            if dying is not None:
                self._enforce(dying, now)
            # End the process where an MPI call does not return.
            late = self.guard.overdue(self._timeout_s)
            if late := late or self.thread_guard.overdue(self._timeout_s):
                self._leave(
                    StallError.exit_code,
                    f"{self._who}: {late[0]} has not returned for {late[1]:.1f} s; that "
                    "process is stopped, gone or cut off",
                )

    def _on_signal(self, number: int, now: float, dying: _Termination | None) -> _Termination:
        """Return the schedule after a signal: a new one for the first, a shorter one after a second."""
        if dying is None:
            grace_s = (
                self._signal_requests.grace_now() if self._signal_requests is not None else 0.0
            )
            again_at = now + grace_s if grace_s else float("inf")
            return _Termination(number, now, again_at, now + grace_s + self._unwinding_s)
        if now - dying.since > ONE_SIGNAL_S:
            dying.leave_at = min(dying.leave_at, now + self._unwinding_s)
        return dying

    def _enforce(self, dying: _Termination, now: float) -> None:
        """Send the signal again when the time for a last checkpoint is over, and then end the process."""
        if dying.again_at < float("inf") and (now >= dying.again_at or self._is_hopeless()):
            dying.again_at = float("inf")
            dying.leave_at = now + self._unwinding_s
            if self._signal_requests is not None:
                self._signal_requests.expired = True
            os.kill(os.getpid(), dying.number)
        if now >= dying.leave_at:
            self._leave(128 + dying.number, None)

    def leave(self, message: str, about: int) -> NoReturn:
        """End the process with exit code 124, without an MPI call. Main thread.

        Args:
            message: The error, which is printed and reported.
            about: Rank in COMM_WORLD that is the reason.
        """
        code = StallError.exit_code
        failure_report.write(kind="silent", message=message, exit_code=code, about=about)
        launch.print_error(message)
        self._clean_shared_memory()
        os._exit(code)

    def _leave(self, code: int, message: str | None) -> None:
        if message is not None:
            failure_report.write(kind="StallError", message=message, exit_code=code)
            say(f"mpips: error: {message}")
            faulthandler.dump_traceback(all_threads=True)
            launch.explain_launcher()
        self._clean_shared_memory()
        os._exit(code)


@contextmanager
def watching(signal_requests: SignalRequests) -> Iterator[None]:
    """Run a watchdog for the signals within the block, in a process without a cluster.

    Args:
        signal_requests: Gives the time that a last checkpoint may take.
    """
    if not signal_requests.grace_s:
        yield
        return
    watchdog = Watchdog("this process", float("inf"), lambda: None)
    watchdog.allow_checkpoint(signal_requests)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
