"""The plain alternative for rows: an mpi4py server in NumPy that workers send messages to.

One server, one worker. The server answers in the order of the messages, with buffers made once and
the NumPy calls that were fastest: take and put with `mode="clip"`, which skips a second copy. Keys are
row numbers below the size of the table, without repeats: NumPy's indexed assignment would keep only one
of several updates of a row.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_PUSH, _PULL, _STOP = 1, 2, 3


class RowServer:
    """The server's side."""

    def __init__(self, comm: MPI.Intracomm, worker: int, table: Float32, batch: int) -> None:
        """`worker`: its rank in `comm`; `table`: (rows, dim), changed in place; `batch`: keys a call."""
        self._comm = comm
        self._worker = worker
        self._table = table
        self._keys = np.empty(batch, np.int64)
        self._rows = np.empty((batch, table.shape[1]), np.float32)
        self._found = np.empty_like(self._rows)
        self._ack = np.zeros(1, np.uint8)

    def serve(self, lr: float) -> None:
        """Answer until the worker says stop. Blocks."""
        status = MPI.Status()
        while True:
            self._comm.Recv(self._keys, self._worker, MPI.ANY_TAG, status)
            if status.tag == _PUSH:
                self._comm.Recv(self._rows, self._worker, _PUSH)
                self._apply(np.float32(lr))
                self._comm.Send(self._ack, self._worker, _PUSH)
            elif status.tag == _PULL:
                np.take(self._table, self._keys, axis=0, out=self._found, mode="clip")
                self._comm.Send(self._found, self._worker, _PULL)
            else:
                return

    def _apply(self, lr: np.float32) -> None:
        # `table[keys] -= lr * rows` without its temporary arrays.
        np.multiply(self._rows, lr, out=self._rows)
        np.take(self._table, self._keys, axis=0, out=self._found, mode="clip")
        np.subtract(self._found, self._rows, out=self._found)
        self._table[self._keys] = self._found


class RowClient:
    """The worker's side."""

    def __init__(self, comm: MPI.Intracomm, server: int) -> None:
        """`server`: its rank in `comm`."""
        self._comm = comm
        self._server = server
        self._ack = np.zeros(1, np.uint8)
        self._open = 0

    def push(self, keys: Int64, rows: Float32) -> None:
        """Send an update. Its acknowledgement is taken after the next one, so that both sides work."""
        self._comm.Send(keys, self._server, _PUSH)
        self._comm.Send(rows, self._server, _PUSH)
        self._open += 1
        self.settle(1)

    def settle(self, most: int = 0) -> None:
        """Wait until at most `most` pushes are not acknowledged."""
        while self._open > most:
            self._comm.Recv(self._ack, self._server, _PUSH)
            self._open -= 1

    def pull(self, keys: Int64, out: Float32) -> Float32:
        """Fetch rows into `out`, shape (len(keys), dim)."""
        self.settle()
        self._comm.Send(keys, self._server, _PULL)
        self._comm.Recv(out, self._server, _PULL)
        return out

    def stop(self) -> None:
        """End the server's loop."""
        self.settle()
        self._comm.Send(np.empty(0, np.int64), self._server, _STOP)
