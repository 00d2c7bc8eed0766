"""One supervisor at a time runs a run directory, which may be on a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor_rig import Background, Case, running, wait_for

from mpips.errors import ConfigError, MpipsError
from mpips.rundir import directory
from mpips.rundir.directory import replace_json, version_of
from mpips.rundir.files import Lease
from mpips.supervisor import lease as lease_module
from mpips.supervisor import supervise
from mpips.supervisor.lease import LeaseHolder, LeaseLostError


def test_two_supervisors_on_one_run_are_refused(case: Case) -> None:
    with pytest.raises(ConfigError, match=r"is being run by process \d+ on "), Background(case):
        case.run({"finish": True})


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lease be stale after half a second."""
    monkeypatch.setattr(lease_module, "STALE_S", 0.5)
    monkeypatch.setattr(lease_module, "_WATCH_S", 0.02)


def elsewhere(generation: int, **fields: Any) -> Lease:
    return Lease(
        **{"generation": generation, "host": "elsewhere", "pid": 7, "time_s": time.time(), **fields}
    )


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("ahead", [0.0, 1e6, -1e6])
def test_a_lease_that_another_host_renews_is_respected_whatever_its_clock(
    case: Case, ahead: float
) -> None:
    path = case.run_folder.lease_file
    first = elsewhere(4, time_s=time.time() + ahead)
    replace_json(path, first)
    case.printed.clear()
    renewed = threading.Event()

    def renew() -> None:
        while not case.printed:  # the supervisor watches the lease from its first line on
            if renewed.wait(0.005):
                return
        replace_json(path, elsewhere(4, time_s=first.time_s, renewals=1))

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(ConfigError, match="is being run by process 7 on elsewhere"):
            case.run({"finish": True})
    finally:
        renewed.set()
        renewing.join()
    assert not case.run_folder.attempt(5).exists()


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("ahead", [0.0, 1e6, -1e6])
def test_a_lease_that_nobody_renews_is_taken_whatever_its_clock(case: Case, ahead: float) -> None:
    replace_json(case.run_folder.lease_file, elsewhere(4, time_s=time.time() + ahead))
    assert case.run({"finish": True}) == 0
    assert case.run_folder.attempt(5).is_dir()
    assert "was not released by process 7 on elsewhere: waiting" in case.printed[0]


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("damage", [b"", b"\0" * 64])
def test_a_host_without_power_may_leave_a_damaged_lease(case: Case, damage: bytes) -> None:
    case.run_folder.attempt(9).mkdir()
    case.run_folder.attempt(10).mkdir()
    case.run_folder.status_file.write_bytes(damage)
    case.run_folder.lease_file.write_bytes(damage)
    assert case.run({"finish": True}) == 0
    assert "was not released by process 0 on an unknown host: waiting" in case.printed[0]
    lease = case.run_folder.lease()
    assert lease is not None
    assert (lease.generation, lease.released) == (11, True)


def test_on_a_full_disk_a_lease_is_renewed_by_its_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LeaseHolder(case.run_folder) as lease:
        lease.advance()
        os.utime(case.run_folder.lease_file, (1, 1))
        before = version_of(case.run_folder.lease_file)
        lease._next = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "replace_json", no_room)
            assert "No space left" in lease.renew()
        assert version_of(case.run_folder.lease_file) != before
        assert case.run_folder.lease() is not None


def test_a_run_directory_that_was_removed_is_named_as_that(case: Case) -> None:
    run = case.run_folder
    with LeaseHolder(run) as holder:
        holder.advance()
        holder.check()
        run.lease_file.unlink()
        with pytest.raises(LeaseLostError, match="by a process that removed"):
            holder.check()
        shutil.rmtree(run.path)
        with pytest.raises(LeaseLostError, match="was removed while the run was at work"):
            holder.check()


def test_memory_of_a_run_directory_that_was_removed_is_removed(case: Case) -> None:
    run, token = case.run_folder, case.run_folder.info().token
    region = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}-s0")

    def remove() -> None:
        wait_for(run.attempt(0) / "asleep")
        shutil.rmtree(run.path)

    region.write_text("of the run")
    thread = threading.Thread(target=remove)
    thread.start()
    try:
        with pytest.raises(LeaseLostError, match="was removed while the run was at work"):
            case.run({"sleep": 60})
        assert not region.exists()
    finally:
        thread.join()
        region.unlink(missing_ok=True)


def test_a_supervisor_whose_lease_was_taken_ends_its_attempt(case: Case) -> None:
    def take_over() -> None:
        wait_for(case.run_folder.attempt(0) / "asleep")
        other = Lease(generation=9, host="elsewhere", pid=7, time_s=time.time())
        replace_json(case.run_folder.lease_file, other)

    token = case.run_folder.info().token
    region = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}-s0")
    region.write_text("the other's")
    thief = threading.Thread(target=take_over)
    thief.start()
    with pytest.raises(LeaseLostError, match="taken over by process 7 on elsewhere"):
        case.run({"sleep": 60, "spawn": 1})
    thief.join()
    assert not running(case.run_folder)
    lease = case.run_folder.lease()
    assert lease is not None
    assert lease.generation == 9
    assert region.exists()
    # The memory is removed once the other supervisor has released the run.
    gone = Lease(generation=9, host="x", pid=7, time_s=0.0, released=True)
    replace_json(case.run_folder.lease_file, gone)
    assert case.run({"finish": True}) == 0
    assert not region.exists()


def no_room(path: Path, *arguments: object) -> None:
    """Fail as a write to a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class Room:
    """A disk that is full for the first few writes after an attempt."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC):
        self.case, self.left, self.number = case, 3, number
        for module in (lease_module, supervise, directory):
            monkeypatch.setattr(module, "replace_json", self.write)
        monkeypatch.setattr(supervise, "_ROOM_S", 0.01)

    def write(self, path: Path, *arguments: object, **more: object) -> None:
        if self.left and (self.case.run_folder.attempt(0) / "argv.json").exists():
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number), str(path))
        replace_json(path, *arguments, **more)  # type: ignore[arg-type]


def test_the_next_attempt_waits_for_room_on_the_disk(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(case, monkeypatch)
    room.left = 9
    assert case.run({"code": 1}, {"finish": True}) == 0
    assert room.left == 0
    assert case.attempts == 2
    assert (
        case.text.count("No space left on device; the next attempt starts when there is room") == 1
    )


def test_a_signal_ends_the_wait_for_room(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(case, monkeypatch)
    room.left = 1_000_000
    waits = threading.Event()

    def tell(text: str) -> None:
        if "when there is room" in text:
            waits.set()

    def stop() -> None:
        if waits.wait(30):
            os.kill(os.getpid(), signal.SIGTERM)

    case.printed = Listening(tell)
    stopper = threading.Thread(target=stop)
    stopper.start()
    assert case.run({"code": 1}, {"finish": True}) == 143
    stopper.join()
    assert "stopped by SIGTERM while it waited for room on the disk, exit 143" in case.text


class Listening(list[str]):
    """A list of lines that also calls a function with each new one."""

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        super().__init__()
        self._pass_on = pass_on

    def append(self, text: str) -> None:
        super().append(text)
        self._pass_on(text)


def test_a_run_directory_that_cannot_be_written_to_is_one_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    Room(case, monkeypatch, errno.EROFS).left = 1_000_000
    with pytest.raises(
        MpipsError, match=r"cannot be written: Read-only file system; make it writable"
    ):
        case.run({"code": 1}, {"finish": True})


def test_a_run_directory_that_never_could_be_written_to_is_one_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case.run_folder.path / "lease.lock").mkdir()
    with pytest.raises(ConfigError, match=r"lease.lock: cannot be written: Is a directory"):
        case.run({"finish": True})
