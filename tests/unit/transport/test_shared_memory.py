"""Shared memory: private to this user, errors and no signals, removed when no process uses it."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import pytest
from harness import Rig, floats, python, rows

from mpips import _native
from mpips.errors import MpipsError, RegionError
from mpips.transport.region import SHM, Regions, attach, new_token, region_name, unlink_job

PAGE = mmap.PAGESIZE
MIB = 1 << 20


@pytest.fixture
def token():
    token = new_token()
    yield token
    unlink_job(token)


def test_segment_is_for_this_user_only(token):
    memory = Regions(token, shared=True).create("s0", 1)
    path = SHM / region_name(token, "s0")
    assert path.name == memory.name
    assert str(os.geteuid()) in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not THP.exists() or "[never]" in THP.read_text(), reason="this kernel gives no huge pages"
)
def test_private_memory_asks_for_huge_pages_and_takes_what_it_holds(token):
    memory = Regions(token, shared=False).create("s0", 8 * MIB, reserve=64 * MIB)
    flags, resident = mapping_of(memory.address)
    assert "hg" in flags
    assert resident == 0
    memory.view(0, 8 * MIB, True)[:] = 1
    flags, resident = mapping_of(memory.address)
    assert resident == 8 * MIB


def mapping_of(address: int) -> tuple[list[str], int]:
    """Return flags and resident bytes of the mapping that begins at this address."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{address:x}-"))
    last = next(i for i, line in enumerate(lines) if i > first and line.startswith("VmFlags"))
    fields = dict(line.split(":", 1) for line in lines[first + 1 : last + 1])
    return fields["VmFlags"].split(), int(fields["Rss"].split()[0]) * 1024


def test_segment_is_private_whatever_the_umask(token):
    old = os.umask(0)
    try:
        memory = Regions(token, shared=True).create_sparse("s0", 1)
        assert stat.S_IMODE((SHM / memory.name).stat().st_mode) & 0o077 == 0
    finally:
        os.umask(old)


def test_tokens_never_repeat():
    assert len({new_token() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("create", ["create", "create_sparse"])
def test_name_that_exists_is_refused_and_left_alone(token, create):
    path = SHM / region_name(token, "s0")
    path.write_bytes(b"somebody's")
    used = path.open("rb")
    fcntl.flock(used, fcntl.LOCK_SH)
    with pytest.raises(RegionError, match=r"create.*exists"):
        getattr(Regions(token, shared=True), create)("s0", PAGE)
    assert path.read_bytes() == b"somebody's"
    used.close()


def test_symbolic_link_is_refused_by_create_and_attach(token, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(bytes(PAGE))
    target.chmod(0o600)
    link = SHM / region_name(token, "s0")
    link.symlink_to(target)
    try:
        with pytest.raises(RegionError):
            Regions(token, shared=True).create("s0", PAGE)
        with pytest.raises(RegionError, match="attach"):
            attach(token, "s0", 0)
        assert target.read_bytes() == bytes(PAGE)
    finally:
        link.unlink()  # a job ignores it


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_segment_open_to_others_is_refused(token, mode):
    memory = Regions(token, shared=True).create("s0", PAGE)
    (SHM / memory.name).chmod(mode)
    with pytest.raises(RegionError, match="open to others"):
        attach(token, "s0", 0)


def test_segment_that_does_not_exist_is_an_error(token):
    with pytest.raises(RegionError, match="No such file"):
        attach(token, "s9", 0)


def test_attached_memory_is_the_same_memory(token):
    made = Regions(token, shared=True).create("s0", 3 * PAGE)
    other = attach(token, "s0", PAGE)
    assert (other.n_bytes, other.name) == (made.n_bytes, made.name)
    other.view(0, 4, True)[:] = [1, 2, 3, 4]
    made.view(2 * PAGE, 1, True)[:] = 9
    assert made.view(0, 4, False).tolist() == [1, 2, 3, 4]
    assert other.view(2 * PAGE, 1, False)[0] == 9


def test_read_only_part_gives_read_only_arrays(token):
    made = Regions(token, shared=True).create("s0", 2 * PAGE)
    other = attach(token, "s0", PAGE)
    assert made.n_bytes == other.n_bytes == 2 * PAGE
    with pytest.raises(ValueError, match="read-only here"):
        other.view(PAGE - 1, 2, True)
    with pytest.raises(ValueError, match="read-only"):
        other.view(PAGE, 1, False)[0] = 1
    with pytest.raises(IndexError):
        other.view(PAGE, PAGE + 1, False)


@pytest.mark.parametrize(("offset", "survives"), [(0, True), (PAGE - 1, True), (PAGE, False)])
def test_store_into_the_read_only_part_is_a_fault(token, offset, survives, monkeypatch):
    # A sanitizer would turn the signal into a report.
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")
    made = Regions(token, shared=True).create("s0", 2 * PAGE)
    code = """
        import ctypes, sys
        from mpips.transport.region import attach
        memory = attach(sys.argv[1], "s0", 4096)
        ctypes.memset(memory.address + int(sys.argv[2]), 7, 1)
    """
    result = python(code, token, str(offset))
    assert result.returncode == (0 if survives else -signal.SIGSEGV), result.stderr
    assert made.view(offset, 1, False)[0] == (7 if survives else 0)


@pytest.mark.parametrize("shared", [True, False])
def test_embedding_rows_stay_as_their_segment_grows(token, shared):
    rig = Rig(rows(64), slot_bytes=65536, shared=shared)
    writer = rig.writers[0]
    expected = {}
    for step in range(60):
        keys = np.arange(step * 200, step * 200 + 200, dtype=np.int64)
        update = floats(200 * 64, step).reshape(200, 64)
        assert writer.push_rows(0, 0, keys, update, None, 0) == 200
        rig.drain()
        expected.update(zip(keys.tolist(), (-update).tolist(), strict=True))
    assert rig.core.n_rows(0) == 12_000  # 3 MB of rows; the memory began with 1 MiB
    assert rig.table_rows() == expected


@pytest.mark.parametrize("n_bytes", [1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("shared", [True, False])
def test_impossible_size_is_a_typed_error_and_leaves_no_name(token, shared, n_bytes):
    with pytest.raises(RegionError):
        Regions(token, shared=shared).create("s0", n_bytes)
    assert not list(SHM.glob(f"*{token}*"))


def test_size_beyond_dev_shm_is_a_typed_error_and_takes_nothing(token):
    fs = os.statvfs(SHM)
    free = fs.f_bavail * fs.f_frsize
    with pytest.raises(RegionError, match=r"/dev/shm is too small.*enlarge it"):
        Regions(token, shared=True).create("s0", free + 64 * MIB)
    assert not list(SHM.glob(f"*{token}*"))


SMALL_SHM = """
    import ctypes, sys
    import numpy as np
    sys.path.insert(0, sys.argv[1])
    from mpips.errors import RegionError
    from mpips.transport.region import Regions, new_token, SHM
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4m") == 0
    regions = Regions(new_token(), shared=True)
    try:
        regions.create("s0", 8 << 20)
    except RegionError as error:
        assert "/dev/shm is too small" in str(error), error
    else:
        raise SystemExit("no error")
    assert not list(SHM.iterdir())

    # Pages of a file that another process has taken are not needed again.
    from mpips.transport.region import attach
    token = new_token()
    sharing = Regions(token, shared=True)
    made = sharing.create_sparse("held0", 3 << 20)
    attached = attach(token, "held0", 3 << 20)
    for memory in made, attached, made:
        memory.commit(0, 3 << 20)
    sharing.unlink()
    del made, attached, memory, sharing

    # A table that outgrows /dev/shm raises an error, and its rows stay unchanged.
    from harness import Rig, rows
    def outgrow(slot_bytes, n_slots):
        table = rows(64)
        rig = Rig(table, slot_bytes=slot_bytes, n_slots=n_slots, shared=True, staging_bytes=4096)
        writer, pushed = rig.writers[0], 0
        try:
            for pushed in range(100):
                keys, done = np.arange(pushed * 200, pushed * 200 + 200, dtype=np.int64), 0
                while done < 200:
                    done = writer.push_rows(0, 0, keys, np.ones((200, 64), np.float32), None, done)
                    rig.server.drain()
        except RegionError as error:
            assert "/dev/shm is too small" in str(error), error
        else:
            raise SystemExit("no error from growing")
        assert pushed > 0 and rig.core.n_rows(0) == 200 * pushed
        assert all(row == [-1.0] * 64 for row in rig.table_rows().values())
        return rig

    # Push in one record, in records that stay in the ring until the last, and in copied ones.
    rig = None
    for slot_bytes, n_slots in (65536, 2), (16384, 8), (16384, 2):
        if rig is not None:
            rig.regions.unlink()
        rig = None
        rig = outgrow(slot_bytes, n_slots)

    # Staging memory has a size but no pages; only what is allocated gets pages.
    staging = regions.create_sparse("w0", 64 << 20)
    rig.staging[0] = staging
    worker = rig.worker()
    try:
        for _ in range(100):
            worker.allocate(1 << 18)[:] = 1.0
    except RegionError as error:
        assert "too small" in str(error), error
    else:
        raise SystemExit("no error from allocate")
    print("held")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")
def test_full_dev_shm_is_a_typed_error_and_not_a_signal():
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no private mount namespace here")
    here = str(Path(harness.__file__).parent)
    result = python(SMALL_SHM, here, wrapper=("unshare", "-m", "--propagation", "private"))
    assert (result.returncode, result.stdout) == (0, "held\n"), result.stderr


def test_view_keeps_its_memory_alive(token):
    view = Regions(token, shared=True).create("s0", PAGE).view(0, PAGE, True)
    view[:] = 3
    assert int(view.sum()) == 3 * PAGE


def test_region_errors_carry_the_exit_code_of_a_missing_capability():
    assert issubclass(RegionError, MpipsError)
    assert RegionError.exit_code == 69


def lock_as_owner(path: Path) -> int:
    """Take the owner's lock by hand; return the descriptor that has it."""
    fd = os.open(path, os.O_RDWR)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    return fd


def test_a_segment_is_taken_over_once_though_locks_are_exchanged(token):
    made = Regions(token, shared=True).create("s0", PAGE)
    made.keep()
    name, path = made.name, SHM / made.name
    with pytest.raises(BlockingIOError):
        lock_as_owner(path)
    del made
    # Imitate a process that takes it over: it has given up the first lock and has no second one yet.
    fd = lock_as_owner(path)
    with pytest.raises(_native.SharedMemoryBusy):
        _native.SharedMemory.reopen(name, 0)
    os.close(fd)
    again = _native.SharedMemory.reopen(name, 0)
    with pytest.raises(_native.SharedMemoryBusy):
        _native.SharedMemory.reopen(name, 0)
    assert again.name == name


@pytest.mark.skipif("MPIPS_NATIVE_DIR" in os.environ, reason="sanitizers take 20 TiB of addresses")
@pytest.mark.parametrize("gb", [2, 3, 5, 6, 8, 10, 16, 20, 36, 100])
def test_reservations_leave_address_space_under_a_limit(gb: int) -> None:
    """Three tables start under any limit (ulimit -v), and grow beyond their reservations."""
    program = f"""
import resource, sys
from mpips import _native
resource.setrlimit(resource.RLIMIT_AS, ({gb} * 10**9,) * 2)
tables = [_native.SharedMemory.anonymous(4096, 3 << 40) for _ in range(6)]
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
assert used < {gb} * 10**9 * 0.75, used
for table in tables:
    table.grow(100 << 20)
    assert table.n_bytes == 100 << 20
try:
    tables[0].grow({gb} * 10**9)
except mpips_error as error:
    sys.exit(str(error))
""".replace("mpips_error", "_native.SharedMemoryError")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.fullmatch(
        r"the address space of this process is limited to \d+ MiB \(ulimit -v, h_vmem\), .*\n",
        done.stderr,
    ), done.stderr
