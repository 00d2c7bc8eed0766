"""Defects of the cuts of checkpoints that a simulation must find; see planted.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from mpips.snapshot import coordinator, server_part, worker_part
from mpips.worker import connection
from simulation import disk


def _commits_early() -> list[Any]:
    """The coordinator commits to a cut before all workers have agreed to its clock."""
    real = coordinator.Coordinator.agreed

    def wrong(self: coordinator.Coordinator, worker: int, answer: Any) -> None:
        if self._cut is not None and self._cut.id == answer.id:
            self._cut.unanswered.clear()
        real(self, worker, answer)

    return [mock.patch.object(coordinator.Coordinator, "agreed", wrong)]


def _counts_the_finished() -> list[Any]:
    """A worker that finishes agrees to a cut at a clock before its last one."""
    real = coordinator.Coordinator.worker_done

    def wrong(self: coordinator.Coordinator, worker: int) -> None:
        cut = self._cut
        if cut is not None and cut.phase == "proposed":
            cut.unanswered.discard(worker)
            cut.refused.discard(worker)
            self._decide(cut)
        real(self, worker)

    return [mock.patch.object(coordinator.Coordinator, "worker_done", wrong)]


def _agrees_late() -> list[Any]:
    """A worker agrees to a cut at a clock that it has passed, and cuts at its next tick."""

    def wrong(self: worker_part.WorkerPart, now: int, wait_until: Any) -> None:
        cut = self._control.cut
        if isinstance(cut.pending, worker_part.Commit) and now >= cut.pending.clock:
            number, cut.pending = cut.pending.id, None
            self._put_tick(number)

    return [mock.patch.object(worker_part.WorkerPart, "at_tick", wrong)]


def _cuts_after_a_push() -> list[Any]:
    """A worker that waits writes its cut record although it has pushed since its tick."""
    return [mock.patch.object(connection.Connection, "has_pushed", property(lambda self: False))]


def _positions_of_later() -> list[Any]:
    """A server reads the positions for a checkpoint when it writes it, not at the cut."""
    real = disk.DiskServerPart._head

    def wrong(self: Any, writer: Any, number: int) -> Iterator[object]:
        writer._rest = (*writer._rest[:3], real(self), *writer._rest[4:])
        return server_part.ServerPart._write(self, writer, number)

    return [mock.patch.object(disk.DiskServerPart, "_write", wrong, create=True)]


CUT_DEFECTS = (
    _commits_early,
    _counts_the_finished,
    _agrees_late,
    _cuts_after_a_push,
    _positions_of_later,
)
