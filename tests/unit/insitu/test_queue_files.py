"""Files of queues: who holds them, who removes them, and what happens without room for them."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import program_rig as rig
import pytest
from program_rig import Program, queue_path, refused, serve

import mpips
from mpips import StreamTable
from mpips.doctor import cleaning
from mpips.insitu import programs
from mpips.transport import region
from mpips.transport.region import KEEP_S, sweep

DAYS_AGO = time.time() - 2 * KEEP_S


@pytest.fixture
def name() -> Iterator[str]:
    with rig.queue_name() as chosen:
        yield chosen


@pytest.fixture
def old_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has been up for a week, since no file in /dev/shm can be older than that."""
    monkeypatch.setattr(region.time, "clock_gettime", lambda clock: 7 * KEEP_S)


def aged(path: Path) -> Path:
    os.utime(path, (DAYS_AGO, DAYS_AGO))
    return path


def is_aged(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > KEEP_S


def swept(path: Path) -> bool:
    """Sweep; return True if that has removed the file. `mpips doctor` must have found out before."""
    found = {
        left.path: left
        for left in cleaning.leftovers(region.SHM, Path("/nowhere"), Path("/nowhere"))
    }
    is_removed = path.name in sweep()
    assert is_removed == found[path].dead, found[path]
    assert path.exists() != is_removed
    return is_removed


@pytest.mark.usefixtures("old_machine")
def test_a_queue_is_removed_a_day_after_its_last_use_and_never_in_use(name: str) -> None:
    path, queue = queue_path(name), serve(name)
    program = Program(name)
    assert not swept(aged(path))  # both are there
    queue = None
    gc.collect()
    assert not swept(aged(path))  # the program waits for the next launch
    program.detach()
    assert not swept(path)  # another program or launch may come
    queue = serve(name)
    assert not swept(aged(path))  # the worker waits for a program
    del queue
    gc.collect()
    os.utime(path)
    assert not swept(path)
    assert swept(aged(path))


@pytest.mark.usefixtures("old_machine")
def test_damaged_and_half_made_queues_are_removed(name: str) -> None:
    path = queue_path(name)
    path.write_bytes(b"short")
    assert not swept(path)
    assert swept(aged(path))
    half_made = path.with_name(f"{path.name}.new-4711")
    half_made.write_bytes(bytes(8192))
    assert swept(half_made)
    half_made.symlink_to("/dev/shm/nothing")
    assert half_made.name not in sweep()
    half_made.unlink()


@pytest.mark.usefixtures("old_machine")
def test_queues_with_names_that_contain_those_of_half_made_ones_are_kept() -> None:
    with rig.queue_name() as name:
        queue = serve(f"{name}.0.new-5")
        del queue
        gc.collect()
        (path,) = region.SHM.glob(f"mpips_queue.*.{name}.*")
        assert not swept(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.usefixtures("old_machine")
def test_a_file_of_another_user_ends_neither_a_sweep_nor_a_start(name: str) -> None:
    path = queue_path(name)
    path.write_bytes(bytes(8192))
    os.chown(path, 65534, 65534)
    aged(path)
    assert path.name not in sweep()
    (left,) = (
        left
        for left in cleaning.leftovers(region.SHM, Path("/nowhere"), Path("/nowhere"))
        if left.path == path
    )
    assert left.why == "it belongs to another user (65534), who can remove it"
    assert path.exists()


def test_programs_and_workers_renew_the_time_of_a_queue(name: str) -> None:
    queue, path = serve(name), queue_path(name)
    aged(path)
    program = Program(name, timeout_s=0.05)
    assert not is_aged(path)
    x = np.zeros(3, np.float32)
    program.declare_like(x=x)
    program.push(x)
    aged(path)
    with refused(rig.STALLED, "servers do not hold all samples"):
        program.flush()
    assert not is_aged(path)
    aged(path)
    program.detach()
    assert not is_aged(path)
    del queue
    gc.collect()
    aged(path)
    queue = serve(name, produced=1)
    assert queue.is_continued
    assert not is_aged(path)


def test_a_worker_that_waits_renews_the_time_of_its_queue(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "TOUCH_S", 0.0)
    stream, renewed = StreamTable("s", {"x": ()}, 10), []

    def simulate() -> None:
        program = Program(name)
        path, end = aged(queue_path(name)), time.monotonic() + 20
        while is_aged(path) and time.monotonic() < end:
            time.sleep(0.001)
        renewed.append(not is_aged(path))
        program.close()

    def main(worker: Any) -> None:
        thread = threading.Thread(target=simulate)
        thread.start()
        stream.serve(worker, name)
        thread.join()

    mpips.run(main, [stream], verbose=False)
    assert renewed == [True]


def test_an_end_waits_for_the_lock_of_one_that_is_about_to_end(name: str) -> None:
    held: list[Any] = [serve(name)]
    program = Program(name)
    timers = [threading.Timer(0.2, held.clear), threading.Timer(0.2, program.detach)]
    for timer in timers:
        timer.start()
    queue = serve(name)
    next_program = Program(name)
    for timer in timers:
        timer.join()
    assert queue.is_attached
    next_program.detach()


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, program_rig as rig
x = np.zeros(3, np.float32)
if sys.argv[3] == "worker":
    queue = rig.serve(sys.argv[2])
else:
    program = rig.Program(sys.argv[2])
    program.declare_like(x=x)
    program.push(x)
if os.fork() == 0:
    if sys.argv[3] == "program":
        text = "producer 0 of .* belongs to the parent of this forked process"
        for call in (program.flush, lambda: program.push(x), lambda: program.steer(1), program.close):
            with rig.refused(rig.USAGE, text):
                call()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["program", "worker"])
def test_a_forked_child_neither_uses_nor_holds_the_queue_of_its_parent(name: str, end: str) -> None:
    queue = serve(name) if end == "program" else None
    here = str(Path(rig.__file__).parent)
    command = [sys.executable, "-c", FORKS, here, name, end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        if queue is not None:
            assert queue.is_attached
            assert queue.written == 1
        parent.kill()
        parent.wait()
        # The child runs until its input ends.
        if queue is not None:
            assert not queue.is_attached
            assert Program(name).produced == 1
        else:
            assert serve(name).taken == 0


SMALL_SHM = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4m") == 0
import mpips
from mpips.errors import RegionError
from program_rig import Program, ProgramError
stream = mpips.StreamTable("s", {"x": (25000,)}, 10)
def main(worker):
    for text, slots in ("slots = 100 needs 10 MiB", 100), ("slots = 1048576 needs 102", 1 << 20):
        try:
            stream.serve(worker, "full", slots=slots)
        except RegionError as error:
            found = str(error)
        assert found.startswith(f"stream 's': queue 'full': {text}"), found
        assert "of /dev/shm: No space left on device; enlarge it" in found, found
        assert found.endswith("or serve with fewer slots"), found
        assert not os.listdir("/dev/shm")
    try:
        Program("full", timeout_s=0.0)
    except ProgramError as error:
        assert "has served producer 0 of 'full'" in str(error)
        print("held")
mpips.run(main, [stream], verbose=False)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")
def test_a_queue_without_room_is_a_sentence_and_leaves_nothing() -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private mount namespace here")
    here = str(Path(rig.__file__).parent)
    wrapper = ("unshare", "-m", "--propagation", "private")
    result = harness.python(SMALL_SHM, here, wrapper=wrapper)
    assert (result.returncode, result.stdout) == (0, "held\n"), result.stderr
