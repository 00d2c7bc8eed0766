"""The files of rows of tables with storage, in a folder on the node's disk.

A file has the name of the shared memory of its table's rows, and is of no use without that memory. A job that
ends removes its files. Those of a killed job, and of a node that was lost, are removed by the next server
that has storage in the same folder, or by `mpips doctor --clean --folder FOLDER`. The server has a lock on
its file (native/src/server/row_storage.hpp), so a file in use stays even where its shared memory is not
visible, such as in another container of the node. A server without a journal leaves no file, whatever ends
it: the name is removed when the file is made.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpips.errors import RegionError
from mpips.model.storage import file_bytes
from mpips.model.table import EmbeddingTable, Table
from mpips.process.file_systems import NETWORK, file_system
from mpips.transport.region import PREFIX, SHM, is_own

_END = ".rows"


def file_of(folder: str, memory: str) -> str:
    """Return the path of the file of rows of which the others lie in shared memory of this name."""
    return str(Path(folder) / f"{memory}{_END}")


def check_folders(tables: Sequence[Table], n_servers: int, here: int) -> None:
    """Refuse folders of storage that servers of this node cannot use.

    Args:
        tables: Tables of the job.
        n_servers: Number of servers.
        here: Number of servers on this node.

    Raises:
        RegionError: A folder is not there, lies on a network file system, cannot be written, or has no space
            for the rows that the table is expected to have.
    """
    for table in tables:
        if not isinstance(table, EmbeddingTable) or table.storage is None:
            continue
        folder = table.storage.path
        name = f"table {table.name!r}: the folder {folder} of its storage"
        if not os.path.isdir(folder):
            raise RegionError(f"{name} is not there on this node: make it on the node's own disk")
        kind = _file_system(folder)
        if kind in NETWORK:
            raise RegionError(
                f"{name} is on {kind}, a network file system: name one on the node's own disk"
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise RegionError(f"{name} cannot be written: name a folder of your own")
        remove_unused_files(folder)
        space = os.statvfs(folder)
        free = space.f_frsize * space.f_bavail
        rows = -(-table.expected_rows // n_servers)
        needed = here * file_bytes(table.storage, table.row_bytes, rows)
        if needed > free:
            raise RegionError(
                f"{name} has {free >> 20:,} MiB free: {table.expected_rows:,} rows need {needed >> 20:,} MiB "
                "on this node; free space, give the table more memory_mib, or use servers on several nodes"
            )


def _file_system(folder: str) -> str:
    """Return the type of the file system of a folder; "unknown" if the kernel does not tell."""
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return "unknown"
    return file_system(text, Path(folder).resolve())


def remove_files(tables: Sequence[Table]) -> None:
    """Remove what killed servers of a job have left, when its shared memory has no names any more.

    Servers that run remove their own files, `Server.remove_files`.
    """
    for table in tables:
        if isinstance(table, EmbeddingTable) and table.storage is not None:
            remove_unused_files(table.storage.path)


def files_of_rows(folder: Path) -> list[Path]:
    """Return this user's files of rows in a folder, sorted; none if it cannot be read."""
    with suppress(OSError):
        return sorted(p for p in folder.glob(f"{PREFIX}-*{_END}") if is_own(p))
    return []


def has_memory(path: Path, shm: Path = SHM) -> bool:
    """Return whether the shared memory is there with which a file of rows can be used."""
    return (shm / path.name.removesuffix(_END)).exists()


def remove_unused_files(folder: str) -> list[str]:
    """Remove this user's files that no process uses and whose shared memory is gone; return their names.

    A folder that cannot be read is left to the server, which will not be able to make its file there.
    """
    unused = [path for path in files_of_rows(Path(folder)) if not has_memory(path)]
    return [path.name for path in unused if _remove(path)]


def _remove(path: Path) -> bool:
    """Remove a file unless a process has a lock on it; return whether it was removed."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A server that has just made the file tries again if the file is removed before it has the lock.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
