"""A server's part in snapshots: the copy at a cut, the writing of the copy, and the checkpoint at the end.

`mpips.snapshot` describes the protocol. The server's loop calls `poll` between two drains of its rings, so
everything here happens in one thread. Two kinds of work run step by step: the allocation of memory for the
copy, and the writing of a checkpoint. A copy ends the first kind. It cannot come during the second, because
the coordinator begins no cut before all servers have sent `Saved`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips import _native
from mpips.checkpoint import (
    CheckpointInfo,
    CheckpointWriter,
    ManifestHead,
    ServerState,
    plan,
    residuals,
    retain,
    worker_files,
)
from mpips.checkpoint.changes import MOST_LINKS, Increment
from mpips.checkpoint.folding import ChainFolding
from mpips.checkpoint.manifest import ImageFile
from mpips.checkpoint.plan import ChainEnd
from mpips.checkpoint.position import PositionPart, decode_part
from mpips.checkpoint.shards import ShardData
from mpips.checkpoint.steps import abandon, drive, in_background
from mpips.checkpoint.structure import hdf5_kind
from mpips.errors import CheckpointError, DiskFullError, MpipsError
from mpips.model.best_value import BestValue
from mpips.model.grouping import Groups
from mpips.model.placement import Placement
from mpips.model.table import Table
from mpips.mpi.messages import (
    LAST,
    Abandon,
    Attachment,
    Commit,
    Message,
    Saved,
    Taken,
    ToServer,
    Write,
)
from mpips.process.patience import Patience
from mpips.recovery.memory import worker_states
from mpips.recovery.saving import Saving
from mpips.rundir.directory import Supervised
from mpips.server.server import Server
from mpips.snapshot.attachments import Attachments
from mpips.snapshot.copy import ServerCopy, shards_in_place

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL_BLOCK_BYTES = 1 << 20  # bytes that one step between drains writes; a record waits that long
_SERVED_SHARE = 3.0  # pause after a step while records arrive, as a multiple of the step's time
_LONGEST_PAUSE_S = 0.05  # s, limit of that pause
# s, pauses before the last checkpoint is tried again: after a failure, and on a full disk
_TRIES_S = (0.5, 1.0, 2.0, 4.0)
_FULL_S = 2.0
_POLL_S = 0.005  # s between two calls of other work during these pauses
_CHECK_S = 0.1  # s between two checks that the memory for the copy is large enough


class ServerPart:
    """The snapshots of one server. Not thread-safe.

    Collective: the parts of all servers write together, each from its own server's loop. No method raises
    MpipsError: errors go to the coordinator or into `result`.

    Attributes:
        result: The checkpoint at the end of the job: {"path", "bytes", "seconds", "notes"} if it was written,
            {"error"} if not; None before.
        cuts: The cost of cuts on this server: "copies", their number; "longest_copy_s" and "longest_hold_s",
            the longest copy and the longest time for which rings were held, seconds.
    """

    def __init__(
        self,
        saving: Saving,
        server: Server,
        placement: Placement,
        tables: Sequence[Table],
        n_workers: int,
        comm: MPI.Intracomm | None,
        timeout_s: float,
        send: Callable[[Message], None],
        run: Supervised | None = None,
        groups: Groups = (),
        grouped: Collection[str] = (),
        on_copy: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare the part. Blocks to allocate memory for the copy if there are periodic checkpoints.

        Args:
            saving: Folder, start and triggers of the job's checkpoints.
            server: The server whose shards are saved.
            placement: The parts of tables on each server.
            tables: All tables of the job.
            n_workers: Number of workers.
            comm: Communicator of all servers, in order; carries nothing else while a checkpoint is written.
                None: this is the only server.
            timeout_s: Longest wait for other servers, seconds. A cut is given up after half of it.
            send: Sends a message to the coordinator; returns at once.
            run: The supervised run of which this launch is an attempt; None: there is no supervisor.
            groups: Workers of each group whose updates are summed before they are sent.
            grouped: Names of the dense tables whose updates groups sum.
            on_copy: Called when the server has copied its shards at a cut, before anyone learns of it.
        """
        self._on_copy = on_copy
        self._groups, self._grouped = groups, grouped
        self._saving = saving
        self._server = server
        self._placement = placement
        self._tables = list(tables)
        self._n_workers = n_workers
        self._comm = comm
        self._timeout_s = timeout_s
        self._send = send
        self._run = run
        self._incremental = saving.triggers.incremental
        self._folding: ChainFolding | None = None
        if saving.triggers.compact and server.index == 0 and saving.folder is not None:
            self._folding = ChainFolding(saving.folder, self._incremental)
        self._server_copy = ServerCopy(server, placement, tables, self._incremental > 1)
        # Place in a chain of the checkpoint that was written from the last copy; None: the next one is whole.
        self._place: ChainEnd | None = None
        self._attachments = Attachments(saving.attached)
        self._id = 0  # number of the cut under way; 0: there is none
        self._held: Patience | None = None  # since its first record; None: no record has come
        self._best: BestValue | None = None  # mark of its checkpoint
        self._exchange: Path | None = None  # where it is written in shared memory; None: it is not
        self._cannot_copy = 0  # number of the last cut for whose copy there was no memory
        self._writer: CheckpointWriter | None = None  # from the copy to the end of writing
        self._parts: list[PositionPart] = []  # positions of the workers at the cut, by worker
        self._work: Iterator[object] | None = None  # work that is done step by step
        self._next_check = 0.0  # monotonic s
        self._pause_until = 0.0  # monotonic s before which no step is done
        self._records = 0  # records that were consumed before the last step
        # True: memory for the copy is allocated before a cut. Set by the first cut at the latest.
        self._ahead = bool(saving.triggers.every_steps or saving.triggers.every_s)
        # The last checkpoint that was written, and the positions of the workers in it.
        self._last: tuple[list[PositionPart], CheckpointInfo] | None = None
        self._waits = ""  # error for which the last checkpoint is tried again; "": none
        self.result: dict[str, Any] | None = None
        self.cuts: dict[str, Any] = {"copies": 0, "longest_copy_s": 0.0, "longest_hold_s": 0.0}
        if saving.folder is not None:
            # Load HDF5 and allocate memory now, while no ring is held.
            hdf5_kind()
            for _ in self._server_copy.make_room() if self._ahead else ():
                pass

    def take(self, message: ToServer) -> None:
        """Process a message of the coordinator."""
        if isinstance(message, Attachment):
            self._attachments.take(message)
        elif isinstance(message, Commit):
            self._id, self._held, self._best = message.id, None, message.best
            self._exchange = Path(message.folder) if message.folder else None
            self._ahead = True
            self._server.core.expect_cut(message.id)
        elif isinstance(message, Abandon):
            self._server.core.release_cut(message.id)
            self._id, self._writer, self._best, self._exchange = 0, None, None, None
            self._server_copy.release()
            self._send(Saved(message.id, "", "given up"))
        elif isinstance(message, Write) and self._writer is not None:
            self._work = self._write(self._writer, message.id)

    def poll(self) -> bool:
        """Do one bounded step of the work; return True if there is more to do.

        Blocks for one copy of the shards when all rings are held at a cut.
        """
        # After a copy consume records first: the rings have been held.
        if self._id and self._writer is None and self._come_to_cut():
            return True
        if self._work is not None:
            self._step(self._work)
        elif self._ahead and self._writer is None:
            self._check_room()
        return self._work is not None

    def _step(self, work: Iterator[object]) -> None:
        """Do one step of work, then pause if records were consumed since the last one."""
        start = time.monotonic()
        if start < self._pause_until:
            return
        records = self._server.core.counters()["records"]
        if next(work, None) is None:
            self._work = None
        end = time.monotonic()
        pause_s = min(_SERVED_SHARE * (end - start), _LONGEST_PAUSE_S)
        self._pause_until = end + (pause_s if records != self._records else 0.0)
        self._records = records

    def _check_room(self) -> None:
        """Begin to allocate memory for the copy if it is missing. Checks rarely."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_S
            if self._server_copy.lacks_room():
                self._work = (True for _ in self._server_copy.make_room())

    def _come_to_cut(self) -> bool:
        """Copy the shards if all rings are held at the cut; return True if they were copied.

        If they are not all held in time, report that to the coordinator.
        """
        core = self._server.core
        if self._held is None and core.holds_cut():
            # A worker that waits for a held ring fails after `timeout_s`, so report it well before.
            self._held = Patience(self._timeout_s / 2)
        if core.cut_ready() and self._cannot_copy != self._id:
            _native.fault_point("cut-held")
            self._copy()
            return True
        if self._held is not None and self._held.is_over:
            self._held = None
            self._send(Taken(self._id, False))
        return False

    def _copy(self) -> None:
        """Copy the shards, release the rings, and report the copy. All rings are held."""
        core = self._server.core
        start = time.monotonic()
        # Stop a step-by-step allocation: the copy allocates what is missing.
        self._work = None
        # The copy is in no checkpoint until it has been written.
        place, self._place = self._place, None
        try:
            shards = self._server_copy.copy()
        except MemoryError:
            # Rings stay held until the coordinator's Abandon; do not try again until then.
            self._held = None
            self._cannot_copy = self._id
            why = f"server {self._server.index} has no memory for the copy of its shards"
            self._send(Taken(self._id, False, why))
            return
        _native.fault_point("cut-copied")
        # Read the workers' positions before the rings are released: later they belong to other records.
        self._writer = self._make_writer(
            shards, self._id, SMALL_BLOCK_BYTES, self._increment(place)
        )
        self._parts = self._positions()
        core.release_cut(self._id)
        end = time.monotonic()
        cuts = self.cuts
        cuts["copies"] += 1
        held_s = self._held.age_s if self._held is not None else 0.0
        cuts["longest_copy_s"] = max(cuts["longest_copy_s"], round(end - start, 6))
        cuts["longest_hold_s"] = max(cuts["longest_hold_s"], round(held_s, 6))
        self._on_copy()
        self._send(Taken(self._id, True))

    def _write(self, writer: CheckpointWriter, number: int) -> Iterator[object]:
        """Write the copy step by step, remove old checkpoints, and report the end of the cut."""
        path, error, note = "", "", ""
        try:
            yield from self._await_attachments()
            yield from writer.steps()
        except (MpipsError, OSError) as failure:
            error = str(failure)
            # The next checkpoint is whole, and the disk may be full of what the process has written.
            if self._folding is not None:
                yield from in_background(self._folding.close)
        else:
            path = str(writer.info.path)
            # An exchange is no checkpoint: it ends with the start-up of the next launch.
            if self._exchange is None:
                self._last = self._parts, writer.info
                self._place = writer.info.place
                # Remove in the background: the removal of large files takes as long as a training step.
                note = yield from in_background(lambda: self._follow(writer.info))
        self._id, self._writer, self._best, self._exchange = 0, None, None, None
        self._server_copy.release()
        self._send(Saved(number, path, error, note))

    def _increment(self, place: ChainEnd | None) -> Increment | None:
        """Return the changes since the previous checkpoint; None: the next one has whole tables.

        The best checkpoint and an exchange are whole, because they are read without the chain.

        Args:
            place: Place of the previous checkpoint in its chain; None: it was not written.
        """
        changed = self._server_copy.changed
        if place is None or changed is None:
            return None
        if self._is_long(place):
            return None
        if self._folding is not None:
            place = self._folding.continued(place)
        if self._best is not None or self._exchange is not None:
            return None
        return Increment(place, changed)

    def _is_long(self, place: ChainEnd) -> bool:
        """Return True if no link can continue the chain of a place.

        Where chains are made whole in the background, server 0 alone has their lengths. Servers write whole
        tables if one of them cannot continue.
        """
        if not self._saving.triggers.compact:
            return place.index + 1 >= self._incremental
        if self._folding is None:
            return False
        longest = max(self._incremental, min(2 * self._incremental, MOST_LINKS))
        return self._folding.length(place) >= longest

    def _await_attachments(self) -> Iterator[object]:
        """Wait on server 0 until the arrays beside the tables are there; see `Attachments.awaited`."""
        return iter(()) if self._server.index else self._attachments.awaited(self._timeout_s / 2)

    def _positions(self) -> list[PositionPart]:
        """Return the positions of all workers at their last cut records, by worker."""
        return [decode_part(self._server.core.position_text(w)) for w in range(self._n_workers)]

    def _follow(self, info: CheckpointInfo) -> str:
        """Fold the chain if that is due, and remove old checkpoints, on server 0; return failures, or ""."""
        notes = []
        if self._folding is not None:
            self._folding.written(info.place)
            if self._folding.failure:
                notes.append(
                    f"the chain of {info.path} could not be made whole: {self._folding.failure} (it can "
                    "still be read; try `mpips ckpt compact` later)"
                )
                self._folding.failure = ""
        notes.append(self._retain(info.path))
        return "; ".join(note for note in notes if note)

    def _retain(self, written: Path) -> str:
        """Remove old checkpoints after this one was written, on server 0; return the failure, or "".

        After a failure the new checkpoint is still durable, so the failure is a note and not an error.
        """
        if self._server.index != 0:
            return ""
        assert self._saving.folder is not None
        try:
            retain(self._saving.folder, self._saving.retention)
        except (MpipsError, OSError) as failure:
            return (
                f"{written} was written, but older checkpoints could not be removed: {failure} "
                "(try `mpips ckpt prune` later)"
            )
        return ""

    @property
    def state(self) -> str:
        """The activity of this part, for the server's heartbeats; "": none."""
        if self._waits:
            return "waiting to write the last checkpoint"
        if self._writer is not None:
            return "writing a checkpoint"
        return "waiting for the cut of a checkpoint" if self._id else ""

    def save(self, between: Callable[[], object]) -> None:
        """Write the checkpoint at the end of the job, and set `result`. Collective over all servers; blocks.

        All workers must have finished. Without a folder for checkpoints nothing happens. In a supervised run
        the servers wait for a full disk without limit, and try again a few times after other failures,
        because nothing else holds their shards. All servers get the same errors, so they try again together.

        Args:
            between: Called between bounded steps; does other work of this rank.
        """
        if self._saving.folder is None:
            return
        # The last checkpoint is whole.
        if self._folding is not None:
            self._folding.close()
        pauses = iter(_TRIES_S if self._run is not None else ())
        while True:
            try:
                info, note = self._save(between)
                break
            except DiskFullError as error:
                failure, pause_s = str(error), _FULL_S if self._run is not None else None
            except CheckpointError as error:
                failure, pause_s = str(error), next(pauses, None)
            except MpipsError as error:
                failure, pause_s = str(error), None
            if pause_s is None:
                self.result = {"error": failure}
                return
            self._wait(failure, pause_s, between)
        self._waits = ""
        if self._server.index == 0:
            worker_files.discard(self._saving.folder)
        self.result = {
            "path": str(info.path),
            "bytes": info.n_bytes,
            "seconds": round(info.seconds, 3),
            "notes": [*info.notes, *([note] if note else [])],
        }

    def _wait(self, why: str, pause_s: float, between: Callable[[], object]) -> None:
        """Pause before the last checkpoint is tried again; server 0 reports the first reason."""
        if not self._waits and self._server.index == 0:
            self._send(Saved(LAST, "", why))
        self._waits = why
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            between()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Give up the checkpoint that is being written, if there is one. Local; no effect when repeated.

        Removes what is not published and releases the lock of the folder, because the process may go on and
        run other jobs. Blocks until the disk has done what it was asked for.
        """
        work, self._work = self._work, None
        abandon(work)
        if self._folding is not None:
            self._folding.close()

    def statistics(self) -> dict[str, Any]:
        """Return the entries of this part in the server's statistics, by name."""
        found: dict[str, Any] = {}
        if self.cuts["copies"]:
            found["cuts"] = self.cuts
        if self.result is not None:
            found["checkpoint"] = self.result
        return found

    def _save(self, between: Callable[[], object]) -> tuple[CheckpointInfo, str]:
        """Try once to write the last checkpoint; return it and the note of `_retain`."""
        parts = self._positions()
        # If no worker has ended a clock since the last checkpoint, and it is whole, write no other one.
        if self._last is not None and _contents(self._last[0]) == _contents(parts):
            last = self._last[1]
            if last.place is None or last.place.index == 0:
                return last, ""
        # All rings are empty and stay empty, so the shards in place are a cut and need no copy.
        shards = shards_in_place(self._server, self._placement, self._tables)
        writer = self._make_writer(shards, worker_files.LAST)
        drive(self._await_attachments(), between)
        drive(writer.steps(), between)
        self._last = parts, writer.info
        return writer.info, self._retain(writer.info.path)

    def _make_writer(
        self,
        shards: list[ShardData],
        number: int,
        block_bytes: int = plan.BLOCK_BYTES,
        increment: Increment | None = None,
    ) -> CheckpointWriter:
        """Return a writer of these shards for cut `number`, with the workers' positions as they are now."""
        folder = self._saving.folder
        assert folder is not None
        return CheckpointWriter(
            self._comm,
            self._exchange or folder,
            self._head(),
            shards,
            self._state(),
            timeout_s=self._timeout_s,
            block_bytes=block_bytes,
            may_publish=self._run.check_lease if self._run is not None else None,
            example=None if self._exchange else self._saving.example,
            finished=folder,
            increment=increment,
        )

    def _state(self) -> ServerState:
        """Return what the manifest holds of this server."""
        server = self._server
        bounds, thresholds = server.bound_control, server.threshold_control
        backups, switch = server.backup_control, server.switch_control
        return ServerState(
            [server.core.applied(w) for w in range(self._n_workers)],
            bounds.bound if bounds is not None else -1,
            backups.backup if backups is not None else -1,
            thresholds.now() if thresholds is not None else {},
            switch.decided if switch is not None else -1,
        )

    def _head(self) -> ManifestHead:
        """Return what the manifest holds of the job."""
        core, saving, parts = self._server.core, self._saving, self._positions()
        clocks = [part.steps or max(core.clock(w), part.clock) for w, part in enumerate(parts)]
        before = saving.origin.step if saving.origin is not None else 0
        launch = self._run.generation if self._run is not None else 0
        finished = [w for w in range(self._n_workers) if core.finished(w)]
        handed = residuals.handed_over(self._groups, [part.clock for part in parts], finished)
        states = worker_states(saving.origin, parts, clocks)
        return ManifestHead(
            run_id=saving.run_id,
            generation=saving.checkpoint_generation(launch),
            step=before + max(clocks),
            wall_time_s=time.time(),
            tables=self._tables,
            workers=residuals.without(states, handed, self._grouped),
            config=saving.config,
            sampling=saving.sampling,
            data=saving.data,
            attachments=self._attachments.complete,
            best=self._best,
        )


def _contents(parts: Sequence[PositionPart]) -> list[PositionPart]:
    """Return positions without the names of the workers' files, which differ from cut to cut."""
    return [
        msgspec.structs.replace(part, image=ImageFile(xxh3=part.image.xxh3))
        if part.image is not None
        else part
        for part in parts
    ]
