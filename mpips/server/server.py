"""A server: it makes its region and its shards, and consumes records until the scheduler stops it.

The region is memory that workers see: mailboxes (the rings of all workers) and dense shards. Rows and keys of
embedding tables, the journal, and buffers of unfinished pushes lie in further memory of the server. With a
journal all of it is in shared-memory files that outlive the process, and the next launch takes them over.

One thread runs the loop: it consumes records from the rings, and calls `poll` for control messages and other
short work in between. A server with remote workers also enters MPI regularly, because puts and gets of remote
workers advance only then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpips import _native
from mpips.errors import (
    DifferenceError,
    DiskFullError,
    MpipsError,
    ProtocolError,
    RecoveryError,
    RegionError,
)
from mpips.model.consistency import BSP, SSP, estimates_staleness, native
from mpips.model.initializer import Initializer, table_seed
from mpips.model.optimizer import SGD, PythonRule
from mpips.model.placement import Placement
from mpips.model.row_limits import native_limits, sketch_bytes
from mpips.model.shared_scales import scale_tables, shared_codec
from mpips.model.stages import n_stages
from mpips.model.storage import frames
from mpips.model.table import EmbeddingTable, Table, native_codec, native_pull_codec
from mpips.mpi.messages import Figures
from mpips.server import heartbeat
from mpips.server.backup_control import BackupControl, backup_table
from mpips.server.bound_control import BoundControl, bound_in_force, bound_table
from mpips.server.durability import NEW, Durability, backup_workers, check_journal
from mpips.server.storage_files import file_of, remove_unused_files
from mpips.server.switch_control import switch_control
from mpips.server.threshold_control import ThresholdControl, thresholds_in_memory
from mpips.transport.region import (
    MOST_RESERVED,
    SPARE_FILES,
    Regions,
    allow_open_files,
    as_region_error,
    embedding_memory,
    token_words,
)

PROGRESS_INTERVAL_S = 100e-6  # s, a server with remote peers enters MPI at least this often
_IDLE_SHARE = 0.01  # such a server stays outside MPI for this share of its idle time,
_MAX_IDLE_SLICE_S = 2e-3  # s, and for no longer than this
_IDLE_SLICE_S = 2e-3  # s between two calls of `poll`
_SHARED_SLICE_S = 2e-4  # s for records between two steps of other work
_SPIN_S = 1e-3  # s after the last work for which a server with remote peers does not pause
# An entry into MPI that takes longer has served a put or get: s, and times the shortest of many entries.
_SERVED_S, _SERVED_TIMES, _MANY_ENTRIES = 12e-6, 4, 1000
_LONG_SLICE_S = 10e-3  # s between two calls of `poll` on a server that has been idle for a while
# Errors of the native loop.
_ERRORS = (_native.ProtocolViolation, _native.SharedMemoryError, _native.RecordDifference)
_MAX_SLEEP_US = 1000  # us, longest sleep; reached after a hundred times as long without a record


def _has_limits(table: Table) -> bool:
    """Return True if not each key that is pushed has a row for ever."""
    return isinstance(table, EmbeddingTable) and (
        table.admit is not None or table.evict is not None
    )


def _has_storage(table: Table) -> bool:
    """Return True if some rows of the table may lie in a file."""
    return isinstance(table, EmbeddingTable) and table.storage is not None


def first_bytes(layout: _native.Layout, tables: Sequence[Table], journal: bool) -> int:
    """Return the bytes of shared memory that a new server makes before its first row and record.

    Args:
        layout: Layout of its region.
        tables: All tables of the job.
        journal: The server has a journal.
    """
    n_embedding = sum(isinstance(table, EmbeddingTable) for table in tables)
    rows = 2 * n_embedding * embedding_memory(n_embedding).first
    rows += sum(
        embedding_memory(n_embedding).first * (table.evict is not None or _has_storage(table))
        + sketch_bytes(table.admit)
        for table in tables
        if isinstance(table, EmbeddingTable)
    )
    return layout.total_bytes + rows + (_native.journal_bytes(layout) if journal else 0)


class Server:
    """The shards of one server and the loop that serves them. Not thread-safe.

    Attributes:
        index: Index of the server, 0 .. n_servers-1.
        layout: Positions of mailboxes and dense shards in the region.
        region: The memory that workers see: mailboxes and dense shards.
        core: The native server, which consumes records and owns the shards.
        durability: Durability of its state: what outlives the process, and what the server takes over.
        token: Token of the job, which names its memory.
        threshold_control: Reads the estimates for Reject("auto"); None: no table has this policy.
        bound_control: Decides on the bound of SSP("auto"); None: this server has nothing to decide.
        backup_control: Decides on the number of backup workers of BSP(backup="auto"); None: it is fixed.
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
        clocks_before: int = 0,
    ) -> None:
        """Make region and shards with their initial values, or take them over. Not collective.

        With a journal, one call must follow before `serve`: `begin_journal` on a new server, once its values
        are loaded, or `finish_recovery` on a warm one.

        Args:
            index: Index of the server.
            tables: All tables of the job.
            placement: The parts of tables on each server.
            regions: Makes memory of this job, or reopens it.
            seed: Seed of the job, for initial values.
            oversubscribed: True if the node has more ranks than cores; the server then does not spin.
            progress: Enters MPI and returns the number of messages that it has served; None: no MPI.
            durability: Durability of its state: what outlives the process, and what is taken over.
            clocks_before: Clocks of the run before those that this memory counts.

        Raises:
            ConfigError: There are too many tables, or a shard is too large, for a journal.
            RegionError: /dev/shm is too small; of a warm server: a shared-memory file is missing or in use.
            RecoveryError: The memory of a warm server is not that of a server of these tables that had begun
                to work.
        """
        if durability.journal:
            check_journal(index, tables, placement)
        self.index = index
        self._oversubscribed = oversubscribed
        self._n_entries, self._shortest_entry_s = 0, float("inf")  # into MPI
        self._observes_rows = False
        self._progress = progress or (lambda: 0)
        self.layout = placement.layouts[index]
        self._tables = list(tables)
        # By the index of a table of scales: the index of its table, and the block.
        self._scales = {
            scales: (i, shared_codec(tables[i]).block) for i, scales in scale_tables(tables).items()
        }
        self._regions = regions
        self._row_files: list[Path] = []  # of tables with storage, those that have a name
        self._seed = seed
        self.durability = durability
        self.token = regions.token
        n_embedding = sum(isinstance(table, EmbeddingTable) for table in tables)
        self._sizes = embedding_memory(n_embedding)
        if regions.shared:
            # Count rows, keys and, with a journal, buffers of each table; also region and journal. Without
            # embedding tables these are few files, for which no job shall be refused.
            n_files = 2 + 2 * n_embedding + durability.journal * len(tables)
            n_files += 2 * sum(_has_limits(table) or _has_storage(table) for table in tables)
            allow_open_files(n_files, SPARE_FILES if n_embedding else 0)
        self.region = self._memory("", self.layout.total_bytes)
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
            journal = self._memory("-journal", n_bytes, MOST_RESERVED)
            self.core.use_journal(journal, not durability.warm)
        self.core.set_clocks_before(clocks_before)
        for i, table in enumerate(tables):
            self._add(i, table, placement)
            self.core.set_name(i, table.name)
            self._set_stage(i, table)
        self.switch_control = switch_control(self.core, index, tables)
        if not durability.warm:
            self.core.start()
        else:
            try:
                self.core.attach()
            except _native.RecoveryError as error:
                raise RecoveryError(f"server {index}: {error}") from None
        if self.switch_control is not None:
            self.switch_control.begin()
        self.bound_control = self._make_bound_control()
        self.backup_control = self._make_backup_control()
        self.threshold_control: ThresholdControl | None = None
        if any(estimates_staleness(table.consistency) for table in tables):
            before = (
                thresholds_in_memory(self.region, self.layout, tables) if durability.warm else {}
            )
            self.threshold_control = ThresholdControl(self.core, tables, before)

    def poll_decisions(self) -> list[str]:
        """Take decisions that are due; return lines for people about those that have changed anything."""
        lines = [] if self.threshold_control is None else self.threshold_control.poll()
        if self.switch_control is not None:
            lines += self.switch_control.poll()
        if self.bound_control is not None and (line := self.bound_control.poll()):
            lines.append(line)
        if self.backup_control is not None and (line := self.backup_control.poll()):
            lines.append(line)
        return lines

    @property
    def decides(self) -> bool:
        """True if `poll_decisions` is to be called."""
        controls: tuple[object, ...] = (
            self.bound_control,
            self.backup_control,
            self.threshold_control,
            self.switch_control,
        )
        return any(control is not None for control in controls)

    def _make_bound_control(self) -> BoundControl | None:
        """Make the control of SSP("auto") on server 0; None: it has nothing to decide."""
        table = bound_table(self._tables)
        if self.index != 0 or table is None or self.layout.n_workers == 1:
            return None
        consistency = self._tables[table].consistency
        assert isinstance(consistency, SSP)
        before = bound_in_force(self.region, self.layout, table) if self.durability.warm else 0
        return BoundControl(self.core, table, consistency.most_bound, before)

    def _make_backup_control(self) -> BackupControl | None:
        """Make the control of BSP(backup="auto"); None: the number is fixed, or there is one worker."""
        table = backup_table(self._tables)
        if table is None or self.layout.n_workers == 1:
            return None
        most = min(backup_workers(self._tables), self.layout.n_workers - 1)
        return BackupControl(self.core, table, most, self.durability.warm)

    def _memory(
        self, part: str, n_bytes: int, reserve: int = 0, sparse: bool = False
    ) -> _native.SharedMemory:
        """Make memory of this server, or reopen that of the launch before if the server is warm.

        Args:
            part: End of the name, unique in the server.
            n_bytes: Size, bytes.
            reserve: Address space, bytes, up to which the memory grows without moving.
            sparse: True: pages are allocated only when they are committed.

        Raises:
            RegionError: It cannot be made or reopened.
            RecoveryError: The memory of the launch before is smaller than `n_bytes`.
        """
        name = f"{self.durability.name or f's{self.index}'}{part}"
        if self.durability.warm:
            memory = self._regions.reopen(name, reserve)
            if memory.n_bytes < n_bytes:
                raise RecoveryError(
                    f"server {self.index}: the shared memory {name} has {memory.n_bytes:,} bytes, this job "
                    f"needs {n_bytes:,}: the launch before had other tables or options"
                )
            return memory
        if sparse:
            return self._regions.create_sparse(name, n_bytes)
        return self._regions.create(name, n_bytes, reserve)

    def begin_journal(self) -> None:
        """Begin the journal of a new server, once its values and rows are those with which the job starts.

        From here on the server's state survives a kill.
        """
        self.core.begin_journal()

    def finish_recovery(self, staging: Callable[[int, int], _native.SharedMemory]) -> None:
        """Finish the operation that the process before had begun. Only for a warm server.

        Args:
            staging: Attaches the staging memory of a worker and generation; records in the rings point to it.

        Raises:
            RegionError: Staging memory to which records point is gone, or /dev/shm is full.
            DiskFullError: The disk of a table's storage is full.
            RecoveryError: The operation cannot be finished.
        """
        for worker, generation in self.core.old_staging():
            self.core.set_old_staging(worker, generation, staging(worker, generation))
        try:
            self.core.finish_operation()
        except (_native.RecoveryError, _native.ProtocolViolation) as error:
            raise RecoveryError(f"server {self.index}: {error}") from None
        except _native.SharedMemoryError as error:
            raise self._named(error) from None

    def drop_repeated(self, clocks: Sequence[int], is_copied: bool) -> None:
        """Drop what waits in the workers' rings of clocks that they repeat; see server_recovery.cpp.

        Args:
            clocks: The clock of each worker.
            is_copied: The memory is the copy of a lost server. That server may have applied and acknowledged
                pushes under SSP and ASP which wait here behind those under BSP, and their values count: so
                nothing is dropped where there are such tables.
        """
        if is_copied and not all(isinstance(table.consistency, BSP) for table in self._tables):
            return
        for worker, clock in enumerate(clocks):
            self.core.drop_repeated(worker, clock)

    def _set_stage(self, i: int, table: Table) -> None:
        """Let only the workers of its stage take part in table `i`, if it belongs to one."""
        if table.stage is not None:
            self.core.set_stage(i, table.stage, n_stages(self._tables))

    def _add(self, i: int, table: Table, placement: Placement) -> None:
        """Add table `i` to the core, with its memory; on a new server also the values of a dense part."""
        rule = table.optimizer
        python = rule if isinstance(rule, PythonRule) else None
        optimizer = SGD().native() if isinstance(rule, PythonRule) else rule.native()
        consistency = native(table.consistency, self.layout.n_workers)
        init = table.init
        seed = table_seed(self._seed, table.name)
        codec = native_codec(table)
        if codec is not None:
            self.core.set_codec(i, codec)
        pull_codec = native_pull_codec(table)
        if pull_codec is not None and isinstance(table, EmbeddingTable):
            self.core.set_pull_codec(i, pull_codec)
        if isinstance(table, EmbeddingTable):
            assert isinstance(init, Initializer)
            rows = self._memory(f"-t{i}-rows", self._sizes.first, self._sizes.reserve)
            keys = self._memory(f"-t{i}-keys", self._sizes.first, self._sizes.reserve)
            rows_name = rows.name
            self._buffers(i, self._sizes.buffers)
            self.core.add_embedding(
                i,
                optimizer,
                rule.n_state,
                python,
                consistency,
                table.dim,
                table.row_dtype,
                init.native(seed, *table.fans),
                rows,
                keys,
            )
            self._add_limits(i, table, seed)
            self._add_storage(i, table, rows_name)
            return
        part = next((p for p in placement.dense[table.name] if p.server == self.index), None)
        if part is None:
            self.core.add_absent(i, consistency)
            return
        self._buffers(i, _native.dense_buffer_bytes(part.stop - part.start, self.layout.n_workers))
        if i in self._scales:
            of, block = self._scales[i]
            self.core.add_scales(i, of, block, optimizer, consistency)
        else:
            self.core.add_dense(i, optimizer, rule.n_state, python, consistency)
        if self.durability.warm:
            return
        if isinstance(init, Initializer):
            native_init = init.native(seed, *table.fans)
            self.core.initialize_dense(i, native_init, part.start)
        elif not isinstance(init, str):
            self.core.set_dense(i, init.reshape(-1)[part.start : part.stop])

    def _add_limits(self, i: int, table: EmbeddingTable, seed: int) -> None:
        """Apply the limits of table `i`, if it has any, with memory of their own."""
        if not _has_limits(table):
            return
        uses = counts = None
        if table.evict is not None:
            uses = self._memory(f"-t{i}-uses", self._sizes.first, self._sizes.reserve // 8)
        if sketch_bytes(table.admit):
            counts = self._memory(f"-t{i}-counts", sketch_bytes(table.admit))
        self.core.set_limits(
            i, *native_limits(table.admit, table.evict, table.row_bytes, seed), uses, counts
        )

    def _add_storage(self, i: int, table: EmbeddingTable, rows_name: str) -> None:
        """Let rows of table `i` lie in a file, if it has storage. `rows_name`: name of its memory of rows."""
        if table.storage is None:
            return
        places = self._memory(f"-t{i}-places", self._sizes.first, self._sizes.reserve // 8)
        path = ""
        if self.durability.journal and rows_name:
            path = file_of(table.storage.path, rows_name)
            self._row_files.append(Path(path))
        if not self.durability.warm:
            remove_unused_files(table.storage.path)
        try:
            with as_region_error():
                n_frames = frames(table.storage, table.row_bytes)
                self.core.set_storage(i, table.name, places, n_frames, table.storage.path, path)
        except _native.RecoveryError as error:
            raise RecoveryError(f"server {self.index}: {error}") from None

    def remove_files(self) -> None:
        """Remove the names of the files of rows, at the end of the job; they stay usable for this server."""
        for path in self._row_files:
            path.unlink(missing_ok=True)

    def _buffers(self, i: int, n_bytes: int) -> None:
        """Make the buffers of a table's unfinished pushes and sums outlive this process, with a journal."""
        if self.durability.journal:
            self.core.set_buffers(i, self._memory(f"-t{i}-buffers", n_bytes, sparse=True))

    def drain(self) -> int:
        """Consume all records that can be consumed; return their number.

        Does not return while workers write faster than the server consumes. So it is only for a server whose
        rings are written by this thread, or not at all any more.

        Raises:
            ProtocolError: A worker sent a record that no correct worker sends.
            RegionError: A table cannot grow.
        """
        return self._drain(0.0, 0)

    def _drain(self, max_s: float, max_sleep_us: int) -> int:
        """Consume records, and wait for more, for `max_s` seconds; 0.0: see `drain`. Return their number."""
        try:
            return self.core.drain(max_s, max_sleep_us)
        except _ERRORS as error:
            raise self._named(error) from None

    def _named(self, error: Exception) -> MpipsError:
        """Return an error of the native module as one of mpips that names this server."""
        kinds = {
            _native.StorageFull: DiskFullError,
            _native.ProtocolViolation: ProtocolError,
            _native.SharedMemoryError: RegionError,
            _native.RecordDifference: DifferenceError,
        }
        kind = next(made for native, made in kinds.items() if isinstance(error, native))
        return kind(f"server {self.index}: {error}")

    def serve(self, remote: bool, poll: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Consume records until `stopped` returns True, then what is left in the rings. Blocks.

        Args:
            remote: True if there are remote workers, whose puts and gets need this server to enter MPI.
            poll: Processes control messages and does other short work; returns True if there is more of it.
            stopped: Returns True once all workers have finished.

        Raises:
            ProtocolError: A worker sent a record that no correct worker sends.
            RegionError: A table cannot grow.
        """
        self.core.set_remote_peers(remote)
        if remote:
            return self._serve_remote(poll, stopped)
        slice_s = _IDLE_SLICE_S
        idle_since = time.monotonic()
        more = False
        while not stopped():
            if more:
                # Alternate with other work, whether there are records or not.
                self._drain(_SHARED_SLICE_S, 0)
            elif self._drain(slice_s, _MAX_SLEEP_US):
                idle_since = time.monotonic()
            else:
                # Poll less often after an idle time.
                quiet_s = time.monotonic() - idle_since
                slice_s = _IDLE_SLICE_S if quiet_s < 0.1 else _LONG_SLICE_S
            more = poll()
        self.drain()

    def _consume(self) -> int:
        """Consume records for as long as this server may stay outside MPI, without waiting for more."""
        try:
            return self.core.consume(PROGRESS_INTERVAL_S)
        except _ERRORS as error:
            raise self._named(error) from None

    def _serve_remote(self, poll: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Consume records and enter MPI alternately, without a pause while there is work of either kind.

        MPI does not report that it has served a put or get of a remote worker. But over TCP it sends an
        answer then, which takes longer than an entry that finds nothing, even one after a sleep. So a long
        entry counts as work.
        """
        spin_s = 0.0 if self._oversubscribed else _SPIN_S
        spin_until = idle_since = poll_at = time.perf_counter()
        slow = 0  # number of long entries in a row; a single one may be a lost time slice
        while not stopped():
            consumed = self._consume()
            served, long, left = self._enter_mpi()
            # A message brings records, for which its worker may wait: other work comes after them.
            more = False
            if not served or left > poll_at:
                more = poll()
                poll_at = left + PROGRESS_INTERVAL_S
            slow = slow + long if long else 0
            if consumed or served or slow > 1 or more:
                idle_since = left
            if consumed or served or slow or more:
                spin_until = left + spin_s
            elif left > spin_until:
                # Wait for records, the longer the longer the server has been idle.
                longest = min(_IDLE_SHARE * (left - idle_since), _MAX_IDLE_SLICE_S)
                slice_s = max(PROGRESS_INTERVAL_S, longest)
                self._drain(slice_s, int(slice_s * 1e6))
            else:
                os.sched_yield()
        self.drain()

    def _enter_mpi(self) -> tuple[int, int, float]:
        """Enter MPI once, and again while entries take long, which means that bytes still arrive.

        It ends when a message is served or PROGRESS_INTERVAL_S is over.

        Returns:
            The number of messages served, the number of long entries, and the time after the last entry
            (time.perf_counter).
        """
        start = entered = time.perf_counter()
        long = 0
        while True:
            served = self._progress()
            left = time.perf_counter()
            took = left - entered
            self._n_entries += 1
            self._shortest_entry_s = min(self._shortest_entry_s, took)
            is_known = self._n_entries > _MANY_ENTRIES
            if took <= max(_SERVED_S, _SERVED_TIMES * self._shortest_entry_s * is_known):
                return served, long, left
            long += 1
            if served or left - start > PROGRESS_INTERVAL_S:
                return served, long, left
            entered = left

    def hold_bound(self) -> None:
        """Take no decisions on the bound of SSP("auto"): this launch repeats a recorded one."""
        self.bound_control = None

    def figures(self) -> Figures:
        """Return this server's counts since its start, for a heartbeat. Cheap; call it between drains."""
        found = heartbeat.figures(self.core, self._tables, self.region.n_bytes)
        if self._observes_rows:
            found.rows = heartbeat.hot_rows(self.core, len(self._tables))
        if self.bound_control is not None:
            found.bound = self.bound_control.bound
        if self.backup_control is not None:
            found.backup = self.backup_control.backup
        if self.switch_control is not None:
            found.switched = int(self.switch_control.has_switched)
        return found

    def observe_rows(self) -> None:
        """Find from here on which rows are pushed and pulled most, for `figures`."""
        self._observes_rows = True
        self.core.observe_rows()

    def statistics(self) -> dict[str, Any]:
        """Return this server's statistics since its start, as plain numbers."""
        control = self.bound_control
        decided = {} if control is None else {"bounds": [list(d) for d in control.decisions]}
        if self.backup_control is not None:
            decided["backups"] = [list(d) for d in self.backup_control.decisions]
        if self.switch_control is not None and self.switch_control.decision is not None:
            decided["switch"] = [list(self.switch_control.decision)]
        return {
            "server": self.index,
            "counters": self.core.counters(),
            "tables": {
                table.name: self._table_statistics(i, table) for i, table in enumerate(self._tables)
            },
            **decided,
        }

    def _table_statistics(self, i: int, table: Table) -> dict[str, Any]:
        """Return the statistics of one table."""
        result: dict[str, Any] = dict(self.core.stats(i))
        result["version"] = self.core.version(i)
        if isinstance(table, EmbeddingTable):
            result["rows"] = self.core.n_rows(i)
            result["memory_bytes"] = self.core.memory_bytes(i)
        return result
