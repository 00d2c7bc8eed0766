"""The replicated tables that a launch of a supervised run leaves in memory, and how the next one continues.

The workers of a node share one file with the replicated tables (native/src/reduction/reduction.hpp). In a run
that continues in memory the file is durable: it outlives the launch, and it has two versions of values and
optimizer state. The update of clock c reads the version that contains the clocks before c, V(c), and writes
V(c + 1) over the older one. The memory of all nodes that had a worker contains the same bits.

Position. The servers' memory gives the place of each worker: the clock where it continues, `clock`, and the
greatest of its clocks over all servers, `ahead` (mpips.recovery.memory). They are the same, as if the ticks
that a server lacks had arrived, unless a server also lacks pushes. The launch continues at the *base* R, the
least `clock` of the workers that have not finished. It needs V(R), and the pushes of clock R of each worker
that has ended R at some server. Such a worker does not make them again, or it repeats R with values of
servers that may have closed R meanwhile; so the pushes that it made first count, as they do on servers. A
worker that has ended R at no server repeats R. Servers have not closed R then, it reads what it read before,
and its pushes have the same bits. Whatever the nodes have done of clock R or later is ignored.

Rules. Let `sent` of a worker be the number of clocks whose ticks are in the memory of all servers, and of
their partners. A worker stores it when the servers have confirmed the ticks. Workers that have finished count
as if they had sent everything; a worker finishes here when all servers have its end.

(1) Before a worker sends a server the tick of clock c, V(c) is complete on its node, all others have sent the
    clocks before c, and all other nodes have answered that its pushes up to clock c have arrived there.
(2) The update of clock c begins on a node when all workers have sent the clocks before c.
(3) A push of clock c is written into a node's memory when V(c) is complete there and all workers have sent
    the clocks before c. It replaces the worker's last push of an earlier clock.

Why the memory of each surviving node has what is needed. Let all workers that have not finished be at R or
later, and one of them at R.

* No update after that of clock R has begun, by (2): some worker has not sent R. So V(R) is not overwritten if
  it was complete.
* V(R - 1) is complete on every node with a worker that has not finished, by (1) with c = R - 1. So there is
  V(R), or V(R - 1) with the update of R - 1 in progress, which has changed the other version only.
* In the second case the pushes of clock R - 1 of all workers are on the node: all have ticked R - 1, so they
  have arrived by (1). None is overwritten, by (3), since V(R) is not complete. The update is computed again
  from them, with the same bits: elements do not depend on each other, and the order of workers is fixed.
* The pushes of clock R of workers that have ended R at a server have arrived everywhere by (1), and are not
  overwritten by (3): some worker has not sent R. No worker is beyond R + 1 at any server, by (1).
* A node whose workers had all finished may have stopped at an earlier clock. It is not used; what is needed
  is checked by words that each worker stores behind its data.
* Hyperparameters. Each change is in the memory of all nodes before the worker's tick, like its pushes. The
  newest change before R is in force; a worker at R + 1 also takes its change of R, others make it again.

Order of stores. A process that is killed leaves all stores that it made, in its order (x86). Each worker
stores its words behind the data that they describe, except the words of a version, which it stores before.

Start of the next launch. Old files are read only. Each node makes a new file from an old one on it, and nodes
without one receive it from a node that has. The new files are marked when all are complete, before
`memory.json` names the launch, and the old ones are removed after that (mpips.recovery.takeover). So a launch
that ends during its start-up changes nothing. A file counts only with the mark of the last launch that
completed its start-up, or of a later one, so the memory of a node that was absent for a launch is not used.
For the time of the start both files are in /dev/shm.

If no node has everything, all ranks start from the newest checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.errors import RegionError
from mpips.recovery import replica_memory
from mpips.transport.region import MARK, Regions, own_segments

if TYPE_CHECKING:
    from mpips.mpi.cluster import Cluster
    from mpips.recovery.memory import Place

_PATTERN = re.compile(r"n\d+g\d+")
Rule = tuple[str, _native.OptimizerConfig, bool, int, bool]


def memory_name(worker: int, generation: int) -> str:
    """Return the name of a node's file; `worker` is the lowest one that uses it."""
    return f"n{worker}g{generation}"


def marked(token: str) -> dict[str, int]:
    """Return name and generation number of the complete files on this node."""
    paths = dict(own_segments(token))
    found = {}
    for part, path in sorted(paths.items()):
        name = part.removesuffix(MARK)
        if name == part or name not in paths or not _PATTERN.fullmatch(name):
            continue
        text = path.read_text()
        if text.isdigit():
            found[name] = int(text)
    return found


def base_of(places: Sequence[Place]) -> int:
    """Return the number of clocks whose updates the tables contain where a launch continues."""
    return min(
        (place.clock for place in places if not place.finished),
        default=max((place.clock for place in places), default=0),
    )


class NodeTables:
    """The replicated tables in durable memory, on each rank of one launch.

    Attributes:
        layout: Layout of the memory.
        base: Number of clocks whose updates are in the tables where the launch continues.
        places: Places of the workers; empty: the launch does not continue in memory.
        source: Rank that sends the tables to nodes without memory.
    """

    def __init__(
        self,
        cluster: Cluster,
        regions: Regions,
        generation: int,
        layout: _native.NodeLayout,
        rules: list[Rule],
    ) -> None:
        """Look for nothing yet. Not collective.

        Args:
            cluster: All ranks.
            regions: Shared memory of this rank.
            generation: Generation number of this launch.
            layout: Layout of the memory.
            rules: Rules of the tables, for native code; their counts of updates are not used.
        """
        self._cluster = cluster
        self._regions = regions
        self._generation = generation
        self._rules = rules
        self._left: _native.LeftTables | None = None
        self._made: list[str] = []
        self.layout = layout
        self.base = 0
        self.places: tuple[Place, ...] = ()
        self.source = -1

    def find(self, served: int, places: Sequence[Place]) -> str:
        """Find what the launch before has left. Collective; blocks.

        Args:
            served: Generation number of the last launch that completed its start-up.
            places: Places of the workers.

        Returns:
            Why the launch cannot continue with these tables, equal on all ranks; "": it can.
        """
        base = base_of(places)
        found = self._cluster.agree(
            "looking for replicated tables", lambda: self._look(served, places, base)
        )
        self.source = next((rank for rank, why in enumerate(found) if why == ""), -1)
        if self.source < 0:
            reasons = [why for why in found if why]
            return f"the replicated tables are gone: {reasons[0]}"
        self.places, self.base = tuple(places), base
        return ""

    def _look(self, served: int, places: Sequence[Place], base: int) -> str | None:
        """Return "" if this rank has the tables, else the reason why not; None: it does not look."""
        if not self._looks:
            return None
        names = marked(self._cluster.token)
        self._remove({name for name in self._names() if name not in names})
        workers = [(place.clock, place.ahead, place.finished) for place in places]
        why = "no node has memory of them"
        for name, generation in names.items():
            if generation < served:
                why = f"the memory on {self._host} is of an earlier attempt"
                continue
            try:
                memory = self._regions.reopen(name)
                left = _native.LeftTables(memory, self.layout, self._rules, workers, base)
                lacks = left.lacks()
            except (RegionError, ValueError) as error:
                why = str(error)
                continue
            if not lacks:
                self._left = left
                return ""
            why = f"on {self._host}, {lacks}"
        return why

    @property
    def _host(self) -> str:
        a = self._cluster.assignment
        return a.node_names[a.node_of[self._cluster.rank]]

    @property
    def _looks(self) -> bool:
        """True on one rank of each node: that of its first worker, else its lowest one."""
        a, rank = self._cluster.assignment, self._cluster.rank
        here = [r for r, node in enumerate(a.node_of) if node == a.node_of[rank]]
        return rank == next((r for r in a.workers if r in here), here[0])

    def _names(self) -> set[str]:
        parts = {part.removesuffix(MARK) for part, _ in own_segments(self._cluster.token)}
        return {name for name in parts if _PATTERN.fullmatch(name)}

    def _remove(self, names: set[str]) -> None:
        for name in sorted(names):
            replica_memory.remove(self._cluster.token, name)

    def start_of(self, worker: int) -> tuple[int, int, bool, bool]:
        """Return where a worker begins; see native/src/reduction/reduction.hpp, ReductionStart."""
        if not self.places:
            return 0, 0, False, False
        place = self.places[worker]
        repeats = not place.finished and place.ahead > place.clock
        return place.clock, self.base, repeats, place.finished

    @property
    def provides(self) -> bool:
        """True if this rank has what the launch before has left."""
        return self._left is not None

    def ranges(self) -> list[tuple[int, int]]:
        """Return offset and length in bytes of what `write` writes; only on a rank that provides."""
        assert self._left is not None
        return [(0, self.layout.head_bytes), *self._left.contributions()]

    def write(self, memory: _native.SharedMemory) -> None:
        """Write tables and words into new memory; only on a rank that provides. Blocks."""
        assert self._left is not None
        self._left.write(memory)
        self._left.copy_contributions(memory)

    def note_made(self, name: str) -> None:
        """Note memory that this rank has made."""
        self._made.append(name)

    def forget(self) -> None:
        """Drop the memory of the launch before, of which nothing is needed any more."""
        self._left = None

    def mark(self) -> None:
        """Mark the memory that this rank has made as complete. Not collective.

        Raises:
            RegionError: /dev/shm is full.
        """
        for name in self._made:
            replica_memory.mark(self._cluster.token, name, self._generation)

    def clean(self) -> None:
        """Remove the memory of earlier launches from this node. Not collective; call it behind `mark`."""
        if self._looks:
            own = f"g{self._generation}"
            self._remove({name for name in self._names() if not name.endswith(own)})
