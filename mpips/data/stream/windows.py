"""The samples of a worker in a cache, read block by block."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import read_parts
from mpips.data.blocks import SampleBlocks
from mpips.data.dataset import Batch, Dataset, DenseData, SparseData, join
from mpips.data.holdout import HoldoutSide
from mpips.data.label_sets import numbered
from mpips.data.stored_arrays import Members, members_of
from mpips.data.stream.cache import Index
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]
Change: TypeAlias = Callable[[Dataset], Dataset]

# Bytes of a block in memory: enough for an efficient read, few beside a window. Files are often sorted, by
# class for example, so the blocks of a window must come from many places.
_BLOCK_BYTES = 256 << 10
_BLOCKS = 128  # least number of blocks in a window, if a block can be so small
_MOST_FILES = 128  # files that are read together; twice as many stay open
_GAP_BYTES = 4096  # between two samples that are wanted, up to which both are read at once


class StreamedData:
    """One worker's share of samples in a cache; see `mpips.data.feed.WindowedData`. Thread-safe.

    Attributes:
        index: Description of the cache.
        n: Samples of the share.
        n_features: As of the data sets that `read` returns.
        blocks: The division of all samples among workers.
        window: Blocks that are read at once.
    """

    def __init__(
        self,
        folder: Path,
        index: Index,
        worker: int,
        n_workers: int,
        memory: int,
        changes: tuple[Change, ...] = (),
        side: HoldoutSide | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: The cache.
            index: Its index.
            worker: Index of the worker.
            n_workers: Number of workers.
            memory: Bytes for samples: two windows are in memory at a time.
            changes: Functions that are applied to samples after reading, in this order.
            side: The samples of the cache that the data set has; None: all.
        """
        self.index = index
        self.n_features = index.n_features
        self._folder = folder
        self._worker = worker
        self._memory = memory
        self._changes = changes
        self._side = side
        n_total, names = index.n if side is None else side.n, index.label_names
        sample_bytes = self._sample_bytes = max(1, index.memory_bytes // index.n)
        in_window = max(1, memory // 2 // sample_bytes)
        block = max(1, min(_BLOCK_BYTES // sample_bytes, in_window // _BLOCKS))
        self.blocks = SampleBlocks(n_total, n_workers, block)
        self.window = max(1, in_window // block)
        self.n = self.blocks.counts()[worker]
        self._spread = min(
            2.0, index.n / max(n_total, 1)
        )  # samples of the cache for each one, at most 2
        self._sizes = np.array([piece.n for piece in index.pieces], np.int64)
        self._ends = np.cumsum(self._sizes)
        # The class of each label that is text: those of piece p begin at place `_first_name[p]`.
        place = {name: float(i) for i, name in enumerate(names)}
        self._names = np.array([place[n] for piece in index.pieces for n in piece.label_names])
        counts = [len(piece.label_names) for piece in index.pieces]
        self._first_name = np.cumsum([0, *counts[:-1]])
        self._files: dict[int, _CacheFile] = {}
        self._lock = threading.Lock()

    def changed(self, change: Change) -> StreamedData:
        """Return the same samples, to which `change` is applied after they were read."""
        return StreamedData(
            self._folder,
            self.index,
            self._worker,
            self.blocks.n_workers,
            self._memory,
            (*self._changes, change),
            self._side,
        )

    def in_memory(self, numbers: Int64) -> Dataset:
        """Read samples of the data set, given by ascending numbers, into memory. Blocks."""
        return self._ranges(*_runs(self._places(numbers), 1))

    def _places(self, numbers: Int64) -> Int64:
        """Return the places in the cache of samples of the data set."""
        return numbers if self._side is None else self._side.places(numbers)

    @property
    def n_bytes(self) -> int:
        """Bytes that the samples of all workers would take in memory."""
        return self.index.memory_bytes

    def read(self, samples: Int64) -> tuple[Dataset, Int64]:
        """Read samples into memory; see `WindowedData`. Samples between near ones are read with them.

        Raises:
            DataError: The cache is damaged.
        """
        samples = self._places(samples)
        order = np.sort(samples)
        starts, stops = _runs(order, 1 + _GAP_BYTES // self._sample_bytes)
        # Blocks of few samples may have so small gaps everywhere that all between them would be read. Of a
        # data set that has not all samples of the cache, the gaps are everywhere.
        if (stops - starts).sum() > 1.1 * len(order) * self._spread:
            starts, stops = _runs(order, 1)
        data = self._ranges(starts, stops)
        before = np.cumsum(np.append(0, stops - starts)[:-1])
        run = np.searchsorted(starts, samples, side="right") - 1
        rows = samples - starts[run] + before[run] if len(order) else order
        return data, rows

    def take(self, rows: Int64, weight: float = 1.0) -> Batch:
        """Read samples of the share into a batch: `rows` (int64, shape (n,)) of 0..n-1. Blocks."""
        starts, _ = self.blocks.runs(self._worker)
        size = self.blocks.block
        data, places = self.read(starts[rows // size] + rows % size if len(rows) else rows)
        return data.take(places, weight)

    def parts(self) -> Iterator[Dataset]:
        """Yield the samples of the share in the order of the file, a window at a time."""
        starts, stops = self.blocks.runs(self._worker)
        for at in range(0, len(starts), self.window):
            some = starts[at : at + self.window], stops[at : at + self.window]
            if self._side is None:
                yield self._ranges(*some)
                continue
            blocks = [np.arange(*ends) for ends in zip(*(x.tolist() for x in some), strict=True)]
            yield self.in_memory(np.concatenate([np.arange(0), *blocks]))

    def _ranges(self, starts: Int64, stops: Int64) -> Dataset:
        """Return the samples of some ranges of the whole data, ascending, in order."""
        pieces, starts, stops = self._divided(starts, stops)
        parts: list[Dataset] = []
        begun = 0
        for end in self._groups(pieces):
            some = slice(begun, end)
            parts.append(self._of_pieces(pieces[some], starts[some], stops[some]))
            begun = end
        data = join(parts)
        for change in self._changes:
            data = change(data)
        return data

    def _divided(self, starts: Int64, stops: Int64) -> tuple[Int64, Int64, Int64]:
        """Divide ranges at the ends of pieces; return piece, first and last row in it of each part."""
        if not len(starts):
            zero = np.zeros(1, np.int64)
            return zero, zero, zero
        first = np.searchsorted(self._ends, starts, side="right")
        n = np.searchsorted(self._ends, stops, side="left") - first + 1
        # A range has n parts, in consecutive pieces.
        before = np.repeat(np.cumsum(n) - n, n)
        pieces = np.repeat(first, n) + np.arange(n.sum()) - before
        begins = self._ends[pieces] - self._sizes[pieces]
        low = np.maximum(np.repeat(starts, n), begins) - begins
        high = np.minimum(np.repeat(stops, n), self._ends[pieces]) - begins
        return pieces, low, high

    def _groups(self, pieces: Int64) -> Iterator[int]:
        """Yield the ends of groups of parts: few files, and arrays of one dtype, in each."""
        here: set[int] = set()
        kind = None
        for i, piece in enumerate(pieces.tolist()):
            if piece in here:
                continue
            found = self._kind(piece)
            if here and (len(here) == _MOST_FILES or found != kind):
                yield i
                here = set()
            here.add(piece)
            kind = found
        yield len(pieces)

    def _kind(self, piece: int) -> Any:
        """Return the dtype of the main array of a piece."""
        name = "x" if self.index.kind == "dense" else "indices"
        return self._file(piece).members[name].dtype

    def _file(self, piece: int) -> _CacheFile:
        """Return an open file of the cache. The files that were used last stay open."""
        with self._lock:
            found = self._files.pop(piece, None)
            if found is None:
                found = _CacheFile(os.fspath(self._folder / self.index.pieces[piece].file))
                if len(self._files) >= 2 * _MOST_FILES:
                    self._files.pop(next(iter(self._files)))
            self._files[piece] = found
            return found

    def _of_pieces(self, pieces: Int64, starts: Int64, stops: Int64) -> Dataset:
        """Return the samples in rows of some pieces: `starts` to below `stops`."""
        unique, which = np.unique(pieces, return_inverse=True)
        # The list keeps the files open, also if another thread uses others.
        reader = _Parts([self._file(piece) for piece in unique.tolist()], which)
        n = stops - starts
        labels = reader.read("labels", starts, n).astype(np.float64, copy=False)
        if len(self._names):
            places = self._first_name[np.repeat(pieces, n)] + labels.astype(np.int64)
            labels = self._names[places]
        if self.index.kind == "dense":
            return DenseData(reader.read("x", starts, n), labels)
        ends = reader.read("indptr", starts, n + 1)
        # Each part has one entry more than samples; the difference over two parts is left out.
        last = np.cumsum(n + 1) - 1
        low, high = ends[last - n], ends[last]
        lengths = np.delete(np.diff(ends), last[:-1])
        indices = reader.read("indices", low, high - low).astype(np.int64)
        fields = None
        if self.index.n_fields:
            fields = reader.read("fields", low, high - low).astype(np.int32, copy=False)
        return SparseData(
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            numbered(
                indices, fields if self.index.has_label_sets else None, -self.index.index_base
            ),
            reader.read("values", low, high - low),
            labels,
            self.index.n_features,
            fields,
            self.index.n_fields,
        )


class _CacheFile:
    """An open file of the cache.

    Attributes:
        path: Its path.
        members: Its arrays.
        file: Its descriptor, closed with this object.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = -1
        try:
            self.members = _members(path)
            self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError, KeyError) as error:
            raise damaged(path, error) from None

    def __del__(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)


class _Parts:
    """Rows of the same array in several files."""

    def __init__(self, files: Sequence[_CacheFile], which: Int64) -> None:
        """Read nothing yet; part i lies in file `which[i]`."""
        self._files = files
        self._which = which

    def read(self, name: str, starts: Int64, n: Int64) -> npt.NDArray[Any]:
        """Return rows, `n[i]` from `starts[i]` on of part i, one part behind the other, a new array."""
        members = [file.members[name] for file in self._files]
        shape, dtype = members[0].shape[1:], members[0].dtype
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        ends = np.cumsum(n)
        out = np.empty((int(ends[-1]), *shape), dtype)
        parts = np.empty((len(n), 4), np.int64)
        parts[:, 0] = np.array([file.file for file in self._files])[self._which]
        parts[:, 1] = np.array([m.offset for m in members])[self._which] + starts * row_bytes
        parts[:, 2] = n * row_bytes
        parts[:, 3] = (ends - n) * row_bytes
        try:
            read_parts(parts, out.reshape(-1).view(np.uint8))
        except (OSError, ValueError) as error:
            raise damaged(os.path.dirname(self._files[0].path), error) from None
        return out


def damaged(path: str, error: Exception) -> DataError:
    """Return the error of a cache that cannot be read."""
    return DataError(
        f"{path}: the cache of the data is damaged or was removed: {error}; start the job again"
    )


def _runs(order: Int64, step: int) -> tuple[Int64, Int64]:
    """Return first and last + 1 of runs of ascending numbers that are at most `step` apart."""
    if not len(order):
        return order, order
    last = np.flatnonzero(np.diff(order) > step)
    return order[np.append(0, last + 1)], order[np.append(last, len(order) - 1)] + 1


@lru_cache(maxsize=4096)
def _members(path: str) -> Members:
    """Return the arrays of a piece."""
    return members_of(path)
