"""Steps: one start of a command on one or several hosts, as a child process whose output is read.

The command is wrapped in a line of the shell, which lies on the host's own disk. It reports the start before
the command itself is loaded, perhaps from a slow shared file system:

    mpips-started HOST
    mpips-answer HOST ANSWER       the only line that the command prints to stdout

HOST is Slurm's name of the host, or "-". Other lines are ignored: login scripts may print some. An answer
that is not JSON is ignored as well, since the lines of several hosts can be mixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mpips.process.patience import Patience, running_s

_STOPPING_S = 2.0  # seconds between SIGTERM and SIGKILL
_ERROR_BYTES = 4096  # last bytes of stderr that are stored
_WRAPPER = (
    'printf \'mpips-started %s\\n\' "${SLURMD_NODENAME:--}"; answer=$("$@"); code=$?; '
    '[ -z "$answer" ] || printf \'mpips-answer %s %s\\n\' "${SLURMD_NODENAME:--}" "$answer"; '
    "exit $code"
)


class HostReport(NamedTuple):
    """A report of a host.

    Attributes:
        host: Its name; "": the only host of the step.
        answer: Its answer, JSON; None: the command has started.
        error: Why the host must not be used, by its own answer; "": it may be.
    """

    host: str
    answer: str | None = None
    error: str = ""


class HostStep(Protocol):
    """A started step."""

    def ended(self) -> str | None:
        """Return None while the step runs, then its error; "" if it succeeded. Does not block."""

    def reports(self) -> list[HostReport]:
        """Return the reports since the last call; the last ones, if `ended` was not None. Does not block."""

    def stop(self) -> None:
        """End the step within seconds. Does not block; may be repeated."""


class StepLauncher(Protocol):
    """Starts steps."""

    @property
    def has_wide_steps(self) -> bool:
        """True if a step can have several hosts."""

    def start(self, hosts: Sequence[str]) -> HostStep:
        """Start a step. Does not block.

        Raises:
            OSError: The program that starts steps cannot be executed.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait until a step prints or ends, at most `timeout_s`."""

    def now(self) -> float:
        """Return the running time of this process in seconds; see mpips.process.patience."""


def wrapped(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` and sends reports."""
    return ["/bin/sh", "-c", _WRAPPER, "sh", *command]


class ProcessStep:
    """A step that is a child process: srun, ssh or another agent."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], selector: selectors.BaseSelector
    ) -> None:
        """Start the process; `selector` then observes its output.

        Raises:
            OSError: The program cannot be executed.
        """
        self._process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        # srun has a child that ends the tasks on the hosts after srun itself was killed.
        self._ends_by_child = argv[0] == "srun"
        self._out, self._err = self._process.stdout, self._process.stderr
        self._selector = selector
        self._text = self._errors = b""
        self._reports: list[HostReport] = []
        self._kill_at: float | None = None
        self._error: str | None = None
        for pipe in (self._out, self._err):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, self)

    def read(self) -> None:
        """Read what the process has printed. Does not block."""
        for pipe in (self._out, self._err):
            while not pipe.closed:
                try:
                    data = os.read(pipe.fileno(), 65536)
                except BlockingIOError:
                    break
                if not data:
                    self._selector.unregister(pipe)
                    pipe.close()
                elif pipe is self._out:
                    *lines, self._text = (self._text + data).split(b"\n")
                    self._reports += filter(None, map(_report, lines))
                else:
                    self._errors = (self._errors + data)[-_ERROR_BYTES:]

    def ended(self) -> str | None:
        """Return None while the process runs, then its error."""
        if self._error is None and self._process.poll() is not None:
            # Others may have inherited the pipes, so their end may never come.
            self.read()
            for pipe in (self._out, self._err):
                if not pipe.closed:
                    self._selector.unregister(pipe)
                    pipe.close()
            code = self._process.returncode
            lines = self._errors.decode(errors="replace").strip().splitlines()
            self._error = (lines[-1] if lines else f"ended with code {code}") if code else ""
        return self._error

    def reports(self) -> list[HostReport]:
        """Return the reports that were read since the last call."""
        taken, self._reports = self._reports, []
        return taken

    def stop(self) -> None:
        """Send SIGTERM, with which srun ends its tasks; `kill_overdue` sends SIGKILL later."""
        if self._kill_at is None and self._process.poll() is None:
            self._kill_at = running_s() + _STOPPING_S
            self._signal(signal.SIGTERM)

    def kill_overdue(self, now: float) -> None:
        """Kill the process if it was stopped and did not end."""
        if self._kill_at is not None and now >= self._kill_at and self._process.poll() is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Send a signal to the process; unless it is srun, also to its children, as of an agent's script."""
        with contextlib.suppress(ProcessLookupError):
            if self._ends_by_child:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)


def _report(line: bytes) -> HostReport | None:
    """Return the report in a line; None if the line is not a report."""
    word, _, rest = line.decode(errors="replace").strip().partition(" ")
    host, _, answer = rest.partition(" ")
    host = "" if host == "-" else host
    if word == "mpips-started":
        return HostReport(host)
    if word != "mpips-answer":
        return None
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return HostReport(host, answer, str(found.get("error", "")) if isinstance(found, dict) else "")


class ProcessLauncher:
    """Starts steps as child processes. Use it in a `with` block; at its end no step is left."""

    def __init__(
        self,
        argv_of: Callable[[Sequence[str]], list[str]],
        env: Mapping[str, str],
        has_wide_steps: bool,
    ) -> None:
        """Start nothing yet.

        Args:
            argv_of: Returns the program and arguments of the step on some hosts.
            env: Environment of the programs.
            has_wide_steps: A step can have several hosts.
        """
        self.has_wide_steps = has_wide_steps
        self._argv_of = argv_of
        self._env = env
        self._selector = selectors.DefaultSelector()
        self._steps: list[ProcessStep] = []

    def start(self, hosts: Sequence[str]) -> ProcessStep:
        """Start a step on some hosts. See `StepLauncher`."""
        step = ProcessStep(self._argv_of(hosts), self._env, self._selector)
        self._steps.append(step)
        return step

    def wait(self, timeout_s: float) -> None:
        """Wait for output of a step and read it, at most `timeout_s`."""
        for key, _ in self._selector.select(timeout_s):
            key.data.read()
        now = running_s()
        for step in self._steps:
            step.kill_overdue(now)
        self._steps = [step for step in self._steps if step.ended() is None]

    def now(self) -> float:
        """Return the running time of this process in seconds; see mpips.process.patience."""
        return running_s()

    def __enter__(self) -> ProcessLauncher:
        """Return this launcher."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until all steps have ended, which were stopped; blocks for seconds."""
        wait = Patience(2 * _STOPPING_S)
        while self._steps and not wait.is_over:
            self.wait(0.05)
        self._selector.close()
