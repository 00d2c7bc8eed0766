"""The samples of a worker in a cache, read block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.blocks import SampleBlocks
from mpips.data.dataset import Batch, Dataset, DenseData, SparseData, join
from mpips.data.info import relabel
from mpips.data.stream.cache import Index, Members, members_of, read_rows
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]
Change: TypeAlias = Callable[[Dataset], Dataset]

# Bytes of a block in memory: enough for an efficient read, few beside a window. Files are often sorted, by
# class for example, so the blocks of a window must come from many places.
_BLOCK_BYTES = 256 << 10
_BLOCKS = 128  # least number of blocks in a window, if a block can be so small
_GAP = 64  # samples between two that are wanted, up to which both are read at once


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
    ) -> None:
        """Read nothing yet.

        Args:
            folder: The cache.
            index: Its index.
            worker: Index of the worker.
            n_workers: Number of workers.
            memory: Bytes for samples: two windows are in memory at a time.
            changes: What is done to samples that were read, in this order.
        """
        self.index = index
        self.n_features = index.n_features
        self._folder = folder
        self._worker = worker
        self._memory = memory
        self._changes = changes
        n_total, names = index.n, index.label_names
        sample_bytes = max(1, index.memory_bytes // n_total)
        in_window = max(1, memory // 2 // sample_bytes)
        block = max(1, min(_BLOCK_BYTES // sample_bytes, in_window // _BLOCKS))
        self.blocks = SampleBlocks(n_total, n_workers, block)
        self.window = max(1, in_window // block)
        self.n = self.blocks.counts()[worker]
        self._ends = np.cumsum([piece.n for piece in index.pieces])
        place = {name: float(i) for i, name in enumerate(names)}
        self._labels = [
            {float(i): place[name] for i, name in enumerate(piece.label_names)}
            for piece in index.pieces
        ]

    def changed(self, change: Change) -> StreamedData:
        """Return the same samples, to which `change` is applied after they were read."""
        return StreamedData(
            self._folder,
            self.index,
            self._worker,
            self.blocks.n_workers,
            self._memory,
            (*self._changes, change),
        )

    @property
    def n_bytes(self) -> int:
        """Bytes that the samples of all workers would take in memory."""
        return self.index.memory_bytes

    def read(self, samples: Int64) -> tuple[Dataset, Int64]:
        """See `WindowedData`. Samples near each other are read together with those between them.

        Raises:
            DataError: The cache is damaged.
        """
        order = np.sort(samples)
        last = np.flatnonzero(np.diff(order) > _GAP)
        starts = order[np.append(0, last + 1)] if len(order) else order
        stops = order[np.append(last, len(order) - 1)] + 1 if len(order) else order
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
            yield self._ranges(starts[at : at + self.window], stops[at : at + self.window])

    def _ranges(self, starts: Int64, stops: Int64) -> Dataset:
        """Return the samples of some ranges of the whole data, in order."""
        parts = [
            part
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            for part in self._range(start, stop)
        ]
        data = join(parts or [self._of_piece(0, 0, 0)])
        for change in self._changes:
            data = change(data)
        return data

    def _range(self, start: int, stop: int) -> Iterator[Dataset]:
        """Yield the samples of a range, piece by piece."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[place])
            first = end - self.index.pieces[place].n
            until = min(stop, end)
            yield self._of_piece(place, start - first, until - first)
            start, place = until, place + 1

    def _of_piece(self, place: int, start: int, stop: int) -> Dataset:
        """Return samples of a piece."""
        path = os.fspath(self._folder / self.index.pieces[place].file)
        try:
            members = _members(path)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = self._read(file, path, members, start, stop)
            finally:
                os.close(file)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path}: the cache of the data is damaged or was removed: {error}; start the job again"
            ) from None
        return relabel(data, self._labels[place])

    def _read(self, file: int, path: str, members: Members, start: int, stop: int) -> Dataset:
        def rows(name: str, first: int = start, last: int = stop) -> Any:
            return read_rows(file, path, members[name], first, last)

        labels = rows("labels").astype(np.float64, copy=False)
        if self.index.kind == "dense":
            return DenseData(rows("x"), labels)
        indptr = rows("indptr", start, stop + 1)
        ends = int(indptr[0]), int(indptr[-1])
        base = self.index.index_base
        fields = rows("fields", *ends).astype(np.int32, copy=False) if "fields" in members else None
        indices = rows("indices", *ends).astype(np.int64)
        if base:
            indices -= base
        n_fields = len(self.index.columns) if fields is not None else 0
        return SparseData(
            indptr - indptr[0],
            indices,
            rows("values", *ends),
            labels,
            self.index.n_features,
            fields,
            n_fields,
        )


@lru_cache(maxsize=4096)
def _members(path: str) -> Members:
    """Return the arrays of a piece."""
    return members_of(path)
