"""Handovers of values between two processes of a node without mpips: the least that a push can take."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpips import _native
from mpips.bench import loops
from mpips.bench.measure import Figure

_WORDS = 16  # uint64, two cache lines
_LINE = 64  # bytes
_LIMIT_S = 60.0  # until the other rank answers


class Handovers:
    """Shared memory of two ranks, on which handovers are measured.

    Rank 1, which is the worker in other measurements, copies values and raises a flag; rank 0 subtracts them
    and answers. Making, measuring and the end of the `with` block are collective.
    """

    def __init__(self, comm: MPI.Intracomm, n: int) -> None:
        """Allocate the memory. `n`: most float32 values of a handover."""
        self._comm, self.is_first = comm, comm.Get_rank() == 1
        n_bytes = _WORDS * 8 + n * 4 + _LINE if self.is_first else 0
        self._window = MPI.Win.Allocate_shared(n_bytes, 1, comm=comm)
        memory, _ = self._window.Shared_query(1)
        raw = np.asarray(memory)
        start = -raw.ctypes.data % _LINE
        values_at = start + _WORDS * 8
        self._words = raw[start:values_at].view(np.uint64)
        self._shared = raw[values_at : values_at + n * 4].view(np.float32)
        if self.is_first:
            self._words[:] = 0
            self._shared[:] = 0
        comm.Barrier()

    def __enter__(self) -> Handovers:
        """Return this object."""
        return self

    def __exit__(self, *error: object) -> None:
        """Free the memory. After an exception it stays, since the other rank may not arrive here."""
        if error[0] is None:
            del self._words, self._shared
            self._window.Free()

    def round_trip(self, calls: int) -> float:
        """Return the seconds of a round trip of a flag."""
        _native.flag_round_trip(self._words, self.is_first, calls // 10 + 1, _LIMIT_S)
        return _native.flag_round_trip(self._words, self.is_first, calls, _LIMIT_S)

    def seconds(self, n: int, calls: int) -> float:
        """Return the seconds of a handover of `n` values that are new each time; 0 on rank 0."""
        own, shared = np.ones(n, np.float32), self._shared[:n]
        loops.handover(self._words, shared, own, self.is_first, calls // 10 + 1, _LIMIT_S)
        return loops.handover(self._words, shared, own, self.is_first, calls, _LIMIT_S)


def figures(round_trips: list[float], handovers: dict[str, list[float]]) -> list[Figure]:
    """Return what the suite shows beside its ratios.

    Args:
        round_trips: Seconds of a round trip of a flag, by repetition.
        handovers: For each size in names of figures the seconds of a handover, by repetition.
    """
    found = [
        Figure(
            name="flag_round_trip",
            what="a flag from one core to the other and back, through shared memory",
            unit="us",
            values=[1e6 * s for s in round_trips],
        )
    ]
    for size, seconds in handovers.items():
        found.append(
            Figure(
                name=f"handover_{size}",
                what=f"{size} of new values copied, subtracted by the other core, and answered",
                unit="us",
                values=[1e6 * s for s in seconds],
            )
        )
    return found
