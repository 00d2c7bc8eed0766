"""Bounded waits: a question to ranks that all have come does not end the job, and no wait is endless."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from simulated_time import SimulatedTime

from mpips.mpi.attendance import Attendance

pytestmark = pytest.mark.mpi(min_size=2)


class GivenUpError(Exception):
    pass


class Asking(Attendance):
    """Counts the questions of this rank that are over."""

    asked = 0

    def _ask(self, *arguments) -> None:
        super()._ask(*arguments)
        self.asked += 1


class Pending:
    """The request of a collective that all ranks have started, and that ends after some questions."""

    def __init__(self, attendance: Asking, questions: float) -> None:
        self._attendance = attendance
        self._questions = questions

    def Test(self) -> bool:
        return self._attendance.asked >= self._questions


def waits(comm: MPI.Intracomm) -> Asking:
    def give_up(message: str, rank: int) -> None:
        raise GivenUpError(message)

    return Asking(comm, 0.2, lambda rank: f"rank {rank}", give_up)


def meet(comm: MPI.Intracomm, attendance: Asking) -> None:
    """Answer the others' questions until all ranks are through."""
    attendance._timeout_s = 60.0
    attendance.wait(comm.Ibarrier(), "the end")


def test_a_collective_whose_last_rank_comes_at_the_deadline_is_waited_for(
    comm: MPI.Intracomm,
) -> None:
    attendance = waits(comm)
    attendance.wait(Pending(attendance, 1), "a collective")  # type: ignore[arg-type]
    meet(comm, attendance)
    assert attendance.asked == 1


def test_a_collective_that_does_not_end_though_all_are_here_is_given_up(
    comm: MPI.Intracomm,
) -> None:
    attendance = waits(comm)
    expected = "no rank that can be named has not come within 0.2 s"
    with pytest.raises(GivenUpError, match=expected):
        attendance.wait(Pending(attendance, float("inf")), "a collective")  # type: ignore[arg-type]
    meet(comm, attendance)
    assert attendance.asked == 1


class Never:
    """The request of a collective that this rank has started and that does not end."""

    def Test(self) -> bool:
        return False


def test_a_late_rank_costs_one_question_to_each_rank(comm: MPI.Intracomm) -> None:
    """All deadlines pass at the same time; the lowest rank asks, and the others leave it to that rank."""
    asking = waits(comm)
    asking._timeout_s = 1.0
    last = comm.size - 1
    comm.Barrier()
    if comm.rank == last:
        # The late rank reads no question until the lowest rank has given up.
        comm.recv(source=0, tag=77)
    elif comm.rank == 0:
        with pytest.raises(GivenUpError, match=rf"rank {last} has not come within 1 s"):
            asking.wait(Never(), "a collective")  # type: ignore[arg-type]
        for rank in range(1, comm.size):
            comm.send(None, rank, 77)
    else:
        asking.wait(FromRankZero(comm), "a collective")  # type: ignore[arg-type]
        assert asking.asked == 0
    meet(comm, asking)


class FromRankZero:
    """A request that ends when a message of rank 0 has arrived."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._request = comm.irecv(source=0, tag=77)

    def Test(self) -> bool:
        return bool(self._request.test()[0])


def test_a_suspension_counts_in_no_wait(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No rank asks: the collective comes within the limit in which this process runs.
    attendance, simulated = waits(comm), SimulatedTime(monkeypatch)
    attendance._timeout_s = 40.0
    simulated.suspend_at, simulated.suspend_s = 20.0, 4000.0

    class Coming:
        def Test(self) -> bool:
            simulated.pass_by(0.01)
            return simulated.ran_s >= 35.0

    attendance.wait(Coming(), "a collective")  # type: ignore[arg-type]
    assert attendance.asked == 0
    monkeypatch.undo()
    meet(comm, attendance)
