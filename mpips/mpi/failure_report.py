"""What a rank of a supervised run leaves behind: its log, and its last words when it fails.

`begin` sends stderr of the process, native code's too, into the rank's log under the run directory, where
it stays whatever becomes of the launcher; rank 0 goes on speaking to the terminal as well. A fatal signal and
SIGUSR2 write the stacks of all threads there. A rank that fails on its own account says so in a small
file, once: the first words count, since what fails later may only be a consequence. A rank that is killed
says nothing; the launcher or its silence tells of it. Without a supervisor nothing here does anything.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.launch import launched_rank
from mpips.rundir import directory

LEAVING = "Leaving"  # kind of the words of a rank that ends after a durable checkpoint, by request


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank failed, as it or the scheduler saw it.

    Attributes:
        rank, host, pid: Of the process that wrote this.
        about: Rank that failed; another than `rank` where the scheduler speaks of a silent one.
        kind: Name of the exception's type.
        exit_code: That the job ends with.
        time_s: Unix time.
        up_s: Seconds since the host was started, which no setting of its wall clock changes; 0: unknown.
        secondary: A consequence of something else: another rank's failure, a signal from outside.
        role, clock: Of the failed rank; "" and -1 before it had any.
        state: What it was doing.
    """

    rank: int
    about: int
    host: str
    pid: int
    kind: str
    message: str
    exit_code: int
    time_s: float
    traceback: str = ""
    role: str = ""
    state: str = ""
    clock: int = -1
    secondary: bool = False
    up_s: float = 0.0


class _Speech(io.TextIOBase):
    """Text for the log, and of rank 0 for the terminal as well.

    The log's disk may be full, and whoever read the terminal be gone: no reason to end a training.
    """

    def __init__(self, *ways: TextIO) -> None:
        self._ways = ways

    def write(self, text: str) -> int:
        for way in self._ways:
            with contextlib.suppress(OSError):
                way.write(text)
        return len(text)

    def flush(self) -> None:
        for way in self._ways:
            with contextlib.suppress(OSError):
                way.flush()

    def fileno(self) -> int:
        return self._ways[0].fileno()

    def writable(self) -> bool:
        return True


class _ReportWriter:
    """This process as a rank of a supervised run."""

    def __init__(self, logs: Path) -> None:
        """Make the log and turn stderr to it.

        Raises:
            ConfigError: The run directory cannot be written from here.
        """
        self._logs = logs
        self._rank = launched_rank()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._spoken = False
        try:
            fd = os.open(
                logs / f"rank-{self._rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
        except OSError as error:
            raise ConfigError(
                f"{logs}: cannot be written on {socket.gethostname()}: {error.strerror}; the run "
                "directory must lie on a file system that all nodes share"
            ) from None
        terminal = os.dup(2)
        sys.stderr.flush()
        os.dup2(fd, 2)
        os.close(fd)
        log = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        if self._rank == 0:
            speaker = os.fdopen(terminal, "w", buffering=1, encoding="utf-8", errors="replace")
            sys.stderr = _Speech(log, speaker)
        else:
            sys.stderr = _Speech(log)
            os.close(terminal)
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR2, log, all_threads=True)
        sys.excepthook = self._uncaught

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self.say(fields_of(error))
        sys.__excepthook__(kind, error, tb)

    def say(self, fields: dict[str, Any]) -> None:
        """Write last words, if this process has not yet. Called by the main thread or the watchdog.

        A forked child has none: the end of a child is not the end of the rank.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._spoken:
                return
            self._spoken = True
        filled: dict[str, Any] = {"about": self._rank, "exit_code": 1, **fields}
        words = FailureReport(
            rank=self._rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            time_s=time.time(),
            up_s=time.clock_gettime(time.CLOCK_BOOTTIME),
            **filled,
        )
        try:
            directory.replace_json(self._logs / f"words-{self._rank}.json", words)
        except OSError as error:
            print(f"mpips: last words not written: {error}", file=sys.stderr, flush=True)


@functools.cache
def _report_writer() -> _ReportWriter | None:
    run = directory.current()
    return None if run is None else _ReportWriter(run.logs)


def begin() -> None:
    """Turn this process's stderr into its log, if it is a rank of a supervised run; once.

    Raises:
        ConfigError: The run directory is none, or cannot be written from here.
    """
    _report_writer()


def fields_of(error: BaseException) -> dict[str, Any]:
    """Kind, message, traceback and exit code of an exception, as fields of `FailureReport`."""
    planned = isinstance(error, MpipsError)
    text = "" if planned else "".join(traceback.format_exception(error)).rstrip()
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "exit_code": getattr(error, "exit_code", 1),
    }


def write(**fields: Any) -> None:
    """Leave last words, if this process is a rank of a supervised run and has left none.

    Args:
        **fields: Of `FailureReport`; what concerns this process is filled in.
    """
    with contextlib.suppress(ConfigError):
        if (writer := _report_writer()) is not None:
            writer.say(fields)
