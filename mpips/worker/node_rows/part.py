"""The memory of a node's rows, as start-up makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpips.errors import RegionError
from mpips.terminal.screen import say
from mpips.transport.region import as_region_error

if TYPE_CHECKING:
    from mpips import _native


@dataclass
class NodeRowsPart:
    """The memory of a node's rows, as start-up makes it: without pages until `take_memory`.

    Attributes:
        rows: This worker's end.
        memory: The memory.
        n_bytes: Its size.
        remote: Servers on other nodes.
        has_memory: The pages are reserved; False: there were not enough; None: not tried yet.
    """

    rows: _native.NodeRows
    memory: _native.SharedMemory
    n_bytes: int
    remote: frozenset[int]
    has_memory: bool | None = None

    def take_memory(self, worker: int) -> bool:
        """Reserve all pages at the first call; return False if there are not enough.

        In that case the first call prints a note on stderr. `worker`: index of this worker, for the note.
        """
        if self.has_memory is None:
            try:
                with as_region_error():
                    self.memory.commit(0, self.n_bytes)
                self.has_memory = True
            except RegionError as error:
                self.has_memory = False
                say(
                    f"mpips: note: worker {worker} shares no rows that it reads with other workers of the "
                    f"node (it would take a share of cluster.node_buffers_mib): {error}"
                )
        return self.has_memory
