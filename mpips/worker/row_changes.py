"""The rows of an embedding table that have changed since a version, read in blocks from its servers.

From the first read on, a server marks each row with the version of the update that changed it last, and notes
the rows that leave the table (native/src/server/embedding_changes.cpp). The marks are in the memory of the
server's process: 8 bytes for each row, and 16 for each row that has left, of which as many are noted as the
table has rows there, and at least 65,536.

A version is a text with two numbers for each server: a random number of its marks, and the number of updates
that its part of the table had received. So a version of an earlier launch, of other servers or of another
table is detected, and never taken for one of these marks.

A reader takes the versions of all servers before it looks at the first row. A row that changes while it reads
is therefore in this read, in the one that continues it, or in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError, VersionError
from mpips.worker.row_listing import complete

if TYPE_CHECKING:
    from mpips.model.table import EmbeddingTable
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Uint64 = NDArray[np.uint64]

BLOCK_BYTES = 1 << 22  # of a block
_ALL = 2**64 - 1  # as `since`: all rows
_REMOVED = 2**32 - 1  # as the first float: keys of rows that have left
_KEY_BYTES = 8
_VERSION = re.compile(r"([0-9a-f]{1,16})\.([0-9]{1,19})")


@dataclass(frozen=True)
class ChangedRows:
    """A block of changes: first take out `removed`, then put in the rows. The arrays are the caller's.

    Attributes:
        removed: Keys of rows that have left the table and have not come back, int64, shape (m,). A later
            block names none of the keys of its rows.
        keys: int64, shape (n,), in no order; each key is in one block of a read.
        rows: Values, float32, shape (n, dim).
        states: Each state of the rule, float32, shape (n, dim), and each state of whole rows, float32, shape
            (n,); empty unless asked for.
        steps: Number of updates of each row, int64, shape (n,); None if rows have none, or unless asked for.
    """

    removed: Int64
    keys: Int64
    rows: Float32
    states: list[Float32]
    steps: Int64 | None


@dataclass
class _Head:
    """The head of a server's reply; see ChangesHead in native/src/ring/layout.hpp."""

    version: int
    marks: int
    known: int
    next: int
    end: int


class RowChanges:
    """One read of changes, which is iterated once, before the worker's next clock. Not thread-safe.

    Attributes:
        version: The version that this read brings a reader to; `since` of the next read.
    """

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: EmbeddingTable,
        since: str | None,
        states: bool,
    ) -> None:
        """Ask all servers for their versions. Blocks until they may answer pulls of the worker's clock.

        Args:
            connection: The worker's connection.
            index: Number of the table.
            table: The table.
            since: Version of an earlier read; None: all rows are read.
            states: Read the optimizer's state as well.

        Raises:
            VersionError: The changes since this version are not known.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        self._connection, self._index, self._table = connection, index, table
        self._states = states
        self._n_floats = table.row_floats if states else table.dim
        self._clock = connection.now
        n = len(connection.channels)
        wanted = [(0, _ALL)] * n if since is None else _decoded(since, n, table.name)
        none = np.empty(_KEY_BYTES, np.uint8)
        self._heads: list[_Head] = []
        for server in range(n):
            self._heads.append(self._pull(server, 0, _REMOVED, _ALL, none)[0])
        if since is not None:
            for server, (head, (marks, version)) in enumerate(
                zip(self._heads, wanted, strict=True)
            ):
                _check_known(head, marks, version, server, table.name)
        self._since = [version for _, version in wanted]
        self._begun = False
        self.version = "-".join(f"{head.marks:x}.{head.version}" for head in self._heads)

    def __iter__(self) -> Iterator[ChangedRows]:
        """Return the blocks. Each blocks as a pull does, and takes up to twice 4 MiB.

        Raises:
            ConfigError: The blocks were read before, or the worker has ended its clock meanwhile.
            StallError: A server was late for the job's timeout; the message names it.
        """
        if self._begun:
            raise ConfigError(
                f"the changes of table {self._table.name!r} are read once: call delta again"
            )
        self._begun = True
        return self._blocks()

    def _blocks(self) -> Iterator[ChangedRows]:
        for server, since in enumerate(self._since):
            if since != _ALL:
                yield from self._removed(server, since)
        for server, since in enumerate(self._since):
            yield from self._changed(server, since)

    def _removed(self, server: int, since: int) -> Iterator[ChangedRows]:
        """Yield blocks of removed keys of one server."""
        place, end = 0, self._heads[server].end
        out = np.empty(BLOCK_BYTES // _KEY_BYTES * _KEY_BYTES, np.uint8)
        while place < end:
            place, found = self._fill(server, place, end, _REMOVED, since, out, _KEY_BYTES)
            if len(found):
                yield self._block(removed=found.view(np.int64).reshape(-1).copy())

    def _changed(self, server: int, since: int) -> Iterator[ChangedRows]:
        """Yield blocks of rows of one server."""
        entry = _KEY_BYTES + 4 * self._n_floats
        out = np.empty(max(1, BLOCK_BYTES // entry) * entry, np.uint8)
        place, end = 0, -1
        while place != end:
            if end < 0:
                # Rows that are made later are newer than the version.
                head, n = self._pull(server, 0, 0, since, out)
                place, end, found = head.next, head.end, out[: n * entry]
            else:
                place, found = self._fill(server, place, end, 0, since, out, entry)
            if len(found):
                entries = found.reshape(-1, entry)
                keys = np.ascontiguousarray(entries[:, :_KEY_BYTES]).view(np.int64).reshape(-1)
                floats = np.ascontiguousarray(entries[:, _KEY_BYTES:]).view(np.float32)
                yield self._block(keys=keys, floats=floats)

    def _fill(
        self,
        server: int,
        place: int,
        end: int,
        first: int,
        since: int,
        out: NDArray[np.uint8],
        entry: int,
    ) -> tuple[int, NDArray[np.uint8]]:
        """Read entries until a block is full; return the next place, at most `end`, and the entries."""
        done = 0
        while place < end and done + entry <= len(out):
            head, n = self._pull(server, place, first, since, out[done:])
            place, done = min(head.next, end), done + n * entry
        return place, out[:done]

    def _block(
        self, removed: Int64 | None = None, keys: Int64 | None = None, floats: Float32 | None = None
    ) -> ChangedRows:
        table, dim = self._table, self._table.dim
        if keys is None or floats is None:
            keys, floats = np.empty(0, np.int64), np.empty((0, self._n_floats), np.float32)
        states: list[Float32] = []
        steps = None
        if self._states:
            rule = table.optimizer
            for k in range(rule.n_state):
                states.append(np.ascontiguousarray(floats[:, (1 + k) * dim : (2 + k) * dim]))
            first = (1 + rule.n_state) * dim
            states += [floats[:, first + k].copy() for k in range(rule.n_row_state)]
            if table.counts_updates:
                bits = np.ascontiguousarray(floats[:, table.row_floats - 1])
                steps = bits.view(np.uint32).astype(np.int64)
        rows = np.ascontiguousarray(floats[:, :dim]) if self._states else floats
        none = np.empty(0, np.int64) if removed is None else removed
        return ChangedRows(none, keys, rows, states, steps)

    def _pull(
        self, server: int, place: int, first: int, since: int, out: NDArray[np.uint8]
    ) -> tuple[_Head, int]:
        """Read the entries of one reply, from a place on; return the reply's head and their number."""
        connection, name = self._connection, self._table.name
        if connection.now != self._clock:
            raise ConfigError(
                f"the worker has ended clock {self._clock} while it read the changes of table {name!r}: read "
                "all blocks before the next clock, or call delta again with the same version"
            )
        head, n_entries = np.zeros(5, np.uint64), np.zeros(1, np.uint64)
        writer = connection.channels[server].writer
        n_floats = 0 if first == _REMOVED else self._n_floats
        complete(
            connection,
            server,
            1,
            (out, head, n_entries),
            lambda _: int(
                writer.pull_changes(
                    self._index, self._clock, place, first, n_floats, since, out, head, n_entries
                )
            ),
            f"the changes of table {name!r}",
        )
        connection.leave()
        found = _Head(*(int(word) for word in head))
        self._check_unmoved(server, found)
        return found, int(n_entries[0])

    def _check_unmoved(self, server: int, found: _Head) -> None:
        """Raise VersionError if rows of a table that evicts may have moved since the read began."""
        table, begun = self._table, server < len(self._heads)
        if table.evict is None or not begun or self._heads[server].version == found.version:
            return
        raise VersionError(
            f"table {table.name!r} has changed while it was read, because all workers have closed it in this "
            "clock: call delta again with the same version"
        )


def _decoded(since: str, n_servers: int, table: str) -> list[tuple[int, int]]:
    """Return the number of the marks, and the version, of each server."""
    found = (
        [_VERSION.fullmatch(part) for part in since.split("-")] if isinstance(since, str) else []
    )
    if not found or any(part is None for part in found):
        raise VersionError(
            f"delta of table {table!r}: since = {since!r} is no version: give the `version` of an earlier "
            "delta of this table, or None for all rows"
        )
    if len(found) != n_servers:
        raise VersionError(
            f"delta of table {table!r}: the version is one of {len(found)} servers, and the job has "
            f"{n_servers}: read all rows again by delta()"
        )
    return [(int(part[1], 16), int(part[2])) for part in found if part is not None]


def _check_known(head: _Head, marks: int, version: int, server: int, table: str) -> None:
    """Raise VersionError if a server has not noted all changes since a version."""
    if marks != head.marks or version > head.version:
        why = "has no marks of it, because it is of an earlier launch, or of another table"
    elif version < head.known:
        why = f"knows the rows that have left the table since version {head.known:,} only"
    else:
        return
    raise VersionError(
        f"delta of table {table!r}: the changes since version {version:,} are not known: server {server} "
        f"{why}: read all rows again by delta()"
    )
