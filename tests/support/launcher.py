"""Starting mpirun from a test, waiting for its ranks, and ending all of it whatever happens."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import processes
from patience import PATIENCE

from mpips.testing.nodes import BACKING_DIRECTORIES, is_alive

REPOSITORY = Path(__file__).resolve().parents[2]


@functools.cache
def site_environment() -> dict[str, str]:
    """The environment that jobs/env.sh makes out of this process's one."""
    text = subprocess.run(
        ["bash", "-c", 'source "$1" && env -0', "bash", str(REPOSITORY / "jobs/env.sh")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


@functools.cache
def mpirun_flags(n: int) -> tuple[str, ...]:
    """What jobs/env.sh gives mpirun for `n` ranks on this machine."""
    script = f'source "$1" && mpirun_flags {n}'
    command = ["bash", "-c", script, "bash", str(REPOSITORY / "jobs/env.sh")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(out.split())


# Marks all that a test starts, by whatever means.
CASE = "MPIPS_TEST_CASE"

PREFIX = "test-launch-"
_open: set[Launch] = set()


@functools.cache
def _sweep() -> None:
    """Remove the folders of test runs that were killed."""
    for folder in (Path(tempfile.gettempdir()), processes.SHM):
        for path in folder.glob(f"{PREFIX}*-*"):
            pid = path.name.removeprefix(PREFIX).partition("-")[0]
            if pid.isdigit() and not is_alive(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


@atexit.register
def close_all() -> None:
    """Kill what nobody killed. A launch that only ended still has its folders."""
    for launched in list(_open):
        launched.kill()


class Launch:
    """A command that runs in the background, with its output in files.

    Use it in a `with` block or call `kill`: both end every process that came out of the command,
    wherever in the process tree it is by then, and remove what MPI left behind.

    Attributes:
        args: The command line.
        stdout_path: File with what all ranks wrote to stdout.
        stderr_path: The same of stderr.
        timeout_s: Seconds that `wait` gives the command, counted from its start, with `PATIENCE`.
    """

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        timeout_s: float = 60.0,
        cwd: Path | None = None,
    ) -> None:
        self.args = list(args)
        self.timeout_s = PATIENCE * timeout_s
        self._mark = f"MPIPS_TEST_LAUNCH={uuid.uuid4().hex}"
        # Sockets live in it, and their names have 107 characters at most: not in pytest's folder.
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._shm = processes.SHM / self._folder.name
        self._shm.mkdir()
        self.stdout_path = self._folder / "stdout"
        self.stderr_path = self._folder / "stderr"
        self._started = time.monotonic()
        self._output: tuple[str, str] | None = None
        _open.add(self)
        name, value = self._mark.split("=")
        session = dict.fromkeys(BACKING_DIRECTORIES, str(self._shm))
        session |= {"TMPDIR": str(self._folder), name: value}
        if CASE in os.environ:
            session[CASE] = os.environ[CASE]
        with self.stdout_path.open("wb") as out, self.stderr_path.open("wb") as err:
            self._process = subprocess.Popen(
                self.args,
                env={**env, **session},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Pid of the command itself, that is of mpirun."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code as subprocess gives it; None while it runs."""
        return self._process.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """Pids of everything that came out of the command and still lives."""
        return processes.marked(self._mark)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Args:
            timeout_s: From now; without it what is left of the launch's own time.

        Raises:
            AssertionError: It took longer; everything is killed then, the message has the output.
        """
        if timeout_s is None:
            left_s = self._started + self.timeout_s - time.monotonic()
        else:
            left_s = PATIENCE * timeout_s
        try:
            return self._code(self._process.wait(max(left_s, 0.0)))
        except subprocess.TimeoutExpired:
            took = time.monotonic() - self._started
            running = processes.describe(self.pids())
            self.kill()
            raise AssertionError(
                f"still running after {took:.1f} s: {' '.join(self.args)}\n{running}\n{self.tail()}"
            ) from None

    def _code(self, code: int) -> int:
        """The exit code; where mpirun crashed after it had ended the ranks, the one it was given.

        prterun of Open MPI 5.0.11 sometimes receives SIGSEGV on its way out after MPI_Abort.
        """
        aborted = re.search(r"^ *Errorcode: (\d+)$", self.stderr(), re.MULTILINE)
        over = "prterun has exited due to process rank" in self.stderr()
        return int(aborted[1]) if code == -signal.SIGSEGV and aborted and over else code

    def stdout(self) -> str:
        """What all ranks wrote to stdout so far."""
        return self._output[0] if self._output else self.stdout_path.read_text(errors="replace")

    def stderr(self) -> str:
        """What all ranks wrote to stderr so far."""
        return self._output[1] if self._output else self.stderr_path.read_text(errors="replace")

    def tail(self, n_lines: int = 40) -> str:
        """The end of both, for messages."""
        parts = []
        for name, text in (("stdout", self.stdout()), ("stderr", self.stderr())):
            lines = text.splitlines()[-n_lines:]
            parts.append("\n".join([f"--- {name}", *lines]))
        return "\n".join(parts)

    def kill(self) -> None:
        """Kill the whole tree and wait for its end; the output stays readable. May be repeated."""
        processes.end(self._mark)
        self._process.wait()
        if self._output is None:
            self._output = (self.stdout(), self.stderr())
            shutil.rmtree(self._folder, ignore_errors=True)
            shutil.rmtree(self._shm, ignore_errors=True)
            _open.discard(self)

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def results(launched: Launch) -> list[dict[str, Any]]:
    """What each worker of a script printed as a line of JSON, by worker; the script ends with 0."""
    assert launched.wait() == 0, launched.tail(60)
    lines = [json.loads(x) for x in launched.stdout().splitlines() if x.startswith("{")]
    return sorted(lines, key=lambda found: found["worker"])


def launch(
    n: int,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    extra_mpirun: Sequence[str] = (),
    cwd: Path | None = None,
) -> Launch:
    """Start `argv` on `n` ranks of this machine.

    Args:
        n: Number of ranks.
        argv: Program and arguments.
        env: Added to the environment that jobs/env.sh makes.
        timeout: Seconds the launch may take until `wait` calls it hung.
        extra_mpirun: More arguments of mpirun, such as `("--with-ft", "ulfm")`.
        cwd: Folder to run in.
    """
    site = site_environment()
    mpirun = shutil.which("mpirun", path=site["PATH"]) or "mpirun"
    command = [mpirun, "-n", str(n), *mpirun_flags(n), *extra_mpirun, *argv]
    return Launch(command, {**site, **(env or {})}, timeout, cwd)


def wait_for_file(path: Path, timeout: float = 30.0, process: Launch | None = None) -> str:
    """Wait until `path` exists and holds something, and return that.

    Whoever announces readiness by a file writes it under another name and renames it.

    Raises:
        AssertionError: `process` ended first, or `timeout` seconds are over.
    """
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        ended = process is not None and process.poll() is not None
        if path.exists() and (text := path.read_text()):
            return text
        output = process.tail() if process is not None else ""
        if ended:
            assert process is not None
            raise AssertionError(
                f"ended with {process.returncode} before it made {path.name}\n{output}"
            )
        if time.monotonic() > deadline:
            raise AssertionError(f"no {path.name} after {timeout:g} s\n{output}")
        time.sleep(0.01)
