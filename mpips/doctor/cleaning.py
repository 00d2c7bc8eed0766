"""Files that ended runs left behind: shared memory of mpips and of Open MPI, session folders, files of rows.

A process that uses shared memory of mpips has a lock on the file, so `sweep` removes exactly the files that
no process uses. Those of a supervised run, and queues of samples, stay for a day after their last use, for
the next launch. Files of rows (storage of a table) have a lock as well. They stay as long as the shared
memory that refers to them.

Files of Open MPI have no locks. One is removed only if all of this is true:

* it belongs to this user, and its name contains this host or no host;
* it was neither made nor changed within the last minute;
* no process has it, or anything in it if it is a folder, open or mapped;
* for a folder: the process whose id is in its name does not exist.

The last two are proof only where this process sees all processes of the user: in the first process
namespace, and on the host that made the folder. So nothing of Open MPI is removed in another namespace, and
a folder whose name contains no host is left alone on a file system that several hosts may share.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mpips.process.file_systems import file_system
from mpips.server.storage_files import files_of_rows, has_memory, remove_unused_files
from mpips.transport.region import EXCHANGE, PREFIX, QUEUE_PREFIX, is_for_next_launch, queues, sweep

_YOUNG_S = 60.0
_FIRST_NAMESPACE = "pid:[4026531836]"
# Types of file systems that only one host mounts.
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that an ended run may have left.

    Attributes:
        path: Its path.
        n_bytes: Bytes that it takes on the file system, with all that is in it.
        dead: True if it is proven that no process uses it.
        why: Reason for `dead`, or reason against it.
    """

    path: Path
    n_bytes: int
    dead: bool
    why: str


class Users(msgspec.Struct, frozen=True):
    """The files that processes of this user have open or mapped.

    Attributes:
        files: (device, inode) of each file.
        blind: Reason why files may be missing; empty if none are.
    """

    files: set[tuple[int, int]]
    blind: str


def leftovers(shm: Path, temporary: Path, folder: Path) -> list[Leftover]:
    """Return all files and folders of this user that ended runs may have left. Removes nothing.

    Args:
        shm: Folder of shared memory.
        temporary: Folder for temporary files, where Open MPI makes its session folders.
        folder: Folder that a run may have named for the storage of a table.
    """
    users = find_users()
    rows = _rows(folder, shm, users)
    return [*_own(shm, users), *_segments(shm, users), *_sessions(temporary, users), *rows]


def clean(shm: Path, temporary: Path, folder: Path) -> list[Leftover]:
    """Remove what is proven to be unused. Return all that was found; `dead` is True for what was removed."""
    found = leftovers(shm, temporary, folder)
    removed = {*sweep(), *remove_unused_files(str(folder))}  # rows after their shared memory
    result = []
    for left in found:
        if left.path.name.startswith((f"{PREFIX}-", f"{QUEUE_PREFIX}.")):
            # For files of mpips the lock decides, not which users were seen.
            dead = left.path.name in removed
            used = "a process uses it" if left.dead else left.why
            why = "no process uses it" if dead else used
            left = msgspec.structs.replace(left, dead=dead, why=why)
        elif left.dead:
            _remove(left.path)
        result.append(left)
    return result


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _own(shm: Path, users: Users) -> Iterator[Leftover]:
    """Return the shared memory of mpips. Takes no lock, since a process may be attaching at this moment."""
    uid = os.geteuid()
    regions = [*shm.glob(f"{PREFIX}-{uid}-*"), *shm.glob(f"{PREFIX}-kept-{uid}-*")]
    for path in [*sorted(regions), *queues(shm)]:
        try:
            status = path.lstat()
        except OSError:
            continue
        why = ""
        statuses = [status]
        is_exchange = stat.S_ISDIR(status.st_mode) and path.name.endswith(f"-{EXCHANGE}")
        if is_exchange and status.st_uid == uid:
            with contextlib.suppress(OSError):
                statuses += [inside.lstat() for inside in path.rglob("*")]
        if status.st_uid != uid:
            why = f"it belongs to another user ({status.st_uid}), who can remove it"
        elif not (stat.S_ISREG(status.st_mode) or is_exchange):
            why = "it is not a regular file"
        elif any((s.st_dev, s.st_ino) in users.files for s in statuses):
            why = "a process uses it"
        elif is_for_next_launch(path):
            why = "it stays for a day, for the next launch of its run"
        size = sum(s.st_blocks for s in statuses) * 512
        yield Leftover(path=path, n_bytes=size, dead=not why, why=why or "no process uses it")


def _segments(shm: Path, users: Users) -> Iterator[Leftover]:
    """Return the shared memory of Open MPI of this user and host, named NAME.HOST.UID.JOB.RANK."""
    host = socket.gethostname().split(".")[0]
    name = re.compile(rf"(sm|vader)_segment\.{re.escape(host)}(\.[^.]+)*\.{os.geteuid()}\.\w+\.\d+")
    for path in sorted(shm.glob("*_segment.*")):
        if name.fullmatch(path.name):
            yield from _judged([path], "", users)


def _sessions(temporary: Path, users: Users) -> Iterator[Leftover]:
    """Return the session folders named by a pid: ompi.PID, prte.HOST.PID.UID, ompi.HOST.UID/pid.PID."""
    host, uid = re.escape(socket.gethostname().split(".")[0]), os.geteuid()
    named = rf"{host}(?:\.[^.]+)*?"
    shared = _may_be_shared(temporary)
    patterns = {
        "ompi.*": (r"ompi\.(\d+)", shared),
        "prte*": (rf"prte(?:run)?\.{named}\.(\d+)\.{uid}", ""),
        f"ompi.*.{uid}/pid.*": (rf"ompi\.{named}\.{uid}/pid\.(\d+)", ""),
    }
    for pattern, (name, doubt) in patterns.items():
        for path in sorted(temporary.glob(pattern)):
            match = re.fullmatch(name, str(path.relative_to(temporary)))
            if match is not None and path.is_dir():
                alive = (
                    f"process {match[1]} is there" if Path(f"/proc/{match[1]}").exists() else doubt
                )
                yield from _judged([path, *path.rglob("*")], alive, users)


def _rows(folder: Path, shm: Path, users: Users) -> Iterator[Leftover]:
    """Return the files of rows in a folder. Takes no lock, since a server may be opening one right now."""
    for path in files_of_rows(folder):
        with contextlib.suppress(OSError):
            status = path.lstat()
            why = ""
            if (status.st_dev, status.st_ino) in users.files:
                why = "a process uses it"
            elif has_memory(path, shm):
                why = "its run has memory in /dev/shm, with which it can continue"
            size = status.st_blocks * 512
            yield Leftover(path=path, n_bytes=size, dead=not why, why=why or "no process uses it")


def _may_be_shared(folder: Path) -> str:
    """Return the reason why processes of other hosts may use files in a folder; "" if none can."""
    kind = file_system(Path("/proc/self/mountinfo").read_text(), folder.resolve())
    if kind in _LOCAL:
        return ""
    name = "an unknown file system" if kind == "unknown" else kind
    return f"it may belong to another host: {folder} is on {name}"


def _judged(paths: list[Path], alive: str, users: Users) -> Iterator[Leftover]:
    """Judge a file, or a folder and all that is in it.

    Args:
        paths: The file or folder, followed by all that is in the folder.
        alive: Reason why a process may use it; "" if none is known.
        users: Files in use.

    Yields:
        The leftover; nothing if it belongs to another user, is a link, or disappears meanwhile.
    """
    try:
        statuses = [path.lstat() for path in paths]
    except OSError:
        return
    first = statuses[0]
    if first.st_uid != os.geteuid() or stat.S_ISLNK(first.st_mode):
        return
    youngest = max(max(s.st_mtime, s.st_ctime) for s in statuses)
    why = alive or users.blind
    if any((s.st_dev, s.st_ino) in users.files for s in statuses):
        why = "a process uses it"
    elif time.time() - youngest < _YOUNG_S:
        why = why or "it is younger than a minute"
    size = sum(s.st_blocks * 512 for s in statuses)
    yield Leftover(path=paths[0], n_bytes=size, dead=not why, why=why or "no process uses it")


def find_users() -> Users:
    """Return the files that the processes of this user use, by /proc."""
    files: set[tuple[int, int]] = set()
    blind = _outside()
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name == "1":
            continue  # The init of a machine is no rank; in a container `_outside` has a reason anyway.
        try:
            if folder.stat().st_uid not in (os.geteuid(), 0):
                continue  # Other users cannot open these files, which have mode 0600.
            files |= _mapped((folder / "maps").read_text())
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = link.stat()
                    files.add((status.st_dev, status.st_ino))
        except PermissionError:
            # A process of root that cannot be read belongs to no job of this user.
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    blind = blind or f"process {folder.name} cannot be inspected"
        except OSError:
            continue  # The process has ended.
    return Users(files, blind)


def _mapped(maps: str) -> set[tuple[int, int]]:
    """Return (device, inode) of the files in the text of /proc/PID/maps."""
    found = set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] != "0":
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            found.add((os.makedev(major, minor), int(fields[4])))
    return found


def _outside() -> str:
    """Return the reason why this process may not see all processes of the user; "" if it sees them."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        return f"/proc cannot be read: {error.strerror}"
    if namespace != _FIRST_NAMESPACE:
        return "in a container, processes outside of it cannot be seen"
    return ""
