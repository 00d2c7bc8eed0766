"""The handle of an embedding table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.arrays import as_float32, check_out
from mpips.model.consistency import BSP, Switch, needs_base
from mpips.model.initial_rows import initial_rows
from mpips.model.table import EmbeddingTable
from mpips.worker.ahead.planned_rows import PlannedRows
from mpips.worker.ahead.table_ahead import TableAhead
from mpips.worker.base import Handle
from mpips.worker.groups.row_group import RowGroup
from mpips.worker.keys import as_keys
from mpips.worker.node_rows.rows import NodeRows
from mpips.worker.requests import PushResult, Request
from mpips.worker.row_access import RowAccess
from mpips.worker.row_changes import RowChanges
from mpips.worker.row_listing import RowListing
from mpips.worker.whole import Whole

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class EmbeddingHandle(Handle):
    """A worker's access to one embedding table. Not thread-safe.

    Attributes:
        name: Name of the table.
        dim: Length of a row.
    """

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: EmbeddingTable,
        partitioner: _native.Partitioner,
    ) -> None:
        """`partitioner` maps keys to servers."""
        super().__init__(connection, index, table, range(len(connection.channels)))
        self.dim = table.dim
        self._as_keys = self.stored_keys if table.hash_buckets else as_keys
        planned = self._rows = PlannedRows(connection, index, table, partitioner, self._noted)
        self._codec, self._pull_codec = planned.codec, planned.pull_codec
        self._plans, self._planned = planned.plans, planned.planned
        self._start_pull, self._write = planned.start_pull, planned.write
        self._groups = planned.groups
        self._prefetched: tuple[Int64, int, Request[Float32]] | None = None
        self._ahead: TableAhead | None = None
        # Pushes under BSP of a worker in a group wait for the end of its clock (mpips.worker.groups.tables).
        self._group: RowGroup | None = None
        if connection.grouped is not None and isinstance(table.consistency, BSP):
            self._group = RowGroup(connection.grouped, self._access(), self._writer)

    def _access(self) -> RowAccess:
        assert isinstance(self._table, EmbeddingTable)
        return RowAccess(self._connection, self._index, self._table, self._rows)

    def disown(self) -> None:
        """Give up the newest prefetch and a look-ahead, in a forked child: they belong to the parent."""
        self._prefetched = self._ahead = None
        if self._group is not None:
            self._group.leave()
            self._group = None

    def stored_keys(self, keys: Int64) -> Int64:
        """Return the keys of the rows for which `keys`, shape (n,), stand: int64, contiguous.

        Raises:
            TypeError: They are a masked array.
            ValueError: They are not whole numbers in one dimension, or are beyond int64.
        """
        assert isinstance(self._table, EmbeddingTable)
        return self._table.stored_keys(as_keys(keys))

    @property
    def has_ahead(self) -> bool:
        """True while a look-ahead uses the table."""
        return self._ahead is not None

    def begin_ahead(self, depth: int) -> TableAhead:
        """Make the cache that pulls use until `end_ahead`; see mpips.worker.ahead.lookahead.

        Raises:
            ConfigError: Another look-ahead uses this table.
        """
        if self._ahead is not None:
            raise ConfigError(
                f"lookahead: another look-ahead uses table {self.name!r}: end its loop before this one begins"
            )
        access, part, held = self._access(), self._connection.node_rows, None
        if part is not None and part.take_memory(self._connection.index):
            held = NodeRows(part, access)
        self._ahead = TableAhead(access, depth, held)
        return self._ahead

    def end_ahead(self, ahead: TableAhead) -> None:
        """Drop the cache that `begin_ahead` has returned."""
        if self._ahead is ahead:
            self._ahead = None

    def pull(self, keys: Int64, out: Float32 | None = None) -> Float32:
        """Fetch rows. Not collective; blocks until they satisfy the consistency model.

        Args:
            keys: int64, shape (n,); any order, duplicates allowed.
            out: float32, shape (n, dim); allocated if None. Row i receives the row of keys[i]. The caller
                owns it.

        Returns:
            `out`.

        Raises:
            KeyError: A key lies outside the partition.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        keys = self._as_keys(keys)
        direct = self._direct(out, len(keys))
        if self._ahead is not None:
            rows = self._pull_ahead(self._ahead, keys, out, direct)
        else:
            request = self._take_prefetched(keys)
            found = request.wait() if request else self._pull(self._planned(keys), direct)
            rows = self._filled(out, found)
        self._connection.leave()
        return rows

    def _pull_ahead(
        self, ahead: TableAhead, keys: Int64, out: Float32 | None, direct: Float32 | None
    ) -> Float32:
        """Pull through a look-ahead's cache, or from servers if it has none of the rows."""
        plan = self._planned(keys)
        found = ahead.pull(plan, direct)
        if found is None:
            return self._filled(out, self._start_pull(plan, direct).wait())
        self._plans.append(plan)
        rows, versions = found
        for server, version in versions.items():
            self._connection.channels[server].writer.set_base_version(self._index, version)
        if self._noted is not None:
            self._noted.note(rows, versions)
        return self._filled(out, rows)

    def _filled(self, out: Float32 | None, rows: Float32) -> Float32:
        """Copy rows into `out` and return it; return the rows themselves where there is no `out`."""
        if out is None or out is rows:
            return rows
        out[...] = rows
        versions = self._noted.find(rows) if self._noted is not None else None
        if self._noted is not None and versions is not None:
            self._noted.note(out, versions)
        return out

    def all_rows(self) -> tuple[Int64, Float32]:
        """Return all rows that exist: those of keys that have been pushed, loaded or restored.

        Not collective: only servers are contacted. Blocks as a pull does, until they satisfy the consistency
        model. Under BSP without backup workers the rows are those at the worker's clock. Under other models
        the servers go on with the pushes of other workers meanwhile: rows may have different ones of these,
        and a row that is made meanwhile may be missing. Values are not rounded by `pull_compression`.

        Returns:
            Keys (buckets of a table with `hash_buckets`), int64, shape (n,), ascending, and their rows,
            float32, shape (n, dim); the caller's. Besides
            them the call takes up to 16 bytes for each row and a block of 4 MiB.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        listing = RowListing(self._connection, self._index, self.name)
        rows = listing.read(0, self.dim)
        self._connection.leave()
        return listing.keys, rows

    def all_states(self) -> tuple[Int64, list[Float32], Int64 | None]:
        """Return the optimizer state of all rows that exist. As `all_rows` otherwise.

        Returns:
            Keys, int64, shape (n,), ascending; each state of the rule, float32, shape (n, dim), and each
            state of whole rows, float32, shape (n,); and the number of updates of each row, int64, shape
            (n,), None for tables whose rows have none.
        """
        table = self._table
        assert isinstance(table, EmbeddingTable)
        listing, rule = RowListing(self._connection, self._index, self.name), table.optimizer
        states = [listing.read((1 + k) * self.dim, self.dim) for k in range(rule.n_state)]
        first = (1 + rule.n_state) * self.dim
        states += [listing.read(first + k, 1).reshape(-1) for k in range(rule.n_row_state)]
        steps = None
        if table.counts_updates:
            bits = listing.read(table.row_floats - 1, 1)
            steps = bits.view(np.uint32).reshape(-1).astype(np.int64)
        self._connection.leave()
        return listing.keys, states, steps

    def delta(self, since: str | None = None, *, states: bool = False) -> RowChanges:
        """Return the rows that have changed since a version, in blocks; without one, all rows.

        Not collective: only servers are contacted, as by `all_rows`. A version is a text that names a state
        of the table: the `version` of an earlier `delta`, which may be stored. It is valid while the servers
        of this launch run, and until more rows have left the table than it has (at least 65,536 of a server).
        After that, and after each restart, in memory or from a checkpoint, this call raises `VersionError`,
        and `delta()` begins anew. Any number of readers may have versions of their own. A row has changed if
        it was made, took an update, or left the table and came back; an update of zeros counts. Under BSP
        without backup workers the changes are those at the worker's clock. Under other models servers apply
        pushes meanwhile: a row may be newer than `version`, and is then in the next `delta` again.

        The first call for a table makes each server mark its rows from then on, which takes 8 bytes a row.

        Args:
            since: Version that the caller has; None: all rows.
            states: Read the optimizer's state and the number of updates as well.

        Returns:
            An object with the new `version`, which is an iterable of blocks of about 4 MiB (`ChangedRows`:
            `removed`, `keys`, `rows`, `states`, `steps`). Iterate once, before this worker ends its clock.
            Values are not rounded by `pull_compression`; keys of a table with `hash_buckets` are buckets.

        Raises:
            VersionError: The changes since this version are not known, or `since` has another form.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        assert isinstance(self._table, EmbeddingTable)
        return RowChanges(self._connection, self._index, self._table, since, states)

    def initial(self, keys: Int64) -> Float32:
        """Return the rows of `keys` before their first update. Not collective; contacts no server.

        Args:
            keys: int64, shape (n,).

        Returns:
            float32, shape (n, dim), rounded like pulls. A pulled row with these bits has received no
            update, or with pull_compression or row_dtype "bf16" only some that were rounded away.
        """
        table = self._table
        assert isinstance(table, EmbeddingTable)
        out = initial_rows(table, self._connection.position.seed, self._as_keys(keys))
        if self._pull_codec is not None:
            codes = _native.encode_nearest(self._pull_codec, out)
            _native.decode(self._pull_codec, codes, 0, out)
        return out

    def prefetch(self, keys: Int64) -> Request[Float32]:
        """Start a pull; `wait` returns the rows, float32 (n, dim). Blocks only while a ring is full.

        A later `pull` of the same keys, at the same clock and with no push to this table in between, uses
        the newest prefetch instead of a new request. So a task can call `prefetch` early and `pull` later.
        """
        keys = self._as_keys(keys)
        request = self._start_pull(self._planned(keys), None)
        self._prefetched = (keys.copy(), self._connection.now, request)
        return request

    def _take_prefetched(self, keys: Int64) -> Request[Float32] | None:
        held, self._prefetched = self._prefetched, None
        if held is None or held[1] != self._connection.now or not np.array_equal(held[0], keys):
            return None
        return held[2]

    def push(self, keys: Int64, rows: Float32, base: Float32 | None = None) -> Request[PushResult]:
        """Send updates (gradients) of rows. Not collective; blocks only while a ring is full.

        Args:
            keys: int64, shape (n,); any order; updates of equal keys are summed.
            rows: float32, shape (n, dim). Free again at return.
            base: The values that the updates were computed on, shape (n, dim): the array that a pull filled,
                or a part or view of it. Staleness counts from that pull, even if a prefetch has fetched
                newer rows since. Without `base`, and if it is a copy, it counts from the newest rows that
                have arrived from the same server; also under Accept(), where nothing depends on it. Delay
                compensation needs it.

        Raises:
            TypeError: The rows contain no real numbers (complex, text, objects), or are a masked array.
            ValueError: Wrong shape, NaN or infinity, a number beyond float32, or keys that are not whole
                numbers within int64.
            KeyError: A key lies outside the partition.
            StallError: A server has taken no records for the job's timeout.
        """
        named = base is not None and self._name_base(base)
        try:
            plan, request, is_free = self._send(self._as_keys(keys), rows, base)
        finally:
            if named:
                self._unname_base()
        if is_free:
            self._plans.append(plan)
        self._connection.leave()
        return request

    def push_pull(self, keys: Int64, rows: Float32, out: Float32 | None = None) -> Float32:
        """Push updates, end the clock under BSP and Switch, and pull the new rows of the same keys.

        Arguments and errors are those of `push` and `pull`.
        """
        keys = self._as_keys(keys)
        direct = self._direct(out, len(keys))
        # The clock, where there is one, writes what is held.
        plan, _, _ = self._send(keys, rows, None)
        with Whole(self._connection, f"push_pull of table {self.name!r}"):
            if isinstance(self._table.consistency, (BSP, Switch)):
                self._connection.clock()
            return self._filled(out, self._pull(plan, direct))

    def _pull(self, plan: _native.KeyPlan, out: Float32 | None) -> Float32:
        """Return the rows of a plan, in `out` if it is given. The plan is free again. Blocks."""
        rows = self._group.pull(plan, out) if self._group is not None else None
        if rows is None:
            return self._start_pull(plan, out).wait()
        self._plans.append(plan)
        return rows

    def _send(
        self, keys: Int64, rows: Float32, base: Float32 | None
    ) -> tuple[_native.KeyPlan, Request[PushResult], bool]:
        """Check a push and write its records; return the plan of its keys, and whether that is free again."""
        shape = (len(keys), self.dim)
        rows = as_float32("rows", rows, shape)
        base = as_float32("base", base, shape) if base is not None else None
        if not needs_base(self._table.consistency):
            base = None
        self._prefetched = None
        plan = self._planned(keys)
        if self._ahead is not None:
            self._ahead.note_push(plan.unique_keys)
        repeats = plan.n_unique < len(plan)
        rows = self._checked_sums(plan, rows, base) if repeats else self._checked(rows, base)
        self._connection.control.state = self._pushing
        self._connection.clock_state.begin()
        is_free = True
        before = self._pushed() if self._group is None else None
        try:
            if self._group is not None:
                n_servers = len(self._groups(plan))
                is_free = self._group.push(plan, keys, rows, n_servers)
                request = self._noted_request(n_servers)
            else:
                request = self._request(self._write(plan, rows, base, self._push_key()))
        except BaseException as error:
            self._cut_off(error, before)
            raise
        self._connection.control.state = "computing"
        self._connection.clock_state.end_push()
        return plan, request, is_free

    def _push_key(self) -> int:
        """Return the key of the random numbers of the next push; 0 without a codec."""
        return self._random_key() if self._codec is not None else 0

    def _writer(self, plan: _native.KeyPlan, rows: Float32) -> Callable[[], object]:
        """Return a function that writes the records of a push without base values."""
        key = self._push_key()
        return lambda: self._write(plan, rows, None, key)

    def _direct(self, out: Float32 | None, n: int) -> Float32 | None:
        """Check `out`; return it if replies can be copied straight into it, else None."""
        if out is None:
            return None
        check_out(out, (n, self.dim), False)
        return out if out.flags.carray else None
