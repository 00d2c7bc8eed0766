"""A server's part in checkpoints: the copy at a cut, writing it behind the training, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpips import _native
from mpips.checkpoint import (
    CheckpointInfo,
    CheckpointWriter,
    ManifestHead,
    ServerState,
    WorkerState,
    plan,
    retain,
)
from mpips.checkpoint.position import PositionPart, decode_part
from mpips.checkpoint.shards import ShardData
from mpips.checkpoint.steps import in_background
from mpips.checkpoint.structure import hdf5_kind
from mpips.errors import CheckpointError, DiskFullError, MpipsError
from mpips.model.placement import Placement
from mpips.model.table import Table
from mpips.mpi.messages import LAST, Abandon, Commit, Message, Saved, Taken, ToServer, Write
from mpips.recovery.memory import worker_state
from mpips.recovery.saving import Saving
from mpips.rundir.directory import Supervised
from mpips.server.server import Server
from mpips.snapshot.copy import ServerCopy, shards_in_place

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL_BLOCK_BYTES = 1 << 20  # of a step between drains: so long a record may wait
# Records have so many times as long as each piece of writing took, while there are any.
_SERVED_SHARE = 3.0
_LONGEST_PAUSE_S = 0.05
# Pauses before the last checkpoint is tried again: after a failure, and on a full disk.
_TRIES_S = (0.5, 1.0, 2.0, 4.0)
_FULL_S = 2.0
_POLL_S = 0.005  # between two calls of other work meanwhile
_LOOK_S = 0.1  # between looks whether a table has outgrown the memory for its copy


class ServerPart:
    """Collective with those of the other servers, each in its own loop; never raises MpipsError.

    Attributes:
        result: {"path", "bytes", "seconds", "notes"} of what was saved at the end, or {"error"}; None
            before.
        cuts: What cuts cost here: number, longest copy and longest hold in seconds.
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
        tell: Callable[[Message], None],
        run: Supervised | None = None,
    ) -> None:
        """Nothing is copied yet.

        Args:
            saving: What is saved.
            server: Whose shards.
            placement: Which server holds what.
            tables: Of the job.
            n_workers: Of the job.
            comm: All servers, in order; None: this process alone.
            timeout_s: Bounds every wait for other servers.
            tell: Sends a message to the coordinator.
            run: The supervised run of which this launch is an attempt.
        """
        self._saving = saving
        self._server = server
        self._placement = placement
        self._tables = list(tables)
        self._n_workers = n_workers
        self._comm = comm
        self._timeout_s = timeout_s
        self._tell = tell
        self._run = run
        self._server_copy = ServerCopy(server, placement, tables)
        self._id = 0  # the cut under way
        self._held_since = 0.0  # its first record; 0: not seen yet
        self._writer: CheckpointWriter | None = None
        self._parts: list[PositionPart] = []
        self._work: Iterator[object] | None = None
        self._next_look = 0.0
        self._pause_until = 0.0
        self._records = 0  # consumed before the last piece of work
        self._ahead = bool(saving.triggers.every_steps or saving.triggers.every_s)
        self._last: tuple[list[PositionPart], CheckpointInfo] | None = None
        self._waits = ""  # why the last checkpoint is not written yet
        self.result: dict[str, Any] | None = None
        self.cuts: dict[str, Any] = {"copies": 0, "longest_copy_s": 0.0, "longest_hold_s": 0.0}
        if saving.folder is not None:
            # What takes long the first time is done before anybody waits for it.
            hdf5_kind()
            for _ in self._server_copy.make_room() if self._ahead else ():
                pass

    def take(self, message: ToServer) -> None:
        """What the coordinator says."""
        if isinstance(message, Commit):
            self._id, self._held_since = message.id, 0.0
            self._ahead = True
            self._server.core.expect_cut(message.id)
        elif isinstance(message, Abandon):
            self._server.core.release_cut(message.id)
            self._id, self._writer = 0, None
            self._tell(Saved(message.id, "", "given up"))
        elif isinstance(message, Write) and self._writer is not None:
            self._work = self._write(self._writer, message.id)

    def poll(self) -> bool:
        """Do a bounded piece of what there is to do; True: come back soon.

        Blocks for one copy of the shards when the rings stand at a cut.
        """
        if self._id and self._writer is None and self._come_to_cut():
            return True  # after the copy the rings come first
        if self._work is not None:
            self._step(self._work)
        elif self._ahead and self._writer is None:
            self._look_for_room()
        return self._work is not None

    def _step(self, work: Iterator[object]) -> None:
        """One piece of work, then a pause if there were records since the last one."""
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

    def _look_for_room(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            if self._server_copy.lacks_room():
                self._work = (True for _ in self._server_copy.make_room())

    def _come_to_cut(self) -> bool:
        """Copy if the rings stand at the cut; whether it did."""
        core = self._server.core
        now = time.monotonic()
        if not self._held_since and core.holds_cut():
            self._held_since = now
        if core.cut_ready():
            _native.fault_point("cut-held")
            self._copy()
            return True
        if self._held_since and now - self._held_since > self._timeout_s / 2:
            # Workers that wait for a held ring give up after the whole of it.
            self._held_since = 0.0
            self._tell(Taken(self._id, False))
        return False

    def _copy(self) -> None:
        core = self._server.core
        start = time.monotonic()
        self._work = None  # room that was still being made is made now
        try:
            shards = self._server_copy.copy()
        except MemoryError:
            self._held_since = 0.0
            self._tell(Taken(self._id, False))
            return
        _native.fault_point("cut-copied")
        self._writer = self._make_writer(shards, SMALL_BLOCK_BYTES)
        self._parts = self._positions()
        core.release_cut(self._id)
        end = time.monotonic()
        cuts = self.cuts
        cuts["copies"] += 1
        cuts["longest_copy_s"] = max(cuts["longest_copy_s"], round(end - start, 6))
        cuts["longest_hold_s"] = max(cuts["longest_hold_s"], round(end - self._held_since, 6))
        self._tell(Taken(self._id, True))

    def _write(self, writer: CheckpointWriter, number: int) -> Iterator[object]:
        path, error, note = "", "", ""
        try:
            for _ in writer.steps():
                yield True
        except (MpipsError, OSError) as failure:
            error = str(failure)
        else:
            path = str(writer.info.path)
            self._last = self._parts, writer.info
            # In the background: removing large files takes as long as a step or two.
            note = yield from in_background(lambda: self._retain(writer.info.path))
        self._id, self._writer = 0, None
        self._tell(Saved(number, path, error, note))

    def _positions(self) -> list[PositionPart]:
        return [decode_part(self._server.core.position_text(w)) for w in range(self._n_workers)]

    def _retain(self, written: Path) -> str:
        """Remove old checkpoints after this one was written; return what failed, "" if nothing did.

        A failure does not make the new checkpoint less durable, so it is a note and not an error.
        """
        if self._server.index != 0:
            return ""
        assert self._saving.folder is not None
        try:
            retain(self._saving.folder, self._saving.retention)
        except (MpipsError, OSError) as failure:
            return f"{written} was written, but older checkpoints could not be removed: {failure}"
        return ""

    @property
    def state(self) -> str:
        """What there is to say of a checkpoint under way; "": nothing."""
        if self._waits:
            return "waiting to write the last checkpoint"
        if self._writer is not None:
            return "writing a checkpoint"
        return "coming to a checkpoint" if self._id else ""

    def save(self, between: Callable[[], object]) -> None:
        """The end: all workers have finished. `between` is called between bounded pieces of work.

        In a supervised run a full disk is waited for, without end, and other failures to write are
        tried again a few times: what the servers hold is nowhere else. All servers see the same
        errors, so they try again together.
        """
        if self._saving.folder is None:
            return
        pauses = iter(_TRIES_S if self._run is not None else ())
        while True:
            try:
                info, note = self._save(between)
                break
            except DiskFullError as error:
                pause_s = _FULL_S if self._run is not None else None
                failure = str(error)
            except CheckpointError as error:
                pause_s = next(pauses, None)
                failure = str(error)
            except MpipsError as error:
                pause_s = None
                failure = str(error)
            if pause_s is None:
                self.result = {"error": failure}
                return
            self._wait(failure, pause_s, between)
        self._waits = ""
        self.result = {
            "path": str(info.path),
            "bytes": info.n_bytes,
            "seconds": round(info.seconds, 3),
            "notes": [*info.notes, *([note] if note else [])],
        }

    def _wait(self, why: str, pause_s: float, between: Callable[[], object]) -> None:
        """Let some time pass before the last checkpoint is tried again; server 0 says why, once."""
        if not self._waits and self._server.index == 0:
            self._tell(Saved(LAST, "", why))
        self._waits = why
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            between()
            time.sleep(_POLL_S)

    def statistics(self) -> dict[str, Any]:
        """What is to be told of it, by name."""
        found: dict[str, Any] = {}
        if self.cuts["copies"]:
            found["cuts"] = self.cuts
        if self.result is not None:
            found["checkpoint"] = self.result
        return found

    def _save(self, between: Callable[[], object]) -> tuple[CheckpointInfo, str]:
        parts = self._positions()
        if self._last is not None and self._last[0] == parts:
            return self._last[1], ""  # nobody has ended a clock since
        # Every ring is empty and stays so: what the servers hold is a cut, and needs no copy.
        shards = shards_in_place(self._server, self._placement, self._tables)
        writer = self._make_writer(shards)
        for _ in writer.steps():
            between()
        self._last = parts, writer.info
        return writer.info, self._retain(writer.info.path)

    def _make_writer(
        self, shards: list[ShardData], block_bytes: int = plan.BLOCK_BYTES
    ) -> CheckpointWriter:
        assert self._saving.folder is not None
        core = self._server.core
        return CheckpointWriter(
            self._comm,
            self._saving.folder,
            self._head(),
            shards,
            ServerState([core.applied(w) for w in range(self._n_workers)]),
            timeout_s=self._timeout_s,
            block_bytes=block_bytes,
            may_publish=self._run.check_lease if self._run is not None else None,
        )

    def _head(self) -> ManifestHead:
        core = self._server.core
        saving = self._saving
        parts = self._positions()
        clocks = [max(core.clock(w), part.clock) for w, part in enumerate(parts)]
        before = saving.origin.step if saving.origin is not None else 0
        launch = self._run.generation if self._run is not None else 0
        return ManifestHead(
            run_id=saving.run_id,
            generation=saving.checkpoint_generation(launch),
            step=before + max(clocks),
            wall_time_s=time.time(),
            tables=self._tables,
            workers=[self._worker(w, parts[w], clock) for w, clock in enumerate(clocks)],
            config=saving.config,
            sampling=saving.sampling,
            data=saving.data,
        )

    def _worker(self, worker: int, part: PositionPart, clock: int) -> WorkerState:
        origin = self._saving.origin
        before = 0
        if origin is not None:
            same = len(origin.workers) == self._n_workers
            before = origin.workers[worker].clock if same else origin.step
        return worker_state(worker, part, before + clock)
