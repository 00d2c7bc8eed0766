"""Breaks of a replay: each server copies its part of a table, or of all tables, at a place of its order.

A server copies between two records, and goes on at once: what other servers still need of it, to come to
their own place, may lie behind its own. So the copies wait in memory until all servers have theirs. At the
end of the launch, or when all have come to the step at which the replay ends, the servers write together
each break that all of them have, as a checkpoint. It has no positions of workers, so no run continues in it.

Order: only the server's own thread copies. A nonblocking barrier (MPI_Ibarrier) ends when all servers have
come to the end of the replay. A server begins the collective writer behind it, or when all workers have
finished, so its waits are short.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpips.checkpoint import CheckpointWriter, ManifestHead
from mpips.checkpoint.shards import ShardData
from mpips.checkpoint.steps import Peers, Steps
from mpips.mpi.messages import ONLY, Saved, Taken
from mpips.record.files import ReplayBreak, break_folder
from mpips.snapshot.copy import shards_in_place

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips import _native
    from mpips.session.parts import Parts


class BreakCopier:
    """The copies of one server. Not thread-safe: only the server's loop uses it."""

    def __init__(
        self,
        parts: Parts,
        breaks: Sequence[ReplayBreak],
        order: _native.RecordedOrder,
        begin: Sequence[int],
    ) -> None:
        """Let the order stop at the breaks.

        Args:
            parts: The parts of the started job; this rank has a server.
            breaks: The breaks. Those that lie before this launch are left out.
            order: The order that the server follows.
            begin: Clocks of the run that each worker has ended before this launch.
        """
        assert parts.server is not None
        self._parts, self._server, self._order = parts, parts.server, order
        self._breaks = tuple(breaks)
        names = [table.name for table in parts.tables]
        self._ahead: list[ReplayBreak] = []
        self._copies: dict[ReplayBreak, list[ShardData]] = {}
        for at in breaks:
            if not at.table:
                order.add_break(clocks=[max(at.number - clock, 0) for clock in begin])
            elif not self._has(at.table):
                self._copies[at] = []
                continue
            elif at.number > self._server.core.steps(names.index(at.table)):
                order.add_break(table=names.index(at.table), updates=at.number)
            else:
                continue
            self._ahead.append(at)
        self._tell: Callable[[Taken | Saved], object] = lambda message: None
        self._barrier: MPI.Request | None = None
        self._waits = self._has_begun = False  # for the barrier; to write
        self._work: Iterator[object] | None = None  # what writes the copies, step by step

    def _has(self, table: str) -> bool:
        """Return True if this server has a part of a table."""
        parts = self._parts.placement.dense.get(table)
        return parts is None or any(part.server == self._server.index for part in parts)

    def ends_by(self, tell: Callable[[Taken | Saved], object]) -> None:
        """Set what tells the coordinator that the replay has come to its end."""
        self._tell = tell

    def poll(self) -> None:
        """Copy the tables if the server has come to a break; after the last one do a bounded step of writing.

        Blocks for a copy.

        Raises:
            CheckpointError: A checkpoint was not written.
            StallError: Another server did not come in time.
            LeavingError: The replay has come to its end, and the scheduler is on this rank.
            MemoryError: There is not enough memory for a copy.
        """
        self._copy()
        if self._waits and (self._barrier is None or self._barrier.Test()):
            self._begin_to_write()
        self._step()

    def _begin_to_write(self) -> None:
        self._waits = False
        if not self._has_begun:
            self._has_begun, self._work = True, self._write()

    def _step(self) -> None:
        if self._work is not None and next(self._work, None) is None:
            self._work = None

    def _copy(self) -> None:
        """Copy the tables at each break to which the server has come."""
        p = self._parts
        while (index := self._server.core.reached_break()) is not None:
            at = self._ahead.pop(index)
            self._order.remove_break(index)
            there = shards_in_place(self._server, p.placement, p.tables)
            self._copies[at] = [_copy_of(shard) for shard in there if at.table in ("", shard.table)]
            if not at.table:
                self._tell(Taken(ONLY.id, True))
                self._waits = True
                if p.server_comm is not None:
                    self._barrier = p.server_comm.Ibarrier()

    def end(self, between: Callable[[], object]) -> None:
        """Write each break that all servers have. Collective over all servers; blocks.

        Args:
            between: Called between bounded steps; does other work of this rank.

        Raises:
            CheckpointError: One was not written; raised on all servers.
            StallError: Another server did not come in time.
        """
        self._copy()  # the last record may have been the one of a break
        self._begin_to_write()
        while self._work is not None:
            self._step()
            between()

    def _write(self) -> Steps[None]:
        p = self._parts
        assert p.run is not None
        peers = Peers(p.server_comm, p.options.timeout_s, "the copies of the replay")
        of_all = yield from peers.exchange([at in self._copies for at in self._breaks])
        # A table has a part on one server at least, so what all have is more than nothing.
        for at, *there in zip(self._breaks, *of_all, strict=True):
            if not all(there):
                continue
            head = ManifestHead(
                run_id=p.saving.run_id,
                generation=p.run.generation,
                step=at.number,
                wall_time_s=time.time(),
                tables=[table for table in p.tables if at.table in ("", table.name)],
                config=p.saving.config,
                sampling=p.saving.sampling,
                data=p.saving.data,
            )
            folder = break_folder(p.run.folder, at)
            writer = CheckpointWriter(
                p.server_comm, folder, head, self._copies[at], timeout_s=p.options.timeout_s
            )
            yield from writer.steps()
            if not at.table:
                self._tell(Saved(ONLY.id, str(folder), ""))


def _copy_of(shard: ShardData) -> ShardData:
    """Return a shard with arrays of its own."""
    arrays = {
        field.name: np.array(value)
        for field in dataclasses.fields(shard)
        if isinstance(value := getattr(shard, field.name), np.ndarray)
    }
    state = {name: np.array(values) for name, values in shard.state.items()}
    found: ShardData = dataclasses.replace(shard, **arrays, state=state)  # type: ignore[arg-type]
    return found
