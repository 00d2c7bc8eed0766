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
from patience import PATIENCE

from mpips.rundir.producers import MEMBER_RUNNER
from mpips.supervisor.member_watcher import left_over

# Starts four programs: one with its mark, one with that of another process, and two without a mark, with
# sessions that it notes; the last one's it forgets again. Prints all pids, and then obeys lines.
RUNNER = """
import os, subprocess, sys
from mpips.rundir.producers import MEMBER_RUNNER
from mpips.supervisor.member_watcher import left_over
from mpips.supervisor.member_watcher import MemberWatcher
watcher = MemberWatcher(0.2)
programs = [
    subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.02; done"],
        env={"PATH": os.environ["PATH"], **mark},
        stdout=subprocess.PIPE,
        start_new_session=not mark,
    )
    for mark in ({MEMBER_RUNNER: watcher.mark}, {MEMBER_RUNNER: watcher.mark + "0"}, {}, {})
]
for program in programs:
    program.stdout.readline()
watcher.note(programs[2].pid)
watcher.note(programs[3].pid)
watcher.forget(programs[3].pid)
print(watcher.pid, *[program.pid for program in programs], flush=True)
for line in sys.stdin:
    if line == "reap\\n":
        pid, _ = os.waitpid(watcher.pid, 0)
        watcher.was_reaped(programs[0].pid)
        assert watcher.pid == pid
        watcher.was_reaped(pid)
        print(watcher.pid, flush=True)
    if line == "end without it\\n":
        os.waitpid(watcher.pid, 0)
        del os.kill
        watcher.end()
        break
    if line == "end\\n":
        watcher.end()
        break
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


def order(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_it_ends_the_programs_of_its_killed_parent_alone() -> None:
    with runner() as (process, (watcher, own, other, unmarked, over)):
        # Neither a signal to the session of the parent nor one to the watcher ends the watch.
        assert os.getsid(watcher) == watcher
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(watcher, number)
        assert is_running(watcher)
        process.kill()
        process.wait()
        assert processes.until(lambda: not is_running(own), 20.0)
        assert processes.until(lambda: not is_running(unmarked), 20.0)
        assert processes.until(lambda: not is_running(watcher), 20.0)
        assert is_running(other)
        assert is_running(over)


def test_it_ends_with_its_parent_and_holds_none_of_its_files() -> None:
    with runner() as (process, (watcher, *programs)):
        links = [os.readlink(link) for link in Path(f"/proc/{watcher}/fd").iterdir()]
        assert sorted(link.split(":")[0] for link in links) == [*["/dev/null"] * 3, "pipe"]
        assert f"{MEMBER_RUNNER}=".encode() not in Path(f"/proc/{watcher}/environ").read_bytes()
        order(process, "end")
        assert process.wait() == 0
        assert not is_running(watcher)
        assert all(map(is_running, programs))


def test_another_one_follows_a_killed_one() -> None:
    with runner() as (process, (watcher, own, other, unmarked, over)):
        os.kill(watcher, signal.SIGKILL)
        order(process, "reap")
        assert process.stdout is not None
        following = int(process.stdout.readline())
        assert following != watcher
        links = [os.readlink(link) for link in Path(f"/proc/{following}/fd").iterdir()]
        assert processes.until(lambda: len(list(Path(f"/proc/{following}/fd").iterdir())) == 4), (
            links
        )
        process.kill()
        process.wait()
        assert processes.until(lambda: not is_running(own), 20.0)
        assert processes.until(lambda: not is_running(unmarked), 20.0)
        assert processes.until(lambda: not is_running(following), 20.0)
        assert is_running(other)
        assert is_running(over)


def test_the_pid_of_one_that_has_ended_gets_no_signal() -> None:
    with runner() as (process, (watcher, *_)):
        os.kill(watcher, signal.SIGKILL)
        order(process, "end without it")
        assert process.wait() == 0


def test_a_stopped_one_does_not_stop_its_parent() -> None:
    # More lines than a pipe holds.
    text = """
from mpips.supervisor.member_watcher import MemberWatcher
import os, signal
watcher = MemberWatcher(0.2)
os.kill(watcher.pid, signal.SIGSTOP)
for session in range(10**8, 10**8 + 10000):
    watcher.note(session)
    watcher.forget(session)
watcher.end()
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60 * PATIENCE)


def test_a_session_that_has_ended_is_forgotten_for_good() -> None:
    # Another session may get its number while other programs still end.
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as program:
        try:
            with subprocess.Popen(["true"], start_new_session=True) as over:
                pass
            sessions = {program.pid, over.pid}
            assert program.pid in left_over(f"{MEMBER_RUNNER}=none", sessions)
            assert sessions == {program.pid}
            program.kill()
            program.wait()
            assert left_over(f"{MEMBER_RUNNER}=none", sessions) == set()
            assert sessions == set()
        finally:
            program.kill()
