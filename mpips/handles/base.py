"""What the handles of dense and embedding tables share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import BSP, needs_base
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.requests import PolledRequest, PushResult, Request, push_result

if TYPE_CHECKING:
    from mpips.worker import Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


def as_float32(what: str, array: Any, shape: tuple[int, ...]) -> Float32:
    """The array as contiguous float32 of this shape, without a copy where it is that already."""
    result: Float32 = np.asarray(array, dtype=np.float32, order="C")
    if result.shape != shape:
        raise ValueError(f"{what} has shape {result.shape}, expected {shape}")
    return result


class Handle:
    """What dense and embedding handles share: checks before a push, requests for it."""

    def __init__(self, worker: Worker, index: int, table: DenseTable | EmbeddingTable) -> None:
        self.name = table.name
        self._worker = worker
        self._index = index
        self._table = table

    def _checked(self, update: Float32, base: Float32 | None) -> Float32:
        """The update to send: finite, not longer than clip_norm, with base values where needed."""
        if self._table.check_finite and not _native.all_finite(update.reshape(-1), None):
            bad = int(np.flatnonzero(~np.isfinite(update.reshape(-1)))[0])
            raise ValueError(
                f"the update of table {self.name!r} holds {update.reshape(-1)[bad]} at position "
                f"{bad} of {update.size}; nothing was sent (check_finite)"
            )
        if base is None and needs_base(self._table.consistency):
            raise ValueError(
                f"table {self.name!r} compensates delays: push needs base, the pulled values"
            )
        if self._table.clip_norm > 0:
            # In float64: squares of float32 overflow long before the values do.
            flat = update.reshape(-1)
            norm = math.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64))
            if norm > self._table.clip_norm:
                return update * np.float32(self._table.clip_norm / norm)
        return update

    def _request(self, ends: dict[int, int]) -> Request[PushResult]:
        """A request for pushes whose last records are `ends` (server -> sequence)."""
        self._worker.note_push()
        worker = self._worker
        # Under BSP nothing happens to a push before the clock ends: it may travel with the tick.
        if not isinstance(self._table.consistency, BSP):
            worker.send(ends)
        missing = dict(ends)

        def advance(max_s: float) -> bool:
            for server, sequence in list(missing.items()):
                if not worker.channels[server].wait_applied(sequence + 1, max_s):
                    return False
                del missing[server]
            return True

        def finish() -> PushResult:
            return push_result([worker.channels[s].writer.result(q) for s, q in ends.items()])

        def late() -> str:
            server = next(iter(missing))
            return f"server {server} has not taken a push of table {self.name!r}" + worker.blame(
                server
            )

        return PolledRequest(advance, finish, late, worker.timeout_s, worker.control.poll)
