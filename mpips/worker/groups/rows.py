"""Rows of embedding tables under BSP that a group's workers push together; see mpips.worker.groups.tables.

Each worker writes its pushes of a clock into its area of the group's memory, as far as they fit
(mpips.worker.groups.row_areas). The worker's pushes of this clock alone determine whether a push fits.
One that does not fit is held and pushed by its worker, as without row sums.

One more table of the reduction has no elements, and no worker pushes to it or closes it. It is complete when
all workers of the group have ended the clock, and then all rows of the clock are there. The leader then
pushes the rows of all areas as one push to each table, in the order of the workers and of their pushes; a
KeyPlan adds up rows of equal keys in this order. So the bits of a sum depend on the group alone. For keys
that only this group pushes they are also those without groups, because a server adds pushes of a clock in
the order of the workers.

Exactly once. Take the three cases of mpips.worker.groups.tables for a clock c that is repeated.

1. Every worker of the group repeats its pushes of c and finds that the same ones fit. So the leader's held
   pushes, sums of rows and sums of dense tables are the same in number, order and keys: servers skip those
   that they have. Nobody has applied c, so the repetition has the same numbers.
2. A leader that repeats c has a server without its tick of c. Then no other worker has a tick of c anywhere,
   and all of them repeat c: the areas that the leader reads are complete, and its sums have the keys that
   servers compare. A leader that is beyond c pushes nothing of c, and all servers have its sums.
3. Nobody reads the areas of c: a push that fits is in a sum that all servers have, and one that is held its
   servers have or take, as without a group.

So the leader holds nothing that its group cannot compute again. Areas of another size would let other pushes
fit, so the option is part of what makes memory fit, as groups are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.table import EmbeddingTable
from mpips.worker.groups.row_areas import RowAreas

if TYPE_CHECKING:
    from mpips.mpi.contributions import Contributions

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

FAULTS = _native.FAULTS  # True where a test ends this process at a fault point

SendRows = Callable[[Int64, Float32], None]


class GroupRows:
    """One worker's part in the sums of rows. Not thread-safe. Workers are numbered within the group."""

    def __init__(
        self,
        areas: RowAreas,
        tables: Mapping[int, EmbeddingTable],
        number: int,
        n_workers: int,
    ) -> None:
        """Use what start-up has made.

        Args:
            areas: Memory of the rows.
            tables: Tables whose rows the group sums, by their index in the job.
            number: Number of this worker.
            n_workers: Number of workers of the group.
        """
        self._areas = areas
        self._dims = {index: table.dim for index, table in tables.items()}
        self._number = number
        self._n_workers = n_workers
        self._send: dict[int, SendRows] = {}

    def has(self, index: int) -> bool:
        """Return True if the group sums rows of the table with this index in the job."""
        return index in self._dims

    def add(self, index: int, send: SendRows) -> None:
        """Register how the rows of all workers are pushed to the servers."""
        self._send[index] = send

    def drop(self, index: int) -> None:
        """Forget what `add` has registered, if anything."""
        self._send.pop(index, None)

    def append(self, clock: int, index: int, keys: Int64, rows: Float32) -> bool:
        """Write a push of this worker's clock for the group; False: it does not fit, and nothing is written.

        Args:
            clock: The worker's clock.
            index: Index of the table in the job.
            keys: int64, shape (n,), each once. Free again at return, like `rows`.
            rows: float32, shape (n, dim), C-contiguous.
        """
        fits = self._areas.append(self._number, clock, index, keys, rows)
        if FAULTS and fits:
            _native.fault_point("contributed")
        return fits

    def send_to(self, contributions: Contributions, clock: int, table: int, rule: int) -> None:
        """Send this worker's rows of a clock to the other nodes of the group. `is_idle` ends that.

        Args:
            contributions: Messages to other nodes.
            clock: The worker's clock, which it has not ended there yet.
            table: The table of the reduction that stands for rows.
            rule: Its hash.
        """
        used = self._areas.used(self._number, clock)
        if len(used):
            contributions.push(table, clock, 1 + clock % 2, rule, used)

    def room(self, worker: int, parity: int) -> NDArray[np.uint8]:
        """Return where rows of a worker of another node are written; `parity`: of their clock."""
        return self._areas.area(worker, parity)

    def push_sums(self, clock: int) -> None:
        """Push the rows of all workers. All have ended the clock; this worker leads it."""
        found: dict[int, list[tuple[Int64, Float32]]] = {index: [] for index in self._dims}
        for worker in range(self._n_workers):
            for index, keys, rows in self._areas.pushes(worker, clock, self._dims):
                found[index].append((keys, rows))
        for index, pushes in found.items():
            if pushes:
                keys_of, rows_of = zip(*pushes, strict=True)
                self._send[index](np.concatenate(keys_of), np.concatenate(rows_of))
