"""The supervisor's end of [producers]: the process that runs the programs, its lines, and the end of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from mpips.errors import MpipsError
from mpips.mpi.mpirun import beside
from mpips.rundir.directory import GENERATION, RUN_DIR
from mpips.rundir.producers import queue_file
from mpips.supervisor.member_processes import kill_marked
from mpips.supervisor.plan import SupervisionPlan

_MODULE = "mpips.supervisor.producer_process"
_PAUSE_S = 0.05
_GRACE_S = 15.0  # s beyond `producers.end_s` that the process has to end


class Producers:
    """The programs of [producers] of a run; without such a section all methods do nothing. Main thread only.

    Attributes:
        failure: Why the run must end, or "".
    """

    def __init__(self, plan: SupervisionPlan, tell: Callable[[str], None]) -> None:
        """Start nothing yet. `tell` prints a line for people."""
        self._plan, self._tell = plan, tell
        self._config = plan.config.producers
        self._process: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._is_stopping = False
        self.failure = ""

    def begin(self) -> None:
        """Start the process that runs the programs, which wait until a worker serves them.

        Raises:
            MpipsError: It cannot be started, or the run directory cannot be written to.
        """
        run = self._plan.run
        try:
            queue_file(run).write_text(self._plan.queues + "\n")
        except OSError as error:
            # Only programs that open the run by its directory need the file.
            if self._config.words:
                raise MpipsError(
                    f"{queue_file(run)}: cannot be written: {error.strerror}"
                ) from None
        if not self._config.words:
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(run.path)],
                env=self._environment(),
                cwd=run.info().cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise MpipsError(f"the producers cannot be started: {error.strerror}") from None

    def _environment(self) -> dict[str, str]:
        """Return the environment of programs: that of this process, in which they find mpirun."""
        launcher = self._plan.launcher
        env = beside(launcher.path, self._plan.outer_environment())
        for name in (RUN_DIR, GENERATION):
            env.pop(name, None)
        if launcher.kind == "openmpi" and os.geteuid() == 0:
            for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
                env[name] = env[f"{name}_CONFIRM"] = "1"
        return env

    def look(self) -> None:
        """Print what the process has to say, and notice its end. Returns at once; call it often."""
        if self._process is None:
            return
        has_ended = self._process.poll() is not None
        self._read(self._process)
        if has_ended and not self._is_stopping:
            self._is_stopping = True
            code = self._process.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._fail(
                f"the process that runs the producers ({self._process.pid} on {socket.gethostname()}) has "
                f"ended with {how}"
            )

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Take the lines of the process that are there."""
        assert process.stdout is not None
        while select.select([process.stdout], [], [], 0.0)[0]:
            more = os.read(process.stdout.fileno(), 1 << 16)
            if not more:
                break
            self._text += more
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            # A process that was killed may leave half a line.
            with contextlib.suppress(ValueError, AttributeError):
                found = json.loads(line)
                if say := found.get("say"):
                    self._tell(f"mpips run: {say}")
                if why := found.get("failed"):
                    self._fail(why)

    def _fail(self, why: str) -> None:
        if not self.failure:
            self.failure = why
            self._tell(f"mpips run: {why}; the run ends")

    def stop(self) -> None:
        """Ask the programs to end, and start none any more. Returns at once."""
        self._is_stopping = True
        if self._process is not None:
            _order(self._process, "stop")

    def end(self, is_done: bool, hurry: Callable[[], bool]) -> None:
        """End all programs and what they have left. Blocks up to twice `end_s` and some seconds.

        Args:
            is_done: The run is done, so programs may end by themselves first.
            hurry: Called several times a second. The first True skips the wait for programs that end by
                themselves, the second one the time until SIGKILL.
        """
        process, self._process = self._process, None
        if process is None:
            return
        self._is_stopping = True
        orders = ["done", "stop", "kill"][not is_done :]
        until = time.monotonic() + (1 + is_done) * self._config.end_s + _GRACE_S
        _order(process, orders.pop(0))
        while process.poll() is None and time.monotonic() < until:
            if hurry() and orders:
                _order(process, orders.pop(0))
            self._read(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PAUSE_S)
        self._read(process)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._kill_left()

    def _kill_left(self) -> None:
        """Kill what is left if the process that runs the programs was killed itself."""
        try:
            kill_marked(self._plan.run.path)
        except TimeoutError as error:
            self._tell(f"mpips run: warning: {error}")


def _order(process: subprocess.Popen[bytes], word: str) -> None:
    """Send a line to the process that runs the programs; it may have ended."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()
