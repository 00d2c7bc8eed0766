"""Numbers in messages that start just below a limit of their width; see docs/design/limits.md."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from mpi4py import MPI
from playing import SIZE

from mpips.mpi.attendance import Attendance
from mpips.transport.p2p import P2pMemory, Question
from mpips.transport.p2p_service import P2pService

LIMITS = [2**24, 2**31, 2**32, 2**53, 2**63]
START, STOP, ANSWER = 4096, 8192, 128

pytestmark = pytest.mark.skipif(SIZE < 2, reason="a server and a worker")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_question_is_answered_at_its_number_of_records_past_every_width(
    comm: MPI.Intracomm, limit: int
) -> None:
    if comm.rank == 0:
        region = np.zeros(STOP, np.uint8)
        service = P2pService(
            comm, region, {1: (START, STOP)}, ANSWER, lambda what: contextlib.nullcontext()
        )
        done, finished, deadline = comm.irecv(source=1, tag=99), False, time.monotonic() + 20
        while not finished:
            finished = done.test()[0]
            service.poll()
            assert time.monotonic() < deadline
    elif comm.rank == 1:
        memory = P2pMemory(comm, 0, 20.0, lambda: None)
        question = Question(comm, 0, ANSWER)
        for count in range(limit - 2, limit + 2):
            # The number of consumed records is the first word of a mailbox.
            memory.put(START, np.array([count - 1], np.uint64).view(np.uint8))
            question.ask(count)
            memory.get(START, np.zeros(8, np.uint8))
            memory.flush()
            assert question.answer() is None
            memory.put(START, np.array([count], np.uint64).view(np.uint8))
            while (answer := question.answer()) is None:
                memory.leave()
            assert int(answer[:8].view(np.uint64)[0]) == count
        comm.send(None, 0, 99)
    comm.Barrier()


class Asking(Attendance):
    """Counts the questions of this rank that are over."""

    asked = 0

    def _ask(self, *arguments) -> None:
        super()._ask(*arguments)
        self.asked += 1


class Pending:
    """The request of a collective that ends after a question."""

    def __init__(self, attendance: Asking) -> None:
        self._attendance = attendance

    def Test(self) -> bool:
        return self._attendance.asked >= 1


@pytest.mark.parametrize("limit", LIMITS[1:4])
def test_questions_of_bounded_waits_go_past_every_width(comm: MPI.Intracomm, limit: int) -> None:
    def give_up(message: str, rank: int) -> None:
        raise AssertionError(message)

    attendance = Asking(comm, 0.2, lambda rank: f"rank {rank}", give_up)
    assert attendance._question == 0
    attendance._question = limit - 1
    attendance.wait(Pending(attendance), "a collective")  # type: ignore[arg-type]
    attendance._timeout_s = 60.0
    attendance.wait(comm.Ibarrier(), "the end")
    assert attendance._question == limit
