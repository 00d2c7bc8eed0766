"""Look-ahead: rows of the next batch travel while this one computes (BagPipe, Agarwal et al., SOSP 2023).

`lookahead` reads `depth` batches in advance and announces their keys to a cache of each table. Before batch b
is yielded, at the worker's clock c, it

    1. takes the rows that have been fetched for b during the batch before;
    2. asks servers for the rows of b that are not valid at c, and waits for them;
    3. starts to fetch rows of batch b + 1, which travel while the program computes and pushes b.

A pull in the loop then copies from the cache. Rows that the cache lacks are pulled as without look-ahead.

BSP: the bits are those without look-ahead. A row that is read at clock c has exactly the updates of all
clocks before c: a server answers no earlier than these have ended, and the worker itself has not ended c. So
the row is valid at clock c. At a later clock d it is valid if no update of the clocks c .. d-1 has changed
it. The rows that this worker has pushed itself, at any clock from c on, are read again. Others may have
changed the rest, so each server receives a question: which of the rows have changed since the oldest of the
clocks c (one record of keys, one float for each in the reply)? The server notes for each row the version of
the table with which it changed last, from the first such question on; what was before counts as a change. The
answer waits for clock d as a pull does, so it covers all clocks before d. A row that is reported as unchanged
is valid at d. Nothing of this is in the journal: after a restart all workers are new and hold no rows.

Every request is made at the worker's present clock. A request for a later clock could not stand in the ring
before the tick that it waits for, because a server takes the records of a worker in order.

SSP: each reply has the lowest clock of all workers when the rows were read. At clock d with bound s a row is
valid if that clock is d - s or later: then it has all updates that a pull at d must have. SSP and ASP: a row
is also used for `depth` clocks at most, since nothing else bounds the age of a row under ASP. So a held row
may lack this worker's own newest updates, unlike a pulled one, but never for longer than this.

One thread uses all this, the worker's.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.transport.channel import Channel
from mpips.worker.ahead.table_ahead import TableAhead, end_of_patience
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.keys import as_keys
from mpips.worker.worker import Worker, connection_of, embedding_names

Int64 = NDArray[np.int64]
Batch = TypeVar("Batch")
Keys = Callable[[Any], Any]  # batch -> {table: keys}, or the keys of the job's only embedding table


def lookahead(
    batches: Iterable[Batch], *, keys: Keys, worker: Worker, depth: int = 8, progress: bool = True
) -> Iterator[Batch]:
    """Yield the batches; fetch the rows of the next one while the loop's body computes. Not collective.

    `table.pull(keys)` in the loop returns rows from a cache where it has them. Under BSP all values are those
    that the loop would pull without look-ahead, bit for bit. Under SSP they are within the bound; under SSP
    and ASP they are at most `depth` clocks old and may lack the worker's own updates of these clocks. Keys
    that were not announced are pulled as without look-ahead. `prefetch` and `push_pull` do not use the cache.

    It helps where rows come over a slow link and one batch has rows that the batch before has not. It takes
    time of the worker, about as much as a pull from a server on the same node.

    Batches are read `depth` batches ahead of their use. So a cursor must be set from the batch that is used,
    not from the state of `batches`. At the end of the loop, also by `break`, the cache is empty.

    Memory: at most twice the rows of depth + 1 batches, and a batch that is being fetched.

    Args:
        batches: The batches, each of any type.
        keys: Called once with each batch, when it is read. Returns a dict from names of embedding tables to
            whole numbers (int64) of any shape, or these numbers if the job has one embedding table.
        worker: The worker whose tables are pulled.
        depth: Batches that are known in advance, 1 or more; a row is held until its last use in them.
        progress: Let a thread advance transfers from servers on other nodes while the loop's body computes.
            It calls MPI: a body that also does so must do it within `Worker.paused`, or pass False.

    Raises:
        ConfigError: `depth` is below 1, a table is not an embedding table, or another look-ahead uses it.
        ValueError: Keys are not whole numbers within int64.
        StallError: A worker or server was late for the job's timeout; the message names it.
    """
    try:
        number = operator.index(depth)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"lookahead: depth = {depth!r}: must be a whole number, 1 or more")
    return _Loop(batches, keys, worker, number, progress)


class _Loop(Generic[Batch]):
    """The iterator of one look-ahead."""

    def __init__(
        self, batches: Iterable[Batch], keys: Keys, worker: Worker, depth: int, progress: bool
    ) -> None:
        self._batches = iter(batches)
        self._keys = keys
        self._worker = worker
        self._connection = connection_of(worker)
        self._streams: list[Channel] = []
        self._progress = self._connection.progress if progress else None
        self._is_begun = False
        self._depth = depth
        self._tables: dict[str, TableAhead] = {}
        self._handles: dict[str, EmbeddingHandle] = {}
        self._read: deque[tuple[Batch, list[str]]] = deque()
        self._n_read = self._n_used = 0
        self._is_over = False

    def __iter__(self) -> _Loop[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def _next(self) -> Batch:
        if not self._is_begun:
            self._begin()
        if not self._read:
            self._read_ahead(1)
        if not self._read:
            raise StopIteration
        batch, names = self._read.popleft()
        number, self._n_used = self._n_used, self._n_used + 1
        self._complete(number, [self._tables[name] for name in names])
        self._connection.leave()
        return batch

    def _begin(self) -> None:
        """Begin to use the channels as streams, and the progress thread."""
        for channel in self._connection.channels:
            channel.stream(True)
            self._streams.append(channel)
        if self._progress is not None:
            self._progress.begin_use()
        self._is_begun = True

    def _read_ahead(self, n: int) -> None:
        """Read batches until `n` of them are announced and not used."""
        while not self._is_over and len(self._read) < n:
            try:
                batch = next(self._batches)
            except StopIteration:
                self._is_over = True
                return
            keys = self._keys_of(batch)
            for name, array in keys.items():
                stored = self._handles[name].stored_keys(array)
                self._tables[name].announce(self._n_read, stored)
            self._read.append((batch, list(keys)))
            self._n_read += 1

    def _keys_of(self, batch: Batch) -> dict[str, Any]:
        found = self._keys(batch)
        if not isinstance(found, Mapping):
            found = {self._only_table(): found}
        arrays = {name: _flat(name, keys) for name, keys in found.items()}
        for name in arrays:
            self._open(name)
        return arrays

    def _only_table(self) -> str:
        names = embedding_names(self._worker)
        if len(names) != 1:
            raise ConfigError(
                f"lookahead: the job has {len(names)} embedding tables: let `keys` return a dict from the "
                "table's name to the keys"
            )
        return names[0]

    def _open(self, name: str) -> None:
        """Make the cache of a table at its first use."""
        if name not in self._tables:
            handle = self._worker.table(name)
            if not isinstance(handle, EmbeddingHandle):
                raise ConfigError(
                    f"lookahead: table {name!r} is a dense table: only embedding tables have keys"
                )
            self._handles[name] = handle
            self._tables[name] = handle.begin_ahead(self._depth)

    def _complete(self, number: int, tables: list[TableAhead]) -> None:
        """Make the rows of a batch valid, and start to fetch those of the next one.

        All tables' requests are made before the first is waited for. Further batches are read while replies
        are under way.
        """
        began = time.monotonic()
        for table in tables:
            table.begin(number)
            table.request_missing()
        if not self._read:
            self._read_ahead(1)
        following = [self._tables[name] for name in self._read[0][1]] if self._read else []
        for table in following:
            if table.fetches_early:
                table.fetch_next(number + 1)
        self._read_ahead(self._depth)
        for table in tables:
            table.take()
            table.request_changed()
        # Rows that others have changed come before rows of the next batch.
        for table in following:
            if not table.fetches_early:
                table.fetch_next(number + 1)
        for table in tables:
            table.take()
        # Others wait for what this worker reads for them: it waits for them when all its own is published.
        until = end_of_patience(began)
        for table in tables:
            table.request_rest(until)
        for table in tables:
            table.take()

    def close(self) -> None:
        """Empty the caches. Replies that are under way are dropped when they arrive. Makes no MPI call."""
        if self._is_begun:
            self._is_begun = False
            if self._progress is not None:
                self._progress.end_use()
            for channel in self._streams:
                channel.stream(False)
        for name, table in self._tables.items():
            self._handles[name].end_ahead(table)
        self._tables.clear()
        self._read.clear()
        self._is_over = True

    def __del__(self) -> None:
        # A loop that is left by `break` drops its iterator.
        self.close()


def _flat(name: str, keys: Any) -> Int64:
    """Return a batch's keys of a table in one dimension.

    Raises:
        ValueError: They are not whole numbers within int64.
    """
    array = np.asarray(keys)
    try:
        return as_keys(array.reshape(-1) if array.dtype.kind in "iu" else keys)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lookahead: table {name!r}: {error}") from None
