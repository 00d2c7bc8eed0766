"""Two ways to write the HDF5 file, in which each server writes its own blocks: MPI-IO, and system calls.

Both are used in the same way: `open`; then `write`, with or without a block; then `finish` and `close`. Only
`open` and `close` of MPI-IO are collective calls, of HDF5. The servers make each of them directly after they
have agreed that none has failed (`open`) or exchanged messages (`close`); the writes between are independent.
A failed write is raised only on its server.

Servers write at the same time and need no order among their writes: their blocks are disjoint parts of the
datasets (`mpips.checkpoint.plan`), and server 0 has written all other bytes and closed the file before any
server opens it. Server 0 reads the file again after all servers have synced and closed it. These two
exchanges of messages also suffice for NFS, where a client sees what others have written when it opens the
file after they have closed it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import DatasetEntry
from mpips.checkpoint.steps import Background, Peers, Steps, in_background, until_done
from mpips.checkpoint.structure import load_writer, write_all

_FLUSH_BYTES = 64 << 20  # bytes after which written data are sent to the disk in the background
_AT_ONCE_BYTES = 256 << 10  # bytes of the largest block that is written without a thread

# Files that not all servers could open. To close one is collective and would never return, so they stay open.
_abandoned: list[Any] = []


def boxes(
    shape: tuple[int, ...], start: int, stop: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return elements [start, stop) of a flattened array as boxes (offset, count), in order.

    There are at most 2 d - 1 boxes for d axes.
    """
    if start >= stop:
        return []
    if len(shape) <= 1:
        return [((start,), (stop - start,))] if shape else [((), ())]
    inner = int(np.prod(shape[1:]))
    first, last = start // inner, (stop - 1) // inner
    if first == last:
        parts = boxes(shape[1:], start - first * inner, stop - first * inner)
        return [((first, *offset), (1, *count)) for offset, count in parts]
    # Split into an incomplete slice at each end, and complete slices between.
    found = []
    if start % inner:
        found += boxes(shape, start, (first + 1) * inner)
        first += 1
    whole = stop // inner
    if whole > first:
        zeros = (0,) * (len(shape) - 1)
        found.append(((first, *zeros), (whole - first, *shape[1:])))
    if stop % inner:
        found += boxes(shape, whole * inner, stop)
    return found


def write_units(
    h5py: Any, dataset: Any, entry: DatasetEntry, start: int, data: NDArray[Any]
) -> None:
    """Write units from `start` on into an open dataset (a low-level id of h5py). Not collective; blocking."""
    flat = data.reshape(-1)
    # The array has the bits of bfloat16, which NumPy lacks: HDF5 must not convert them as numbers.
    bits = (dataset.get_type(),) if entry.dtype == "bfloat16" else ()
    at = 0
    first = start * entry.unit
    for offset, count in boxes(entry.shape, first, first + flat.size):
        n = int(np.prod(count, dtype=np.int64))
        space = dataset.get_space()
        memory = h5py.h5s.create_simple((n,))
        if entry.shape:
            space.select_hyperslab(offset, count)
        dataset.write(memory, space, flat[at : at + n], *bits)
        at += n


class Flusher:
    """A file that is sent to the disk in the background while more is written to it.

    The kernel reports a failed write-back once to each open file description. So the file stays open until
    the end, and the last fsync reports every failure that has not been reported before.

    It is open for writing only. An NFS client that may read would first read the rest of a page of which it
    writes a part, and could later write the whole page, over bytes of another server.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, which must exist."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._since = 0
        self._running: Background[None] | None = None

    def write(self, data: NDArray[Any], offset: int) -> None:
        """Write a contiguous array of the file's byte order at an offset.

        Raises:
            OSError: Not all of it was written.
        """
        write_all(self._fd, data.reshape(-1).view(np.uint8).data, offset)

    def note(self, n_bytes: int) -> None:
        """Count bytes that were written; start to send them to the disk when there are enough.

        Args:
            n_bytes: Number of bytes written since the last call.

        Raises:
            OSError: An earlier write did not reach the disk.
        """
        self._since += n_bytes
        if self._since < _FLUSH_BYTES or (self._running and not self._running.done()):
            return
        if self._running:
            self._running.result()
        self._running = Background(lambda: os.fdatasync(self._fd))
        self._since = 0

    def finish(self) -> Steps[None]:
        """Wait until the whole file is on the disk.

        Raises:
            OSError: It could not be written to the disk.
        """
        if self._running is not None:
            yield from until_done(self._running)
        self._running = Background(lambda: os.fsync(self._fd))
        yield from until_done(self._running)

    def close(self) -> None:
        """Close the file, also after a failure. Waits for a flush that is under way."""
        if self._running is not None:
            self._running.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ParallelSink:
    """Writes the blocks of all servers through HDF5's mpio driver; each server writes its own."""

    def __init__(self, peers: Peers, path: Path, datasets: Sequence[DatasetEntry]) -> None:
        """Check that the file can be opened here. Local and fast.

        Args:
            peers: All servers.
            path: The HDF5 file, with its structure and its final size.
            datasets: All datasets that are written.

        Raises:
            OSError: The file cannot be opened, for example because this node does not see the folder.
        """
        self._peers = peers
        self._path = path
        self._entries = datasets
        self._flusher = Flusher(path)
        self._h5py = load_writer()
        self._file: Any = None
        self._open: dict[str, Any] = {}

    def open(self) -> None:
        """Open the file on all servers. Collective, blocking."""
        self._file = self._h5py.File(self._path, "r+", driver="mpio", comm=self._peers.comm)
        self._open = {entry.path: self._file[entry.path].id for entry in self._entries}

    def write(self, entry: DatasetEntry, start: int, data: NDArray[Any] | None) -> Steps[None]:
        """Write units of a dataset, in one step of work. Not collective.

        Args:
            entry: Manifest entry of the dataset, with its offset.
            start: First unit of the block.
            data: The block, contiguous; None: nothing is written.

        Raises:
            OSError: The block was not written.
        """
        if data is not None:
            try:
                write_units(self._h5py, self._open[entry.path], entry, start, data)
            except OSError:
                # Write the block again by a system call, whose error has the reason; MPI hides it.
                self._flusher.write(data, entry.offset + start * entry.unit_bytes)
                raise
            self._flusher.note(data.nbytes)
        yield data is not None

    def finish(self) -> Steps[None]:
        """Wait until everything that this server wrote is on the disk. Local.

        Raises:
            OSError: It could not be written to the disk.
        """
        yield from self._flusher.finish()

    def close(self) -> None:
        """Close the file on all servers. Collective, blocking, but short after `finish`."""
        if self._file is not None:
            self._open.clear()
            # Close even if flush fails, because the other servers are in the collective close.
            try:
                self._file.flush()
            finally:
                self._file.close()
                self._flusher.close()

    def abandon(self) -> None:
        """Leave a file that was not opened by all servers. Local."""
        if self._file is not None:
            _abandoned.append(self._file)
        self._open.clear()
        self._flusher.close()


class PosixSink:
    """Writes the blocks of this server by system calls, without MPI-IO and without HDF5.

    Datasets are contiguous, so a block has its offset in the file by the manifest. The methods are those of
    `ParallelSink`, but none is collective.
    """

    def __init__(self, peers: Peers, path: Path, datasets: Sequence[DatasetEntry]) -> None:
        """Open the file. Local; the arguments are those of `ParallelSink`.

        Raises:
            OSError: The file cannot be opened, for example because this node does not see the folder.
        """
        self._flusher = Flusher(path)

    def open(self) -> None:
        """Do nothing: the file is open."""

    def write(self, entry: DatasetEntry, start: int, data: NDArray[Any] | None) -> Steps[None]:
        """Write units of a dataset. Arguments as in `ParallelSink.write`.

        Raises:
            OSError: The block was not written.
        """
        if data is not None:
            offset = entry.offset + start * entry.unit_bytes
            # Write in the background, because the kernel blocks a writer while too much data waits for the
            # disk. A small block is written before the thread would have started.
            if data.nbytes <= _AT_ONCE_BYTES:
                self._flusher.write(data, offset)
            else:
                yield from in_background(lambda: self._flusher.write(data, offset))
            self._flusher.note(data.nbytes)
        yield data is not None

    def finish(self) -> Steps[None]:
        """Wait until everything that this server wrote is on the disk.

        Raises:
            OSError: It could not be written to the disk.
        """
        yield from self._flusher.finish()

    def close(self) -> None:
        """Close the file. Short after `finish`.

        Raises:
            OSError: The file system has lost data, as NFS may report here.
        """
        self._flusher.close()

    def abandon(self) -> None:
        """Close the file after a failure."""
        self._flusher.close()


Sink = ParallelSink | PosixSink
