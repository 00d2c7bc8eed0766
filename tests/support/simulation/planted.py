"""Defects that a simulation must find: each breaks a rule of the protocol, as a wrong change of it would."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from ring_attack import FIELDS

from mpips import BSP, SSP, Reject, _native
from mpips.checkpoint import position
from mpips.errors import LeavingError
from mpips.model.consistency import Switch
from mpips.recovery import memory, mirror, replica_start, takeover
from mpips.server import server as server_module
from mpips.snapshot import coordinator, server_part, worker_part
from mpips.worker import (
    agreed_bound,
    arrivals,
    connection,
    counts,
    ticks,
    waits,
)
from mpips.worker.ahead import table_ahead
from mpips.worker.feedback import residuals
from mpips.worker.image import memory as image_memory
from mpips.worker.local import tables as local_tables
from mpips.worker.replicated import tables as replicated_tables
from simulation import links
from simulation.planted_backups import BACKUP_DEFECTS
from simulation.planted_chains import CHAIN_DEFECTS
from simulation.planted_cuts import CUT_DEFECTS
from simulation.planted_limits import LIMIT_DEFECTS
from simulation.planted_plateau import PLATEAU_DEFECTS


def _tick_before_position() -> list[Any]:
    """A worker's tick is sent before the position at which it continues after it."""
    write, place = ticks.Ticks._write, ticks.Ticks._write_position

    def both(self: ticks.Ticks) -> None:
        write(self)
        place(self)

    nothing = mock.patch.object(ticks.Ticks, "_write_position")
    return [nothing, mock.patch.object(ticks.Ticks, "_write", both)]


def _no_fence() -> list[Any]:
    """A worker sends ticks before all servers have the records in front of them."""
    return [mock.patch.object(arrivals.Arrivals, "wait")]


def _least_clock() -> list[Any]:
    """A worker continues at the clock of the server that has come least far, and repeats it at the others."""
    return [mock.patch.object(memory.At, "has_pushes_before", return_value=False)]


def _ticks_without_pushes() -> list[Any]:
    """A worker sends a missing tick where the server lacks pushes in front of it, where a copy lacks them."""
    return [mock.patch.object(memory.At, "has_pushes_before", return_value=True)]


def _missing_ticks() -> list[Any]:
    """A restarted worker does not send the ticks that servers lack."""
    return [mock.patch.object(connection.Connection, "end_clock_behind")]


def _old_cursor() -> list[Any]:
    """The position in front of a tick has the cursor of the clock before."""

    def wrong(self: position.Position, clock: int, steps: int | None = None) -> bytes:
        part = self._part(clock, steps, self._raw_random())
        before = getattr(self, "_before", {})
        self._before = dict(part.cursor)  # type: ignore[attr-defined]
        self._in_memory = position.msgspec.structs.replace(part, cursor=before)
        return position._encode(self._in_memory)

    return [mock.patch.object(position.Position, "coming_part", wrong)]


def _residual_of_the_last_try() -> list[Any]:
    """After a restart a residual is that of a push which has not arrived."""
    real = residuals.Residuals.settle
    return [
        mock.patch.object(
            residuals.Residuals, "settle", lambda self, n: real(self, [at + 1 for at in n])
        )
    ]


def _pushes_again() -> list[Any]:
    """A restarted worker does not know which pushes of its clock a server has."""
    real = takeover.resume

    def wrong(channel: Any, at: memory.At, skips_clocks: bool) -> None:
        real(channel, memory.msgspec.structs.replace(at, pushes=0, tag=0), skips_clocks)

    return [mock.patch.object(takeover, "resume", wrong)]


def _one_clock_too_old() -> list[Any]:
    """A pull under SSP takes values that are one clock older than the bound allows."""

    def wrong(c: connection.Connection, table: Any) -> tuple[int, int]:
        if isinstance(table.consistency, BSP):
            return c.now, 0
        if isinstance(table.consistency, SSP):
            bound = table.consistency.bound
            return 0, max(
                0, c.now - (bound if isinstance(bound, int) else table.consistency.max) - 1
            )
        return 0, 0

    return [mock.patch.object(waits, "minimum_clock", wrong)]


def _releases_before_the_copy() -> list[Any]:
    """A server lets records go on before it has copied its shards for a checkpoint."""
    real = server_part.ServerPart._copy

    def wrong(self: Any) -> None:
        self._server.core.release_cut(self._id)
        self._server.drain()
        real(self)

    return [mock.patch.object(server_part.ServerPart, "_copy", wrong)]


def _forgets_its_pushes() -> list[Any]:
    """A pull of rows does not wait for this worker's own pushes in front of it."""
    real = _native.RingWriter.collected_before

    class Channel(links.TurnChannel):
        def wait_collected(self, before: int, max_s: float) -> bool:
            self._world.pause()
            return real(self.writer) >= before - 1

    return [mock.patch.object(links, "TurnChannel", Channel)]


def _acknowledges_before_the_copy() -> list[Any]:
    """A server consumes records before it sends them to its partner."""

    class Early(mirror.Outgoing):
        def __init__(self, server: Any, comm: Any, rank: int) -> None:
            super().__init__(server, comm, rank)
            self._core = _EarlyCore(server.core, self._free[0].size)

        def poll(self) -> bool:
            waits = self._core.hand_out() and self._comm.room.world.random.random() < 0.8
            return waits or super().poll()

    return [mock.patch.object(replica_start, "Outgoing", Early)]


class _EarlyCore:
    """A server core whose partner seems to have whatever is handed out, from its first answer on."""

    def __init__(self, core: Any, most: int) -> None:
        self._core = core
        self._batch = np.zeros(most - _native.LINE_BYTES, np.uint8)
        self._unsent: deque[np.ndarray] = deque()
        self._handed_out: dict[int, int] = {}
        self._words: np.ndarray | None = None

    def hand_out(self) -> bool:
        """Hand out what there is, as if it had arrived; return whether anything is not sent yet."""
        n_bytes, at = self._core.outgoing(self._batch), 0
        while at < n_bytes:
            worker, sequence, payload = (
                struct.unpack_from(form, self._batch, at + offset)[0]
                for form, offset in (FIELDS[n] for n in ("worker", "sequence", "payload_bytes"))
            )
            self._handed_out[worker] = sequence + 1
            at += _native.LINE_BYTES * (1 + -(-payload // _native.LINE_BYTES))
        if n_bytes:
            self._unsent.append(self._batch[:n_bytes].copy())
            self._take()
        return bool(self._unsent)

    def outgoing(self, batch: np.ndarray) -> int:
        if not self._unsent:
            return 0
        found = self._unsent.popleft()
        batch[: found.size] = found
        return int(found.size)

    def take_partner_words(self, words: np.ndarray) -> None:
        self._words = words.copy()
        self._take()

    def _take(self) -> None:
        if self._words is not None:
            for worker, n in self._handed_out.items():
                self._words[worker, 0] = n
            self._core.take_partner_words(self._words)


def _ticks_before_the_copies() -> list[Any]:
    """Under BSP a worker ticks before its pushes have arrived at the partners."""
    return [mock.patch.object(arrivals.Arrivals, "wait_for_partners")]


def _stale_copy() -> list[Any]:
    """A launch continues in memory that the launch before did not serve from."""
    real = replica_start.choose
    return [
        mock.patch.object(
            replica_start, "choose", lambda found, assignment, since: real(found, assignment, 0)
        )
    ]


def _full_copy() -> list[Any]:
    """A copy consumes what it has from the start on only when more arrives."""
    real = mirror.Incoming.__init__

    def wrong(self: mirror.Incoming, *arguments: Any) -> None:
        real(self, *arguments)
        self._is_new = False

    return [mock.patch.object(mirror.Incoming, "__init__", wrong)]


def _says_more_after_its_end() -> list[Any]:
    """A worker with replicated tables sends its end before its message about its last tick."""
    tables = replicated_tables.ReplicatedTables
    return [mock.patch.object(tables, "_is_confirmed", return_value=True)]


def _closes_early() -> list[Any]:
    """A server closes a clock with one worker less than the number of backup workers allows."""
    real = server_module.backup_workers
    return [
        mock.patch.object(
            server_module, "backup_workers", lambda tables: real(tables) + bool(real(tables))
        )
    ]


def _skips_too_far() -> list[Any]:
    """A worker skips the clocks that one server has closed, and not only those that all have."""
    return [mock.patch.object(ticks, "min", max, create=True)]


def _forgets_skipped_clocks() -> list[Any]:
    """A worker that has skipped clocks before its end continues behind its last tick."""
    real = memory.At.of

    def wrong(found: dict[str, Any]) -> memory.At:
        at = real(found)
        last = max((clock + 1 for clock, _ in at.ended), default=at.clock)
        return memory.msgspec.structs.replace(at, clock=last) if at.finished else at

    return [mock.patch.object(memory.At, "of", wrong)]


def _counts_dropped_pushes() -> list[Any]:
    """A worker counts dropped pushes as applied ones."""
    real = counts.outcomes

    def wrong(*arguments: Any) -> dict[str, int]:
        found = real(*arguments)
        found["applied"] += found["late"] + found["rejected"]
        return found | {"late": 0, "rejected": 0}

    return [mock.patch.object(counts, "outcomes", wrong)]


def _one_version_too_stale() -> list[Any]:
    """A server applies updates whose staleness is one more than the policy reject allows."""
    real = server_module.native

    def wrong(consistency: Any, *others: Any) -> Any:
        policy = getattr(consistency, "policy", None)
        if isinstance(policy, Reject):
            consistency = replace(consistency, policy=Reject(policy.max_staleness + 1))
        return real(consistency, *others)

    return [mock.patch.object(server_module, "native", wrong)]


def _forgets_pending_steps() -> list[Any]:
    """A worker that continues does not take the values of an outer step that it had not taken before."""
    real = local_tables.LocalTables._restore

    def wrong(self: local_tables.LocalTables, head: Any, counts: bool) -> None:
        real(self, head, counts)
        self._pending = None

    return [mock.patch.object(local_tables.LocalTables, "_restore", wrong)]


def _keeps_nothing_of_its_own() -> list[Any]:
    """After an outer step with a delay a worker takes the new values, and none of its own."""
    real = local_tables._mix
    return [mock.patch.object(local_tables, "_mix", lambda own, new, mix: real(own, new, 0.0))]


def _one_image() -> list[Any]:
    """A worker writes the image of its values over that of the clock before."""
    halves = image_memory.ImageHalves
    read, write = halves.read, halves.write

    def wrong(self: image_memory.ImageHalves, clock: int, image: Any) -> None:
        write(self, 0, image)
        self._tags[0] = clock + 1

    def holds(self: image_memory.ImageHalves, clock: int) -> bool:
        return int(self._tags[0]) == clock + 1

    return [
        mock.patch.object(halves, "write", wrong),
        mock.patch.object(halves, "holds", holds),
        mock.patch.object(halves, "read", lambda self, clock: read(self, 0)),
    ]


def _looks_ahead_by_outer_steps() -> list[Any]:
    """Rows of a look-ahead count their age in outer steps in a job that has these."""
    now = property(lambda self: self._connection.now)
    return [mock.patch.object(table_ahead.TableAhead, "_now", now)]


def _silent_in_gathers() -> list[Any]:
    """A worker that cannot cut while it waits in a gather does not report it."""
    return [mock.patch.object(worker_part.WorkerPart, "check_in_gather")]


def _cuts_in_a_gather_after_a_push() -> list[Any]:
    """A worker that waits in a gather writes its cut record although it has pushed since its tick."""

    def wrong(self: connection.Connection) -> None:
        self.snapshot.check_in_gather(False)

    return [mock.patch.object(connection.Connection, "check_cut_in_gather", wrong)]


def _keeps_waiting_pushes() -> list[Any]:
    """A server keeps the pushes that wait in the ring of a worker which repeats their clock."""
    return [mock.patch.object(_native.ServerCore, "drop_repeated", return_value=None)]


def _leaves_before_the_exchange() -> list[Any]:
    """A job leaves for another size when its servers have their copies, before they have written them."""
    real = coordinator.Coordinator.taken

    def wrong(self: coordinator.Coordinator, server: int, taken: Any) -> None:
        real(self, server, taken)
        cut = self._cut
        if cut is not None and cut.folder and cut.phase == "writing":
            raise LeavingError("too early", in_memory=True)

    return [mock.patch.object(coordinator.Coordinator, "taken", wrong)]


def _keeps_the_exchange() -> list[Any]:
    """A launch does not remove the exchange, from which a later one starts again."""
    return [mock.patch.object(takeover, "remove_exchange")]


def _forgets_the_exchange() -> list[Any]:
    """A launch whose start-up found memory of another size takes the newest file."""
    real = takeover.Takeover._read

    def wrong(self: takeover.Takeover) -> Any:
        found = real(self)
        self._exchange = None if found is not None else self._exchange
        return found

    return [mock.patch.object(takeover.Takeover, "_read", wrong)]


def _cuts_in_a_repetition() -> list[Any]:
    """A restarted worker cuts where it begins, though servers have pushes of this clock."""

    def wrong(self: connection.Connection) -> bool:
        is_local = self.local is not None and self.local.has_pushed
        return is_local or self.clock_state.pushed_at == self.now

    return [mock.patch.object(connection.Connection, "has_pushed", property(wrong))]


def _sends_no_rest_of_a_clock() -> list[Any]:
    """A restarted worker sends nothing of a clock of which servers have a part."""
    real = takeover.resume

    def wrong(channel: Any, at: memory.At, skips_clocks: bool) -> None:
        n = 1000 if at.pushes else 0
        real(channel, memory.msgspec.structs.replace(at, pushes=n), skips_clocks)

    return [mock.patch.object(takeover, "resume", wrong)]


def _counts_a_clock_that_was_sent_in_part() -> list[Any]:
    """A worker that was killed in a clock continues behind it, although servers have a part of its pushes."""
    real, change = takeover.place_of, memory.msgspec.structs.replace

    def wrong(worker: int, positions: Any, *rest: Any) -> memory.Place:
        place = real(worker, positions, *rest)
        cursor, clock = place.state.cursor, place.clock + 1
        if not cursor or all(at.clock < place.clock or not at.pushes for at in positions):
            return place
        state = change(place.state, cursor={**cursor, "clock": cursor["clock"] + 1})
        return change(place, clock=clock, steps=clock, ahead=max(place.ahead, clock), state=state)

    return [mock.patch.object(takeover, "place_of", wrong)]


def _bound_before_its_clock() -> list[Any]:
    """A worker uses a decision on the bound as soon as it has read it."""
    real = agreed_bound.AgreedBound._learn

    def wrong(self: agreed_bound.AgreedBound, now: int) -> None:
        real(self, now)
        _, bound, before = self._decision
        self._decision = (0, bound, before)

    return [mock.patch.object(agreed_bound.AgreedBound, "_learn", wrong)]


def _knows_the_bound_for_too_long() -> list[Any]:
    """A worker reads decisions on the bound too seldom."""
    real = agreed_bound.AgreedBound._learn

    def wrong(self: agreed_bound.AgreedBound, now: int) -> None:
        real(self, now)
        self._known += self._most + 3

    return [mock.patch.object(agreed_bound.AgreedBound, "_learn", wrong)]


def _rows_of_the_greatest_bound() -> list[Any]:
    """A pull of rows names no clock that all workers must have reached."""
    real = _native.RingWriter.set_bound

    def wrong(self: Any, table: int, bound: int) -> None:
        real(self, table, 255)

    return [mock.patch.object(_native.RingWriter, "set_bound", wrong)]


def _workers_switch_early() -> list[Any]:
    """Workers end BSP one clock before the servers do."""
    real = waits.bsp_until
    return [mock.patch.object(waits, "bsp_until", lambda c, n: max(0, real(c, n) - 1))]


def _servers_switch_early() -> list[Any]:
    """Servers end BSP one clock before the workers do."""
    real = server_module.native

    def wrong(consistency: Any, n_workers: int) -> _native.ConsistencyConfig:
        at = consistency.at if isinstance(consistency, Switch) else 0
        if isinstance(at, int) and at > 1:
            consistency = replace(consistency, at=at - 1)
        return real(consistency, n_workers)

    return [mock.patch.object(server_module, "native", wrong)]


def _switches_by_the_clock_of_the_launch() -> list[Any]:
    """Workers forget the clocks of the run before the launch."""
    real = waits.bsp_until
    return [mock.patch.object(waits, "bsp_until", lambda c, n: real(c, 0))]


def _forgets_stages() -> list[Any]:
    """A server that continues in memory lets all workers take part in the tables of a stage."""
    real = server_module.Server._set_stage

    def wrong(self: server_module.Server, i: int, table: Any) -> None:
        if not self.durability.warm:
            real(self, i, table)

    return [mock.patch.object(server_module.Server, "_set_stage", wrong)]


PLANTED: dict[str, Callable[[], list[Any]]] = {
    function.__name__.strip("_").replace("_", "-"): function
    for function in (
        _tick_before_position,
        _no_fence,
        _least_clock,
        _missing_ticks,
        _ticks_without_pushes,
        _old_cursor,
        _residual_of_the_last_try,
        _pushes_again,
        *CUT_DEFECTS,
        _one_clock_too_old,
        _releases_before_the_copy,
        _forgets_its_pushes,
        _acknowledges_before_the_copy,
        _ticks_before_the_copies,
        _stale_copy,
        _full_copy,
        _says_more_after_its_end,
        _closes_early,
        _skips_too_far,
        _forgets_skipped_clocks,
        _counts_dropped_pushes,
        _one_version_too_stale,
        _forgets_pending_steps,
        _keeps_nothing_of_its_own,
        _one_image,
        _looks_ahead_by_outer_steps,
        _silent_in_gathers,
        _cuts_in_a_gather_after_a_push,
        _keeps_waiting_pushes,
        _leaves_before_the_exchange,
        _keeps_the_exchange,
        _forgets_the_exchange,
        _cuts_in_a_repetition,
        _sends_no_rest_of_a_clock,
        _counts_a_clock_that_was_sent_in_part,
        _bound_before_its_clock,
        _knows_the_bound_for_too_long,
        _rows_of_the_greatest_bound,
        *LIMIT_DEFECTS,
        _workers_switch_early,
        _servers_switch_early,
        _switches_by_the_clock_of_the_launch,
        *BACKUP_DEFECTS,
        *CHAIN_DEFECTS,
        _forgets_stages,
        *PLATEAU_DEFECTS,
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Within the block mpips has this defect."""
    patches = PLANTED[name]()
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
