"""The choice of memory of a launch of a supervised run: the memory of the launch before, or new memory.

All ranks make the same choice. Memory of an mpips with another format is neither read nor removed: all ranks
raise ConfigError. They continue in memory only if the state of every server is there. Where it
is necessary, the state is first brought to the server's node, from another node or from a partner's copy
(mpips/recovery/replica_start.py). Otherwise all ranks start from the newest checkpoint, or without one.

Order. The scheduler alone writes `memory.json`, and each step below ends with an exchange between all ranks.
If old memory is not used, it is removed before `memory.json` of the new launch is written (`choose`). New
copies and sets are marked before `memory.json` names this launch as the last one that completed its start-up,
and old sets and the exchange (mpips.recovery.exchange) are removed only after that (`join`). So a launch that
fails at any point of its start-up leaves either complete memory that fits `memory.json`, or none that the
next launch would use.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips import _native
from mpips.errors import ConfigError, ProtocolError, RecoveryError, RegionError
from mpips.model.build import this_build
from mpips.recovery.exchange import find_exchange, remove_exchange
from mpips.recovery.memory import (
    FORMAT,
    At,
    Memory,
    MemoryHead,
    Place,
    place_of,
    read_head,
    read_memory,
    resumed_at,
    why_other_build,
    why_refused,
)
from mpips.transport.region import (
    attach,
    own_segments,
    staging_part,
    unlink_job,
    unlink_staging,
)

if TYPE_CHECKING:
    from mpips.mpi.cluster import Cluster
    from mpips.recovery.mirror import Mirror
    from mpips.recovery.node_tables import NodeTables
    from mpips.recovery.replica_start import Partnership
    from mpips.recovery.saving import Saving
    from mpips.rundir.directory import Supervised
    from mpips.server.server import Server
    from mpips.transport.channel import Channel


class Takeover:
    """The start of one launch, on one rank. Its methods are collective over all ranks, and blocking.

    Attributes:
        server: This rank's server, if it has one and the job continues in memory; else None.
        at: On a worker, its position at each server, if the job continues in memory; else empty.
        cold: Reason for which the memory of the launch before is not used; "": it is used, or did not exist.
    """

    def __init__(
        self,
        cluster: Cluster,
        run: Supervised,
        partnership: Partnership,
        tables: str,
        make_server: Callable[[int], Server],
        make_copy: Callable[[int, str], Server],
        skips_clocks: bool,
        reopen: Callable[[int, int, Memory], None],
        node_tables: NodeTables | None = None,
    ) -> None:
        """Prepare the start. Not collective; changes nothing.

        Args:
            cluster: All ranks.
            run: The run.
            partnership: Partners of this launch, and the sets in memory.
            tables: Checksum of tables and options.
            make_server: Attaches this rank's server to existing memory (clocks of the run before it).
            make_copy: Attaches the copy of a server (index) to existing memory (name of the set).
            skips_clocks: True if there are backup workers, so that a worker may skip clocks.
            reopen: `reopen(worker, clock, memory)` takes over what this worker has in memory of its own at a
                clock; raises RegionError if it is not there.
            node_tables: The replicated tables; None: the job has none.
        """
        self._reopen = reopen
        self._node_tables = node_tables
        self._cluster = cluster
        self._run = run
        self._partnership = partnership
        self._tables = tables
        self._shape = (len(cluster.assignment.servers), len(cluster.assignment.workers))
        self._make_server = make_server
        self._make_copy = make_copy
        self._skips_clocks = skips_clocks
        self.server: Server | None = None
        self.at: list[At] = []
        self.cold = ""
        self._refused = ""
        self._exchange: Path | None = None  # the exchange of the run; None: it has none
        self._places: tuple[Place, ...] = ()

    def choose(self, saving: Saving, look_for_start: Callable[[Path | None], Saving]) -> Saving:
        """Take over the memory of the launch before, or remove it and describe the new start in memory.json.

        Args:
            saving: The saving of the job, without a start.
            look_for_start: Returns it with the checkpoint to start from, or the exchange, which it gets if
                the run has one; collective; called only if the job does not continue in memory.

        Returns:
            The saving of the job, with the places or the checkpoint from which the job starts.

        Raises:
            ConfigError: Another build of mpips wrote the memory, and this one cannot continue in it.
        """
        memory = self._read() if self._run.generation > 0 else None
        if memory is not None:
            self.cold = self._try(memory)
            if not self.cold:
                self._memory = memory
                return self._gone_on(memory, saving)
            # Unmap what this rank has attached, before the files are removed.
            self.server, self.at = None, []
            if self._node_tables is not None:
                self._node_tables.forget()
            gc.collect()
        saving = look_for_start(self._exchange)
        self._begin(saving)
        return saving

    def _read(self) -> Memory | None:
        """Return memory.json as the scheduler reads it, None without one; store why it is refused.

        Raises:
            ConfigError: The memory has another format.
        """
        c, run = self._cluster, self._run

        def read() -> list[Any]:
            head = read_head(run.folder) if c.is_scheduler else None
            # Only the head of another format is known to have a meaning here.
            memory = read_memory(run) if head is not None and head.format == FORMAT else None
            why = why_refused(run, memory) if memory is not None else ""
            exchange = str(find_exchange(c.token) or "")
            return [msgspec.to_builtins(head), msgspec.to_builtins(memory), why, exchange]

        rows = c.agree("reading memory.json", read)
        head, found, self._refused, _ = rows[c.assignment.scheduler]
        self._note_exchange({row[3] for row in rows})
        if found is None and head is not None:
            self._refuse(msgspec.convert(head, MemoryHead))
        return msgspec.convert(found, Memory) if found is not None else None

    def _note_exchange(self, found: set[str]) -> None:
        """Store the exchange that ranks have found, if all of them have; `found`: its path, "" for none."""
        if len(found) == 1:
            self._exchange = Path(*found) if "" not in found else None
        else:
            self._partnership.notes.append(
                "the shared memory that a change of size has left is not on the nodes of all ranks: not used"
            )

    def _refuse(self, head: MemoryHead, alike: bool = True) -> None:
        """Raise ConfigError if another build wrote memory that any node still has. Collective.

        Args:
            head: Format and build of the memory.
            alike: The memory has the tables and options of this job.
        """
        c = self._cluster
        why = why_other_build(head, self._run.folder.path, alike)
        if not why:
            return
        left = c.agree("looking for memory", lambda: any(True for _ in own_segments(c.token)))
        if any(left):
            raise ConfigError(why)
        self.cold = "it is not there any more"

    def _try(self, memory: Memory) -> str:
        """Take over the memory of the launch before. Return the reason why not, equal on all ranks, or ""."""
        c, p = self._cluster, self._partnership
        if self._refused:
            return self._refused
        if memory.shape != self._shape:
            before, now = (f"servers = {s}, workers = {w}" for s, w in (memory.shape, self._shape))
            return f"it is of {before}, and this launch has {now}"
        if memory.tables != self._tables:
            self._refuse(MemoryHead(format=memory.format, build=memory.build), alike=False)
            return "tables or options have changed"
        # Find the sets on all nodes, and bring each to its server.
        held = c.agree("looking for what the launch before has left", p.held)
        if reason := p.choose(held, memory.served):
            return reason
        try:
            c.agree("bringing memory to its server", p.bring)
        except RegionError as error:
            return str(error)
        # Attach the servers.
        found = c.agree("continuing in memory", lambda: self._attach(memory.step), lengthy=True)
        if reason := next((row["reason"] for row in found if row["reason"]), ""):
            return reason
        if reason := self._find_places(memory):
            return reason
        if self._node_tables is not None:
            reason = self._node_tables.find(memory.served, self._places)
            if reason:
                return reason
        # Remove staging memory of earlier launches, except that to which records still point.
        used = {part for row in found for part in row["staging"]}
        unlink_staging(c.token, self._run.generation, used)
        return ""

    def _find_places(self, memory: Memory) -> str:
        """Find the places of the workers. Return the reason why one cannot continue, or "".

        A worker receives its positions at all servers, and a server sends those of all workers. No rank needs
        memory for all pairs.
        """
        c, copies = self._cluster, self._partnership.copied
        self.at = self._read_positions()

        def find() -> dict[str, Any]:
            if c.worker is None:
                return {}
            try:
                place = place_of(c.worker, self.at, memory, self._skips_clocks)
                self._reopen(c.worker, place.clock, memory)
            except (RecoveryError, RegionError) as error:
                return {"reason": str(error)}
            behind = {i: place.ahead - self.at[i].clock for i in copies}
            return {"place": msgspec.to_builtins(place, builtin_types=(bytes,)), "behind": behind}

        rows = c.agree("finding the workers' places", find)
        found = [rows[rank] for rank in c.assignment.workers]
        if reason := next((row["reason"] for row in found if "reason" in row), ""):
            return str(reason)
        self._places = tuple(msgspec.convert(row["place"], Place) for row in found)
        if any(not place.at_start and not place.state.cursor for place in self._places):
            return "main has stored no cursor; call worker.set_cursor before each worker.clock"
        if self.server is not None:
            clocks = [place.clock for place in self._places]
            self.server.drop_repeated(clocks, is_copied=c.server in copies)
        self.at = self._read_positions()
        if c.worker is not None:
            self.at = resumed_at(self.at, self._places[c.worker])
        self._partnership.tell({i: max(row["behind"][i] for row in found) for i in copies})
        return ""

    def _read_positions(self) -> list[At]:
        """Return the positions of this rank's worker at all servers; [] without a worker. Collective."""
        c = self._cluster
        mine: dict[int, Any] = {}

        def read() -> None:
            if self.server is not None:
                for w, rank in enumerate(c.assignment.workers):
                    mine[rank] = msgspec.to_builtins(At.of(self.server.core.position(w)))

        c.agree("reading the workers' positions", read)
        received = c.deliver("exchanging the workers' positions", mine)
        return [msgspec.convert(received[r], At) for r in c.assignment.servers if r in received]

    def _attach(self, clocks_before: int) -> dict[str, Any]:
        """Attach this rank's server to its memory, which counts clocks from `clocks_before` of the run on.

        Returns:
            "reason": why this is impossible, or ""; "staging": the parts of the workers' old staging memory
            to which records still point.
        """
        c = self._cluster
        if c.server is None:
            return {"reason": "", "staging": []}
        staging: list[str] = []

        def attach_staging(worker: int, generation: int) -> _native.SharedMemory:
            staging.append(staging_part(worker, generation))
            return attach(c.token, staging[-1], 0)

        try:
            self.server = self._make_server(clocks_before)
            self.server.finish_recovery(attach_staging)
            if c.server in self._partnership.copied:
                # The lost server had consumed what it acknowledged, and pulls have returned it. The copy may
                # have it in its rings only.
                self.server.drain()
            _native.fault_point("taken-over")
        except (RegionError, RecoveryError, ProtocolError) as error:
            return {"reason": str(error), "staging": []}
        return {"reason": "", "staging": staging}

    def _gone_on(self, memory: Memory, saving: Saving) -> Saving:
        return saving.in_memory(memory, self._places, tuple(self._partnership.notes))

    def _begin(self, saving: Saving) -> None:
        """Remove old memory, and write memory.json for the new memory."""
        c, run = self._cluster, self._run
        self._memory = new = Memory(
            generation=run.generation,
            served=run.generation,
            tables=self._tables,
            shape=self._shape,
            step=saving.steps_before,
            run_id=saving.run_id,
            workers=tuple(saving.origin.workers) if saving.origin is not None else (),
            beginning=saving.beginning,
            sampling=dict(saving.sampling),
            data=dict(saving.data),
            first_checkpoint=saving.checkpoint_generation(run.generation),
            format=FORMAT,
            build=this_build(),
        )
        c.agree("removing old regions", lambda: unlink_job(c.token))
        c.agree("noting the start", lambda: new.write(run) if c.is_scheduler else None)

    def join(self, server: Server | None) -> Mirror | None:
        """Make the copies, and make this launch's memory the one in which the next launch continues.

        Args:
            server: This rank's server, taken over or new; None on other ranks.

        Returns:
            The mirror that sends records to the copies; None if this rank has no server or no partners exist.
        """
        c, p, run = self._cluster, self._partnership, self._run
        copies: list[tuple[int, Server]] = []
        c.agree("copying to the partners", lambda: copies.extend(p.make_copies(self._make_copy)))
        tables = self._node_tables

        def mark() -> None:
            p.mark(server)
            if tables is not None:
                tables.mark()

        def clean() -> None:
            p.clean()
            if tables is not None:
                tables.clean()
            # From here on a later launch continues in the memory of this one.
            remove_exchange(c.token)

        c.agree("marking the memory", mark)
        here = this_build()
        if self._memory.build != here:
            p.notes.append(f"the memory is from {self._memory.build}, and this is {here}")
        served = msgspec.structs.replace(self._memory, served=run.generation, build=here)
        c.agree("noting the memory", lambda: served.write(run) if c.is_scheduler else None)
        c.agree("removing old memory", clean)
        return p.mirror(server, copies) if server is not None else None


def resume(channel: Channel, at: At, skips_clocks: bool) -> None:
    """Let a worker's channel continue where the launch before ended. Not collective.

    Args:
        channel: The worker's channel to one server.
        at: Position of the worker at that server.
        skips_clocks: True if there are backup workers, so that the worker may skip clocks.
    """
    channel.writer.resume(
        at.sequence,
        at.applied,
        at.clock,
        at.finished,
        at.pushes,
        at.tag,
        at.ended,
        skips_clocks,
    )
    way = channel.area_way()
    if way is not None and at.applied < at.sequence:
        # Reserve the whole rendezvous buffer: records that are still in the ring may point into it.
        way.area.hold_all(at.sequence - 1)
    _native.fault_point("resumed")
