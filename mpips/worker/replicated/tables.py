"""One worker's part in the replicated tables of a job: waits, clocks, and the copy on the servers.

The native `Reduction` sums and applies in memory that the workers of a node share
(native/src/reduction/reduction.hpp has the protocol). This class drives it: every wait of the worker advances
it, so that a worker that waits for anything does its share of updates that are complete. `Contributions`
carries pushes between nodes.

Where the memory outlives the launch, a worker ends a clock by the rules of mpips.recovery.node_tables:
`before_tick` waits before the first server gets a tick, and `after_tick` begins to ask the servers to confirm
it.

Servers hold a copy of each replicated table. Workers write to it before a checkpoint's cut and before they
finish (native/src/server/server_store.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.placement import ShardRange
from mpips.mpi.messages import Figures, Waits
from mpips.process.patience import Patience
from mpips.transport.region import as_region_error
from mpips.transport.waiting import ReadPace
from mpips.worker import waits
from mpips.worker.replicated.part import ReplicatedPart
from mpips.worker.table_part import TablePart
from mpips.worker.whole import is_cut_off

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane

Float32 = NDArray[np.float32]

_WAIT_S = 0.02  # of one wait without messages
_BEHIND_S = 0.1  # s of a wait at a cut after which the scheduler is informed


class ReplicatedTables(TablePart):
    """The replicated tables of one worker. Tables are numbered in the order of `part.tables`."""

    changes_clock = True

    def __init__(
        self,
        connection: DataPlane,
        part: ReplicatedPart,
        names: Sequence[str],
        partners: Collection[int] = (),
    ) -> None:
        """Use what start-up has made.

        Args:
            connection: The worker's connection, whose waits are used.
            part: See ReplicatedPart.
            names: Names of all workers, for errors.
            partners: Servers that have a partner.
        """
        self._partners = partners
        self._durable = part.layout.durable
        # Servers that have not confirmed this worker's last tick, with its sequence number after it.
        self._unconfirmed: dict[int, int] | None = None
        self._connection = connection
        self._part = part
        self._names = names
        self._reduction = part.reduction
        self._contributions = part.contributions
        self._tables = list(part.tables.values())
        self._pace = ReadPace(waits.BETWEEN_POLLS_S)  # until this worker's messages have left
        self._place = {index: place for place, index in enumerate(part.tables)}
        self._pushed = self._pushed_bytes = self._pulled_bytes = 0

    def place(self, index: int) -> int:
        """Return the number of the table that has this index in the job."""
        return self._place[index]

    def push(self, table: int, update: Float32, check_finite: bool) -> bool:
        """Add an update to the sum of the worker's clock. Blocks until the clock before is summed here.

        Args:
            table: Number of the table.
            update: float32, C-contiguous, of the table's length. Free again at return.
            check_finite: Refuse an update with NaN or infinity.

        Returns:
            False if the update is refused: it adds nothing.

        Raises:
            ConfigError: There are too many pushes of this clock.
            StallError: A worker was late; the message names it.
        """
        self.wait(table, "pushing", room=self._durable)
        reduction, layout = self._reduction, self._part.layout
        number = reduction.pushes(table)
        if number >= layout.rounds:
            raise ConfigError(
                f"push {number + 1} to table {self._tables[table].name!r} in clock {reduction.clock}: a "
                f"replicated table takes {layout.rounds} pushes of a worker in a clock; sum updates first"
            )
        at, repeats = layout.contribution(self._connection.index, table, number), reduction.repeats
        if number and not repeats:
            with as_region_error():
                self._part.memory.commit(at, update.nbytes)
        try:
            if not reduction.push(table, update, check_finite):
                return False
            self._pushed += 1
            self._pushed_bytes += update.nbytes
            if self._contributions is not None and not repeats:
                raw = self._part.memory.view(at, update.nbytes, False)
                rule = reduction.rule_hash(table)
                self._contributions.push(table, reduction.clock, number + 1, rule, raw)
        except BaseException as error:
            connection = self._connection
            if is_cut_off(connection, error) and reduction.pushes(table) != number:
                connection.refuse_after(f"push to table {self._tables[table].name!r}")
            raise
        return True

    def close(self, table: int) -> None:
        """Note that the worker pushes no more to a table in its clock; do what can be done now."""
        self._reduction.close(table)
        if self._contributions is not None and not self._reduction.repeats:
            self._contributions.close(table, self._reduction.clock)
        self.poll()

    def pull(self, table: int, out: Float32) -> None:
        """Copy the values of the worker's clock into `out`. Blocks until they are complete."""
        self.wait(table, "pulling")
        self._reduction.pull(table, out)
        self._pulled_bytes += out.nbytes

    def view(self, table: int) -> Float32:
        """Return the values of the worker's clock as a read-only array of one dimension. Blocks as `pull`."""
        self.wait(table, "pulling")
        return self._reduction.values(table, 0)

    def state(self, table: int, slot: int) -> Float32:
        """Return a state of the rule at the worker's clock, as `view` returns values. Blocks as `pull`."""
        self.wait(table, "reading the optimizer state of")
        return self._reduction.values(table, 1 + slot)

    def n_updates(self, table: int) -> int:
        """Return the number of updates of a table before the worker's clock. Blocks as `pull`."""
        self.wait(table, "reading the optimizer state of")
        return self._reduction.steps(table)

    def configure(self, table: int, config: _native.OptimizerConfig) -> None:
        """Let updates of the worker's clock and later ones use these hyperparameters."""
        self._reduction.configure(table, config)
        if self._contributions is not None and self._durable:
            raw = self._reduction.raw_rule(table)
            self._contributions.rule(table, self._reduction.clock, raw)

    def before_tick(self) -> None:
        """End the worker's clock; do what can be done now. Blocks where the memory outlives the launch.

        Servers have not got this worker's tick yet. So nothing here may wait for another worker to end this
        clock: that worker may wait for a pull of rows behind a push of rows, which a server takes under BSP
        only after the ticks of lower workers. It waits for the end of earlier clocks (`_may_end`), and for
        messages that other workers take during their waits, too (`_has_arrived`).

        Raises:
            ReplayMismatch: The worker repeats the clock with other pushes than before.
            StallError: A worker was late for the job's timeout; the message names it.
        """
        if self._durable:
            self._wait_for(self._may_end, "waiting for other workers")
        clock, repeats = self._reduction.clock, self._reduction.repeats
        self._reduction.tick()
        if _native.FAULTS:
            _native.fault_point("summed-clock")
        if self._contributions is not None and not repeats:
            self._contributions.tick(clock)
        self.poll()
        if self._durable and self._contributions is not None:
            self._wait_for(self._has_arrived, "sending replicated tables")

    def _may_end(self) -> bool:
        self.poll()
        return self._reduction.settled and self._reduction.all_sent(self._reduction.clock)

    def _has_arrived(self) -> bool:
        self.poll()
        assert self._contributions is not None
        return self._contributions.is_received

    def after_tick(self) -> None:
        """Note that the worker's ticks are sent to all servers. Blocks for a comparison of copies.

        The comparison waits for the end of this clock by all workers. Each of them comes to it: within the
        clock it waits for records of its own behind this worker's tick, which is sent, and in the end of the
        clock it compares only when its own ticks are also sent.

        Raises:
            StallError: A worker was late for the job's timeout; the message names it.
        """
        if self._durable:
            self._ask_servers()
        if self._contributions is not None:
            self._compare(self._reduction.clock)

    def _ask_servers(self) -> None:
        """Begin to ask all servers to confirm the worker's last tick. Does not block."""
        self._unconfirmed = {}
        for server, channel in enumerate(self._connection.channels):
            self._unconfirmed[server] = channel.writer.next_sequence
            if server not in self._partners:
                channel.begin_fence()
        self._confirm()

    def _confirm(self) -> None:
        """Note that the worker's last tick is in the memory of all servers and partners, once it is."""
        if self._unconfirmed is None:
            return
        for server, sequence in list(self._unconfirmed.items()):
            channel = self._connection.channels[server]
            if server in self._partners:
                arrived = channel.wait_received(sequence, 0.0)
            else:
                arrived = channel.wait_fence(0.0)
            if arrived:
                del self._unconfirmed[server]
        if self._unconfirmed:
            return
        self._unconfirmed = None
        clocks = self._reduction.clock
        self._reduction.note_sent(self._connection.index, clocks)
        if self._contributions is not None:
            self._contributions.sent(clocks)

    def _is_confirmed(self) -> bool:
        self._confirm()
        return self._unconfirmed is None

    def _late_servers(self) -> str:
        late = ", ".join(f"server {server}" for server in self._unconfirmed or ())
        me = self._connection.index
        return f"{late} has not confirmed that the last records of worker {me} have arrived"

    def _compare(self, clock: int) -> None:
        """Send digests of the tables that are to be compared at this clock to other nodes."""
        assert self._contributions is not None
        for table, described in enumerate(self._tables):
            if not described.is_checked_at(clock):
                continue
            self.wait(table, "comparing")
            digest = _native.Xxh3()
            for slot in range(1 + described.optimizer.n_state):
                digest.update(self._reduction.values(table, slot))
            self._contributions.compare(table, clock, digest.digest())

    def poll(self) -> None:
        """Take messages, and do what can be done now. Does not block.

        Raises:
            ConfigError: Workers have different hyperparameters for a table.
            DivergenceError: The copies of a table on two nodes differ.
        """
        if self._contributions is not None:
            self._contributions.poll()
        self._reduction.advance()
        self._confirm()

    def ready(self, table: int, max_s: float, room: bool = False) -> bool:
        """Wait for `max_s` seconds until the values of the worker's clock are complete; True if they are.

        Args:
            table: Number of the table.
            max_s: Seconds.
            room: Also wait until a push can be written. In memory that does not outlive the launch it can.
        """
        self._confirm()
        wait = self._reduction.wait_room if room else self._reduction.wait_complete
        if self._contributions is None:
            return wait(table, max_s)
        self._contributions.poll()
        # Nothing of this worker is under way when it goes on: a network may need its calls.
        wait_s = min(max_s, waits.BETWEEN_POLLS_S)
        return wait(table, wait_s) and self._pace.wait_for(self._is_idle, wait_s)

    def _is_idle(self) -> bool:
        return self._contributions is None or self._contributions.is_idle

    def wait(self, table: int, doing: str, room: bool = False) -> None:
        """Wait until the values of the worker's clock are complete.

        Args:
            table: Number of the table.
            doing: For the worker's state.
            room: As for `ready`.
        """
        if self.ready(table, 0.0, room):
            return
        control = self._connection.control
        control.state = f"{doing} {self._tables[table].name!r}"
        self._connection.wait_until(lambda: self.ready(table, _WAIT_S, room), self.late)
        control.state = "computing"

    def _is_settled(self) -> bool:
        self.poll()
        return self._reduction.settled and self._is_idle()

    def late(self) -> str:
        """Return the message that values are not complete, with the worker that is late."""
        found = self._reduction.awaited()
        if found is None:
            receiver = (
                self._contributions.slow_receiver if self._contributions is not None else None
            )
            name = self._names[receiver] if receiver is not None else "another worker"
            return f"{name} has not received this worker's updates of replicated tables"
        worker, table, clock, ticked, summed, unsent = found
        if unsent:
            return (
                f"{self._names[worker]} has not ended clock {clock - 1} at all servers, or this worker has "
                f"not received that; this worker is at {self._reduction.clock}"
            )
        done = "has not applied its part of" if summed else "has not closed"
        late, where = f"{self._names[worker]} {done}", f"it is at clock {ticked}"
        # The words of a worker of another node are written by the worker that receives its updates here.
        receiver = self._part.receivers.get(worker, self._connection.index)
        if receiver != self._connection.index:
            late = (
                f"{self._names[receiver]} has not received from another node, or {self._names[worker]} there "
                "has not closed,"
            )
            where = f"the newest clock received is {ticked}"
        return (
            f"{late} clock {clock} of the replicated table {self._tables[table].name!r}; {where}, this "
            f"worker is at {self._reduction.clock}"
        )

    def before_cut(self, number: int) -> bool:
        """Write this worker's share of all tables to the servers, before its cut record.

        Blocks until the values of the worker's clock are complete. Another worker may wait in a gather for
        this one, so the scheduler is informed as by `WorkerPart.report_wait`.

        Args:
            number: Number of the cut.

        Returns:
            False if the cut was given up meanwhile: nothing is written.
        """
        control, behind, informed = self._connection.control, Patience(_BEHIND_S), False

        def done() -> bool:
            nonlocal informed
            if not informed and behind.is_over:
                control.tell(Waits(number, "behind"))
                informed = True
            return self._is_settled() or control.cut.given_up >= number

        self._wait_for(done, "summing replicated tables for a checkpoint")
        if control.cut.given_up >= number:
            return False
        self._store()
        return True

    def finish(self) -> None:
        """Complete all clocks, and write the worker's share to the servers. Blocks for both."""
        self._wait_for(self._is_settled, "summing replicated tables")
        if self._part.stores and not self._part.had_finished:
            self._store()
            # Others go on only behind this: their later values overwrite these.
            self._connection.flush()

    def leave(self) -> None:
        """Let other workers go on without this one. Call it when all servers have the worker's end.

        Blocks until what others wait for is sent: they receive nothing behind the end.
        """
        waits.polled(self._connection, self._is_confirmed, "ending", self._late_servers)
        self._reduction.finish()
        if self._contributions is not None:
            self._contributions.finish(self._reduction.clock)

    def _wait_for(self, done: Callable[[], bool], state: str) -> None:
        waits.polled(self._connection, done, state, self.late)

    def _store(self) -> None:
        """Write this worker's share of values, state and counts of updates to the servers."""
        place, count = self._reduction.place()
        servers = set()
        for table, described in enumerate(self._tables if count else ()):
            start, stop = _native.slice_of(described.n_elements, place, count, table)
            for part in self._part.shards[table]:
                low, high = max(start, part.start), min(stop, part.stop)
                if low >= high:
                    continue
                servers.add(part.server)
                for slot in range(1 + described.optimizer.n_state):
                    self._write(table, slot, part, low, high)
        self._connection.publish(sorted(servers))

    def _write(self, table: int, slot: int, part: ShardRange, low: int, high: int) -> None:
        """Write elements [low, high) of values or of a state to the server of a shard."""
        connection, reduction = self._connection, self._reduction
        writer = connection.channels[part.server].writer
        values = reduction.values(table, slot)[low:high]
        index, steps = list(self._part.tables)[table], reduction.steps(table)
        done = 0
        while True:
            done = writer.store(index, connection.now, slot, steps, low - part.start, values, done)
            if done == high - low:
                return
            connection.wait_credit(part.server)

    def end(self) -> None:
        """Receive and send what is left. Call it when all workers have finished. Blocks.

        Raises:
            StallError: Some message has not arrived within the job's timeout.
        """
        contributions = self._contributions
        if contributions is not None:
            self._wait_for(contributions.has_ended, "ending")

    def add_figures(self, figures: Figures) -> None:
        """Add bytes and pushes of replicated tables to a worker's figures. Such pushes are never stale."""
        figures.pushed_bytes += self._pushed_bytes
        figures.pulled_bytes += self._pulled_bytes
        figures.judged += self._pushed

    def count(self, counters: dict[str, int]) -> None:
        """Add the pushes of replicated tables to a worker's counters."""
        for key in ("pushed", "applied", "replicated"):
            counters[key] = counters.get(key, 0) + self._pushed
        for key, n in (("pushed_bytes", self._pushed_bytes), ("pulled_bytes", self._pulled_bytes)):
            counters[key] = counters.get(key, 0) + n
