"""Shared memory of a run at the ends of its supervisor: removed with a checkpoint, else left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_rig import Background, Case

from mpips.errors import CapabilityError, MpipsError
from mpips.supervisor import conclusion, lease, left_memory
from mpips.supervisor.clearing import Cleared
from mpips.supervisor.hosts import HostPool
from mpips.supervisor.launcher import Launcher


def memory_of(case: Case, *parts: str) -> list[Path]:
    """Shared-memory files of a run, as its ranks leave them."""
    token = case.run_folder.info().token
    paths = [Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}.0a1b-{part}") for part in parts]
    for path in paths:
        path.write_bytes(b"3" * 4096)
    return paths


@pytest.fixture
def memory(case: Case) -> Iterator[list[Path]]:
    """The files of a launch that was at work."""
    paths = memory_of(case, "s0", "s0-journal", "s0-mark", "w0-0")
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


RAISED = {"words": [{}], "code": 1}
ENDS = {
    "crashed": ([RAISED], 1),
    "nothing new": ([{"code": 1, "mute": True}], 1),
    "configuration": ([{"words": [{"kind": "ConfigError", "exit_code": 2}], "code": 2}], 2),
    "missing": ([{"words": [{"kind": "RegionError", "exit_code": 69}], "code": 69}], 69),
    "stalled": ([{"words": [{"kind": "StallError", "exit_code": 124}], "code": 124}], 124),
    "the task's own 75": ([{"code": 75}], 75),
}


@pytest.mark.parametrize("end", ENDS)
def test_memory_stays_at_every_end_without_a_checkpoint(
    case: Case, memory: list[Path], end: str
) -> None:
    script, code = ENDS[end]
    case.max_restarts = 0 if end != "nothing new" else 9
    assert case.run(*script) == code
    assert all(path.exists() for path in memory)
    text = " ".join(case.text.split())
    where = f"in /dev/shm of {os.uname().nodename} (0.0 MiB); it stays until no process has used it"
    assert where in text
    assert f"continue from it: mpips run {case.run_folder.path}" in text
    assert f"remove it: mpips run --discard-memory {case.run_folder.path}" in text
    assert case.run({"finish": True}) == 0
    assert not any(path.exists() for path in memory)


def test_the_block_contains_the_step_of_the_memory(case: Case, memory: list[Path]) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1, "recoverable": 480}) == 1
    assert "memory          step 480 or later, in /dev/shm of" in case.text


@pytest.mark.parametrize(
    "script", [{"finish": True}, {"words": [{"kind": "Leaving", "exit_code": 75}]}]
)
def test_memory_is_removed_at_a_durable_end(
    case: Case, memory: list[Path], script: dict[str, Any]
) -> None:
    assert case.run(script) in (0, 75)
    assert not any(path.exists() for path in memory)
    assert "/dev/shm" not in case.text


def test_memory_of_launches_that_never_came_to_work_is_removed(case: Case) -> None:
    case.max_restarts = 0
    paths = memory_of(case, "s0", "w0-0")
    assert case.run({"code": 1}) == 1
    assert not any(path.exists() for path in paths)
    assert "/dev/shm" not in case.text


def test_memory_stays_where_the_supervisor_cannot_continue(case: Case, memory: list[Path]) -> None:
    case.launcher = Launcher("/nowhere/mpirun", "openmpi", "fake")
    with pytest.raises(CapabilityError, match="cannot be started"):
        case.run({"finish": True})
    assert all(path.exists() for path in memory)
    assert "mpips run: memory in /dev/shm of" in case.text


def test_memory_survives_an_interruption(case: Case, memory: list[Path]) -> None:
    with Background(case) as other:
        other.process.send_signal(signal.SIGINT)
        assert other.process.wait(20) == 130, other.text()
        assert all(path.exists() for path in memory)
        assert "continue from it: mpips run" in other.text()


def test_memory_of_a_cancelled_job_is_removed_and_no_host_is_asked(
    case: Case, memory: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_removed_elsewhere() -> bool:
        monkeypatch.setattr(HostPool, "usable", property(lambda pool: ["elsewhere"]))
        return True

    def clear(names: list[str], *args: Any, **options: Any) -> Cleared:
        asked.extend(names)
        return Cleared({}, {})

    monkeypatch.setattr(conclusion, "is_removed_elsewhere", is_removed_elsewhere)
    monkeypatch.setattr(left_memory, "clear", clear)
    case.max_restarts = 0
    assert case.run({"code": 1}) == 1
    assert not any(path.exists() for path in memory)
    assert asked == []
    text = " ".join(case.text.split())
    assert "memory removed from the nodes of the job, because Slurm has cancelled it" in text
    assert "continue from it" not in text


def test_memory_is_removed_when_a_person_asks_for_it(case: Case, memory: list[Path]) -> None:
    command = [sys.executable, "-m", "mpips", "run", "--discard-memory", str(case.run_folder.path)]
    with Background(case):
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        assert "is being run by process" in refused.stderr
        assert all(path.exists() for path in memory)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "4 segments of" in done.stderr
    assert not any(path.exists() for path in memory)


@pytest.fixture
def renewals(case: Case, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Renewals of the lease that each question to the hosts at an end adds; unreleased meanwhile."""
    added: list[int] = []

    def asked(*args: Any, hurry: Callable[[], bool], **options: Any) -> Cleared:
        before = case.run_folder.lease()
        assert not hurry()
        after = case.run_folder.lease()
        assert after is not None
        assert not after.released
        added.append(after.renewals - (before.renewals if before is not None else 0))
        return Cleared({}, {})

    monkeypatch.setattr(left_memory, "clear", asked)
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    return added


def test_the_lease_is_renewed_while_hosts_are_asked_at_the_end(
    case: Case, renewals: list[int]
) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1}) == 1
    assert renewals == [1]


def test_the_lease_is_held_and_renewed_while_memory_is_removed(
    case: Case, renewals: list[int]
) -> None:
    assert left_memory.discard(case.run_folder, [], lambda text: None)
    assert renewals == [1]
    after = case.run_folder.lease()
    assert after is not None
    assert after.released


def test_memory_is_not_removed_without_a_lease(
    case: Case, memory: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "lease.json")

    monkeypatch.setattr(lease, "replace_json", full)
    with pytest.raises(MpipsError, match=r"lease\.json: cannot be written: No space left"):
        left_memory.discard(case.run_folder, [], lambda text: None)
    assert all(path.exists() for path in memory)


def test_a_file_of_another_user_ends_no_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    (path,) = memory_of(case, "w0-1")
    os.chown(path, 65534, 65534)
    try:
        assert case.run({"code": 1}, {"finish": True}) == 0
        assert case.text.count(f"{path} on {os.uname().nodename} belongs to another user") == 1
        assert path.exists()
    finally:
        path.unlink()


def test_the_time_that_memory_of_silent_hosts_stays_is_named(tmp_path: Path) -> None:
    """After `scancel` no host of a run answers, and the hosts that do have nothing left."""
    silent = {"node1": "Slurm job 9 has expired", "node2": "Slurm job 9 has expired"}
    lines = left_memory.Settled({}, silent).describe(tmp_path, 5).splitlines()
    assert lines[0] == (
        "node[1-2] did not answer (Slurm job 9 has expired): memory there stays until no process has used it "
        "for 24 hours or the host restarts"
    )
    assert lines[1] == f"continue from it: mpips run {tmp_path}"
