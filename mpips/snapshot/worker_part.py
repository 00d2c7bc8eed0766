"""A worker's part in snapshots: it writes the worker's cut records, at the place of the cut.

`mpips.snapshot` describes the protocol. native/src/server/server_snapshot.cpp shows why the cut is consistent
if all records of a cut are at the same place of each worker's program at all servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mpips import _native
from mpips.checkpoint.manifest import ImageFile
from mpips.checkpoint.position import Position, compressed
from mpips.errors import ConfigError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import HERE, ONLY, Ask, Commit, Message, Propose, Waits
from mpips.mpi.pending import PendingCut
from mpips.process.patience import Patience

_DECISION_S = 0.0005  # s between two polls for a decision that is due
_PAUSE_S = 0.001  # s between two polls while a checkpoint of the best values is written
_REST_BYTES = 2048  # at most, of a position without its cursor: clocks, random state as text
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
        room: int,
        store_image: Callable[[int, str], ImageFile] | None = None,
        inner_steps: bool = False,
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
            room: Bytes of the longest payload that a record of any server takes.
            store_image: `store_image(id, folder)` writes the worker's image for a cut into a folder, "" for
                that of checkpoints, and returns its description; None: the worker keeps nothing of its own.
            inner_steps: The job has tables under LocalSGD or DiLoCo.
        """
        self._store_image = store_image
        self._inner_steps = inner_steps
        # Clocks of the worker's program after the last tick and after the one before it.
        self._clock = self._clock_before = 0
        self._index = index
        self._position = position
        self.set_control(control)
        self._write = write
        self._is_behind = is_behind
        self._common_clock = common_clock
        self._room = room
        self._last_cut = 0  # number of the last record's cut; 0: there is no wait to report
        # Since the first wait behind that record; None: none so far.
        self._behind: Patience | None = None
        self._in_gather = False
        self._waits_before = 0  # number of the cut reported as not possible in this gather; 0: none
        # With a common clock the coordinator plans these cuts itself.
        self._ask_every = 0 if common_clock else ask_every
        self._before = position.start.step if position.start is not None else 0

    def set_control(self, control: Control) -> None:
        """Exchange messages with the scheduler through `control` from here on."""
        self._control = control

    def expect_only(self, clock: int) -> None:
        """Expect the one cut of a replay at this clock of the worker; see Coordinator.expect_only.

        Call it before the program begins. Blocks while a ring is full.
        """
        if clock:
            self._control.cut.pending = Commit(ONLY.id, clock)
        else:
            self._put_tick(ONLY.id)

    def set_cursor(self, cursor: Mapping[str, Any]) -> None:
        """Store a cursor; Worker.set_cursor describes it.

        Raises:
            ConfigError: The worker's position with this cursor does not fit into a record.
        """
        before = self._position.cursor
        n_bytes = self._position.set_cursor(cursor)
        # Refuse it now, not at the first checkpoint. Small cursors, which are frequent, need no exact number.
        if n_bytes + _REST_BYTES > self._room:
            try:
                self._fitting(self._position.longest_part(self._inner_steps))
            except ConfigError:
                self._position.set_cursor(before)
                raise

    def note_tick(self, now: int, step: int | None = None) -> None:
        """Store the worker's position after a tick, and request a checkpoint if one is due. Does not block.

        Args:
            now: The worker's clock at the servers after the tick.
            step: Number of clocks that its program has ended; None: `now`.
        """
        self._clock_before = self._clock
        self._clock = now if step is None else step
        self._position.note_tick(now, not self._common_clock, step)
        every = self._ask_every
        # Under LocalSGD and DiLoCo several clocks of the program may have ended since the last tick.
        ended = self._before + self._clock, self._before + self._clock_before
        if every and ended[0] // every > ended[1] // every:
            self._control.tell(Ask("steps", time.monotonic(), now))

    def note_inner_step(self, now: int, step: int) -> None:
        """Store the worker's position after an inner step, for a cut of all workers at one place.

        Args:
            now: The worker's clock at the servers.
            step: Number of clocks that its program has ended.
        """
        self._position.note_tick(now, not self._common_clock, step)

    def ask(self, now: int) -> None:
        """Request a checkpoint for a call of the program; return at once."""
        self._control.tell(Ask("call", time.monotonic(), now))

    def at_tick(self, now: int, wait_until: Callable[..., None]) -> None:
        """Write the cut records if this tick is the place of the cut. Blocks for a decision that is due.

        Args:
            now: Number of clocks that the worker's program has ended. Servers end a clock at each of them, or
                with LocalSGD and DiLoCo at outer steps.
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
            order, cut.pending = cut.pending, None
            # The place is the first tick at the clock or after it. At a later one a record would make the cut
            # inconsistent. Write none: the servers then give the cut up.
            # A worker never comes to a tick with the order to cut HERE: it has waited for that cut.
            if order.clock in (0, now) or self._skips(order.clock):
                self._put_tick(order.id, order.folder)

    def _skips(self, clock: int) -> bool:
        """Return True if the last tick is the first one at or after this clock, between outer steps."""
        return self._inner_steps and self._clock_before < clock <= self._clock

    def _decided(self, now: int) -> bool:
        """Return True once the proposal for this clock is committed or abandoned. Sleeps briefly if not."""
        self._control.hurry()
        self._control.poll()
        pending = self._control.cut.pending
        if isinstance(pending, Propose) and now >= pending.clock:
            time.sleep(_DECISION_S)
            return False
        return True

    def cut_here(
        self,
        best: BestValue,
        drive: Callable[[], object],
        wait_until: Callable[..., None],
    ) -> str:
        """Write the cut records here, and wait until their checkpoint is durable. Collective; blocks.

        All workers call it at one place of their programs, and none has pushed since its last tick. So a
        restart finds either the checkpoint, or all workers before this place.

        Args:
            best: The value for which the checkpoint is written; equal on all workers.
            drive: Lets messages and records to servers go on.
            wait_until: As of `at_tick`.

        Returns:
            Path of the checkpoint; "" if it could not be written.

        Raises:
            StallError: The scheduler has sent no progress within the job's timeout.
        """
        cut, path = self._control.cut, ""
        if self._index == 0:
            self._control.tell(Ask("best", time.monotonic(), best=best))

        def done() -> bool:
            drive()
            self._control.hurry()
            self._control.poll()
            if cut.is_here:
                assert cut.pending is not None
                number, cut.pending = cut.pending.id, None
                self._put_tick(number)
            if cut.best is None:
                time.sleep(_PAUSE_S)
            return cut.best is not None

        self._control.state = "waiting for the checkpoint of the best values"
        is_over = False
        while not is_over:
            wait_until(
                done,
                lambda: (
                    "the scheduler has sent no progress of the checkpoint of the best values; look at its "
                    "log and host"
                ),
            )
            # Only this worker's thread takes and clears the message.
            assert cut.best is not None
            is_over, path, cut.best = cut.best.is_over, cut.best.path, None
        self._control.state = "computing"
        return path

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
        if self._common_clock or not isinstance(pending, Commit) or pending.clock == HERE:
            return False
        if pushed_since or not self._position.known or pending.clock:
            return True
        self._control.cut.pending = None
        self._put_tick(pending.id, pending.folder)
        return False

    def check_in_gather(self, pushed_since: bool) -> None:
        """Write the cut records during a gather, or report, once a cut, that this is not possible here.

        Args:
            pushed_since: True if the worker has pushed since its last tick.
        """
        self._in_gather = True
        self.check_in_wait(pushed_since)

    def check_in_wait(self, pushed_since: bool) -> None:
        """Do as `check_in_gather` during a wait for pushes of other workers; `end_gather` ends it.

        The program reads rows between two calls. A read that waits behind the worker's own cut record is
        reported as such.

        Args:
            pushed_since: True if the worker has pushed since its last tick.
        """
        pending = self._control.cut.pending
        if not isinstance(pending, Commit) or pending.id == self._waits_before:
            return
        # All workers leave this gather before they write the records of that cut (`cut_here`).
        if pending.clock == HERE:
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
            self._last_cut, self._behind = 0, None
            return
        if self._behind is None:
            self._behind = Patience(_BEHIND_S)
        elif self._behind.is_over:
            self._control.tell(Waits(self._last_cut, "behind"))
            self._last_cut, self._behind = 0, None

    def leave(self, now: int, step: int | None = None) -> None:
        """Write the worker's last position, which belongs to no cut, and make it ready for any cut.

        The worker has finished. The position is the present one and not that of its last tick, because the
        worker has pushed nothing since that tick.

        Args:
            now: The worker's clock at the servers.
            step: Number of clocks that its program has ended; None: `now`.
        """
        self._control.cut.finished, self._control.cut.pending = True, None
        self._position.note_tick(now, False, step)
        self._put_tick(0)

    def write_position(self, now: int, step: int | None = None) -> None:
        """Write the position at which the worker continues after the next tick; see mpips.recovery.memory.

        The record belongs to no cut.

        Args:
            now: The worker's clock at the servers before that tick.
            step: Number of clocks that its program will have ended; None: `now` + 1.
        """
        self._put(0, now + 1, self._position.coming_part(now + 1, step))

    def _put_tick(self, number: int, folder: str = "") -> None:
        """Write the worker's image, then the records of a cut with its position at its last tick.

        Args:
            number: Number of the cut; 0: none.
            folder: Where its checkpoint is written; see Commit.
        """
        image = self._store_image(number, folder) if self._store_image is not None else None
        self._put(number, self._position.tick, self._position.part(image))

    def _put(self, number: int, clock: int, part: bytes) -> None:
        """Write a record into the rings of all servers; `number` is that of the cut, 0 for no cut."""
        self._write(number, clock, self._fitting(part))
        if number:
            self._last_cut, self._behind = number, None

    def _fitting(self, part: bytes) -> bytes:
        """Return a payload with this part that fits into a record; compressed only if it must be.

        Raises:
            ConfigError: No payload with this part fits.
        """
        if len(part) <= self._room:
            return part
        short = compressed(part)
        if len(short) <= self._room:
            return short
        entries = self._position.entry_bytes()
        largest = max(entries, key=lambda name: entries[name], default="")
        needed = -(-(len(short) + _native.LINE_BYTES) // 1024)
        raise ConfigError(
            f"the cursor and random state of worker {self._index} are too large for a checkpoint: "
            f"{len(part):,} bytes, {len(short):,} when compressed, and a record has room for {self._room:,}; "
            f"the largest entry of the cursor is {largest!r} with {entries.get(largest, 0):,} bytes: set "
            f"slot_kib to {needed} or more, or store less in the cursor"
        )
