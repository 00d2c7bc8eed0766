"""Samples of programs count once, however the worker that serves them and the programs end or stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launcher
import program_rig
import pytest

PROGRAMS = Path(__file__).with_name("programs")
N = 120


def simulation(name: str, number: int) -> subprocess.Popen[str]:
    rig = str(Path(program_rig.__file__).parent)
    command = [sys.executable, str(PROGRAMS / "queue_program.py"), name, str(number), rig]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def pass_samples(job: launcher.Launch, process: subprocess.Popen[str], n: int) -> None:
    """Wait until a program is about to push its next `n` samples."""
    assert process.stdout is not None
    for _ in range(n):
        assert process.stdout.readline().strip().isdigit(), job.tail(60)


@pytest.mark.long
def test_kills_of_the_worker_and_stops_of_both_ends_change_no_sum(tmp_path: Path) -> None:
    with program_rig.queue_name() as name:
        command = [
            sys.executable,
            "-m",
            "mpips",
            "run",
            "-n",
            "5",
            str(PROGRAMS / "queued.py"),
            name,
        ]
        with launcher.Launch(command, launcher.site_environment(), 150.0, tmp_path) as job:
            stopped, killed = simulation(name, 0), simulation(name, 1)
            programs = [stopped, killed]
            try:
                # Within one of the later pushes, of which most wait for the worker's restart.
                pass_samples(job, killed, 40)
                killed.send_signal(signal.SIGKILL)
                assert killed.wait() == -signal.SIGKILL
                programs.append(simulation(name, 1))
                pass_samples(job, stopped, 60)
                stopped.send_signal(signal.SIGSTOP)
                time.sleep(1.0)
                stopped.send_signal(signal.SIGCONT)
                for program in (stopped, programs[-1]):
                    out, _ = program.communicate(timeout=120)
                    assert (program.returncode, out.split()[-1]) == (0, "closed"), job.tail(60)
                assert job.wait() == 0, job.tail(60)
                found = json.loads(job.stdout().strip().splitlines()[-1])
            finally:
                for program in programs:
                    program.kill()
                    program.communicate()
        assert found["attempt"] == 2
        assert found["numbers"] == [[number, n] for number in range(2) for n in range(N)]
        assert found["sum"] == sum(
            300 * (1000 * number + n) for number in range(2) for n in range(N)
        )
        assert found["counts"] == [2 * N, 2 * N, 0, 2]
        assert not list(Path("/dev/shm").glob(f"mpips_queue.{os.geteuid()}.{name}.*"))
