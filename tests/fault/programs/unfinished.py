"""Rank 1 sends the beginning of a message and no more of it. argv[1]: "put" or "control"."""

import sys
import time

import numpy as np
from mpi4py import MPI

import mpips
from mpips.mpi import control
from mpips.transport.p2p import P2pMemory
from mpips.worker.worker import connection_of


def main(worker: mpips.Worker) -> None:
    channel = connection_of(worker).channels[0]
    if sys.argv[1] == "put":
        memory = channel._remote
        assert isinstance(memory, P2pMemory)
        memory._send_head(1, channel.layout.mailbox_offset(0), 4096)
        memory.flush()
    else:
        # Too large to be sent before the receiver asks for it, and nobody here answers.
        endpoint = connection_of(worker).control._endpoint
        endpoint.comm.Isend([np.zeros(1 << 24, np.uint8), MPI.BYTE], 0, control.TAG)
    time.sleep(600)


mpips.run(main, [mpips.DenseTable("w", (10,))], transport="p2p", timeout_s=2.0)
