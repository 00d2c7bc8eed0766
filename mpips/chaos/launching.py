"""A run that is started to be disturbed: `mpips run` as a child process, which ends with this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mpips.chaos.errors import ChaosError
from mpips.chaos.processes import RunProcess
from mpips.chaos.undo import FaultGuard, Undo
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.rundir.directory import RunFolder

_LOOK_S = 0.05  # seconds between two looks for the run directory
_START_S = 120.0  # seconds in which the supervisor must take the lease of its run
_STOP_S = 120.0  # seconds in which it must end after SIGTERM
_TAIL_LINES = 30
# Errors of this command by the exit code of `mpips run`.
_ERRORS: dict[int, type[MpipsError]] = {2: ConfigError, 69: CapabilityError}
_MORE_RESTARTS = 3  # restarts beyond those that the schedule takes


class LaunchedRun:
    """The child process. Use it in a `with` block, at whose end the run is ended.

    Attributes:
        log: File with the output of `mpips run`.
        code: Exit code of `mpips run`; None: it runs.
    """

    def __init__(
        self, job: str, arguments: Sequence[str], folder: Path, restarts: int, guard: FaultGuard
    ) -> None:
        """Start `mpips run`.

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
            output = self.log.open("xb")
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot be written: {error.strerror}") from None
        given = any(word.startswith("--max-restarts") for word in arguments)
        more = [] if given else ["--max-restarts", str(restarts + _MORE_RESTARTS)]
        command = [sys.executable, "-m", "mpips", "run", "--quiet"]
        command += ["--folder", str(self._folder), *more, *arguments, job]
        with output:
            # A session of its own: Ctrl-C at the terminal reaches this process alone, which ends the run.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        with RunProcess(self._process.pid) as supervisor:
            self._number = guard.add(Undo(kind="terminate"), supervisor.fd)

    def __enter__(self) -> LaunchedRun:
        """Return this object."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the run after a last checkpoint. Blocks for at most two minutes."""
        self.stop()

    @property
    def run(self) -> RunFolder:
        """Wait for the run directory whose lease names the child, and return it. Blocks.

        Raises:
            MpipsError: The child ended before, or takes too long; with the exit code of the child.
        """
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            for path in self._folder.glob("*/lease.json"):
                found = RunFolder(path.parent)
                lease = found.lease()
                if lease is not None and lease.pid == self._process.pid and not lease.released:
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
        """End the run after a last checkpoint, and wait for it. Further calls have no effect."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self.code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.code = self._process.wait()
        self._guard.forget(self._number)
