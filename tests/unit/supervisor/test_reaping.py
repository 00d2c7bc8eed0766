"""What is left of earlier attempts on a host: processes end, and memory is removed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from marked_process import started

from mpips.supervisor import reap


def test_only_processes_of_the_run_and_of_old_generations_are_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old, stopped, new = started(run, 1), started(run, 2), started(run, 3)
    other = started(tmp_path / "run2", 1)
    stopped.send_signal(signal.SIGSTOP)
    try:
        assert reap.reap(run, 2) == 2
        assert old.wait(5) == stopped.wait(5) == -signal.SIGKILL
        assert new.poll() is None
        assert other.poll() is None
        assert reap.reap(run, 2) == 0
    finally:
        for process in (old, stopped, new, other):
            process.kill()
            process.wait()


def test_a_killed_process_without_an_environment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A dying process has no environment any more while its files, and so its locks, are still open.
    process = started(tmp_path, 1)
    searches, kills, kill = [[process.pid]], [], os.kill

    def late(pid: int, signum: int) -> None:
        kills.append(pid)
        if len(kills) == 3:
            kill(pid, signum)

    monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
    monkeypatch.setattr(reap.os, "kill", late)
    try:
        assert reap.reap(tmp_path, 1) == 1
        assert reap.state_of(process.pid) in "ZX"
        assert kills[:3] == [process.pid] * 3
    finally:
        monkeypatch.undo()
        process.kill()
        process.wait()


# Its first thread ends, as the first one of a killed process does, and another one holds the lock.
WITHOUT_FIRST_THREAD = """
import ctypes, fcntl, os, sys, threading, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=(600,)).start()
os.write(1, b"!")
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_is_waited_for_until_its_last_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", WITHOUT_FIRST_THREAD, str(path)]
    reader, writer = os.pipe()
    process = subprocess.Popen(command, stdout=writer, start_new_session=True)
    os.close(writer)
    searches, kills, kill = [[process.pid]], [], os.kill

    def late(pid: int, signum: int) -> None:
        kills.append(pid)
        if len(kills) == 3:
            kill(pid, signum)

    try:
        assert os.read(reader, 1) == b"!"
        while reap.state_of(process.pid) != "Z":
            assert process.poll() is None
        assert not reap.is_dead(process.pid)
        monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
        monkeypatch.setattr(reap.os, "kill", late)
        assert reap.reap(tmp_path, 1) == 1
        assert kills[:3] == [process.pid] * 3
        assert reap.is_dead(process.pid)
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        monkeypatch.undo()
        os.close(reader)
        process.kill()
        process.wait()


def test_a_process_that_has_no_environment_yet_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within exec a process has none; this one has none for good.
    process = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    try:
        monkeypatch.setattr(reap, "_UNCLEAR_S", 0.0)
        assert reap.reap(tmp_path, 1) == 0
        monkeypatch.setattr(reap, "_UNCLEAR_S", 60.0)
        searches = [[process.pid], []]
        monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
        assert reap.reap(tmp_path, 1) == 1
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_processes_of_a_run_are_found_by_whatever_way_it_was_started(tmp_path: Path) -> None:
    run, link = tmp_path / "run", tmp_path / "link"
    run.mkdir()
    link.symlink_to(run)
    for way, other in ((link, run), (run, link), (tmp_path / "x" / ".." / "run", run)):
        (tmp_path / "x").mkdir(exist_ok=True)
        process = started(way, 1)
        try:
            assert reap.reap(other, 1) == 1
            assert process.wait(5) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()


def test_reaping_is_a_program_of_its_own(tmp_path: Path) -> None:
    # On other hosts reap.py runs without mpips and its libraries.
    command = [sys.executable, "-I", "-S", reap.__file__, str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = {"processes": 0, "removed": 0, "remaining_bytes": 0, "foreign": []}
    assert json.loads(done.stdout) == found


NOBODY = 65534


@pytest.mark.parametrize("what", ["--forget", "--keep"])
def test_files_of_another_user_are_named_and_stay(tmp_path: Path, what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    program = Path(tempfile.mkdtemp()) / "reap.py"  # where another user may read it
    program.parent.chmod(0o755)
    shutil.copy(reap.__file__, program)
    program.chmod(0o644)
    token = uuid.uuid4().hex
    prefix = f"/dev/shm/mpips-kept-{NOBODY}-{token}"
    foreign = [Path(f"{prefix}.abc-s0"), Path(f"{prefix}-s0-mark"), Path(f"{prefix}-w0-7")]
    own = Path(f"{prefix}.12-s0-journal")
    try:
        for path in (*foreign, own):
            path.write_text("3")
        os.chown(own, NOBODY, NOBODY)
        command = ["/usr/bin/python3", "-I", "-S", str(program), "/nowhere", "0", what, token]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, user=NOBODY, group=NOBODY, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        # A mark of another user does not make the memory complete.
        assert (found["removed"], found["remaining_bytes"]) == (1, 0)
        assert set(found["foreign"]) == {str(path) for path in foreign}
        assert all(path.read_text() == "3" for path in foreign)
        assert not own.exists()
    finally:
        for path in (*foreign, own):
            path.unlink(missing_ok=True)
        shutil.rmtree(program.parent)


def test_memory_is_kept_only_where_a_launch_can_go_on_in_it() -> None:
    token = uuid.uuid4().hex
    uid = os.geteuid()
    names = [f"mpips-kept-{uid}-{token}.1a-s0", f"mpips-kept-{uid}-{token}.1a-s0-mark"]
    plain = Path(f"/dev/shm/mpips-{uid}-{token}-w0")
    kept = [Path("/dev/shm", name) for name in names]
    try:
        for path in (*kept, plain):
            path.write_bytes(b"3" * 4096)
            os.utime(path, (1, 1))
        assert reap.keep(token) == reap.LeftMemory(1, 2 * 4096)
        assert not plain.exists()
        assert all(path.stat().st_mtime > 1 for path in kept)
        kept[1].unlink()
        assert reap.keep(token) == reap.LeftMemory(1)
        assert not kept[0].exists()
    finally:
        for path in (*kept, plain):
            path.unlink(missing_ok=True)


def test_only_a_complete_exchange_is_memory_of_a_run() -> None:
    token = uuid.uuid4().hex
    folders = [
        Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}.{digits}-exchange") for digits in "12"
    ]
    try:
        for folder in folders:
            folder.mkdir()
        (folders[0] / ".writing-1").mkdir()
        (folders[1] / "step-000000000007").mkdir()
        (folders[1] / "step-000000000007" / "state.h5").write_bytes(b"3" * 8192)
        assert reap.segments(token) == ([], [])
        kept = reap.keep(token)
        assert kept.removed == 1
        assert kept.remaining_bytes >= 8192
        assert [folder.exists() for folder in folders] == [False, True]
        assert reap.forget(token, but_exchange=True).removed == 0
        assert folders[1].exists()
        assert reap.forget(token).removed == 1
        assert not folders[1].exists()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
