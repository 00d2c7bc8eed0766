"""Write a checkpoint with all servers, in short steps.

The file has whole tables or, in a link of a chain, the changes since the previous checkpoint
(`mpips.checkpoint.changes`). The servers decide this together after the first exchange.

Phases. After each phase except `write` the servers agree, so that all raise the same error or none does:

1. hello     Each server checks its shards and sends their description; all servers make the same plan.
2. prepare   Server 0 takes the folder's lock, removes what failed writers have left, makes a temporary folder
             and in it the HDF5 file with its structure.
3. open      Each server checks that it can open the file. After an agreement, all open it.
4. write     The tables are written one after the other, in rounds of one bounded block for each server.
5. close     Each server waits until its part is on the disk. After an exchange, all close the file.
6. publish   Server 0 writes the manifest, makes everything durable and renames the folder.

A server stores a failure inside a phase, and continues to take part in the phase without writing, until the
next agreement. A failure in `write` is raised at the agreement of `close`. The servers make collective calls
of HDF5 only directly after an agreement or an exchange, when all of them have come to the call.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint import folder as folders
from mpips.checkpoint import worker_files
from mpips.checkpoint.agreement import Agreement
from mpips.checkpoint.changes import (
    Increment,
    LinkRows,
    can_continue,
    common_place,
    describe,
    link_of,
    plan_link,
    sizes,
    stored_rows,
)
from mpips.checkpoint.info import CheckpointInfo
from mpips.checkpoint.manifest import (
    CHANGES,
    DTYPES,
    MOST_APPLIED,
    STATE,
    Link,
    LinkRef,
    Manifest,
    Piece,
    TableEntry,
)
from mpips.checkpoint.plan import (
    BLOCK_BYTES,
    ChainEnd,
    Hello,
    TablePlan,
    describe_shards,
    plan_tables,
)
from mpips.checkpoint.reader import Example, open_data
from mpips.checkpoint.record import (
    PieceSums,
    Prepared,
    check_file,
    make_manifest,
    mpips_version,
    prepared_from_plain,
    prepared_to_plain,
    with_offsets,
    with_pieces,
    write_manifest,
)
from mpips.checkpoint.shards import (
    DenseShardData,
    EmbeddingShardData,
    ManifestHead,
    ServerState,
    ShardData,
    check_shards,
)
from mpips.checkpoint.sinks import ParallelSink, PosixSink, Sink
from mpips.checkpoint.sorting import RowExchange
from mpips.checkpoint.steps import Peers, Steps, finish, in_background
from mpips.checkpoint.structure import create_file, hdf5_kind
from mpips.errors import CheckpointError, DiskFullError
from mpips.process.memory import free_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

_SHM = Path("/dev/shm")
_RESERVE = 0.05  # part of the node's memory that a checkpoint in shared memory leaves free
_STRUCTURE_BYTES = 1 << 18  # bytes, more than the structure of the file needs
SWITCH = "MPIPS_MPI_IO"  # environment variable; "0" on any server: no server writes through MPI-IO


class CheckpointWriter:
    """The writer of one checkpoint. Every server makes one and runs its `steps` to their end.

    Attributes:
        info: Description of the written checkpoint; set when `steps` has ended.
    """

    info: CheckpointInfo

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        folder: Path,
        head: ManifestHead,
        shards: Sequence[ShardData],
        server: ServerState | None = None,
        *,
        parallel: bool | None = None,
        timeout_s: float = 300.0,
        block_bytes: int = BLOCK_BYTES,
        may_publish: Callable[[], None] | None = None,
        example: Example | None = None,
        finished: Path | None = None,
        increment: Increment | None = None,
    ) -> None:
        """Make the writer. Local; `steps` does the work.

        Args:
            comm: All servers, in order; nothing else may use it until the end. None: this process alone.
            folder: The run's `checkpoints` folder, visible to all servers; made if missing.
            head: Description of the job.
            shards: Shards of this server; they must not change until the end.
            server: State of this server.
            parallel: True: write through MPI-IO, or raise an error; False: by system calls; None: through
                MPI-IO if h5py supports it on all servers and the environment (`SWITCH`) allows it. The
                files have the same bytes.
            timeout_s: Time limit of a wait for other servers, seconds.
            block_bytes: Bytes of a block: the most that one step writes and that is held in memory at once.
            may_publish: Called on server 0 directly before the checkpoint gets its name; raises
                CheckpointError if the checkpoint must not be published.
            example: Called on server 0 in the background when all data is in the file, with the checkpoint
                before it has its name, and the arrays beside the tables; returns `Manifest.example`.
            finished: Folder with the images of workers that have finished; None: `folder`.
            increment: Changes of `shards` since the previous checkpoint. The servers write a link if all of
                them have an increment of the same chain, its last checkpoint can be opened, and at most
                `changes.MOST_CHANGED` of all bytes have changed. None: write whole tables.
        """
        self._peers = Peers(comm, timeout_s, f"the checkpoint of step {head.step}")
        self._folder = folder
        self._head = head
        self._shards = list(shards)
        self._server = server or ServerState()
        self._parallel = parallel
        self._block_bytes = block_bytes
        self._may_publish = may_publish
        self._finished = finished
        self._example = example
        sentence = f"the checkpoint of step {head.step} was not written to {folder}"
        self._all = Agreement(self._peers, sentence)
        self._sums: dict[str, PieceSums] = {}
        self._temporary: Path | None = None
        self._lock: folders.FolderLock | None = None
        self._removed: list[str] = []
        self._sink: Sink | None = None
        self._increment = increment
        # Rows of this server in a link, by name of the link's table.
        self._stored: dict[str, LinkRows] = {}
        # Last checkpoint of the chain that the file continues; None: the file has whole tables.
        self._place: ChainEnd | None = None

    def steps(self) -> Iterator[bool]:
        """Write the checkpoint in bounded steps: yield True after work, False while it waits for others.

        Collective over all servers; each runs its steps at its own pace. It blocks only where all servers
        together open and close the file.

        Raises:
            CheckpointError: The checkpoint was not written; raised on all servers. Nothing of it remains,
                unless only the last step failed, which makes the published name durable.
            StallError: Another server did not come in time.
        """
        started = time.monotonic()
        try:
            path, n_bytes, notes, xxh3 = yield from self._write()
        finally:
            if self._sink is not None:
                self._sink.abandon()
            self._tidy_up()
        seconds = time.monotonic() - started
        self.info = CheckpointInfo(
            path,
            self._head.step,
            n_bytes,
            seconds,
            tuple(notes),
            tuple(self._removed),
            self._end(path, xxh3),
        )

    def _end(self, path: Path, xxh3: str) -> ChainEnd:
        """Return the place of the written checkpoint in its chain."""
        last = LinkRef(path.name, self._head.step, xxh3)
        before = self._place
        if before is None:
            return ChainEnd(0, last, last)
        return ChainEnd(before.index + 1, before.base, last)

    def _write(self) -> Steps[tuple[Path, int, list[str], str]]:
        # Make the same plan on all servers, and the file on server 0.
        hellos = yield from self._meet()
        use_mpi = self._all.attempt(lambda: self._choose(hellos))
        plans = self._all.attempt(lambda: plan_tables(self._head, hellos, self._block_bytes))
        whole = [plan.entry for plan in plans or []]
        self._place = common_place(hellos)
        if self._place is not None:
            plans = plan_link(whole, hellos, self._block_bytes)
        prepared = yield from self._prepare(plans or [])
        assert plans is not None
        assert use_mpi is not None
        plans = [replace(p, entry=e) for p, e in zip(plans, prepared.tables, strict=True)]
        yield from self._open(prepared, use_mpi)
        # Write all tables, close the file, and publish the folder.
        for plan in plans:
            yield from (self._write_rows(plan) if plan.is_embedding else self._write_dense(plan))
        pieces = yield from self._close()
        tables = with_pieces(prepared.tables, pieces)
        link = None
        if self._place is not None:
            tables, link = whole, link_of(self._place, tables)
        path, notes, xxh3 = yield from self._publish(prepared, hellos, tables, link)
        return path, prepared.n_bytes, notes, xxh3

    def _tidy_up(self) -> None:
        """Remove what is not published, and release the lock, on server 0."""
        if self._lock is None:
            return
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._lock.release()

    def _meet(self) -> Steps[list[Hello]]:
        self._all.attempt(lambda: check_shards(self._head, self._shards))
        kind = hdf5_kind()
        off = self._parallel is None and os.environ.get(SWITCH) == "0"
        if kind == "parallel" and (off or self._parallel is False):
            kind = "serial"
        shards = self._all.attempt(lambda: describe_shards(self._peers.rank, self._shards))
        place, changed_bytes, total_bytes = None, 0, 0
        if self._increment is not None and self._all.failure is None:
            place = yield from in_background(self._find_place)
            changed_bytes, total_bytes = sizes(self._shards, self._increment)
        run = (self._head.run_id, self._head.generation, self._head.step)
        few = len(self._server.applied) * self._peers.size <= MOST_APPLIED
        applied = [int(number) for number in self._server.applied] if few else []
        hello = Hello(
            run=run,
            hdf5=kind,
            shards=shards or {},
            applied=applied,
            bound=self._server.bound,
            backup=self._server.backup,
            thresholds=dict(self._server.thresholds),
            switch=self._server.switch,
            place=place,
            stored=describe(self._peers.rank, self._stored),
            changed_bytes=changed_bytes,
            total_bytes=total_bytes,
        )
        plain = yield from self._all.meet(msgspec.to_builtins(hello))
        return msgspec.convert(plain, list[Hello])

    def _find_place(self) -> ChainEnd | None:
        """Return the place that a link can continue, and prepare what this server writes into it."""
        assert self._increment is not None
        place = self._increment.place
        if self._peers.rank == 0 and not can_continue(self._folder, place):
            return None
        try:
            self._stored = stored_rows(self._shards, self._increment)
        except MemoryError:
            return None
        return place

    def _choose(self, hellos: Sequence[Hello]) -> bool:
        """Return True if all servers write through MPI-IO; the result, or the error, is the same on all."""
        kinds = [hello.hdf5 for hello in hellos]
        if kinds[0] == "none":
            raise CheckpointError("writing a checkpoint needs h5py on server 0: pip install h5py")
        parallel = self._peers.size > 1 and set(kinds) == {"parallel"}
        if self._parallel and self._peers.size > 1 and not parallel:
            raise CheckpointError(
                f"parallel writing needs h5py with MPI on all servers, not {kinds}; install the same "
                "environment on all hosts"
            )
        return parallel

    def _prepare(self, plans: Sequence[TablePlan]) -> Steps[Prepared]:
        mine = None
        if self._peers.rank == 0 and self._all.failure is None:
            # Run in the background, because it waits for the disk. HDF5 writes to memory here, without MPI.
            try:
                made = yield from in_background(lambda: self._make_file(plans))
                mine = prepared_to_plain(made)
            except Exception as error:
                self._all.keep(error)
        yield True
        everyone = yield from self._all.meet(mine)
        return prepared_from_plain(everyone[0])

    def _make_file(self, plans: Sequence[TablePlan]) -> Prepared:
        """Make the temporary folder and the file without data, on server 0."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            folders.sync_folder(self._folder.parent)
        self._lock = folders.FolderLock(self._folder)
        self._removed = folders.sweep(self._folder)
        worker_files.sweep(self._folder, self._head.workers)
        attached = sum(array.nbytes for array in self._head.attachments.values())
        self._check_space(attached + sum(e.n_bytes for plan in plans for e in plan.entry.datasets))
        self._temporary = folders.make_temporary(self._folder, self._head.step)
        name = STATE if self._place is None else CHANGES
        path, entries = self._temporary / name, [plan.entry for plan in plans]
        made = create_file(path, self._head, entries, mpips_version(), self._place)
        tables = with_offsets(plans, made.offsets)
        return Prepared(self._temporary, made.n_bytes, made.structure_xxh3, tables, name)

    def _check_space(self, n_bytes: int) -> None:
        """Raise early if there is clearly no room; a quota or another program may still use up the room.

        Raises:
            DiskFullError: The file system has too few free bytes.
        """
        system = os.statvfs(self._folder)
        free = system.f_bavail * system.f_frsize
        if self._folder.parent == _SHM:
            # Its pages are memory of this node.
            left, total = free_bytes()
            free = max(0, min(free, left - int(_RESERVE * total))) if total else free
            if free < n_bytes + _STRUCTURE_BYTES:
                raise DiskFullError(
                    f"there is too little memory: {n_bytes:,} bytes are needed, {free:,} may be used"
                )
        if free < n_bytes + _STRUCTURE_BYTES:
            raise DiskFullError(
                f"the disk is too full: {n_bytes:,} bytes are needed, {free:,} are free; free space, or "
                "run `mpips ckpt prune`"
            )

    def _open(self, prepared: Prepared, use_mpi: bool) -> Steps[None]:
        kind = ParallelSink if use_mpi else PosixSink
        datasets = [entry for table in prepared.tables for entry in table.datasets]
        path = prepared.folder / prepared.file
        self._sink = self._all.attempt(lambda: kind(self._peers, path, datasets))
        yield from self._all.meet()
        assert self._sink is not None
        self._all.attempt(self._sink.open)
        yield from self._all.meet()

    def _write_dense(self, plan: TablePlan) -> Steps[None]:
        mine = [s for s in self._shards if isinstance(s, DenseShardData) and s.table == plan.name]
        for number in range(plan.n_rounds):
            block = plan.block(self._peers.rank, number)
            columns: dict[str, NDArray[Any]] = {}
            if block is not None:
                columns = _elements(mine, *block)
            yield from self._put(plan, block, columns)

    def _write_rows(self, plan: TablePlan) -> Steps[None]:
        if self._place is not None:
            stored = self._stored.get(plan.name)
        else:
            mine = [
                LinkRows(s)
                for s in self._shards
                if isinstance(s, EmbeddingShardData) and s.table == plan.name
            ]
            stored = mine[0] if mine else None
        shard, places = (None, None) if stored is None else (stored.shard, stored.places)
        exchange = RowExchange(self._peers, plan, shard, places)
        yield from exchange.prepare()
        for number in range(plan.n_rounds):
            block = plan.block(self._peers.rank, number)
            columns: dict[str, NDArray[Any]] = {}
            try:
                columns = yield from exchange.move(number)
            except CheckpointError as error:
                self._all.keep(error)
            yield from self._put(plan, block, columns)

    def _put(
        self, plan: TablePlan, block: tuple[int, int] | None, columns: dict[str, NDArray[Any]]
    ) -> Steps[None]:
        """Write one block of all datasets of a table; a server without a block takes part as well."""
        assert self._sink is not None
        for entry in plan.entry.datasets:
            data = None
            if block is not None and self._all.failure is None:
                # Convert to the file's byte order; on little-endian machines no copy is made.
                data = np.ascontiguousarray(columns[entry.role], DTYPES[entry.dtype])
            start = 0 if block is None else block[0]
            try:
                if data is not None:
                    self._sums.setdefault(entry.path, PieceSums()).add(start, data)
                yield from self._sink.write(entry, start, data)
                _native.fault_point("block-written")
            except Exception as error:
                self._all.keep(error)

    def _close(self) -> Steps[list[dict[str, list[Piece]]]]:
        assert self._sink is not None
        if self._all.failure is None:
            try:
                yield from self._sink.finish()
            except Exception as error:
                self._all.keep(error)
        # Wait for all servers, because closing is collective.
        yield from self._peers.exchange(None)
        sink, self._sink = self._sink, None
        try:
            sink.close()
        except Exception as error:
            self._all.keep(error)
        pieces = {path: sums.close() for path, sums in self._sums.items()}
        everyone = yield from self._all.meet(msgspec.to_builtins(pieces))
        return msgspec.convert(everyone, list[dict[str, list[Piece]]])

    def _publish(
        self,
        prepared: Prepared,
        hellos: Sequence[Hello],
        tables: Sequence[TableEntry],
        link: Link | None,
    ) -> Steps[tuple[Path, list[str], str]]:
        published: tuple[Path, list[str], str] | None = None
        if self._peers.rank == 0:
            # Run in the background, because it waits for the disk.
            try:
                manifest = make_manifest(self._head, hellos, prepared, tables, link)
                published = yield from in_background(lambda: self._commit(prepared, manifest))
            except Exception as error:
                self._all.keep(error)
        mine = None if published is None else [str(published[0]), *published[1:]]
        everyone = yield from self._all.meet(mine)
        path, notes, xxh3 = everyone[0]
        return Path(path), notes, xxh3

    def _commit(self, prepared: Prepared, manifest: Manifest) -> tuple[Path, list[str], str]:
        check_file(prepared.folder / prepared.file, prepared)
        notes = []
        if self._example is not None:
            with open_data(prepared.folder, manifest) as written:
                found = self._example(written, self._head.attachments)
            manifest = msgspec.structs.replace(manifest, example=found)
            notes = [f"no example: {found['absent']}"] if "absent" in found else []
        workers = worker_files.adopt(
            self._folder, prepared.folder, manifest.workers, self._finished
        )
        manifest = msgspec.structs.replace(manifest, workers=workers)
        if manifest.link is not None:
            # No process removes checkpoints while this one has the lock, but one may have done so before.
            open_data(prepared.folder, manifest).close()
        xxh3 = write_manifest(prepared.folder, manifest)
        folders.sync_folder(prepared.folder)
        _native.fault_point("synced")
        if self._may_publish is not None:
            self._may_publish()
        path = folders.publish(prepared.folder, self._head.step)
        _native.fault_point("named")
        # Keep the folder from here on: it is a checkpoint, even if the link cannot be set.
        self._temporary = None
        worker_files.remove(self._folder, self._head.workers)
        try:
            folders.point_latest(path)
        except OSError as error:
            return path, [*notes, f"{folders.LATEST!r} could not be set: {error.strerror}"], xxh3
        return path, notes, xxh3


def write_checkpoint(
    comm: MPI.Intracomm | None,
    folder: Path,
    head: ManifestHead,
    shards: Sequence[ShardData],
    server: ServerState | None = None,
    **options: Any,
) -> CheckpointInfo:
    """Write a checkpoint and return its description. Collective over all servers, blocking.

    Arguments and errors are those of `CheckpointWriter`.
    """
    writer = CheckpointWriter(comm, folder, head, shards, server, **options)
    finish(_drive(writer))
    return writer.info


def _drive(writer: CheckpointWriter) -> Steps[None]:
    yield from writer.steps()


def _elements(shards: Sequence[DenseShardData], start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Return elements [start, stop), by role, from the shard that contains them."""
    for shard in shards:
        if shard.start <= start < shard.start + len(shard.values):
            part = slice(start - shard.start, stop - shard.start)
            states = {f"state/{name}": array[part] for name, array in shard.state.items()}
            return {"values": shard.values[part], **states}
    raise AssertionError(f"no shard has elements {start} to {stop}")
