"""The log of a rank of a supervised run, and the failure report that it writes when it fails.

`begin` redirects stderr of the process, native code included, into the rank's log in the run directory. The
log exists independently of the launcher. Rank 0 writes to the terminal as well, line by line. From
`show_stderr` on the terminal also shows sys.stderr of worker 0 as it is written, with progress bars (see
mpips.terminal.passing). It ends when worker 0 fails: the supervisor prints its failure report. A fatal signal
and SIGUSR2 write the stacks of all threads into the log.

A rank that fails by itself writes one small file, its failure report. Only the first report of a process is
written, since a later failure may be a consequence of the first. A rank that is killed writes none: the
supervisor learns of it from the launcher, or because the rank's heartbeats end. Without a supervisor nothing
here has an effect.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.launch import launched_rank, launched_size
from mpips.process.patience import Patience
from mpips.rundir import directory
from mpips.terminal.screen import Tee, columns, say

if TYPE_CHECKING:
    from mpips.terminal.passing import PassedStream

_LINES = 24  # lines of the terminal of `mpips run`, of which ranks know the columns only
# `kind` of the report of a rank that ends on request after a durable checkpoint, and after the run's exchange
LEAVING, EXCHANGED = "Leaving", "Exchanged"
# `kind` of the report of a script that ended with exit code 2 before its job, as argparse and click end it
USAGE = "UsageError"
USAGE_CODE = 2
_LOOK_S = 0.02  # s between two looks for them
_OTHERS_S = 5.0  # s that a rank waits for the reports of the others before it ends with USAGE_CODE


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for which a rank failed, written by that rank or by the scheduler.

    Attributes:
        rank: Rank of the process that wrote this report.
        about: Rank that failed; differs from `rank` where the scheduler reports a silent rank.
        host: Host name of the process that wrote this report.
        pid: Its process id.
        kind: Name of the exception's type.
        message: Message of the exception.
        exit_code: Exit code of the job.
        time_s: Unix time of the report, seconds.
        traceback: Traceback of an unplanned exception; "" for an error of mpips.
        role: Role of the failed rank; "" before it had one.
        state: Activity of the failed rank.
        clock: Clock of the failed rank; -1 before it had one.
        secondary: True if the failure is a consequence of something else: another rank's failure, or a
            signal from outside.
        up_s: Seconds since the host's start, which no setting of its wall clock changes; 0: unknown.
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


class _ReportWriter:
    """Writes the log and the failure report of this process, a rank of a supervised run."""

    def __init__(self, logs: Path) -> None:
        """Create the log and redirect stderr to it.

        Args:
            logs: Folder of the attempt's logs.

        Raises:
            ConfigError: The run directory cannot be written from here.
        """
        # Only ranks of a supervised run need it.
        from mpips.terminal.readable_log import ReadableLog

        self._logs = logs
        self._rank = launched_rank()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._written = False
        try:
            fd = os.open(
                logs / f"rank-{self._rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
        except OSError as error:
            raise ConfigError(
                f"{logs}: cannot be written on {socket.gethostname()}: {error.strerror}; the run "
                "directory must lie on a file system that all nodes share"
            ) from None
        # Replace descriptor 2, so that native code and child processes write to the log, too.
        self._terminal = os.dup(2)
        sys.stderr.flush()
        os.dup2(fd, 2)
        os.close(fd)
        log = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        shown = os.fdopen(
            self._terminal, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
        )
        self._has_terminal = columns(shown) > 0
        self._passed: PassedStream | None = None  # from `show_stderr` on
        self._log = ReadableLog(log)
        self._stderr = Tee(cast(TextIO, self._log), *([shown] if self._rank == 0 else []))
        if self._rank != 0 and not self._has_terminal:
            os.close(self._terminal)
        sys.stderr = self._stderr
        atexit.register(self._log.end_row)
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR2, log, all_threads=True)
        sys.excepthook = self._uncaught

    @property
    def is_own_process(self) -> bool:
        """False in a forked child."""
        return os.getpid() == self._pid

    def show_stderr(self) -> None:
        """Let stderr appear on the terminal of `mpips run` as it is written, if there is one; works once."""
        if self._has_terminal and self._passed is None:
            from mpips.terminal.passing import PassedStream

            self._stderr.flush()
            self._passed = passed = PassedStream(self._terminal)
            self._stderr.show_on(cast(TextIO, passed))
            # Programs ask the descriptor for the size of the terminal, then these variables.
            os.environ.setdefault("COLUMNS", str(columns(cast(TextIO, passed))))
            os.environ.setdefault("LINES", str(_LINES))

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self.write(fields_of(error))
        sys.__excepthook__(kind, error, tb)

    def write(self, fields: dict[str, Any]) -> None:
        """Write the failure report, unless this process has written one. Main thread or watchdog.

        A forked child writes none, because its end is not the end of the rank.
        """
        if not self.is_own_process:
            return
        with self._lock:
            if self._written:
                return
            self._written = True
        self._log.end_row()
        if self._passed is not None and fields.get("kind") not in (LEAVING, EXCHANGED):
            self._stderr.show_on()
        filled: dict[str, Any] = {"about": self._rank, "exit_code": 1, **fields}
        report = FailureReport(
            rank=self._rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            time_s=time.time(),
            up_s=time.clock_gettime(time.CLOCK_BOOTTIME),
            **filled,
        )
        try:
            directory.replace_json(self._logs / f"words-{self._rank}.json", report)
        except OSError as error:
            say(f"mpips: the failure report was not written: {error}")


@functools.cache
def _report_writer() -> _ReportWriter | None:
    run = directory.current()
    return None if run is None else _ReportWriter(run.logs)


def begin() -> None:
    """Redirect this process's stderr into its log if it is a rank of a supervised run; works once.

    Raises:
        ConfigError: The environment names no valid run directory, or it cannot be written from here.
    """
    _report_writer()


def show_stderr() -> None:
    """Let the terminal of `mpips run` show what this process writes to stderr. Call it on worker 0.

    Behind `begin`; no effect without a supervisor or a terminal.
    """
    if (writer := _report_writer()) is not None:
        writer.show_stderr()


def fields_of(error: BaseException) -> dict[str, Any]:
    """Return kind, message, traceback and exit code of an exception as fields of `FailureReport`."""
    planned = isinstance(error, MpipsError)
    text = "" if planned else "".join(traceback.format_exception(error)).rstrip()
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "exit_code": getattr(error, "exit_code", 1),
    }


def write(**fields: Any) -> None:
    """Write the failure report of this process, once, if it is a rank of a supervised run.

    Args:
        **fields: Fields of `FailureReport`; those that describe this process are filled in.
    """
    with contextlib.suppress(ConfigError):
        if (writer := _report_writer()) is not None:
            writer.write(fields)


def write_usage() -> None:
    """Write the report of a script that ended with USAGE_CODE before its job, and wait for the other ranks.

    The launcher ends all ranks when the first one has ended. The wait lets each of them write a report, from
    which the supervisor finds out whether all ranks ended alike. Blocks up to `_OTHERS_S`; a forked child
    returns at once.
    """
    run = directory.current()
    if run is None or not is_own_process():
        return
    write(
        kind=USAGE,
        message=f"the script ended with exit code {USAGE_CODE} before its job, as after a usage error",
        exit_code=USAGE_CODE,
    )
    others = Patience(_OTHERS_S)
    while len(list(run.logs.glob("words-*.json"))) < launched_size() and not others.is_over:
        time.sleep(_LOOK_S)


def is_own_process() -> bool:
    """Return True if this process is a rank of a supervised run that has called `begin`, no child of it."""
    writer = _report_writer()
    return writer is not None and writer.is_own_process
