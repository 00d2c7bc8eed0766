"""What a terminal gets of a job under a real mpirun: a line that is there while the job works."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launcher
import processes
from supervised import ENVIRONMENT, made_data

HIDE_CURSOR = b"\x1b[?25l"


class Screen:
    """A pseudo-terminal of 100 columns and the command that runs on it.

    Attributes:
        received: All bytes that the terminal got so far.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        subprocess.run(["stty", "cols", "100", "rows", "30"], stdin=slave, check=True)
        env = {**launcher.site_environment(), **ENVIRONMENT, "TERM": "xterm"}
        env[launcher.CASE] = os.environ[launcher.CASE]
        env.pop("NO_COLOR", None)
        self.received = b""
        self.process = subprocess.Popen(
            # The terminal belongs to the session of setsid's child, as in a shell.
            ["setsid", "--ctty", *command],
            env=env,
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)

    def read(self) -> bool:
        """Take what has come within a tenth of a second; False: all writers have ended."""
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.received += os.read(self._master, 65536)
            except OSError:
                return False
        return True

    def until(self, text: bytes, timeout_s: float = 60.0) -> None:
        """Wait until the terminal has got this text."""
        deadline = time.monotonic() + timeout_s
        while text not in self.received:
            assert self.read(), self.received.decode()
            assert time.monotonic() < deadline, self.received.decode()

    def finish(self) -> int:
        """Read to the end; the exit code."""
        while self.read() and self.process.poll() is None:
            pass
        while self.read() and select.select([self._master], [], [], 0)[0]:
            pass
        return self.process.wait(60)

    def close(self) -> None:
        """End everything that the command started."""
        processes.end(f"{launcher.CASE}={os.environ[launcher.CASE]}")
        self.process.wait()
        os.close(self._master)


@contextmanager
def gated(folder: Path, *command: str) -> Iterator[tuple[Screen, Path]]:
    """A job of two epochs more than one on a terminal, and the file that it waits for after the first."""
    gate = folder / "gate"
    job = ["gated_task:Gated", "--train", str(made_data(folder)), "--set", f"options.gate={gate}"]
    screen = Screen([*command, *job], folder)
    try:
        yield screen, gate
    finally:
        gate.touch()
        screen.close()


def mpirun(n: int) -> list[str]:
    path = shutil.which("mpirun", path=launcher.site_environment()["PATH"]) or "mpirun"
    train = [sys.executable, "-m", "mpips", "train"]
    return [path, "-n", str(n), *launcher.mpirun_flags(n), *train]


def test_the_line_is_on_the_terminal_while_mpirun_runs(tmp_path: Path) -> None:
    with gated(tmp_path, *mpirun(4)) as (screen, gate):
        # The job waits for the file: what the launcher keeps until the end cannot come.
        screen.until(b"epoch 1/3")
        assert not gate.exists()
        gate.touch()
        assert screen.finish() == 0
    # SIGKILL lets no process bring a hidden cursor back.
    assert HIDE_CURSOR not in screen.received
    shown = screen.received.split(b"mpips: gated_task:Gated, 3 epochs")[0]
    assert b"100%" in shown
    # The line is replaced, and ends before the summary begins.
    assert shown.count(b"epoch ") >= 2
    assert shown.count(b"\n") < 12
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", shown).endswith(b"\r\n")


def scheduler_pid() -> int:
    """Pid of rank 0 of what this test has started."""
    mark = f"{launcher.CASE}={os.environ[launcher.CASE]}"
    return next(
        pid
        for pid in processes.marked(mark)
        if b"OMPI_COMM_WORLD_RANK=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )


def test_a_scheduler_that_is_told_to_end_ends_its_line_first(tmp_path: Path) -> None:
    with gated(tmp_path, *mpirun(3)) as (screen, _):
        screen.until(b"epoch 1/3")
        os.kill(scheduler_pid(), signal.SIGTERM)
        assert screen.finish() == 143
    *_, last, after = screen.received.split(b"\x1b[K")
    assert b"epoch 1/3" in last
    assert after.startswith(b"\r\n")  # what mpirun says begins on a line of its own


def test_the_line_of_a_supervised_run_is_on_the_terminal(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "mpips", "run", "-n", "3"]
    with gated(tmp_path, *run) as (screen, gate):
        screen.until(b"epoch 1/3")
        gate.touch()
        assert screen.finish() == 0
    assert HIDE_CURSOR not in screen.received
    # Another text never follows the line's own on the same line.
    text = screen.received.decode()
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if "the gate is open" in line]
    assert [line.split("\x1b[K")[-1] for line in lines] == ["the gate is open"]
    # At the end there is no line, which would be older than the message above it.
    done = text.replace("\r\n", "\n").rpartition(" is done: ")[2]
    assert done.rpartition("\n")[2].split("\x1b[K")[-1] == ""


def test_a_bar_of_worker_0_is_on_the_terminal_while_it_is_drawn(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs/with_bar.py"
    gate = tmp_path / "gate"
    run = [sys.executable, "-m", "mpips", "run", "-n", "4", str(program), str(gate)]
    screen = Screen(run, tmp_path)
    try:
        # The bar has no newline, and the job waits for the file.
        screen.until(b"\r 50%|bar of worker 0|")
        gate.touch()
        assert screen.finish() == 0, screen.received.decode()
    finally:
        gate.touch()
        screen.close()
    text = screen.received.decode()
    assert "\r100%|bar of worker 0|\r\n" in text
    assert "isatty True" in text
    assert "bar of worker 1" not in text
    assert "\x02" not in text
    logs = next((tmp_path / "runs").iterdir()) / "logs/attempt-0"
    assert "bar" not in (logs / "launcher.log").read_text()
    logs_of_workers = [(logs / f"rank-{rank}.log").read_text() for rank in (2, 3)]
    for worker, log in enumerate(logs_of_workers):
        # The end of the bar, and no other of its states.
        assert log == f"isatty {worker == 0}\n100%|bar of worker {worker}|\n"
