"""jobs/batch.sh without a batch system: signals on their way from the batch script to its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BATCH = Path(__file__).parents[2] / "jobs/batch.sh"
SCRIPT = 'source "$1"; start_s=$2; shift 2; launch "$@"; exit "$code"'
# A launcher that is not ready for a warning before the file "go" is there.
COMMAND = """
import os, signal, sys, time
ready = lambda *arguments: os._exit(75)
assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
open("started", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
signal.signal(signal.SIGUSR1, ready)
open("ready", "w").close()
time.sleep(60)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


@contextmanager
def begun(folder: Path, start_s: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "bash",
        "-c",
        SCRIPT,
        "batch",
        str(BATCH),
        str(start_s),
        sys.executable,
        "-c",
        COMMAND,
    ]
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as job:
        try:
            wait_for(folder / "started")
            yield job
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def test_a_warning_before_the_command_has_its_handler_is_sent_again(tmp_path):
    with begun(tmp_path, 8) as job:
        os.kill(job.pid, signal.SIGUSR1)
        (tmp_path / "go").touch()
        assert job.wait(40) == 75


def test_a_warning_after_the_first_seconds_is_passed_on_at_once(tmp_path):
    with begun(tmp_path, 0) as job:
        (tmp_path / "go").touch()
        wait_for(tmp_path / "ready")
        os.kill(job.pid, signal.SIGUSR1)
        assert job.wait(40) == 75
