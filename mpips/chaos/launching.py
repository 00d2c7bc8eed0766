"""A run that is started to be disturbed: `mpips run` as a child process, which ends with this one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from mpips.chaos.errors import ChaosError
from mpips.chaos.processes import RunProcess
from mpips.chaos.undo import FaultGuard, Undo
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.rundir.directory import RunFolder, version_of

_LOOK_S = 0.05  # seconds between two looks for the run directory
_START_S = 120.0  # seconds in which the supervisor must take the lease of its run
_STOP_S = 120.0  # seconds in which it must end after SIGTERM
_TAIL_LINES = 30
# Errors of this command by the exit code of `mpips run`.
_ERRORS: dict[int, type[MpipsError]] = {2: ConfigError, 69: CapabilityError}
_MORE_RESTARTS = 3  # restarts beyond those that the schedule takes


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let the handlers of SIGINT and SIGTERM run at the end of the block. Only in the main thread.

    A signal that ends the process at once, or is ignored, stays as it is. A child process that is started in
    the block has none of this: the kernel resets handlers of programs that it starts.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for each, handler in handlers.items():
            if callable(handler):
                signal.signal(each, note)
        yield
    finally:
        for each, handler in handlers.items():
            if callable(handler):
                signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


class LaunchedRun:
    """The child process. Use it in a `with` block, at whose end the run is ended.

    Attributes:
        log: File with the output of `mpips run`.
        code: Exit code of `mpips run`; None: it runs.
    """

    def __init__(
        self, job: str, arguments: Sequence[str], folder: Path, restarts: int, guard: FaultGuard
    ) -> None:
        """Make the log; nothing is started yet.

        Args:
            job: Argument JOB of `mpips run`.
            arguments: Its further arguments.
            folder: Folder of the run directories.
            restarts: Restarts that the schedule takes.
            guard: Ends the run if this process is killed.

        Raises:
            ConfigError: The folder cannot be made.
        """
        self._folder = folder.absolute()
        self._guard = guard
        self.code: int | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.log = self._folder / f"chaos-{os.getpid()}-{time.time_ns():x}.log"
            self.log.touch(exist_ok=False)
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot be written: {error.strerror}") from None
        given = any(word.startswith("--max-restarts") for word in arguments)
        more = [] if given else ["--max-restarts", str(restarts + _MORE_RESTARTS)]
        self._command = [sys.executable, "-m", "mpips", "run", "--quiet"]
        self._command += ["--folder", str(self._folder), *more, *arguments, job]
        # Leases that earlier runs have left: the child may get the number of the process that wrote one.
        self._before = {path: version_of(path) for path in self._leases()}
        self._process: subprocess.Popen[bytes] | None = None
        self._number = -1  # of the guard; -1: the child was not added

    def __enter__(self) -> LaunchedRun:
        """Start `mpips run`; return this object.

        Raises:
            ChaosError: The guard is gone; the child was ended.
            CapabilityError: The kernel has no descriptors of processes; the child was ended.
        """
        try:
            # No signal may come between the start of the child and the moment from which the guard ends it.
            with signals_deferred(), self.log.open("ab") as output:
                # A session of its own: Ctrl-C at the terminal reaches this process alone, which ends the run.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                with RunProcess(self._process.pid) as supervisor:
                    self._number = self._guard.add(Undo(kind="terminate"), supervisor.fd)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End the run after a last checkpoint. Blocks for at most two minutes."""
        self.stop()

    def _leases(self) -> Iterator[Path]:
        """Return the leases of all runs in the folder."""
        return self._folder.glob("*/lease.json")

    @property
    def run(self) -> RunFolder:
        """Wait for the run directory whose lease the child has written, and return it. Blocks.

        Raises:
            MpipsError: The child ended before, or takes too long; with the exit code of the child.
        """
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            for path in self._leases():
                if self._before.get(path) == version_of(path):
                    continue
                found = RunFolder(path.parent)
                lease = found.lease()
                if lease is None or lease.released:
                    continue
                if (lease.host, lease.pid) == (socket.gethostname(), self._process.pid):
                    return found
            if self._process.poll() is not None:
                break
            time.sleep(_LOOK_S)
        kind = _ERRORS.get(self._process.poll() or 0, ChaosError)
        raise kind(f"mpips run has not started the job; its output:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def stop(self) -> None:
        """End the run after a last checkpoint, and wait for it. Further calls have no effect.

        Blocks for at most two minutes. A signal that comes meanwhile acts at the end: a second SIGTERM to the
        run, which the guard sends when this process goes on, would end it without the checkpoint.
        """
        with signals_deferred():
            # A paused rank could not write its part of the checkpoint.
            self._guard.undo_faults()
            if self._process is None:
                return
            if self._process.poll() is None:
                self._process.terminate()
            try:
                self.code = self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self.code = self._process.wait()
            self._guard.forget(self._number)
