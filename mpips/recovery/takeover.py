"""Which memory a launch of a supervised run works in: what the one before has left, or new one.

All ranks decide the same: they go on in memory only if every server's state is there, brought to its
node from another or from a partner's copy where it must be (mpips/recovery/replica_start.py). Else all
begin anew, from the newest checkpoint if there is one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import msgspec

from mpips import _native
from mpips.errors import RecoveryError, RegionError
from mpips.mpi.cluster import Cluster
from mpips.recovery.memory import At, Memory, Place, place_of, read_memory, why_refused
from mpips.recovery.mirror import Mirror
from mpips.recovery.replica_start import Partnership
from mpips.recovery.saving import Saving
from mpips.rundir.directory import Supervised
from mpips.server.server import Server
from mpips.transport.channel import Channel
from mpips.transport.region import attach, staging_part, unlink_job, unlink_staging


class Takeover:
    """The start of one launch, on one rank. Its methods are collective, and block.

    Attributes:
        server: This rank's server, if it goes on in memory.
        at: Of each server, each worker's position, if the job goes on in memory; else empty.
        cold: Why what the launch before has left is not used; "": it is, or there was none.
    """

    def __init__(
        self,
        cluster: Cluster,
        run: Supervised,
        partnership: Partnership,
        tables: str,
        make_server: Callable[[], Server],
        make_copy: Callable[[int, str], Server],
        skips_clocks: bool,
    ) -> None:
        """Nothing happens yet.

        Args:
            cluster: All ranks.
            run: The run.
            partnership: Who has memory, and who copies whose.
            tables: Checksum of tables and options.
            make_server: Attaches this rank's server to memory that is there.
            make_copy: Attaches the copy of another server to memory of that name.
            skips_clocks: There are backup workers, so a worker may pass over clocks.
        """
        self._cluster = cluster
        self._run = run
        self._partnership = partnership
        self._tables = tables
        self._shape = (len(cluster.assignment.servers), len(cluster.assignment.workers))
        self._make_server = make_server
        self._make_copy = make_copy
        self._skips_clocks = skips_clocks
        self.server: Server | None = None
        self.at: list[list[At]] = []
        self.cold = ""
        self._refused = ""
        self._places: tuple[Place, ...] = ()

    def choose(self, saving: Saving, look_for_start: Callable[[], Saving]) -> Saving:
        """Go on in what the launch before has left, or remove it and note what this one starts from.

        Returns:
            Where workers start; of `look_for_start` (collective) where memory does not serve.
        """
        memory = self._read() if self._run.generation > 0 else None
        if memory is not None:
            self.cold = self._try(memory)
            if not self.cold:
                self._memory = memory
                return self._gone_on(memory, saving)
            self.server, self.at = None, []
            gc.collect()
        saving = look_for_start()
        self._begin(saving)
        return saving

    def _read(self) -> Memory | None:
        """Return what memory.json holds, as the scheduler reads it; notes why it is refused."""
        c, run = self._cluster, self._run

        def read() -> list[Any]:
            memory = read_memory(run) if c.is_scheduler else None
            why = why_refused(run, memory) if memory is not None else ""
            return [msgspec.to_builtins(memory), why]

        found, self._refused = c.agree("reading memory.json", read)[c.assignment.scheduler]
        return msgspec.convert(found, Memory) if found is not None else None

    def _try(self, memory: Memory) -> str:
        """Take over what there is, on all ranks; why not, the same on all."""
        c, p = self._cluster, self._partnership
        if self._refused:
            return self._refused
        if (memory.tables, memory.shape) != (self._tables, self._shape):
            return "tables, options or numbers of ranks are others"
        held = c.agree("looking for what the launch before has left", p.held)
        if reason := p.choose(held, memory.served):
            return reason
        try:
            c.agree("bringing memory to its server", p.bring)
        except RegionError as error:
            return str(error)
        found = c.agree("going on in memory", self._attach)
        if reason := next((row["reason"] for row in found if row["reason"]), ""):
            return reason
        self.at = [msgspec.convert(found[r]["at"], list[At]) for r in c.assignment.servers]
        try:
            self._places = tuple(
                place_of(w, [server[w] for server in self.at], memory, self._skips_clocks)
                for w in range(self._shape[1])
            )
        except RecoveryError as error:
            return str(error)  # all ranks come to it, by the same positions
        if any(not place.at_start and not place.state.cursor for place in self._places):
            return "main has not said where it stands (worker.set_cursor)"
        used = {part for row in found for part in row["staging"]}
        unlink_staging(c.token, self._run.generation, used)
        p.tell([[place.clock for place in server] for server in self.at])
        return ""

    def _attach(self) -> dict[str, Any]:
        """This rank's part of what was left: why not, or the workers' positions at this server.

        With the parts of the workers' old staging memory in which updates still lie.
        """
        c = self._cluster
        if c.server is None:
            return {"reason": "", "at": [], "staging": []}
        staging: list[str] = []

        def attach_staging(worker: int, generation: int) -> _native.SharedMemory:
            staging.append(staging_part(worker, generation))
            return attach(c.token, staging[-1], 0)

        try:
            self.server = self._make_server()
            self.server.finish_recovery(attach_staging)
            _native.fault_point("taken-over")
        except (RegionError, RecoveryError) as error:
            return {"reason": str(error), "at": [], "staging": []}
        positions = [self.server.core.position(w) for w in range(self._shape[1])]
        at = [msgspec.to_builtins(At.of(position)) for position in positions]
        return {"reason": "", "at": at, "staging": staging}

    def _gone_on(self, memory: Memory, saving: Saving) -> Saving:
        return saving.in_memory(memory, self._places, tuple(self._partnership.notes))

    def _begin(self, saving: Saving) -> None:
        """Remove old memory and note what the new one counts from."""
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
        )
        c.agree("removing old regions", lambda: unlink_job(c.token))
        c.agree("noting the start", lambda: new.write(run) if c.is_scheduler else None)

    def join(self, server: Server | None) -> Mirror | None:
        """Make the copies; from here on this launch's memory is what the next one goes on in.

        Args:
            server: This rank's, taken over or new.

        Returns:
            What keeps the copies up to date; None where there is nothing to do.
        """
        c, p, run = self._cluster, self._partnership, self._run
        copies: list[tuple[int, Server]] = []
        c.agree("copying to the partners", lambda: copies.extend(p.make_copies(self._make_copy)))
        c.agree("marking the memory", lambda: p.mark(server))
        served = msgspec.structs.replace(self._memory, served=run.generation)
        c.agree("noting the memory", lambda: served.write(run) if c.is_scheduler else None)
        c.agree("removing old memory", p.clean)
        return p.mirror(server, copies) if server is not None else None


def resume(channel: Channel, at: At, skips_clocks: bool) -> None:
    """Let a worker's channel go on where the launch before has left it."""
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
        # What lies in the area may belong to records that are still in the ring.
        way.area.hold_all(at.sequence - 1)
    _native.fault_point("resumed")
