"""The watcher of programs, when the process that runs them is killed and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes

from mpips.rundir.producers import MEMBER_RUNNER

# Starts a program with its mark and one with that of another process; prints all pids, and waits for a line.
RUNNER = """
import os, subprocess, sys
from mpips.rundir.producers import MEMBER_RUNNER
from mpips.supervisor.member_watcher import MemberWatcher
watcher = MemberWatcher(0.2)
programs = [
    subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.02; done"],
        env={**os.environ, MEMBER_RUNNER: mark},
        stdout=subprocess.PIPE,
    )
    for mark in (watcher.mark, watcher.mark + "0")
]
for program in programs:
    program.stdout.readline()
print(watcher.pid, *[program.pid for program in programs], flush=True)
sys.stdin.readline()
watcher.end()
"""


@contextmanager
def runner() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The process, and the pids of its watcher and its programs."""
    pids: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pids = [*map(int, process.stdout.readline().split())]
            yield process, pids
        finally:
            process.kill()
            for pid in pids[1:]:
                if is_running(pid):
                    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_it_ends_the_programs_of_its_killed_parent_alone() -> None:
    with runner() as (process, (watcher, own, other)):
        # Neither a signal to the session of the parent nor one to the watcher ends the watch.
        assert os.getsid(watcher) == watcher
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(watcher, number)
        assert is_running(watcher)
        process.kill()
        process.wait()
        assert processes.until(lambda: not is_running(own), 20.0)
        assert processes.until(lambda: not is_running(watcher), 20.0)
        assert is_running(other)


def test_it_ends_with_its_parent_and_holds_none_of_its_files() -> None:
    with runner() as (process, (watcher, own, other)):
        links = [os.readlink(link) for link in Path(f"/proc/{watcher}/fd").iterdir()]
        assert sorted(link.split(":")[0] for link in links) == [*["/dev/null"] * 3, "pipe"]
        assert f"{MEMBER_RUNNER}=".encode() not in Path(f"/proc/{watcher}/environ").read_bytes()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
        assert not is_running(watcher)
        assert is_running(own)
        assert is_running(other)
