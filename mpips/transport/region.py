"""The shared-memory files of a job: their names, their creation and their removal.

A name has the user's id and 128 random bits, so no other user can guess it or create the file first. Files
are created exclusively with mode 0600. Every process that maps a file holds a lock on it, so `sweep` can find
the files that no running process uses (native/src/shm/shared_memory.hpp).

Persistent files. The files of a supervised run outlive its processes: the next launch takes them over. Their
names are of the form `mpips-kept-UID-TOKEN.DIGITS-PART`. `sweep` removes them only when no process has
touched them for a day; normally the run itself removes them. All users can list the names in /dev/shm, and
the 128 bits of a run (TOKEN) are those of its first launch. So each process adds random DIGITS to the names
that it makes, and no other user can take the name of a file that a later launch will make. A file of a run is
found by its part and its owner; files of other users with such names are ignored everywhere.

Queues of samples are named `mpips_queue.UID.NAME.NUMBER`. Each has two locks, one for the worker and one for
the program (native/src/queue/sample_queue.hpp). Between two launches of a job neither may be held, so `sweep`
removes a queue, like a persistent file, only a day after its last use.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
import shutil
import stat
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mpips import _native
from mpips.errors import RegionError
from mpips.process import forked
from mpips.process.memory import free_bytes, group_limit
from mpips.process.patience import Patience

SHM = Path("/dev/shm")
PREFIX = "mpips"
QUEUE_PREFIX = "mpips_queue"  # of queues of samples
MOST_RESERVED = 1 << 40  # bytes of address space of one mapping, at most

# Bytes of address space that the embedding tables of one server share. A process has 128 TiB, and it may also
# have the replica of another server. Rows and keys that outgrow their part are moved; buffers cannot be.
_ROW_ADDRESSES = 16 << 40
_BUFFER_ADDRESSES = 24 << 40
_FIRST_BYTES = 64 << 20  # shared memory that the new embedding tables of one server take together
SPARE_FILES = 256  # descriptors that a process needs in addition to those of shared memory

_PERSISTENT_WORD = "kept"  # part of the names of persistent files
_PERSISTENT = "k"  # first letter of a persistent token; the others are hexadecimal digits
MARK = "-mark"  # end of the name of the file that marks a set of files as complete
KEEP_S = 24 * 3600.0  # seconds after which an untouched persistent file may be removed
TAKE_OVER_S = 2.0  # seconds to wait for a file that a killed process still has mapped
TOUCH_S = 600.0  # seconds between renewals of the modification times of a run's files
EXCHANGE = "exchange"  # part of the name of a run's exchange, a folder; see mpips.recovery.exchange
# Name of a queue that its worker has not linked into place.
_HALF_MADE = re.compile(r".*\.[0-9]+\.new-[0-9]+")
_REST = re.compile(r"(?:\.[0-9a-f]+)?-(.+)")  # of a name, behind user and token: digits, part


# First parts of the names of memory of one launch, which workers share, or where a server answers look-ups.
WITHIN_LAUNCH = SUMS, SUBGROUP_SUMS, PULLS, NODE_ROWS, LOOK_UPS = (
    "sum",
    "subsum",
    "pull",
    "held",
    "ask",
)


def persistent(token: str) -> str:
    """Return the token in the form that makes a job's shared memory persistent."""
    return token if token.startswith(_PERSISTENT) else _PERSISTENT + token


def is_persistent(token: str) -> bool:
    """Return whether a job's shared memory is persistent."""
    return token.startswith(_PERSISTENT)


def new_token() -> str:
    """Return 128 random bits as hexadecimal text, the token of one job."""
    return secrets.token_hex(16)


def region_name(token: str, part: str, digits: str = "") -> str:
    """Return the file name of one part of a job.

    Args:
        token: Token of the job.
        part: Contents of the file ("s0": region of server 0, "w3": staging memory of worker 3, ...).
        digits: Hexadecimal digits of the process that makes a persistent file.
    """
    dot = f".{digits}" if digits else ""
    return f"{_prefix(token)}{dot}-{part}"


def _prefix(token: str) -> str:
    if token.startswith(_PERSISTENT):
        return f"{PREFIX}-{_PERSISTENT_WORD}-{os.geteuid()}-{token.removeprefix(_PERSISTENT)}"
    return f"{PREFIX}-{os.geteuid()}-{token}"


def new_name(token: str, part: str) -> str:
    """Return a name for a new persistent file; no other user can know it beforehand."""
    return region_name(token, part, secrets.token_hex(8))


def is_own(path: Path) -> bool:
    """Return whether a path is a regular file of this user."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)


def own_segments(token: str, end: str = "") -> Iterator[tuple[str, Path]]:
    """Yield part and path of each file of a job on this node that belongs to this user, sorted by path.

    `end`: only those whose name ends with this.
    """
    return (found for found in _named(token, end) if is_own(found[1]))


def own_folders(token: str) -> Iterator[tuple[str, Path]]:
    """Yield part and path of each folder of a job on this node that belongs to this user, sorted by path."""
    return (found for found in _named(token) if is_own_folder(found[1]))


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder of this user, and no link to one."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)


def _named(token: str, end: str = "") -> Iterator[tuple[str, Path]]:
    """Yield part and path of everything on this node that has a name of this job, sorted by path.

    `end`: only what has a name that ends with this.
    """
    prefix = _prefix(token)
    try:
        with os.scandir(SHM) as entries:
            found = [name for entry in entries if (name := entry.name).startswith(prefix)]
    except (FileNotFoundError, PermissionError):
        return
    for name in sorted(found):
        match = _REST.fullmatch(name, len(prefix)) if name.endswith(end) else None
        if match is not None:
            yield match[1], SHM / name


def find_segment(token: str, part: str) -> Path | None:
    """Return the file of one part of a job that belongs to this user, or None."""
    return next((path for name, path in own_segments(token, part) if name == part), None)


def token_words(token: str) -> tuple[int, int]:
    """Return the token as the two words in the header of a region."""
    digits = token.removeprefix(_PERSISTENT)
    return int(digits[:16], 16), int(digits[16:], 16)


class EmbeddingMemory(NamedTuple):
    """Sizes of the memory of one embedding table at one server, in bytes.

    Attributes:
        first: Memory of the rows of a new table, and of its keys.
        reserve: Address space of the rows, and of the keys. A table that outgrows it is moved.
        buffers: Size of the sparse file of the table's unfinished pushes.
    """

    first: int
    reserve: int
    buffers: int


def embedding_memory(n_tables: int) -> EmbeddingMemory:
    """Return the sizes for each of `n_tables` embedding tables of a server; the same in every launch."""
    n = max(n_tables, 1)
    return EmbeddingMemory(
        first=min(1 << 20, max(1 << 16, _FIRST_BYTES // (2 * n))),
        reserve=min(MOST_RESERVED, _ROW_ADDRESSES // (2 * n)),
        buffers=min(MOST_RESERVED, _BUFFER_ADDRESSES // n),
    )


def allow_open_files(n: int, spare: int = SPARE_FILES) -> None:
    """Raise this process's limit of open files, if needed, so that `n` more files can be open.

    Args:
        n: Number of files of shared memory.
        spare: Number of other files that the process shall be able to open besides.

    Raises:
        RegionError: The hard limit is too low.
    """
    needed = n + len(os.listdir("/proc/self/fd")) + spare
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise RegionError(
            f"the limit of open files is {hard}, but this server needs {needed}: an embedding table "
            "needs up to three; raise the hard limit (ulimit -Hn, LimitNOFILE of the batch system's "
            "daemon) or use fewer embedding tables"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def sweep(spare: str = "") -> list[str]:
    """Remove this user's shared-memory files that no process uses; return their names.

    Args:
        spare: Token of a run; its persistent files stay, whatever their age.
    """
    if not SHM.is_dir():
        return []
    uid = os.geteuid()
    found = list(SHM.glob(f"{PREFIX}-{uid}-*"))
    found += [p for p in SHM.glob(f"{PREFIX}-{_PERSISTENT_WORD}-{uid}-*") if is_old(p)]
    found += [p for p in queues(SHM) if not is_for_next_launch(p)]
    if is_persistent(spare):
        spared = (f"{_prefix(spare)}.", f"{_prefix(spare)}-")
        found = [p for p in found if not p.name.startswith(spared)]
    return [p.name for p in sorted(found) if remove_unused(p)]


def remove_unused(path: Path) -> bool:
    """Remove a shared-memory file that no process uses, or an exchange; return whether it was removed."""
    if path.name.endswith(f"-{EXCHANGE}") and is_own_folder(path):
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    if path.name.startswith(f"{QUEUE_PREFIX}."):
        return _native.QueueServer.remove_if_unused(str(path))
    return bool(_native.SharedMemory.remove_if_unused(path.name))


def queues(folder: Path) -> list[Path]:
    """Return what has names of this user's queues of samples in a folder, sorted."""
    return sorted(folder.glob(f"{QUEUE_PREFIX}.{os.geteuid()}.*"))


def is_for_next_launch(path: Path) -> bool:
    """Return whether a persistent file or a queue, which no process uses, stays for the next launch."""
    is_queue = path.name.startswith(f"{QUEUE_PREFIX}.") and not _HALF_MADE.fullmatch(path.name)
    is_persistent_file = path.name.startswith(f"{PREFIX}-{_PERSISTENT_WORD}-")
    return (is_queue or is_persistent_file) and not is_old(path)


def is_old(path: Path) -> bool:
    """Return whether no process has touched a persistent file, or a queue, for a day."""
    # The wall clock may be wrong, but no file in /dev/shm is older than the machine's uptime.
    if time.clock_gettime(time.CLOCK_BOOTTIME) <= KEEP_S:
        return False
    try:
        return time.time() - path.lstat().st_mtime > KEEP_S
    except FileNotFoundError:
        return False


def unlink_job(token: str) -> None:
    """Remove all shared-memory files of a job on this node; mapped memory stays usable.

    A rank that is about to be killed calls this, because the others may be killed before they can clean up.
    """
    for _, path in own_segments(token):
        path.unlink(missing_ok=True)


def staging_part(worker: int, generation: int) -> str:
    """Return the part name of a worker's staging memory in a job with persistent shared memory."""
    return f"w{worker}-{generation}"


def unlink_staging(token: str, generation: int, keep: Container[str]) -> None:
    """Remove the staging memory of launches before `generation` on this node, except the parts `keep`.

    Each launch has staging memory of its own, so its pushes do not change what a server still has to read of
    the launch before. Memory that workers share within a launch is also removed: a launch that is killed
    while it makes such memory leaves its name (mpips.worker.sharing).
    """
    for part, path in own_segments(token):
        old = part.rpartition("-")[2]
        is_staging = part.startswith(("w", *WITHIN_LAUNCH)) and old.isdigit()
        if is_staging and int(old) < generation and part not in keep:
            path.unlink(missing_ok=True)


class Regions:
    """The shared memory that this process made for one job. Not collective; the session owns it."""

    def __init__(self, token: str, shared: bool, supervised: bool = False) -> None:
        """Make no memory yet.

        Args:
            token: Token of the job.
            shared: False: the memory is private to the process (one-process jobs).
            supervised: Earlier launches had the same token, so other users can know it.
        """
        self.token = token
        self.shared = shared
        self._known = supervised or is_persistent(token)
        self._names: list[str] = []
        self._there: dict[
            str, Path
        ] = {}  # by part, as last listed; a job may have thousands of files
        self._looked = False  # whether /dev/shm was listed
        forked.register(self)

    def disown(self) -> None:
        """Forget the names in a forked child: the parent removes them."""
        self._names.clear()

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Make memory with all its pages; up to `reserve` bytes it grows without moving.

        Raises:
            RegionError: /dev/shm, or this machine's memory, is too small or cannot be used.
        """
        _check_available(n_bytes, self.shared)
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, reserve)
        name = self._new_name(part)
        with as_region_error():
            memory = _native.SharedMemory.create(name, n_bytes, reserve)
        return self._note(name, memory)

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make memory whose pages are taken later, by `commit`."""
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, 0)
        name = self._new_name(part)
        with as_region_error():
            memory = _native.SharedMemory.create_sparse(name, n_bytes)
        return self._note(name, memory)

    def _new_name(self, part: str) -> str:
        """Return a name for a new file.

        Raises:
            RegionError: The run has a file of this part already.
        """
        if not self._known:
            return region_name(self.token, part)
        if (path := self._find(part)) is not None:
            raise RegionError(
                f"cannot create shared memory {path}: File exists; a process of this run has made it already"
            )
        name = new_name(self.token, part)
        self._there[part] = SHM / name
        return name

    def _find(self, part: str, look: bool = False) -> Path | None:
        """Return this user's file of a part; `look`: list /dev/shm again if it is not known."""
        path = self._there.get(part)
        if (path is None and look) or not self._looked:
            self._looked = True
            self._there = {}
            for name, found in own_segments(self.token):
                self._there.setdefault(name, found)
            path = self._there.get(part)
        return path if path is not None and is_own(path) else None

    def reopen(self, part: str, reserve: int = 0) -> _native.SharedMemory:
        """Take over memory that an earlier process of this job left, as if it had been made here.

        Blocks for up to TAKE_OVER_S seconds while another process uses it.

        Raises:
            RegionError: It is not there, a running process uses it, or it belongs to another user.
        """
        path = self._find(part, look=True) if is_persistent(self.token) else None
        name = path.name if path is not None else _name_of(self.token, part)
        wait = Patience(TAKE_OVER_S)
        while True:
            with as_region_error():
                try:
                    return self._note(name, _native.SharedMemory.reopen(name, reserve))
                except _native.SharedMemoryBusy:
                    if wait.is_over:
                        raise
            time.sleep(0.02)

    def _note(self, name: str, memory: _native.SharedMemory) -> _native.SharedMemory:
        self._names.append(name)
        if self.token.startswith(_PERSISTENT):
            memory.keep()
        return memory

    def touch(self) -> None:
        """Renew the modification time of all files of the job on this node.

        `sweep` uses it to find what a run has left behind. No running process owns the staging memory of
        earlier launches, to which records may still point, so every rank renews all files.
        """
        for _, path in own_segments(self.token):
            with suppress(FileNotFoundError):
                os.utime(path)

    def leave(self) -> None:
        """Remove the names, unless the memory is persistent."""
        if not is_persistent(self.token):
            self.unlink()

    def unlink_part(self, part: str) -> None:
        """Remove the name of one part made here, now; memory stays mapped while arrays point to it."""
        path = self._there.pop(part, SHM / region_name(self.token, part))
        path.unlink(missing_ok=True)
        self._names = [name for name in self._names if name != path.name]

    def unlink(self) -> None:
        """Remove the names of everything made here; memory stays mapped while arrays point to it."""
        for name in self._names:
            (SHM / name).unlink(missing_ok=True)
        self._names.clear()


def _check_available(n_bytes: int, shared: bool) -> None:
    """Check that there is this much memory: the kernel would otherwise kill the process at first use.

    Args:
        n_bytes: Bytes that are needed.
        shared: The memory lies in /dev/shm, whose free space the native module checks; only the limits of
            control groups are checked here.

    Raises:
        RegionError: `n_bytes` is more than is available, on this machine with swap or in a control group.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    found = {line.partition(":")[0]: line.split()[1] for line in lines}
    available = 1024 * sum(int(found.get(name, 0)) for name in ("MemAvailable", "SwapFree"))
    where, advice = "", "use fewer or smaller tables, or servers on several nodes"
    limit = group_limit()
    free = free_bytes()[0] if limit else available
    if free < available:
        available = max(free, 1)
        where = f" of the {limit >> 20:,} MiB that the job is granted on this node"
        advice = "ask for more (sbatch --mem=...), " + advice
    elif shared:
        return
    if n_bytes > available > 0:
        raise RegionError(
            f"memory is too small: {n_bytes >> 20:,} MiB are needed, {available >> 20:,} MiB are "
            f"available{where}; {advice} (mpips plan predicts the need)"
        )


@contextmanager
def as_region_error() -> Iterator[None]:
    """Raise errors of the native module about shared memory as RegionError."""
    try:
        yield
    except _native.SharedMemoryError as error:
        raise RegionError(str(error)) from None


def attach(token: str, part: str, writable: int) -> _native.SharedMemory:
    """Map another process's shared memory; only its first `writable` bytes may be written.

    Raises:
        RegionError: It does not exist here, belongs to another user, or cannot be mapped.
    """
    with as_region_error():
        return _native.SharedMemory.attach(_name_of(token, part), writable)


def _name_of(token: str, part: str) -> str:
    """Return the name of a file that should exist."""
    name = region_name(token, part)
    if not is_persistent(token) and is_own(SHM / name):
        return name
    path = find_segment(token, part)
    return path.name if path is not None else name
