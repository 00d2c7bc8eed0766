"""All rows of an embedding table, read by their places in the servers' shards.

Pulls name keys, and a worker does not know all keys of a table. A row keeps its place in its shard, and new
rows come behind it. So the worker first reads the keys of all places, and then the floats of these places in
blocks. It contacts servers only: no other worker takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
# Writes the records of a pull from a number of places on; returns the number that is written then.
Write = Callable[[int], int]

BLOCK_BYTES = 1 << 22  # of the places that are read at the same time


class RowListing:
    """The rows that a table has when this object is made, at one worker. Not thread-safe.

    Attributes:
        keys: int64, shape (n,), ascending.
    """

    def __init__(self, connection: Connection, index: int, name: str) -> None:
        """Read the keys. Blocks until servers may answer pulls of the worker's clock.

        Besides the keys it takes 16 bytes for each row while it reads, and 8 afterwards.

        Args:
            connection: The worker's connection.
            index: Number of the table.
            name: Name of the table, for errors.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        self._connection = connection
        self._index = index
        self._what = f"all rows of table {name!r}"
        by_server = [self._keys_of(server) for server in range(len(connection.channels))]
        self._sizes = [len(keys) for keys in by_server]
        keys = by_server[0] if len(by_server) == 1 else np.concatenate(by_server)
        del by_server
        order = np.argsort(keys)
        self._ranks = np.empty(len(keys), np.int64)  # of the row in each place, server by server
        self._ranks[order] = np.arange(len(keys))
        del order
        keys.sort()
        self.keys: Int64 = keys

    def read(self, first: int, n_floats: int) -> Float32:
        """Return floats [first, first + n_floats) of each row, float32, shape (n, n_floats).

        A row has its values, the states of its rule one after the other, its state of the whole row, and the
        number of its updates, as the bits of a float, if it has them. Blocks; besides the result it takes a
        block of 4 MiB.

        Raises:
            StallError: A server was late for the job's timeout; the message names it.
        """
        found = np.empty((len(self.keys), n_floats), np.float32)
        block = np.empty((max(1, BLOCK_BYTES // (4 * n_floats)), n_floats), np.float32)
        begin = 0
        for server, size in enumerate(self._sizes):
            for at in range(0, size, len(block)):
                part = block[: size - at]
                self._floats(server, at, first, part)
                found[self._ranks[begin + at : begin + at + len(part)]] = part
            begin += size
        return found

    def _keys_of(self, server: int) -> Int64:
        """Return the keys of a server's places; the first answer has their number."""
        n_rows = np.zeros(1, np.uint64)
        writer, clock = self._connection.channels[server].writer, self._connection.now

        def read(first: int, out: Int64) -> None:
            complete(
                self._connection,
                server,
                len(out),
                (out, n_rows),
                lambda done: writer.pull_keys(self._index, clock, first, out, n_rows, done),
                self._what,
            )

        read(0, np.empty(1, np.int64))
        keys = np.empty(int(n_rows[0]), np.int64)
        for first in range(0, len(keys), BLOCK_BYTES // 8):
            read(first, keys[first : first + BLOCK_BYTES // 8])
        return keys

    def _floats(self, server: int, place: int, first: int, out: Float32) -> None:
        """Read floats of the places from `place` on into `out`."""
        n_rows = np.zeros(1, np.uint64)
        writer, clock = self._connection.channels[server].writer, self._connection.now
        complete(
            self._connection,
            server,
            len(out),
            (out, n_rows),
            lambda done: writer.pull_floats(self._index, clock, place, first, out, n_rows, done),
            self._what,
        )


def complete(
    connection: Connection,
    server: int,
    n: int,
    targets: object,
    write: Write,
    what: str,
) -> None:
    """Write the records of a pull, and wait until its replies are copied to `targets`. Blocking.

    Args:
        connection: The worker's connection.
        server: The server.
        n: Number that `write` returns when all records are written.
        targets: Arrays that the replies are copied to; the connection holds them as long as necessary.
        write: Writes records.
        what: Name of the rows that are read, for errors.

    Raises:
        StallError: The server was late for the job's timeout; the message names it.
    """
    channel, done = connection.channels[server], 0
    connection.control.state = f"reading {what.replace('table ', '')}"
    while True:
        try:
            done = write(done)
        finally:
            # Ctrl-C may come here: the writer has the addresses of the targets.
            before = channel.writer.next_sequence
            connection.keep(server, before, targets)
        if done == n:
            break
        connection.wait_credit(server)
    connection.send([server])
    # Replies may be there at once, and a table may have many blocks.
    connection.poll()
    connection.wait_until(
        lambda: channel.wait_collected(before, 0.02),
        lambda: f"server {server} has not answered a pull of {what}{connection.blame(server)}",
    )
    connection.control.state = "computing"
