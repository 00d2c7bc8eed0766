"""A worker's part in snapshots: it writes the worker's cut records, at the place of the cut.

`mpips.snapshot` describes the protocol. native/src/server/server_snapshot.cpp shows why the cut is consistent
if all records of a cut are at the same place of each worker's program at all servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from mpips.checkpoint.position import Position
from mpips.errors import ConfigError
from mpips.mpi.messages import Ask, Commit, Message, Propose, Waits
from mpips.mpi.pending import PendingCut

_DECISION_S = 0.0005  # s between two polls for a decision that is due
_BEHIND_S = 0.1  # s of waiting behind a cut record after which the scheduler is informed


class Control(Protocol):
    """The part of a worker's control plane that cuts need.

    Attributes:
        state: Current activity of the worker, for its heartbeats.
        cut: The proposal or order of the coordinator that the worker has still to follow.
    """

    state: str
    cut: PendingCut

    def poll(self) -> None:
        """Receive messages, if the last time was long enough ago. Does not block."""

    def hurry(self) -> None:
        """Make the next `poll` receive messages in any case."""

    def tell(self, message: Message) -> None:
        """Send the scheduler a message; return at once."""


class WorkerPart:
    """The cut records of one worker. Not thread-safe: only the worker's thread uses it."""

    def __init__(
        self,
        index: int,
        position: Position,
        control: Control,
        write: Callable[[int, int, bytes], None],
        is_behind: Callable[[], bool],
        common_clock: bool,
        ask_every: int,
    ) -> None:
        """Begin without a cut.

        Args:
            index: Index of the worker.
            position: Cursor, random state and clock of the worker at its last tick.
            control: Carries messages to and from the scheduler.
            write: `write(id, clock, payload)` puts a cut record into the rings of all servers and sends it.
                The payload describes the worker's position at that clock. Blocks while a ring is full.
            is_behind: Returns True if a server has not consumed the last cut record yet.
            common_clock: True: all workers cut at the same clock (BSP, SSP).
            ask_every: Without a common clock the worker requests a checkpoint at each multiple of this number
                of steps of the run; 0: never.
        """
        self._index = index
        self._position = position
        self.set_control(control)
        self._write = write
        self._is_behind = is_behind
        self._common_clock = common_clock
        self._last_cut = 0  # number of the last record's cut; 0: there is no wait to report
        self._behind_since = 0.0  # monotonic s of the first wait behind that record; 0: none so far
        self._in_gather = False
        self._waits_before = 0  # number of the cut reported as not possible in this gather; 0: none
        # With a common clock the coordinator plans these cuts itself.
        self._ask_every = 0 if common_clock else ask_every
        self._before = position.start.step if position.start is not None else 0

    def set_control(self, control: Control) -> None:
        """Exchange messages with the scheduler through `control` from here on."""
        self._control = control

    def note_tick(self, now: int) -> None:
        """Store the worker's position after a tick, and request a checkpoint if one is due. Does not block.

        Args:
            now: The worker's clock after the tick.
        """
        self._position.note_tick(now, keep=not self._common_clock)
        if self._ask_every and (self._before + now) % self._ask_every == 0:
            self._control.tell(Ask("steps", time.monotonic(), now))

    def ask(self, now: int) -> None:
        """Request a checkpoint for a call of the program; return at once."""
        self._control.tell(Ask("call", time.monotonic(), now))

    def at_tick(self, now: int, wait_until: Callable[..., None]) -> None:
        """Write the cut records if this tick is the place of the cut. Blocks for a decision that is due.

        Args:
            now: The worker's clock after the tick.
            wait_until: `wait_until(done, late)` waits until `done` returns True; after the job's timeout it
                raises StallError with the text of `late`.

        Raises:
            StallError: The scheduler has not decided within the job's timeout.
            ConfigError: The worker's position does not fit into a record.
        """
        cut = self._control.cut
        # The worker has agreed to cut at this clock: wait here until the coordinator commits or abandons.
        if isinstance(cut.pending, Propose) and now >= cut.pending.clock:
            self._control.state = "waiting for the decision on a checkpoint"
            wait_until(
                lambda: self._decided(now),
                lambda: (
                    "the scheduler has sent no decision on a checkpoint; look at its log and host"
                ),
            )
            self._control.state = "computing"
        if isinstance(cut.pending, Commit) and now >= cut.pending.clock:
            # Clear the order first: while the worker waits for room in a ring it may receive the next one.
            number, clock, cut.pending = cut.pending.id, cut.pending.clock, None
            # At another clock than that of the other workers a record would make the cut inconsistent. Write
            # none: the servers then give the cut up.
            if clock in (0, now):
                self._put_tick(number)

    def _decided(self, now: int) -> bool:
        """Return True once the proposal for this clock is committed or abandoned. Sleeps briefly if not."""
        self._control.hurry()
        self._control.poll()
        pending = self._control.cut.pending
        if isinstance(pending, Propose) and now >= pending.clock:
            time.sleep(_DECISION_S)
            return False
        return True

    def while_waiting(self, pushed_since: bool) -> bool:
        """Write the cut records during a wait for other workers, if a cut is ordered and this is possible.

        Without a common clock the workers that this one waits for may be held at their cut records. A worker
        that has pushed nothing since its tick is still at the position of that tick; before its first tick it
        is at the position where it began, if that is known.

        Args:
            pushed_since: True if the worker has pushed since its last tick.

        Returns:
            True if a cut is ordered but the worker cannot write its records here.
        """
        pending = self._control.cut.pending
        if self._common_clock or not isinstance(pending, Commit):
            return False
        if pushed_since or not self._position.known or pending.clock:
            return True
        self._control.cut.pending = None
        self._put_tick(pending.id)
        return False

    def check_in_gather(self, pushed_since: bool) -> None:
        """Write the cut records during a gather, or report, once a cut, that this is not possible here.

        Args:
            pushed_since: True if the worker has pushed since its last tick.
        """
        self._in_gather = True
        pending = self._control.cut.pending
        if not isinstance(pending, Commit) or pending.id == self._waits_before:
            return
        if self._common_clock or self.while_waiting(pushed_since):
            self._waits_before = pending.id
            self._control.tell(Waits(pending.id, "before"))

    def end_gather(self) -> None:
        """Note the end of a gather, and withdraw the report that the cut is not possible in it."""
        self._in_gather = False
        if self._waits_before:
            self._control.tell(Waits(self._waits_before, "over"))
            self._waits_before = 0

    def report_wait(self) -> None:
        """Report, once a cut, that the worker waits for a server behind its cut record. Cheap.

        Call it repeatedly during every wait. In a gather it does nothing: the worker waits for workers there.
        """
        if not self._last_cut or self._in_gather:
            return
        if not self._is_behind():
            self._last_cut, self._behind_since = 0, 0.0
            return
        now = time.monotonic()
        if not self._behind_since:
            self._behind_since = now
        elif now - self._behind_since > _BEHIND_S:
            self._control.tell(Waits(self._last_cut, "behind"))
            self._last_cut, self._behind_since = 0, 0.0

    def leave(self, now: int) -> None:
        """Write the worker's last position, which belongs to no cut, and make it ready for any cut.

        The worker has finished. The position is the present one and not that of its last tick, because the
        worker has pushed nothing since that tick.

        Args:
            now: The worker's clock.
        """
        self._control.cut.finished, self._control.cut.pending = True, None
        self._position.note_tick(now, keep=False)
        self._put_tick(0)

    def write_position(self, now: int) -> None:
        """Write the position at which the worker continues after the next tick; see mpips.recovery.memory.

        The record belongs to no cut.

        Args:
            now: The worker's clock before that tick.
        """
        self._put(0, now + 1, self._position.coming_part(now + 1))

    def _put_tick(self, number: int) -> None:
        """Write the records of a cut with the worker's position at its last tick."""
        self._put(number, self._position.tick, self._position.part())

    def _put(self, number: int, clock: int, part: bytes) -> None:
        """Write a record into the rings of all servers; `number` is that of the cut, 0 for no cut."""
        try:
            self._write(number, clock, part)
        except ValueError as error:
            raise ConfigError(
                f"the cursor and random state of worker {self._index} are too large for a checkpoint: "
                f"{error}, or pass less to set_cursor"
            ) from None
        if number:
            self._last_cut, self._behind_since = number, 0.0
