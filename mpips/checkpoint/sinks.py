"""Two ways into the HDF5 file: all servers through MPI-IO, or server 0 for all of them.

Both are used alike: `open`, then `write` on all servers the same number of times in the same order,
with or without a block, then `close`. Only `open` and `close` of the parallel way are collective
calls of HDF5, each right after the servers have agreed that nobody failed before; the writes between
are independent. A failed write is raised on its server only, after its part in the meeting is done.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import DTYPES, DatasetEntry
from mpips.checkpoint.steps import Background, Peers, Steps, in_background, until_done
from mpips.checkpoint.structure import load_writer, write_all

_FLUSH_BYTES = 64 << 20

# A file that not all servers could open: closing it would wait for the others for ever.
_abandoned: list[Any] = []


def boxes(
    shape: tuple[int, ...], start: int, stop: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Elements [start, stop) of a flattened array as boxes (offset, count), in that order.

    At most 2 d - 1 boxes for d axes.
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
    # An incomplete slice at each end, complete ones between.
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
    """Write units from `start` on into an open dataset (low-level id); independent."""
    flat = data.reshape(-1)
    at = 0
    first = start * entry.unit
    for offset, count in boxes(entry.shape, first, first + flat.size):
        n = int(np.prod(count, dtype=np.int64))
        space = dataset.get_space()
        memory = h5py.h5s.create_simple((n,))
        if entry.shape:
            space.select_hyperslab(offset, count)
        dataset.write(memory, space, flat[at : at + n])
        at += n


class Flusher:
    """A file that is brought to the disk in the background while more is written to it.

    The kernel reports a failed write-back once to each open file, so this one is kept to the end.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, which must exist."""
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._since = 0
        self._running: Background[None] | None = None

    def write(self, data: NDArray[Any], offset: int) -> None:
        """Write a contiguous array of the file's byte order at an offset.

        Raises:
            OSError: Not all of it was written.
        """
        write_all(self._fd, data.reshape(-1).view(np.uint8).data, offset)

    def note(self, n_bytes: int) -> None:
        """So many bytes were written; every now and then they are sent on their way.

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
        """Until all of the file is on the disk. Raises OSError if it did not get there."""
        if self._running is not None:
            yield from until_done(self._running)
        self._running = Background(lambda: os.fsync(self._fd))
        yield from until_done(self._running)

    def close(self) -> None:
        """Close the file; after a failure too. Waits for a flush that is under way."""
        if self._running is not None:
            self._running.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ParallelSink:
    """All servers write their own blocks through the mpio driver."""

    def __init__(self, peers: Peers, path: Path, datasets: Sequence[DatasetEntry]) -> None:
        """Local and quick: only sees whether the file can be opened here.

        Raises:
            OSError: It cannot, say because this node does not see the folder.
        """
        self._peers = peers
        self._path = path
        self._entries = datasets
        self._flusher = Flusher(path)
        self._h5py = load_writer()
        self._file: Any = None
        self._open: dict[str, Any] = {}

    def open(self) -> None:
        """Open the file with all servers. Collective and blocking."""
        self._file = self._h5py.File(self._path, "r+", driver="mpio", comm=self._peers.comm)
        self._open = {entry.path: self._file[entry.path].id for entry in self._entries}

    def write(self, entry: DatasetEntry, start: int, data: NDArray[Any] | None) -> Steps[None]:
        """Write units from `start` on; None writes nothing. Local: one step of work.

        Raises:
            OSError: The block was not written.
        """
        if data is not None:
            try:
                write_units(self._h5py, self._open[entry.path], entry, start, data)
            except OSError:
                # MPI keeps the reason to itself; the system tells whoever asks in the same way.
                self._flusher.write(data, entry.offset + start * entry.unit_bytes)
                raise
            self._flusher.note(data.nbytes)
        yield data is not None

    def finish(self) -> Steps[None]:
        """Until everything is on the disk; local.

        Raises:
            OSError: It is not.
        """
        yield from self._flusher.finish()

    def close(self) -> None:
        """Close the file with all servers. Collective and blocking, but little is left to do."""
        if self._file is not None:
            self._open.clear()
            # Whatever the first of these says, the others are in the second one.
            try:
                self._file.flush()
            finally:
                self._file.close()
                self._flusher.close()

    def abandon(self) -> None:
        """Give up a file that was not opened by all servers; local."""
        if self._file is not None:
            _abandoned.append(self._file)
        self._open.clear()
        self._flusher.close()


class SerialSink:
    """Server 0 writes; the others send it their blocks, one each in every call.

    Datasets are contiguous, so the bytes go to their offsets without HDF5.
    """

    def __init__(self, peers: Peers, path: Path, datasets: Sequence[DatasetEntry]) -> None:
        """Server 0 sees whether the file can be opened.

        Raises:
            OSError: It cannot.
        """
        self._peers = peers
        self._flusher: Flusher | None = None
        self._failure: Exception | None = None
        if peers.rank == 0:
            self._flusher = Flusher(path)

    def open(self) -> None:
        """Nothing is left to do."""

    def write(self, entry: DatasetEntry, start: int, data: NDArray[Any] | None) -> Steps[None]:
        """Write units from `start` on; None writes nothing. All servers meet server 0.

        Raises:
            OSError: A block was not written (on server 0, whosever it was).
        """
        if self._peers.rank:
            yield from self._send(start, data)
            return
        yield from self._put(entry, start, data)
        for source in range(1, self._peers.size):
            yield True
            received = yield from self._receive(source, entry)
            yield from self._put(entry, *received)
        if self._failure is not None:
            raise self._failure
        yield True

    def _put(self, entry: DatasetEntry, start: int, data: NDArray[Any] | None) -> Steps[None]:
        # After a failure the others are still heard out.
        if data is None or self._failure is not None:
            return
        flusher = self._flusher
        assert flusher is not None
        offset = entry.offset + start * entry.unit_bytes
        # In the background: the kernel lets a writer wait while it has too much to bring to the disk.
        try:
            yield from in_background(lambda: flusher.write(data, offset))
            flusher.note(data.nbytes)
        except Exception as error:
            self._failure = error

    def _send(self, start: int, data: NDArray[Any] | None) -> Steps[None]:
        assert self._peers.comm is not None
        header = np.array([start, -1 if data is None else len(data)], np.int64)
        requests = [self._peers.comm.Isend(header, dest=0)]
        if data is not None:
            requests.append(self._peers.comm.Isend(data, dest=0))
        yield from self._peers.wait(*requests)

    def _receive(self, source: int, entry: DatasetEntry) -> Steps[tuple[int, NDArray[Any] | None]]:
        assert self._peers.comm is not None
        header = np.empty(2, np.int64)
        yield from self._peers.wait(self._peers.comm.Irecv(header, source=source))
        start, n = map(int, header)
        if n < 0:
            return start, None
        data = np.empty(n * entry.unit, DTYPES[entry.dtype])
        yield from self._peers.wait(self._peers.comm.Irecv(data, source=source))
        return start, data

    def finish(self) -> Steps[None]:
        """Until everything is on the disk; on server 0.

        Raises:
            OSError: It is not.
        """
        if self._flusher is not None:
            yield from self._flusher.finish()

    def close(self) -> None:
        """Server 0 closes the file."""
        if self._flusher is not None:
            self._flusher.close()

    def abandon(self) -> None:
        """Give up; nobody else has the file."""
        self.close()


Sink = ParallelSink | SerialSink
