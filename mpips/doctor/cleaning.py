"""What dead runs left: mpips' own segments, and those and the session folders of Open MPI.

mpips' segments are locked by whoever uses them, so `sweep` can tell; those of a supervised run stay for a
day. Open MPI's are not. They are taken
for dead only if they belong to this user on this host, are older than a minute, no process has them (of
a folder: anything in it) open or mapped, and the process whose id is in the name of a folder is gone.
That is proof only where all processes of this user can be seen: in the first process namespace, and on the
host that made the folder. A folder whose name holds no host is left alone on a file system that several
hosts may share.
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

from mpips.transport.region import PREFIX, is_old, sweep

_YOUNG_S = 60.0
_FIRST_NAMESPACE = "pid:[4026531836]"
# File systems that no other host has mounted.
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that may be of a dead run.

    Attributes:
        path: Where.
        n_bytes: That it takes.
        dead: Whether it is proven that nobody uses it.
        why: What proves it, or what is in the way.
    """

    path: Path
    n_bytes: int
    dead: bool
    why: str


class Users(msgspec.Struct, frozen=True):
    """Files that processes of this user have open or mapped, as (device, inode).

    Attributes:
        files: Them.
        blind: Why that may not be all of them; empty if it is.
    """

    files: set[tuple[int, int]]
    blind: str


def leftovers(shm: Path, temporary: Path) -> list[Leftover]:
    """Everything of this user that may be left; nothing is changed."""
    users = find_users()
    return [*_own(shm, users), *_segments(shm, users), *_sessions(temporary, users)]


def clean(shm: Path, temporary: Path) -> list[Leftover]:
    """Remove what is proven to be dead; returns what was there, as it was."""
    found = leftovers(shm, temporary)
    removed = set(sweep())
    result = []
    for left in found:
        if left.path.name.startswith(f"{PREFIX}-"):
            # The lock decides, not what could be seen.
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
    """Mpips' segments. Looking is not locking: somebody may just be attaching."""
    uid = os.geteuid()
    for path in sorted([*shm.glob(f"{PREFIX}-{uid}-*"), *shm.glob(f"{PREFIX}-kept-{uid}-*")]):
        try:
            status = path.lstat()
        except OSError:
            continue
        why = ""
        if status.st_uid != uid:
            why = f"it belongs to another user ({status.st_uid}), who can remove it"
        elif not stat.S_ISREG(status.st_mode):
            why = "it is no file"
        elif (status.st_dev, status.st_ino) in users.files:
            why = "a process uses it"
        elif path.name.startswith(f"{PREFIX}-kept-") and not is_old(path):
            why = "kept for the next launch of its run, for a day"
        size = status.st_blocks * 512
        yield Leftover(path=path, n_bytes=size, dead=not why, why=why or "no process uses it")


def _segments(shm: Path, users: Users) -> Iterator[Leftover]:
    """Open MPI's segments of this user and host, as NAME.HOST.UID.JOB.RANK."""
    host = socket.gethostname().split(".")[0]
    name = re.compile(rf"(sm|vader)_segment\.{re.escape(host)}(\.[^.]+)*\.{os.geteuid()}\.\w+\.\d+")
    for path in sorted(shm.glob("*_segment.*")):
        if name.fullmatch(path.name):
            yield from _judged([path], "", users)


def _sessions(temporary: Path, users: Users) -> Iterator[Leftover]:
    """Session folders that hold a pid: ompi.PID, prte.HOST.PID.UID, ompi.HOST.UID/pid.PID."""
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


def _may_be_shared(folder: Path) -> str:
    """Why processes of other hosts may use what is in a folder; "" where none can."""
    kind = filesystem_of(folder, Path("/proc/self/mountinfo").read_text())
    if kind in _LOCAL:
        return ""
    return f"it may belong to another host: {folder} is on {kind or 'an unknown file system'}"


def filesystem_of(folder: Path, mounts: str) -> str:
    """The type of the file system that a folder is on; "" if it is unknown.

    Args:
        folder: Any path.
        mounts: The text of /proc/self/mountinfo.
    """
    there, longest, found = folder.resolve(), -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields.split()[4])
        # Of several mounts at one place the last one counts.
        if there.is_relative_to(point) and len(point) >= longest:
            longest, found = len(point), rest.split()[0]
    return found


def _judged(paths: list[Path], alive: str, users: Users) -> Iterator[Leftover]:
    """A file, or a folder and all that is in it; nothing if it is not this user's or goes meanwhile."""
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
    """Look at all processes of this user."""
    files: set[tuple[int, int]] = set()
    blind = _outside()
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name == "1":
            continue  # the machine's init is no rank; in a container nothing is proven anyway
        try:
            if folder.stat().st_uid not in (os.geteuid(), 0):
                continue  # cannot open files of mode 0600
            files |= _mapped((folder / "maps").read_text())
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = link.stat()
                    files.add((status.st_dev, status.st_ino))
        except PermissionError:
            # Root's processes belong to no job of this user.
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    blind = blind or f"process {folder.name} cannot be looked at"
        except OSError:
            continue  # it has ended
    return Users(files, blind)


def _mapped(maps: str) -> set[tuple[int, int]]:
    found = set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] != "0":
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            found.add((os.makedev(major, minor), int(fields[4])))
    return found


def _outside() -> str:
    """Whether there may be processes that this one cannot see; empty if not."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        return f"/proc cannot be read: {error.strerror}"
    if namespace != _FIRST_NAMESPACE:
        return "in a container, processes outside of it cannot be seen"
    return ""
