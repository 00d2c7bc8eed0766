"""A worker's part in cuts: agrees to a place, and writes its cut records there.

See `mpips.snapshot` for the protocol, and native/src/server/server_snapshot.cpp for what hangs on the place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from mpips.checkpoint.position import Position
from mpips.errors import ConfigError
from mpips.mpi.messages import Ask, Commit, Message, Propose, Waits
from mpips.mpi.pending import PendingCut

_DECISION_S = 0.0005  # between looks for a decision that is due
_BEHIND_S = 0.1  # of waiting behind a cut record, until the scheduler is informed


class Control(Protocol):
    """What this needs of a worker's side of the control plane."""

    state: str
    cut: PendingCut

    def poll(self) -> None:
        """Take messages."""

    def hurry(self) -> None:
        """Let the next `poll` look at once."""

    def tell(self, message: Message) -> None:
        """Send the scheduler a message."""


class WorkerPart:
    """One worker's cut records. Not thread-safe."""

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
        """`write(id, clock, payload)` puts a cut record into the rings of all servers and sends it; the
        payload describes where the worker stands at that clock. `is_behind`: some server has not consumed
        the last one.

        `common_clock`: all workers cut at the same clock; where not, this one asks for a checkpoint at each
        multiple of `ask_every` steps of the run (0: never).
        """
        self._index = index
        self._position = position
        self._control = control
        self._write = write
        self._is_behind = is_behind
        self._common_clock = common_clock
        self._last_cut = 0  # the cut of the last record
        self._behind_since = 0.0  # monotonic time of the first wait behind it; 0: none so far
        self._in_gather = False
        self._waits_before = 0  # the cut that was reported as not possible in this gather
        # Where workers have a common clock the scheduler knows when they come there.
        self._ask_every = 0 if common_clock else ask_every
        self._before = position.start.step if position.start is not None else 0

    def note_tick(self, now: int) -> None:
        """The worker has ended a clock; takes no messages."""
        self._position.note_tick(now, keep=not self._common_clock)
        if self._ask_every and (self._before + now) % self._ask_every == 0:
            self._control.tell(Ask("steps", time.monotonic(), now))

    def ask(self, now: int) -> None:
        """Ask for a checkpoint by hand."""
        self._control.tell(Ask("call", time.monotonic(), now))

    def at_tick(self, now: int, wait_until: Callable[..., None]) -> None:
        """Write the cut records if this tick is the place for them; waits for a decision that is due."""
        cut = self._control.cut
        if isinstance(cut.pending, Propose) and now >= cut.pending.clock:
            self._control.state = "waiting for the place of a checkpoint"
            wait_until(
                lambda: self._decided(now), lambda: "the scheduler has not decided on a checkpoint"
            )
            self._control.state = "computing"
        if isinstance(cut.pending, Commit) and now >= cut.pending.clock:
            # Forgotten first: while it waits for room the worker may receive the next one.
            number, clock, cut.pending = cut.pending.id, cut.pending.clock, None
            # At another clock than the other workers it would be no consistent cut: better none.
            if clock in (0, now):
                self._put_tick(number)

    def _decided(self, now: int) -> bool:
        """Whether it is known if everybody has agreed to the place where this worker stands."""
        self._control.hurry()
        self._control.poll()
        pending = self._control.cut.pending
        if isinstance(pending, Propose) and now >= pending.clock:
            time.sleep(_DECISION_S)
            return False
        return True

    def while_waiting(self, pushed_since: bool) -> bool:
        """Whether a cut waits for this worker, which itself waits for others; makes it if it can.

        Where workers have no common clock, those that this worker waits for may be held at their cut
        records. If it has pushed nothing since its tick, it stands where it stood then; before its first
        tick, where it began, if that is known.
        """
        pending = self._control.cut.pending
        if self._common_clock or not isinstance(pending, Commit):
            return False
        if pushed_since or not self._position.known or pending.clock:
            return True
        self._control.cut.pending = None
        self._put_tick(pending.id)
        return False

    def look_in_gather(self, pushed_since: bool) -> None:
        """Make the cut that waits for this worker, or report that it cannot be made in this gather."""
        self._in_gather = True
        pending = self._control.cut.pending
        if not isinstance(pending, Commit) or pending.id == self._waits_before:
            return
        if self._common_clock or self.while_waiting(pushed_since):
            self._waits_before = pending.id
            self._control.tell(Waits(pending.id, "before"))

    def end_gather(self) -> None:
        """The gather has ended: the worker moves again."""
        self._in_gather = False
        if self._waits_before:
            self._control.tell(Waits(self._waits_before, "over"))
            self._waits_before = 0

    def look_while_waiting(self) -> None:
        """Report a wait for a server behind the cut record, once a cut. Cheap; called while waiting."""
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
        """The worker has finished, which makes it ready for any cut; say where it stands.

        That is where it stands now, and not where it stood at its last tick: nothing has been pushed since.
        """
        self._control.cut.finished, self._control.cut.pending = True, None
        self._position.note_tick(now, keep=False)
        self._put_tick(0)

    def say_place(self, now: int) -> None:
        """Say where the worker goes on after the tick to come; see mpips.recovery.memory."""
        self._put(0, now + 1, self._position.coming_part(now + 1))

    def _put_tick(self, number: int) -> None:
        """Write the cut records with the worker's part at its last tick."""
        self._put(number, self._position.tick, self._position.part())

    def _put(self, number: int, clock: int, part: bytes) -> None:
        try:
            self._write(number, clock, part)
        except ValueError as error:
            raise ConfigError(
                f"the cursor and random state of worker {self._index} are too large for a checkpoint "
                f"({error}): give set_cursor less, or raise slot_kib"
            ) from None
        if number:
            self._last_cut, self._behind_since = number, 0.0
