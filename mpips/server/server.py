"""A server: makes its region and its shards, and serves until the scheduler says stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mpips import _native
from mpips.errors import ConfigError, MpipsError, ProtocolError, RecoveryError, RegionError
from mpips.model.consistency import BSP, native
from mpips.model.initializer import Initializer, table_seed
from mpips.model.optimizer import SGD, PythonRule
from mpips.model.placement import Placement
from mpips.model.table import EmbeddingTable, Table
from mpips.mpi.messages import Figures
from mpips.transport.region import (
    MOST_RESERVED,
    Regions,
    allow_open_files,
    embedding_memory,
    token_words,
)

PROGRESS_INTERVAL_S = 100e-6  # a server with remote peers enters MPI at least this often
_IDLE_SHARE = 0.01  # of the time that nobody has come: how much later one that comes may be served
_MAX_IDLE_SLICE_S = 2e-3
_IDLE_SLICE_S = 2e-3
_SHARED_SLICE_S = 2e-4  # for records, between two looks at other work
_SPIN_S = 1e-3  # a server with remote peers looks again at once for so long after the last work
_SERVED_S = 12e-6  # an entry into MPI that takes longer has served somebody
_LONG_SLICE_S = 10e-3  # between looks at the scheduler, of a server that is idle for a while
_MAX_SLEEP_US = 1000  # reached when nothing has come for a hundred times as long


class Durability(msgspec.Struct, frozen=True):
    """How a server's state outlives its process, if it does.

    Attributes:
        generation: Launches of this run before this one.
        journal: Survive a kill at any instruction.
        warm: Take over what the launch before left in shared memory.
        name: Of its segments; "": the server's own.
    """

    generation: int = 0
    journal: bool = False
    warm: bool = False
    name: str = ""


_JOURNAL_ELEMENTS = 1 << 35  # of a shard, in what the journal says of how far an update has come
_JOURNAL_TABLES = 32_766  # whose segments it can name
NEW = Durability()  # nothing before, nothing after


def backup_workers(tables: Sequence[Table]) -> int:
    """The job's number of backup workers; all BSP tables have the same."""
    return max((t.consistency.backup for t in tables if isinstance(t.consistency, BSP)), default=0)


def check_journal(index: int, tables: Sequence[Table], placement: Placement) -> None:
    """Refuse shards of a server that a journal cannot describe.

    Raises:
        ConfigError: Names the table, or the number of tables.
    """
    wayout = "use more servers, or no warm restart (redundancy.warm = false)"
    if len(tables) > _JOURNAL_TABLES:
        raise ConfigError(
            f"{len(tables)} tables: warm restart takes {_JOURNAL_TABLES} at most; {wayout}"
        )
    for name, parts in placement.dense.items():
        for part in parts:
            if part.server == index and part.stop - part.start >= _JOURNAL_ELEMENTS:
                raise ConfigError(
                    f"table {name!r}: server {index} holds {part.stop - part.start:,} elements; with warm "
                    f"restart it can hold fewer than {_JOURNAL_ELEMENTS:,}: {wayout}"
                )


class Server:
    """The shards of one server and the loop that serves them. Not thread-safe.

    Attributes:
        index: 0 .. n_servers-1.
        region: Its shared memory; mailboxes and dense shards, laid out by `layout`.
    """

    def __init__(
        self,
        index: int,
        tables: Sequence[Table],
        placement: Placement,
        regions: Regions,
        seed: int,
        oversubscribed: bool,
        progress: Callable[[], int] | None,
        durability: Durability = NEW,
    ) -> None:
        """Make region and shards with their initial values, or take them over. `progress` enters MPI;
        returns the number of messages it has served.

        With a journal `begin_journal` (of a new server, once its values are loaded) or
        `finish_recovery` (of a warm one) must follow before `serve`.

        Raises:
            ConfigError: The shards are too many or too large for a journal.
            RegionError: /dev/shm is too small; warm: a segment is missing or in use.
            RecoveryError: Warm: what is there is no server of these tables that had begun to work.
        """
        if durability.journal:
            check_journal(index, tables, placement)
        self.index = index
        self._oversubscribed = oversubscribed
        self._progress = progress or (lambda: 0)
        self.layout = placement.layouts[index]
        self._tables = list(tables)
        self._regions = regions
        self._seed = seed
        self.durability = durability
        self.token = regions.token
        n_embedding = sum(isinstance(table, EmbeddingTable) for table in tables)
        self._sizes = embedding_memory(n_embedding)
        if regions.shared:
            # Rows, keys and, with a journal, buffers of each table; region and journal.
            allow_open_files(2 + 2 * n_embedding + durability.journal * len(tables))
        self.region = self._segment("", self.layout.total_bytes)
        low, high = token_words(regions.token)
        _native.write_region_header(self.region, self.layout, 0, index, low, high)
        self.core = _native.ServerCore(
            self.region,
            self.layout,
            durability.generation,
            backup_workers(tables),
            oversubscribed,
            progress,
            PROGRESS_INTERVAL_S,
        )
        if durability.journal:
            n_bytes = _native.journal_bytes(self.layout)
            journal = self._segment("-journal", n_bytes, MOST_RESERVED)
            self.core.use_journal(journal, not durability.warm)
        for i, table in enumerate(tables):
            self._add(i, table, placement)
        if not durability.warm:
            self.core.start()
            return
        try:
            self.core.attach()
        except _native.RecoveryError as error:
            raise RecoveryError(f"server {index}: {error}") from None

    def _segment(
        self, part: str, n_bytes: int, reserve: int = 0, sparse: bool = False
    ) -> _native.SharedMemory:
        """A segment of this server: new, or the one that the launch before left."""
        name = f"{self.durability.name or f's{self.index}'}{part}"
        if self.durability.warm:
            memory = self._regions.reopen(name, reserve)
            if memory.n_bytes < n_bytes:
                raise RecoveryError(
                    f"server {self.index}: segment {name} is smaller than this job's"
                )
            return memory
        if sparse:
            return self._regions.create_sparse(name, n_bytes)
        return self._regions.create(name, n_bytes, reserve)

    def begin_journal(self) -> None:
        """From here on a kill is survived: values and rows are as they shall be at the start."""
        self.core.begin_journal()

    def finish_recovery(self, staging: Callable[[int, int], _native.SharedMemory]) -> None:
        """Finish what the process before had begun.

        Args:
            staging: Attaches the staging memory of a worker and generation.

        Raises:
            RegionError: Updates in the rings lie in staging memory that is gone; /dev/shm is full.
            RecoveryError: The operation cannot be finished.
        """
        for worker, generation in self.core.old_staging():
            self.core.set_old_staging(worker, generation, staging(worker, generation))
        try:
            self.core.finish_operation()
        except (_native.RecoveryError, _native.ProtocolViolation) as error:
            raise RecoveryError(f"server {self.index}: {error}") from None
        except _native.SharedMemoryError as error:
            raise RegionError(f"server {self.index}: {error}") from None

    def _add(self, i: int, table: Table, placement: Placement) -> None:
        rule = table.optimizer
        python = rule if isinstance(rule, PythonRule) else None
        optimizer = SGD().native() if isinstance(rule, PythonRule) else rule.native()
        consistency = native(table.consistency)
        init = table.init
        seed = table_seed(self._seed, table.name)
        if isinstance(table, EmbeddingTable):
            assert isinstance(init, Initializer)
            rows = self._segment(f"-t{i}-rows", self._sizes.first, self._sizes.reserve)
            keys = self._segment(f"-t{i}-keys", self._sizes.first, self._sizes.reserve)
            self._buffers(i, self._sizes.buffers)
            self.core.add_embedding(
                i,
                optimizer,
                rule.n_state,
                python,
                consistency,
                table.dim,
                init.native(seed, *table.fans),
                rows,
                keys,
            )
            return
        part = next((p for p in placement.dense[table.name] if p.server == self.index), None)
        if part is None:
            self.core.add_absent(i, consistency)
            return
        self._buffers(i, _native.dense_buffer_bytes(part.stop - part.start, self.layout.n_workers))
        self.core.add_dense(i, optimizer, rule.n_state, python, consistency)
        if self.durability.warm:
            return
        if isinstance(init, Initializer):
            native_init = init.native(seed, *table.fans)
            self.core.initialize_dense(i, native_init, part.start)
        elif not isinstance(init, str):
            self.core.set_dense(i, init.reshape(-1)[part.start : part.stop])

    def _buffers(self, i: int, n_bytes: int) -> None:
        """Where a table's unfinished pushes and sums lie, if they are to outlive this process."""
        if self.durability.journal:
            self.core.set_buffers(i, self._segment(f"-t{i}-buffers", n_bytes, sparse=True))

    def drain(self) -> int:
        """Consume everything that can be consumed; returns the number of records.

        Does not return while others write faster than this server consumes: it is for a server whose
        rings are written by this thread, or by nobody any more.

        Raises:
            ProtocolError: A worker sent what no correct worker sends.
            RegionError: A table cannot grow.
        """
        return self._drain(0.0, 0)

    def _drain(self, max_s: float, max_sleep_us: int) -> int:
        try:
            return self.core.drain(max_s, max_sleep_us)
        except (_native.ProtocolViolation, _native.SharedMemoryError) as error:
            raise self._named(error) from None

    def _named(self, error: Exception) -> MpipsError:
        kind = ProtocolError if isinstance(error, _native.ProtocolViolation) else RegionError
        return kind(f"server {self.index}: {error}")

    def serve(self, remote: bool, poll: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Consume records until `stopped`.

        `poll` takes control messages when it is time, and does other short work; True: there is more.
        """
        self.core.set_remote_peers(remote)
        if remote:
            return self._serve_remote(poll, stopped)
        slice_s = _IDLE_SLICE_S
        idle_since = time.monotonic()
        more = False
        while not stopped():
            if more:
                # By turns with other work, whether there are records or not.
                self._drain(_SHARED_SLICE_S, 0)
            elif self._drain(slice_s, _MAX_SLEEP_US):
                idle_since = time.monotonic()
            else:
                # A server that has been idle for a while looks less often at the scheduler.
                quiet_s = time.monotonic() - idle_since
                slice_s = _IDLE_SLICE_S if quiet_s < 0.1 else _LONG_SLICE_S
            more = poll()
        self.drain()

    def _consume(self) -> int:
        """Consume what is there, for as long as this server may stay out of MPI."""
        try:
            return self.core.consume(PROGRESS_INTERVAL_S)
        except (_native.ProtocolViolation, _native.SharedMemoryError) as error:
            raise self._named(error) from None

    def _serve_remote(self, poll: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Look at the rings and enter MPI by turns, without a pause while there is work on either side.

        Nothing tells that MPI has served a put or get of a remote worker, but over TCP it sends an answer
        then, and that takes longer than to find nothing, even after a sleep.
        """
        spin_s = 0.0 if self._oversubscribed else _SPIN_S
        spin_until = idle_since = time.perf_counter()
        slow = 0  # entries in a row that took long; one alone may be a lost time slice
        while not stopped():
            consumed = self._consume()
            served, long, left = self._enter_mpi()
            more = poll()
            slow = slow + long if long else 0
            if consumed or served or slow > 1 or more:
                idle_since = left
            if consumed or served or slow or more:
                spin_until = left + spin_s
            elif left > spin_until:
                # The longer nothing has come, the more rarely it looks.
                longest = min(_IDLE_SHARE * (left - idle_since), _MAX_IDLE_SLICE_S)
                slice_s = max(PROGRESS_INTERVAL_S, longest)
                self._drain(slice_s, int(slice_s * 1e6))
            else:
                os.sched_yield()
        self.drain()

    def _enter_mpi(self) -> tuple[int, int, float]:
        """Enter MPI, and again while bytes keep coming but no message that tells of them.

        Returns:
            Messages served, entries that took long, and the time after the last.
        """
        start = entered = time.perf_counter()
        long = 0
        while True:
            served = self._progress()
            left = time.perf_counter()
            if left - entered <= _SERVED_S:
                return served, long, left
            long += 1
            if served or left - start > PROGRESS_INTERVAL_S:
                return served, long, left
            entered = left

    def figures(self) -> Figures:
        """What this server has counted so far. Cheap, between drains."""
        c = self.core.counters()
        f = Figures(at=time.monotonic(), records=c["records"], queue=self.core.queue())
        f.pushed_bytes, f.pulled_bytes = c["bytes_in"], c["bytes_out"]
        f.memory_bytes = self.region.n_bytes
        for i, table in enumerate(self._tables):
            stats = self.core.stats(i)
            f.judged += stats["applied"] + stats["rejected"] + stats["late"]
            f.staleness_sum += sum(s * n for s, n in enumerate(stats["staleness"]))
            f.max_staleness = max(
                [f.max_staleness, *(s for s, n in enumerate(stats["staleness"]) if n)]
            )
            if isinstance(table, EmbeddingTable):
                f.memory_bytes += self.core.memory_bytes(i)
        return f

    def statistics(self) -> dict[str, Any]:
        """What this server did, by table; plain numbers."""
        return {
            "server": self.index,
            "counters": self.core.counters(),
            "tables": {
                table.name: self._table_statistics(i, table) for i, table in enumerate(self._tables)
            },
        }

    def _table_statistics(self, i: int, table: Table) -> dict[str, Any]:
        result: dict[str, Any] = dict(self.core.stats(i))
        result["version"] = self.core.version(i)
        if isinstance(table, EmbeddingTable):
            result["rows"] = self.core.n_rows(i)
            result["memory_bytes"] = self.core.memory_bytes(i)
        return result
