"""`mpips doctor --clean` removes files that provably belong to ended runs, and no others."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpips.doctor import cleaning
from mpips.doctor.cleaning import Users, find_users, leftovers
from mpips.transport import region
from mpips.transport.region import (
    KEEP_S,
    SHM,
    new_token,
    own_segments,
    persistent,
    region_name,
    unlink_job,
)

HOST = socket.gethostname().split(".")[0]
UID = os.geteuid()
LONG_AGO = time.time() - 3600


@pytest.fixture(autouse=True)
def _all_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this process sees all processes of the user."""
    real = find_users
    monkeypatch.setattr(cleaning, "find_users", lambda: Users(real().files, ""))


def old(path: Path) -> Path:
    """Set the modification time to an hour ago; the time of the last change of the inode cannot be set."""
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock of the cleaner by an hour."""
    now = time.time()
    monkeypatch.setattr(cleaning.time, "time", lambda: now + 3600)


def by_name(folder: Path) -> dict[str, cleaning.Leftover]:
    return {left.path.name: left for left in leftovers(folder, folder, folder)}


def segment(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"x" * 4096)
    return path


@pytest.mark.usefixtures("later")
def test_a_segment_of_open_mpi_that_nobody_uses_is_dead(tmp_path: Path) -> None:
    name = f"sm_segment.{HOST}.{UID}.1f2e0001.0"
    segment(tmp_path, name)
    segment(tmp_path, f"vader_segment.{HOST}.{UID}.7.1")
    found = by_name(tmp_path)
    assert len(found) == 2
    assert all(left.dead and left.n_bytes >= 4096 for left in found.values())


@pytest.mark.usefixtures("later")
def test_segments_of_others_are_not_looked_at(tmp_path: Path) -> None:
    for name in (
        f"sm_segment.otherhost.{UID}.1f2e0001.0",
        f"sm_segment.{HOST}.{UID + 1}.1f2e0001.0",
        f"sm_segment.{HOST}.{UID}.1f2e0001.0.backup",
        "precious_segment.txt",
    ):
        segment(tmp_path, name)
    (tmp_path / f"sm_segment.{HOST}.{UID}.2.0").symlink_to("/etc/passwd")
    assert by_name(tmp_path) == {}


def test_a_segment_younger_than_a_minute_is_left_alone(tmp_path: Path) -> None:
    name = f"sm_segment.{HOST}.{UID}.1f2e0001.0"
    old(segment(tmp_path, name))  # The change of its inode is recent.
    left = by_name(tmp_path)[name]
    assert not left.dead
    assert "younger" in left.why


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_segment_that_a_process_has_is_not_dead(tmp_path: Path, how: str) -> None:
    name = f"sm_segment.{HOST}.{UID}.1f2e0001.0"
    path = segment(tmp_path, name)
    program = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "held = mmap.mmap(fd, 4096) if sys.argv[2] == 'mapped' else fd\n"
        "os.close(fd) if sys.argv[2] == 'mapped' else None\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        alive = by_name(tmp_path)[name]
        child.communicate("")
    assert (alive.dead, alive.why) == (False, "a process uses it")
    assert by_name(tmp_path)[name].dead


@pytest.mark.usefixtures("later")
def test_nothing_is_dead_where_processes_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(tmp_path, f"sm_segment.{HOST}.{UID}.1f2e0001.0")
    (tmp_path / "ompi.999999999").mkdir()
    monkeypatch.setattr(cleaning, "find_users", lambda: Users(set(), "in a container"))
    found = by_name(tmp_path)
    assert len(found) == 2
    assert not any(left.dead for left in found.values())


def gone() -> int:
    """Return the id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.usefixtures("later")
def test_session_folders_are_dead_with_their_process(tmp_path: Path) -> None:
    dead, alive = gone(), os.getpid()
    for pid in (dead, alive):
        for name in (f"ompi.{pid}", f"prte.{HOST}.{pid}.{UID}", f"ompi.{HOST}.{UID}/pid.{pid}"):
            (tmp_path / name / "1").mkdir(parents=True)
            segment(tmp_path / name / "1", "hwloc.sm")
    (tmp_path / "ompi.notes").mkdir()
    found = by_name(tmp_path)
    assert {name for name, left in found.items() if left.dead} == {
        f"ompi.{dead}",
        f"prte.{HOST}.{dead}.{UID}",
        f"pid.{dead}",
    }
    assert f"process {alive} is there" in found[f"ompi.{alive}"].why
    assert "ompi.notes" not in found


@pytest.mark.usefixtures("later")
def test_a_session_folder_of_another_host_is_left_alone(tmp_path: Path) -> None:
    pid = gone()
    for name in (f"ompi.otherhost.{UID}/pid.{pid}", f"prte.otherhost.{pid}.{UID}"):
        segment_in(tmp_path / name)
    assert by_name(tmp_path) == {}
    segment_in(tmp_path / f"ompi.{HOST}.site.{UID}/pid.{pid}")
    assert by_name(tmp_path)[f"pid.{pid}"].dead


@pytest.mark.usefixtures("later")
def test_where_hosts_share_a_folder_a_name_without_host_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = gone()
    segment_in(tmp_path / f"ompi.{pid}")
    assert by_name(tmp_path)[f"ompi.{pid}"].dead
    monkeypatch.setattr(cleaning, "file_system", lambda mountinfo, path: "nfs4")
    left = by_name(tmp_path)[f"ompi.{pid}"]
    assert (left.dead, left.why) == (
        False,
        f"it may belong to another host: {tmp_path} is on nfs4",
    )


def segment_in(folder: Path) -> Path:
    (folder / "1").mkdir(parents=True)
    return segment(folder / "1", "hwloc.sm")


@pytest.mark.usefixtures("later")
def test_a_session_folder_in_use_is_not_dead_whatever_its_number(tmp_path: Path) -> None:
    """A process that uses the folder may have another id in another process namespace."""
    folder = tmp_path / f"ompi.{gone()}"
    folder.mkdir()
    with segment(folder, "hwloc.sm").open("rb"):
        assert not by_name(tmp_path)[folder.name].dead
    assert by_name(tmp_path)[folder.name].dead


@pytest.mark.usefixtures("later")
def test_clean_removes_the_dead_and_keeps_the_rest(tmp_path: Path) -> None:
    dead = segment(tmp_path, f"sm_segment.{HOST}.{UID}.1.0")
    folder = tmp_path / f"ompi.{gone()}"
    (folder / "deep").mkdir(parents=True)
    used = tmp_path / f"ompi.{os.getpid()}"
    used.mkdir()
    other = segment(tmp_path, "something.else")
    removed = {left.path for left in cleaning.clean(tmp_path, tmp_path, tmp_path) if left.dead}
    assert removed == {dead, folder}
    assert not dead.exists()
    assert not folder.exists()
    assert used.is_dir()
    assert other.is_file()


@pytest.fixture
def old_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has been up for a week, since no segment can be older than that."""
    monkeypatch.setattr(region.time, "clock_gettime", lambda clock: 7 * KEEP_S)


@pytest.mark.usefixtures("old_machine")
def test_segments_of_a_supervised_run_are_kept_for_a_day(tmp_path: Path) -> None:
    name = region_name(persistent(new_token()), "s0")
    path = segment(tmp_path, name)
    left = by_name(tmp_path)[name]
    assert (left.dead, "next launch" in left.why) == (False, True)
    days_ago = time.time() - 2 * KEEP_S
    os.utime(path, (days_ago, days_ago))
    assert by_name(tmp_path)[name].dead
    with path.open("rb"):
        assert by_name(tmp_path)[name].why == "a process uses it"


@pytest.mark.usefixtures("old_machine")
def test_the_exchange_of_a_run_is_kept_for_a_day_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / region_name(persistent(new_token()), region.EXCHANGE)
    (folder / "step-1").mkdir(parents=True)
    state = folder / "step-1" / "state.h5"
    state.write_bytes(b"3" * (1 << 16))
    left = by_name(tmp_path)[folder.name]
    assert (left.dead, "next launch" in left.why) == (False, True)
    assert left.n_bytes >= 1 << 16
    days_ago = time.time() - 2 * KEEP_S
    os.utime(folder, (days_ago, days_ago))
    assert by_name(tmp_path)[folder.name].dead
    with state.open("rb"):
        assert by_name(tmp_path)[folder.name].why == "a process uses it"
    other = folder.rename(tmp_path / region_name(persistent(new_token()), "s0"))
    assert by_name(tmp_path)[other.name].why == "it is not a regular file"


@pytest.mark.usefixtures("later")
def test_a_file_of_another_user_with_such_a_name_is_kept_and_named(tmp_path: Path) -> None:
    if UID != 0:
        pytest.skip("only root can give a file to another user")
    name = region_name(persistent(new_token()), "s0")
    os.chown(segment(tmp_path, name), 65534, 65534)
    days_ago = time.time() - 2 * KEEP_S
    os.utime(tmp_path / name, (days_ago, days_ago))
    left = by_name(tmp_path)[name]
    assert (left.dead, left.why) == (False, "it belongs to another user (65534), who can remove it")


HOLDER = """
import sys
from mpips.transport.region import Regions
held = Regions(sys.argv[1], shared=True).create("s0", 8192)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_command_removes_regions_of_killed_runs_and_says_so() -> None:
    tokens = new_token(), new_token()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for token in tokens
    ]
    names = [region_name(token, "s0") for token in tokens]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        children[0].kill()
        children[0].wait()
        command = [sys.executable, "-m", "mpips", "doctor", "--clean", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        rows = {Path(row["path"]).name: row for row in json.loads(done.stdout)["found"]}
        assert rows[names[0]]["removed"] is True
        assert rows[names[0]]["bytes"] == 8192
        assert rows[names[1]]["removed"] is False
        assert not (SHM / names[0]).exists()
        assert (SHM / names[1]).exists()
    finally:
        for child, token in zip(children, tokens, strict=True):
            child.kill()
            child.communicate()
            unlink_job(token)


# A running job: regions of mpips, shared memory of Open MPI, and a session folder of Open MPI, whose name
# contains the id that the process has in its own namespace.
LIVING = """
import os, sys
from pathlib import Path
from mpips.transport.region import Regions, persistent
held = [Regions(token, shared=True).create("s0", 8192) for token in (sys.argv[1], persistent(sys.argv[1]))]
folder = Path(sys.argv[2])
(folder / f"ompi.{os.getpid()}").mkdir()
files = [folder / f"ompi.{os.getpid()}" / "hwloc.sm", folder / sys.argv[3]]
opened = [path.open("wb") for path in files]
print(os.getpid(), flush=True)
sys.stdin.read()
"""
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def may_have_namespaces() -> bool:
    """Return True if this user may create process namespaces."""
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_have_namespaces(), reason="needs a process namespace of its own")
@pytest.mark.usefixtures("later", "old_machine")
@pytest.mark.parametrize("cleaner_inside", [False, True])
def test_nothing_of_a_living_job_in_another_namespace_is_removed(
    tmp_path: Path, cleaner_inside: bool
) -> None:
    """Clean from outside of the job's namespace, and from a third one that sees no process of the job."""
    token, name = new_token(), f"sm_segment.{HOST}.{UID}.1f2e0001.0"
    command = [sys.executable, "-c", LIVING, token, str(tmp_path), name]
    child = subprocess.Popen(
        [*NAMESPACE, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        names = [region_name(token, "s0"), *(p.name for _, p in own_segments(persistent(token)))]
        assert len(names) == 2
        paths = [tmp_path / f"ompi.{pid}", tmp_path / name, *(SHM / n for n in names)]
        days_ago = time.time() - 2 * KEEP_S
        for path in paths:
            os.utime(path, (days_ago, days_ago))
        if cleaner_inside:
            cleaner = [*NAMESPACE, sys.executable, "-m", "mpips", "doctor", "--clean", "--json"]
            env = {**os.environ, "TMPDIR": str(tmp_path)}
            done = subprocess.run(cleaner, env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            rows = {Path(row["path"]) for row in json.loads(done.stdout)["found"] if row["removed"]}
        else:
            rows = {left.path for left in cleaning.clean(tmp_path, tmp_path, tmp_path) if left.dead}
        assert not rows & set(paths)
        assert all(path.exists() for path in paths)
    finally:
        child.kill()
        child.communicate()
        unlink_job(token)
        unlink_job(persistent(token))


def test_files_of_rows_go_when_no_process_uses_them_and_their_memory_is_gone(
    tmp_path: Path,
) -> None:
    names = [f"{region_name(persistent(new_token()), part)}.rows" for part in ("s0", "s1", "s2")]
    unused, used, needed = (segment(tmp_path, name) for name in names)
    (tmp_path / "other.rows").touch()
    memory = SHM / needed.name.removesuffix(".rows")
    memory.touch(0o600)
    try:
        with used.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            found = {left.path: left for left in leftovers(SHM, tmp_path, tmp_path)}
            assert [found[path].dead for path in (unused, used, needed)] == [True, False, False]
            assert found[used].why == "a process uses it"
            assert "with which it can continue" in found[needed].why
            removed = {left.path for left in cleaning.clean(SHM, tmp_path, tmp_path) if left.dead}
            assert removed & {unused, used, needed} == {unused}
            assert {path.name for path in tmp_path.iterdir()} == {*names[1:], "other.rows"}
    finally:
        memory.unlink()
    command = [sys.executable, "-m", "mpips", "doctor", "--clean", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.rows"]
