"""One worker's part in its group, which sums updates of tables before they are sent to servers.

The workers of a group add up their updates of a clock in memory that they share, each a slice of every table,
or by messages where they run on several nodes (mpips.worker.groups.level, native/src/reduction/reduction.hpp,
mpips.mpi.contributions).
The leader of the clock pushes the sums. To servers they are pushes of the leader; the other workers push
nothing to these tables, they only tick. So groups do not appear in rings, journal, replicas and checkpoints,
and the mean over all workers stays the mean.

The leader of clock c is the lowest worker of the group that has not finished before c. All workers of the
group know it when the sums of c are complete, since then each of them has ended c or finished before it.

    clock()   1. note the end of the clock; wait until all of the group have, and the sums are complete
              2. leader: push held rows, then the sums of rows, then those of dense tables, in the order of
                 the tables
              3. position, fence, ticks: as without a group

Where memory outlives the launch, the leader waits after its ticks until they are in the memory of all
servers, and notes that (`sent`). The others go on from 1. only then, with their rows, positions and ticks. So
clock() waits for the workers of the group. Under BSP the next pull would wait for them anyway.

Two levels. The workers of a subgroup first add up their updates among themselves. The leader of the subgroup,
its lowest worker that has not finished, then contributes their sums to the group in place of its own updates,
and the others contribute nothing:

    clock()   1a. note the end of the clock in the subgroup; wait for its sums
              1b. leader of the subgroup: contribute the sums of rows and of dense tables to the group
              1c. note the end of the clock in the group; wait as in 1.

Every worker ends its clocks in the upper level, so what follows holds there word for word, with "the sums of
the group" for the sums of sums. Three things are to be added.

* Waits. In 1a a worker waits for workers of its subgroup to come to their end of the clock, as in 1.
* Repeated clocks. If the ticks of c of any worker of the group are at all servers (`_has_led`), workers of a
  subgroup that is not complete in c any more do not wait for its sums and contribute nothing; cases 2 and 3
  below show that these sums are not needed. `_has_led(c)` is the same for all workers of the group until they
  have ended c in the upper level: before, it depends only on the words with which the launch began. In case 1
  all workers of all subgroups repeat c, so all sums are complete.
* Places. The contributions of a subgroup's workers have one place in the memory of the upper level, since one
  of them contributes in a clock. The next leader L' contributes in c + 1 when it has the information that the
  leader L of c has finished, and so that L's messages of c have left (`is_sent`); and, as always, when the
  sums of c are complete on its node. Other nodes receive what L' contributes when theirs are.

Rows of embedding tables under BSP: see mpips.worker.groups.rows.

SSP and ASP. One clock of a group is pushed as one update, where that has the effect of its pushes
(mpips.model.grouping.can_sum). To servers and other workers the group is one worker, the leader, under the
same model. No update waits longer than for the slowest worker of the group to end its clock, and a group
stores one update of a worker for each table.

* SSP. A pull at clock c waits until all workers have ended clock c - bound - 1 at the server. The leader of
  that clock has then, and its sum is in its ring before its tick. So the pull contains the updates of all
  workers of its group up to that clock.
* Own pushes. A pull contains those of this worker's earlier clocks: it waits until the server has the tick of
  the leader of the clock before (GroupApplied). The server had applied the sum before it took the tick.
* Hyperparameters. The leader writes a change in front of the sum of its clock. Another worker is in the next
  clock before the leader has written that sum, so its record could overtake it.
* Checkpoints. All workers cut at one clock, as under BSP and SSP (needs_common_clock).

Held pushes. Under BSP a server takes the pushes of a clock in the order of the workers. A push of worker 1
waits in its ring for the tick of worker 0, and behind it every later record of worker 1, such as a pull of
rows. Worker 0 waits before its tick for worker 1, which may wait for its pull. Therefore workers of a group
hold their pushes of rows under BSP until the end of the clock: within its clock a worker then waits for
clocks before it only.

Every wait ends. Consider the lowest worker that has not ticked clock c, the lowest clock that any has not.
Within clock c all others wait for clocks before c only: a pull under BSP or SSP, and GroupApplied, wait for
ticks of earlier clocks, and servers take pushes under SSP and ASP as they come.

* It leads its group, or is in none. The servers take its pushes, because all lower workers have ticked. It
  waits for workers of its group to note the end of c. Each of them is in c, without a push of c in a ring:
  the launch has not written one before `sent`, and neither has the launch before, or else the leader had
  ticked at all servers. So each comes to its end of c.
* It does not lead its group. The leader is lower, has ticked, and has noted it or will, since a fence waits
  for no worker. The worker does not wait for sums then; those of a clock that is repeated may come later.

Exactly once. Let a launch end, and the next one continue in the servers' memory (mpips.recovery.memory). A
worker continues at the greatest of its clocks at all servers, and sends the missing ticks; what follows also
holds where it goes back to the least of them. Let c be any clock, at which some worker of the group continues
or which it repeats later. A worker that has a tick of c at some server has all its pushes of c at all
servers. There are three cases.

1. No worker of the group has a tick of c anywhere. All repeat c. The leader is the same, because whether a
   worker finishes before c depends on its program alone. Servers that have the first sums skip their
   repetition.
2. The leader has a tick of c at some server. Then all sums of c are at all servers, and whatever the group
   adds up for c is skipped by all of them (the leader repeats c), or pushed by no worker (it is beyond c).
3. Another worker has a tick of c. Then the leader's ticks of c are at all servers: it is beyond c. This is
   case 2. In particular a worker beyond c, which contributes nothing when c is repeated, is missed in no sum
   that counts.

A worker may finish behind clocks of cases 2 and 3 without having added up its slices of them. The others do
not wait for a worker that has finished, so its late slice could be written over a part of a later sum.
Therefore a worker that has finished adds nothing up (GroupLevel.poll). Nobody needs the sums that lack it.

So a sum counts once at each server, and it has the update of every worker of the group that ends c. Under
BSP, where a clock that is repeated has not been applied anywhere, the repetition has the same numbers. Under
SSP and ASP it may have others, as without groups: the part of a table on a server that had the first sum
takes that one, and the part on another server the repeated one. Clocks of other groups do not matter; under
SSP and ASP they may be far apart. Replicas must have the pushes before a tick also under ASP
(Parts.partners).

Other groups than before would mix the two launches: a leader would skip a push that lacks a worker, which
pushes by itself now. So would areas of another size. Therefore groups and options are part of what makes
memory fit (mpips.session.startup), and a run keeps its groups when workers move to other nodes.

The words of the new memory begin with the workers' places: `ticked` and `sent` are the clock of a worker, and
`finished` is set for one that had ended.

Residuals of codecs belong to the leader, which hands them over at its end: mpips.worker.groups.handover.

Several pushes of a worker to a table in one clock are added up in its own contribution, in their order.
Nobody reads that before the worker has closed the table in the clock, or ended it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import BSP
from mpips.mpi.messages import Figures
from mpips.worker import waits
from mpips.worker.groups.applied import GroupApplied
from mpips.worker.groups.handover import ResidualHandover
from mpips.worker.groups.level import WAIT_S, GroupLevel
from mpips.worker.groups.part import GroupPart
from mpips.worker.table_part import TablePart

if TYPE_CHECKING:
    from mpips.worker.arrivals import Arrivals
    from mpips.worker.data_plane import DataPlane
    from mpips.worker.groups.rows import SendRows

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

Send = Callable[[Float32], None]


class GroupedTables(TablePart):
    """One worker's part in its group. Not thread-safe.

    Attributes:
        applied: The updates of the group that servers have applied.
    """

    changes_clock = True

    def __init__(
        self, connection: DataPlane, part: GroupPart, names: Sequence[str], arrivals: Arrivals
    ) -> None:
        """Use what start-up has made.

        Args:
            connection: The worker's connection, whose waits are used.
            part: See GroupPart.
            names: Names of all workers of the job, for errors.
            arrivals: Waits until records are in the memory of servers.
        """
        self._connection = connection
        self._arrivals = arrivals
        self._part = part
        # The level of the worker's own updates, and that of the group; one level without subgroups.
        self._own = GroupLevel(connection, part, names)
        self._top = self._own if part.upper is None else GroupLevel(connection, part.upper, names)
        self._levels = [self._own] if part.upper is None else [self._own, self._top]
        self._place = {index: place for place, index in enumerate(part.tables)}
        self._tables = list(part.tables.values())
        self._send: dict[int, Send] = {}
        self._held: list[Callable[[], object]] = []  # writes of this clock's pushes of rows
        self._leads: list[Callable[[], None]] = []  # changes of hyperparameters in this clock
        self._pushed = [0, 0]  # pushes of this clock, and those of them to tables under BSP
        self._carried = [0, 0]  # pushes that another worker has carried to the servers
        # Residuals of the group's sums. A worker that has no lower one in the group leads from its start on.
        self._handover = ResidualHandover(part.handover) if part.handover is not None else None
        self._has_ended = part.had_finished
        self._leads_since = False  # True from the first clock that it has led in this launch
        members = part.members if part.upper is None else part.upper.members
        self.applied = GroupApplied(connection, self._top, members)

    def has(self, index: int) -> bool:
        """Return True if the group sums the updates of the table with this index in the job."""
        return index in self._place

    def add(self, index: int, send: Send) -> None:
        """Register how a sum of this table is pushed to the servers."""
        self._send[self._place[index]] = send

    def push(self, index: int, update: Float32) -> None:
        """Add an update to this worker's contribution. Blocks until that of the clock before is summed.

        Args:
            index: Index of the table in the job.
            update: float32, C-contiguous, finite where the table checks that. Free again at return.

        Raises:
            ReplayMismatch: The worker had finished before a restart.
            StallError: A worker of the group was late; the message names it.
        """
        table = self._place[index]
        if self._part.had_finished:
            raise _native.ReplayMismatch(
                f"worker {self._connection.index} pushes to table {self._tables[table].name!r} at clock "
                f"{self._own.clock}, but had finished before the restart"
            )
        self._own.push(table, update.reshape(-1))
        self._pushed[0] += 1
        self._pushed[1] += isinstance(self._tables[table].consistency, BSP)

    def sums_rows(self, index: int) -> bool:
        """Return True if the group sums rows of the table with this index in the job."""
        return self._own.rows is not None and self._own.rows.has(index)

    def add_rows(self, index: int, send: SendRows, summed: SendRows) -> None:
        """Register how rows of all workers of the group are pushed to the servers.

        Args:
            index: Index of the table in the job.
            send: Pushes rows to the servers, with those of equal keys added up.
            summed: Adds up rows of equal keys, and calls `pass_rows`.
        """
        for level in self._levels:
            if level.rows is not None:
                level.rows.add(index, send if level is self._top else summed)

    def drop_rows(self, index: int) -> None:
        """Forget what `add_rows` has registered, if anything."""
        for level in self._levels:
            if level.rows is not None:
                level.rows.drop(index)

    def push_rows(self, index: int, keys: Int64, rows: Float32, n_servers: int) -> bool:
        """Let the group push rows at the end of the clock; False: `hold` them. See GroupRows.append.

        `n_servers`: number of servers that have any of the keys.
        """
        rows_of = self._own.rows
        if rows_of is None or not rows_of.append(self._own.clock, index, keys, rows):
            return False
        self._pushed = [n + n_servers for n in self._pushed]
        return True

    def pass_rows(self, index: int, keys: Int64, rows: Float32) -> None:
        """Contribute the rows of the worker's subgroup to the group, as `push_rows`."""
        assert self._top.rows is not None
        fits = self._top.rows.append(self._top.clock, index, keys, rows)
        # Its area has room for all rows of a subgroup.
        assert fits, "rows of a subgroup do not fit"

    def hold(self, write: Callable[[], object]) -> None:
        """Call `write`, which writes the records of a push, at the end of the worker's clock."""
        self._held.append(write)

    def lead(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of the worker's clock, in front of the sums, if it leads the clock."""
        self._leads.append(write)

    def close(self, index: int) -> None:
        """Note that the worker pushes no more to a table in its clock."""
        self._own.close(self._place[index])
        self.poll()

    def before_tick(self) -> None:
        """End the worker's clock in the group, and push the sums if this worker is the leader. Blocks.

        When it returns, the worker may write its position and its ticks.

        Raises:
            StallError: A worker of the group was late for the job's timeout; the message names it.
        """
        if self._part.had_finished:
            return
        clock = self._own.clock
        self._own.end_clock()
        if self._top is not self._own:
            self._pass_sums(clock)
            self._top.end_clock()
        if _native.FAULTS:
            _native.fault_point("summed-clock")
        if not self._part.outlives:
            self._write_held()
        if not self._is_done(clock, 0.0):
            self._wait(lambda: self._is_done(clock, WAIT_S), self.late)
        self._write_held()
        changes, self._leads = self._leads, []
        pushed, self._pushed = self._pushed, [0, 0]
        if self._has_led(clock) or self._top.leader(clock) != self._top.number:
            self._carried = [a + b for a, b in zip(self._carried, pushed, strict=True)]
            return
        self._take_over()
        for change in changes:
            change()
        if self._top.rows is not None:
            self._top.rows.push_sums(clock)
        for table, values in self._top.sums(clock):
            self._send[table](values)

    def _take_over(self) -> None:
        """Take the residuals of the leader before this worker, at the first clock that it leads. Blocks."""
        handover, is_new = self._handover, not self._leads_since
        self._leads_since = True
        if handover is None or not is_new:
            return
        handover.begin()
        waits.polled(
            self._connection,
            handover.is_done,
            "taking over the residuals of its group",
            lambda: (
                f"{self._top.names[handover.asked or 0]}, which has led this worker's group, has not sent "
                "its residuals"
            ),
        )

    def _take_over_at_end(self) -> None:
        """Take residuals again that this worker took in the launch before, if it leads no clock in this one.

        It owes them until it pushes, and what it owes is in the memory of its process. A worker that leads a
        clock in this launch has taken them there. Blocks.
        """
        top, last = self._top, self._top.clock - 1
        if self._handover is None or self._leads_since or last < 0:
            return
        # Lower workers wait for no higher one here, and in a repeated clock only for the word of its end.
        waits.polled(
            self._connection,
            lambda: top.undecided(last) is None,
            "waiting for the workers of its group",
            lambda: (
                f"{top.names[top.undecided(last) or 0]}, of this worker's group, has neither ended clock "
                f"{last} nor finished"
            ),
        )
        if top.leader(last) == top.number:
            self._take_over()

    def _pass_sums(self, clock: int) -> None:
        """Wait for the sums of the worker's subgroup, and contribute them if the worker leads it."""
        own = self._own
        if not self._is_summed(clock, 0.0):
            self._wait(lambda: self._is_summed(clock, WAIT_S), own.late)
        if self._has_led(clock) or own.leader(clock) != own.number:
            return
        if own.rows is not None:
            own.rows.push_sums(clock)
        for table, values in own.sums(clock):
            self._top.push(table, values)

    def _is_summed(self, clock: int, max_s: float) -> bool:
        """Wait for `max_s` seconds at most until the subgroup has its sums, or needs none; return whether."""
        own = self._own
        return own.is_sent(max_s) and (self._has_led(clock) or own.is_complete(max_s))

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for write in held:
            write()

    def _wait(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        """Wait for other workers of the group in the end of a clock."""
        control = self._connection.control
        before, control.state = control.state, "waiting for the workers of its group"
        self._connection.wait_until(done, late)
        control.state = before

    def _is_done(self, clock: int, max_s: float) -> bool:
        """Wait for `max_s` seconds at most until the worker may go on; return whether it may.

        It may when the sums are complete and it leads the clock, or the servers have them and the leader's
        ticks; where memory does not outlive the launch, when the sums are complete.
        """
        top = self._top
        if not top.is_sent(max_s):
            return False
        if self._has_led(clock):
            return True
        if not top.is_complete(max_s):
            return False
        if not self._part.outlives or top.leader(clock) == top.number:
            return True
        time.sleep(min(max_s, waits.BETWEEN_POLLS_S))
        return False

    def _has_led(self, clock: int) -> bool:
        """Return True if the leader's ticks of a clock are known to be in the memory of all servers."""
        return self._top.sender(clock) is not None

    def after_tick(self) -> None:
        """Wait until the ticks that the leader has sent are in the memory of all servers; let others tick.

        Raises:
            StallError: A server was late for the job's timeout.
        """
        clock = self._top.clock - 1
        if not self._part.outlives or self._part.had_finished or self._has_led(clock):
            return
        self._arrivals.wait_for_all()
        self._top.note_sent(clock)

    def finish(self) -> None:
        """End this worker in its group. It has ended its last clock. May wait after a restart."""
        self._take_over_at_end()
        self._has_ended = True
        for level in self._levels:
            level.finish()

    def count(self, counters: dict[str, int]) -> None:
        """Add the pushes that another worker has carried to this worker's counters."""
        for key in ("pushed", "applied", "grouped"):
            counters[key] = counters.get(key, 0) + self._carried[0]

    def add_figures(self, figures: Figures) -> None:
        """Add the pushes that another worker has carried to this worker's figures.

        Under BSP they are never stale. Under SSP and ASP the leader counts the staleness of the sum.
        """
        figures.judged += self._carried[1]

    def poll(self) -> None:
        """Take messages, and do what can be done now. Does not block."""
        for level in self._levels:
            level.poll()
        if self._handover is not None and self._has_ended:
            self._handover.poll()

    def end(self) -> None:
        """Receive and send what is left. Call it when all workers have finished. Blocks."""
        for level in self._levels:
            level.settle()
        if (handover := self._handover) is not None:
            waits.polled(
                self._connection,
                lambda: handover.is_idle,
                "ending",
                lambda: "another worker of this worker's group has not received residuals",
            )

    def late(self) -> str:
        """Return the message of a wait in the end of a clock, with the worker of the group that is late."""
        top, clock = self._top, self._top.clock - 1
        if top.awaited() or not self._part.outlives or self._has_led(clock):
            return top.late()
        return (
            f"{top.names[top.leader(clock)]}, which leads this worker's group, has not ended clock "
            f"{clock} at all servers, or this worker has not received that"
        )
