"""One level of the sums of a group of workers: their contributions, the sums, and who leads a clock.

A worker in a subgroup has two levels. In the lower one the workers of the subgroup add up their updates. In
the upper one, which is that of the whole group, the leader of the subgroup contributes the sums of the
subgroup in place of its own updates. Every worker of the group ends its clocks in the upper level, whether it
contributes there or not, so the upper level knows what a level without subgroups knows. See
mpips.worker.groups.tables for the protocol.

The leader of a level at clock c is the lowest of its workers that has not finished before c. All workers of
the level know it when the sums of c are complete, since then each of them has ended c or finished before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.transport.waiting import ReadPace
from mpips.worker import waits
from mpips.worker.groups.part import GroupPart

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane

Float32 = NDArray[np.float32]

WAIT_S = 0.02  # of one wait without messages


class GroupLevel:
    """One worker's end of one level. Not thread-safe. Workers are numbered within the level.

    Attributes:
        number: Number of this worker.
        names: Names of the workers, for errors.
        rows: Sums of rows of embedding tables; None: no such sums, or the worker had finished.
        n_tables: Number of tables whose updates are summed, without that for the ends of clocks.
    """

    def __init__(self, connection: DataPlane, part: GroupPart, names: Sequence[str]) -> None:
        """Use what start-up has made.

        Args:
            connection: The worker's connection, whose waits are used.
            part: See GroupPart.
            names: Names of all workers of the job, for errors.
        """
        self.number = part.number
        self.names = [names[worker] for worker in part.members]
        self.rows = part.rows if not part.had_finished else None
        self.n_tables = len(part.tables)
        self._connection = connection
        self._part = part
        self._reduction = part.reduction
        self._contributions = part.contributions
        self._tables = list(part.tables.values())
        # The reduction's tables: those above, and one for the ends of clocks where rows are summed.
        self._n_sums = self.n_tables + (part.rows is not None)
        # Tables with a push of this clock that is not sent to other nodes.
        self._open: list[int] = []
        self._has_finished = part.had_finished
        self._pace = ReadPace(waits.BETWEEN_POLLS_S)  # until this worker's messages have left

    @property
    def clock(self) -> int:
        """The worker's clock."""
        return self._reduction.clock

    def push(self, table: int, update: Float32) -> None:
        """Add an update to this worker's contribution. Blocks until that of the clock before is summed.

        Args:
            table: Number of the table among those that are summed.
            update: float32, C-contiguous, shape (n,). Free again at return.

        Raises:
            StallError: A worker of the group was late; the message names it.
        """
        reduction = self._reduction
        if not reduction.pushes(table):
            if not self._has_room(table, 0.0):
                self._connection.wait_until(lambda: self._has_room(table, WAIT_S), self.late)
            reduction.push(table, update, False)
            self._open.append(table)
        else:
            own = self._contribution(table).view(np.float32)
            # A sum beyond float32 is infinite, as at a server.
            with np.errstate(all="ignore"):
                np.add(own, update, out=own)

    def _contribution(self, table: int) -> NDArray[np.uint8]:
        part = self._part
        at = part.layout.contribution(self.number, table, 0)
        return part.memory.view(at, 4 * self._tables[table].n_elements, True)

    def _has_room(self, table: int, max_s: float) -> bool:
        if self._contributions is None:
            return self._reduction.wait_room(table, max_s)
        self._contributions.poll()
        # The push before may be under way to other nodes.
        wait_s = min(max_s, waits.BETWEEN_POLLS_S)
        contributions = self._contributions
        return self._reduction.wait_room(table, wait_s) and self._pace.wait_for(
            lambda: contributions.is_idle, wait_s
        )

    def close(self, table: int) -> None:
        """Note that the worker pushes no more to a table in its clock."""
        if self._contributions is not None:
            self._send_open([table])
            self._contributions.close(table, self.clock)
        self._reduction.close(table)

    def _send_open(self, tables: Sequence[int]) -> None:
        """Send this worker's contributions to these tables to other nodes, where there are any."""
        for table in [t for t in tables if t in self._open]:
            self._open.remove(table)
            if self._contributions is not None:
                reduction = self._reduction
                rule, raw = reduction.rule_hash(table), self._contribution(table)
                self._contributions.push(table, reduction.clock, 1, rule, raw)

    def end_clock(self) -> None:
        """Note the end of the worker's clock, behind its contributions. Does not block."""
        reduction, clock = self._reduction, self.clock
        self._send_open(list(self._open))
        if self._contributions is not None:
            if self.rows is not None:
                ends = self.n_tables
                self.rows.send_to(self._contributions, clock, ends, reduction.rule_hash(ends))
            self._contributions.tick(clock)
        reduction.tick()

    def is_sent(self, max_s: float) -> bool:
        """Return True if all that the worker has sent has left it, after `max_s` seconds at most."""
        if self._contributions is None:
            return True
        self._contributions.poll()
        if self._contributions.is_idle:
            return True
        time.sleep(min(max_s, waits.BETWEEN_POLLS_S))
        return False

    def is_complete(self, max_s: float) -> bool:
        """Wait for `max_s` seconds at most until sums of all clocks before the worker's own are complete."""
        if self._contributions is not None:
            max_s = min(max_s, waits.BETWEEN_POLLS_S)
        return all(self._reduction.wait_complete(t, max_s) for t in range(self._n_sums))

    def sums(self, clock: int) -> list[tuple[int, Float32]]:
        """Return table and sum of each table with a push in a clock, the last one that the worker has ended.

        The arrays are valid until the worker closes the table, or ends its clock, again.
        """
        reduction = self._reduction
        return [
            (table, reduction.values(table, 0))
            for table in range(self.n_tables)
            if reduction.updated(table) == clock + 1
        ]

    def leader(self, clock: int) -> int:
        """Return the leader of a clock whose sums are complete."""
        words = [self._reduction.finished(number) for number in range(len(self.names))]
        return next(n for n, word in enumerate(words) if word == 0 or word - 1 > clock)

    def undecided(self, clock: int) -> int | None:
        """Return a lower worker that may lead a clock which this worker has ended; None: no such worker.

        The others have ended the clock, or have finished, so `leader` returns the leader then.
        """
        r = self._reduction
        lower = range(self.number)
        return next((n for n in lower if not r.finished(n) and r.ticked(n) <= clock), None)

    def sender(self, clock: int) -> int | None:
        """Return a worker whose ticks of a clock are known to be in the memory of all servers; None: none is.

        This follows from its own word, or from that of a worker which began this launch beyond the clock.
        """
        numbers = range(len(self.names))
        return next((n for n in numbers if self._reduction.sent(n) > clock), None)

    def note_sent(self, clock: int) -> None:
        """Note that the ticks of this worker's clocks up to this one are in the memory of all servers."""
        self._reduction.note_sent(self.number, clock + 1)
        if self._contributions is not None:
            self._contributions.sent(clock + 1)

    def finish(self) -> None:
        """Let the level go on without this worker, which has ended its last clock.

        One that had finished before the launch sends that again: others receive its messages until then.
        """
        if not self._has_finished:
            self._reduction.finish()
        self._has_finished = True
        if self._contributions is not None:
            self._contributions.finish(self.clock)

    def poll(self) -> None:
        """Take messages, and do what can be done now. Does not block.

        A worker that has finished adds nothing up; see "Exactly once" in mpips.worker.groups.tables.
        """
        if self._contributions is not None:
            self._contributions.poll()
        if not self._has_finished:
            self._reduction.advance()

    def settle(self) -> None:
        """Receive and send what is left. Call it when all workers have finished. Blocks."""
        if self._contributions is not None:
            waits.polled(self._connection, self._contributions.has_ended, "ending", self.late)

    def late(self) -> str:
        """Return the message of a wait for sums or for receivers, with the worker that is late."""
        text = (
            self.awaited() or "another worker, of this worker's group, has not received its updates"
        )
        return f"{text} (with cluster.topology, clock() waits for the workers of the group)"

    def awaited(self) -> str:
        """Return which worker has not contributed, or has not received this one's updates; "" if all have."""
        found = self._reduction.awaited()
        if found is not None:
            worker, table, clock, ticked, summed, _ = found
            done = "has not added its part of" if summed else "has not ended"
            of = f" of table {self._tables[table].name!r}" if table < self.n_tables else ""
            return (
                f"{self._name(worker)}, of this worker's group, {done} clock {clock}{of}; "
                f"it is at clock {ticked}, this worker is at {self.clock}"
            )
        slow = self._contributions.slow_receiver if self._contributions is not None else None
        if slow is None:
            return ""
        return f"{self.names[slow]}, of this worker's group, has not received its updates"

    def _name(self, worker: int) -> str:
        """Return the name of a worker, and of those without which it cannot go on in this level."""
        unit = self._part.unit_of(worker)
        others = [self.names[n] for n in unit if n != worker]
        if not others:
            return self.names[worker]
        return f"{self.names[worker]} or another worker of its subgroup ({', '.join(others)})"
