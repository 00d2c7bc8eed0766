"""The sizes of a job's buffers in shared memory, beside its tables: plain values.

`mpips.worker.buffers` computes them from the budget of a node, the tables and the roles of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mpips.model.placement import Placement, place
from mpips.model.table import Table


class BufferShares(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the buffers of a job, the same for all of its servers and workers.

    Attributes:
        n_slots: Slots of a ring; None: as many as `rings` allows.
        slot_bytes: Bytes of a slot; 0: chosen by the tables and `rings`.
        rings: Bytes of the rings of all workers at one server, where slots are chosen.
        rendezvous: Bytes of all rendezvous buffers of one server; 0: it has none.
        staging_mib: MiB of the staging memory of one worker; 0: it has none.
        group_rows_mib: MiB of one worker in a group for rows that it pushes; 0: groups sum no rows.
        node_rows_mib: MiB of one worker for rows that the workers of a node read for each other; 0: each
            worker reads for itself.
    """

    n_slots: int | None
    slot_bytes: int
    rings: int
    rendezvous: int
    staging_mib: int
    group_rows_mib: int
    node_rows_mib: int

    @property
    def staging(self) -> int:
        """Bytes of the staging memory of one worker."""
        return self.staging_mib << 20

    def place(
        self,
        tables: Sequence[Table],
        n_servers: int,
        n_workers: int,
        near: Sequence[Sequence[int]] | None = None,
    ) -> Placement:
        """Split tables over servers that have buffers of these sizes; see `mpips.model.placement.place`."""
        return place(
            tables,
            n_servers,
            n_workers,
            self.n_slots,
            self.slot_bytes,
            near,
            self.rendezvous,
            self.rings,
        )
