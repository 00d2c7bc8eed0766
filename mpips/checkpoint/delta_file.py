"""The file of a delta: a head with a checksum, and an HDF5 file behind it.

The head is the user block of HDF5, HEAD_BYTES long: a line of text, and zeros.

    mpips delta of checkpoints, format 2, 61477 bytes, xxh3 0123456789abcdef

It has the size of the whole file, and the XXH3-64 of all bytes behind the head. HDF5 has no checksums in this
version of its format, and a flipped bit in its structure can crash the process. So readers compare size and
checksum before HDF5 opens the file.

HDF5 may also crash when a write fails, because it writes the rest when it closes the file, or at exit. So it
writes through a `DeltaFile`, which raises no error of a write. Writers call `check` after each part, which
raises the first error.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.structure import write_all
from mpips.errors import CheckpointError

FORMAT = 2
HEAD_BYTES = 512  # the least user block of HDF5
_BLOCK = 8 << 20  # bytes that are read at once for the checksum
_CHUNK = 1 << 16  # elements of a chunk of a dataset
_HEAD = re.compile(rb"mpips delta of checkpoints, format ([0-9]{1,9})(?:, ([0-9]{1,18}) bytes)?")


class DeltaFile(io.FileIO):
    """The file object through which HDF5 reads and writes a delta; HDF5 ignores what its methods return.

    After the first failed write nothing more is written. Later writes of HDF5 stay in memory,
    because HDF5 reads its own structure again.
    """

    def __init__(self, path: Path, mode: str) -> None:
        """Open the file. `mode`: "rb", or "x+b" for a new one."""
        super().__init__(path, mode)
        self._error: OSError | None = None  # of the first failed write
        self._unwritten: list[tuple[int, bytes]] = []  # offset and data, in the order of the writes
        self._size = os.fstat(self.fileno()).st_size  # bytes, with those that were not written

    def check(self) -> None:
        """Raise the error of the first write that has failed."""
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position; the end is that of all writes."""
        if whence == os.SEEK_END:
            offset, whence = self._size + offset, os.SEEK_SET
        return super().seek(offset, whence)

    def write(self, data: Any) -> int:
        """Write all bytes at the position, or keep them in memory after a failure."""
        view = memoryview(data).cast("B")
        at = self.tell()
        if self._error is None:
            try:
                write_all(self.fileno(), view, at)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._unwritten.append((at, bytes(view)))
        self._size = max(self._size, at + len(view))
        self.seek(at + len(view))
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size; after a failure only that which HDF5 gets."""
        self._size = self.tell() if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self.fileno(), self._size)
            except OSError as error:
                self._error = error
        return self._size

    def readinto(self, buffer: Any) -> int:
        """Read from the position until the buffer is full; behind the end there are zeros."""
        view = memoryview(buffer).cast("B")
        at = self.tell()
        done = 0
        while done < len(view) and (n := os.preadv(self.fileno(), [view[done:]], at + done)):
            done += n
        view[done:] = bytes(len(view) - done)
        for start, data in self._unwritten:
            low, high = max(start, at), min(start + len(data), at + len(view))
            if low < high:
                view[low - at : high - at] = data[low - start : high - start]
        self.seek(at + len(view))
        return len(view)

    def seal(self) -> None:
        """Write the head, and wait until the file is on the disk.

        Raises:
            OSError: The file could not be written, now or earlier.
        """
        self.check()
        self.seek(0)
        self.write(_head(self._size, self.sum_behind_head()))
        self.check()
        os.fsync(self.fileno())

    def sum_behind_head(self) -> str:
        """Return the XXH3-64 of all bytes behind the head, as 16 hexadecimal digits."""
        total, at = _native.Xxh3(), HEAD_BYTES
        while block := os.pread(self.fileno(), _BLOCK, at):
            total.update(block)
            at += len(block)
        return f"{total.digest():016x}"


def _head(n_bytes: int, xxh3: str) -> bytes:
    text = f"mpips delta of checkpoints, format {FORMAT}, {n_bytes} bytes, xxh3 {xxh3}\n"
    return text.encode().ljust(HEAD_BYTES, b"\0")


@contextlib.contextmanager
def created(h5py: Any, path: Path) -> Iterator[tuple[Any, DeltaFile]]:
    """Create the file of a delta; the block writes into the HDF5 file, and calls `check` after each part.

    Raises:
        OSError: The file cannot be written. A part of it is left.
    """
    with DeltaFile(path, "x+b") as out:
        with h5py.File(out, "w", userblock_size=HEAD_BYTES) as file:
            yield file, out
        out.seal()


@contextlib.contextmanager
def opened(h5py: Any, path: Path) -> Iterator[Any]:
    """Compare the checksum of a delta, and open its HDF5 file within the block. Blocking.

    Raises:
        CheckpointError: There is no such file, it is not a delta, it is damaged, or it has a newer format.
    """
    try:
        source = DeltaFile(path, "rb")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    with source:
        try:
            _check_sum(source, path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            file = h5py.File(source, "r")
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as HDF5: {error}") from None
        with file:
            yield file


def _check_sum(source: DeltaFile, path: Path) -> None:
    head = os.pread(source.fileno(), HEAD_BYTES, 0)
    found = _HEAD.match(head)
    if found is None:
        raise CheckpointError(f"{path}: is not a delta of checkpoints")
    if int(found[1]) > FORMAT:
        raise CheckpointError(
            f"{path}: format {int(found[1])} of deltas is newer than this mpips, which reads up to {FORMAT}: "
            "install a newer mpips"
        )
    n_bytes = os.fstat(source.fileno()).st_size
    if found[2] is not None and int(found[2]) != n_bytes:
        raise CheckpointError(
            f"{path}: is damaged: it has {n_bytes:,} bytes instead of {int(found[2]):,}"
        )
    if head != _head(n_bytes, source.sum_behind_head()):
        raise CheckpointError(f"{path}: is damaged: the checksum does not match")


def write_array(out: DeltaFile, group: Any, name: str, array: NDArray[Any]) -> None:
    """Write a whole dataset.

    Raises:
        OSError: The file cannot be written.
    """
    group[name] = array
    out.check()


class DeltaColumn:
    """A dataset of a delta that grows.

    The first _CHUNK elements wait in memory, so that a small dataset has no chunks, whose rest is unused.
    """

    def __init__(
        self,
        out: DeltaFile,
        group: Any,
        name: str,
        dtype: np.dtype[Any],
        unit: tuple[int, ...] = (),
    ) -> None:
        """Prepare a dataset of no entries.

        Args:
            out: The file object of the file.
            group: Group of the HDF5 file.
            name: Name of the dataset; may have groups, as state/NAME.
            dtype: Type of its elements.
            unit: Shape of an entry.
        """
        self._out, self._group, self._name = out, group, name
        self._waiting = [np.empty((0, *unit), dtype)]
        self._data: Any = None

    def add(self, array: NDArray[Any]) -> None:
        """Append entries.

        Raises:
            OSError: The file cannot be written.
        """
        first = self._waiting[0]
        self._waiting.append(np.ascontiguousarray(array, first.dtype).reshape(-1, *first.shape[1:]))
        if sum(part.size for part in self._waiting) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        stored = np.concatenate(self._waiting)
        self._waiting = [stored[:0]]
        if self._data is None:
            unit = max(1, math.prod(stored.shape[1:]))
            chunks = (max(1, _CHUNK // unit), *stored.shape[1:])
            most = (None, *stored.shape[1:])
            self._data = self._group.create_dataset(
                self._name, data=stored, chunks=chunks, maxshape=most
            )
        else:
            at = len(self._data)
            self._data.resize(at + len(stored), axis=0)
            self._data[at:] = stored
        self._out.check()

    def close(self) -> None:
        """Write the rest.

        Raises:
            OSError: The file cannot be written.
        """
        if self._data is not None:
            self._flush()
        else:
            write_array(self._out, self._group, self._name, np.concatenate(self._waiting))
