"""Messages at a server: puts inside one message, questions, and messages that no worker sends."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI
from playing import SIZE

from mpips.errors import ProtocolError
from mpips.mpi.control import Client
from mpips.mpi.role_work import RoleWork
from mpips.transport.p2p import (
    EAGER_BYTES,
    INLINE_BYTES,
    TAG_ANSWER,
    TAG_HEAD,
    P2pMemory,
    Question,
)
from mpips.transport.p2p_service import P2pService

PUT, GET, ASK = 1, 2, 3
START, STOP, SAID = 4096, 3 * 4096 + INLINE_BYTES, 128

pytestmark = pytest.mark.skipif(SIZE < 2, reason="a server and a worker")


def served(comm: MPI.Intracomm, work: Callable[[], object]) -> tuple[np.ndarray, str]:
    """Run work on rank 1 while rank 0 serves; return region and server's error on every rank. Collective."""
    region = np.zeros(STOP + 4096, np.uint8)
    error = ""
    if comm.rank == 0:
        guard = lambda what: contextlib.nullcontext()  # noqa: E731
        service = P2pService(comm, region, {1: (START, STOP)}, SAID, guard)
        deadline = time.monotonic() + 20
        done, finished, n_served = comm.irecv(source=1, tag=99), False, 1
        while not error and not (finished and n_served == 0):
            finished = finished or done.test()[0]
            try:
                n_served = service.poll()
            except ProtocolError as problem:
                error = str(problem)
            # Count the worker's records as consumed once the first byte of a put has arrived.
            region[START : START + 8].view(np.uint64)[0] = region[START + 512]
            assert time.monotonic() < deadline
        while not finished:
            finished = done.test()[0]
            if comm.Iprobe(1, TAG_HEAD):
                comm.Recv([bytearray(2 * EAGER_BYTES), MPI.BYTE], 1, TAG_HEAD)
    elif comm.rank == 1:
        work()
        comm.send(None, 0, 99)
    return comm.bcast((region, error))


def memory_of(comm: MPI.Intracomm) -> P2pMemory:
    return P2pMemory(comm, 0, 20.0, lambda: None)


@pytest.mark.parametrize("n", [1, 511, INLINE_BYTES, INLINE_BYTES + 1])
def test_a_put_arrives_whole_whether_it_is_one_message_or_two(comm: MPI.Intracomm, n: int) -> None:
    data = (np.arange(n) % 251 + 1).astype(np.uint8)
    back = np.zeros(n, np.uint8)

    def work() -> None:
        memory = memory_of(comm)
        memory.put(START + 512, data)
        memory.get(START + 512, back)
        memory.flush()
        assert (back == data).all()

    region, error = served(comm, work)
    assert error == ""
    assert (region[START + 512 : START + 512 + n] == data).all()
    assert not region[START + 512 + n :].any()


@pytest.mark.parametrize(("carried", "expected"), [(False, True), (True, True), (True, False)])
def test_a_question_is_answered_when_the_records_are_consumed(
    comm: MPI.Intracomm, carried: bool, expected: bool
) -> None:
    """Without `expected` an exception has come between the question and `expect`."""
    record = np.array([3], np.uint8)

    def work() -> None:
        memory, question = memory_of(comm), Question(comm, 0, SAID)
        if carried:
            memory.put_asking(START + 512, record, 3)
            if expected:
                question.expect()
        else:
            question.ask(3)
            memory.get(START, np.zeros(8, np.uint8))
            memory.flush()
            assert question.answer() is None
            memory.put(START + 512, record)
        while (said := question.answer()) is None:
            time.sleep(0)
        assert len(said) == SAID
        assert said[0] == 3
        memory.flush()

    assert served(comm, work)[1] == ""


@pytest.mark.parametrize(
    ("heads", "inline", "text"),
    [
        ([(PUT, START - 8, 8, 0)], 8, "of which it may use 4096 to"),
        ([(PUT, STOP - 4, 8, 0)], 8, "asked for bytes"),
        ([(PUT, START, 2**63, 0)], 8, "asked for bytes"),
        ([(PUT, START, 8, 0)], 9, "asked for bytes"),
        ([(GET, 0, STOP + 4097, 0)], 0, "of which it may use 0 to"),
        ([(7, START, 8, 0)], 0, "asked for bytes"),
        ([(ASK, 0, 0, 300), (ASK, 0, 0, 301)], 0, "asked a question that no worker asks"),
        ([(PUT, START, 8, 0)], EAGER_BYTES + 1, "a request of"),
    ],
)
def test_what_no_worker_sends_is_an_error(
    comm: MPI.Intracomm, heads: list[tuple[int, ...]], inline: int, text: str
) -> None:
    def work() -> None:
        for head in heads:
            message = struct.pack("<QQQQ", *head) + bytes(inline)
            comm.Send([message, MPI.BYTE], 0, TAG_HEAD)

    assert text in served(comm, work)[1]


class Silence:
    """An endpoint that receives nothing."""

    def receive(self) -> list[object]:
        return []

    def send(self, rank: int, message: object) -> None:
        pass


def test_a_rank_has_time_for_other_work_at_each_sign_of_life() -> None:
    client = Client(Silence(), 0, "here", 60.0)  # type: ignore[arg-type]
    done = []
    client.begin(RoleWork(each_heartbeat=lambda: done.append(1)))
    client.poll()
    client.poll()
    assert done == [1]


def test_of_two_looks_that_find_a_question_one_does_the_rest_too(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None]
) -> None:
    """Every look may find one, if many workers wait."""
    n, counts, held = 20, [], 0
    region = np.zeros(STOP + 4096, np.uint8)
    region[START : START + 8].view(np.uint64)[0] = n  # all records are consumed
    if comm.rank == 0:
        service = P2pService(
            comm, region, {1: (START, STOP)}, SAID, lambda what: contextlib.nullcontext()
        )
        for _ in range(n):
            comm.recv(source=1, tag=98)
            counts.append(service.poll())
            held = max(held, len(service._replies))
            comm.send(None, 1, 97)
        while service.poll():
            pass
    elif comm.rank == 1:
        memory, one = memory_of(comm), np.ones(1, np.uint8)
        for i in range(n):
            # The server answers the question of its last look, and finds this one behind a put.
            memory.put_asking(START + 512, one, 0)
            memory.put_asking(START + 513, one, 1 + i)
            memory.put_asking(START + 514, one, 0)
            comm.send(None, 0, 98)
            comm.recv(source=0, tag=97)
        for _ in range(n):
            comm.Recv([np.empty(SAID, np.uint8), MPI.BYTE], 0, TAG_ANSWER)
        memory.flush()
    # Three messages a look, and the answer; each second one ends behind its question.
    found = comm.rank != 0 or (counts == [2, 5] + [3, 5] * (n // 2 - 1) and held <= 3)
    parallel_assert(comm, found, f"{held} answers were held; {counts}")


def test_a_look_serves_a_limited_number_of_requests(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None]
) -> None:
    """Questions may arrive as fast as they are answered, and the server has other work."""
    n, counts = 200, []
    region = np.zeros(STOP + 4096, np.uint8)
    if comm.rank == 0:
        service = P2pService(
            comm, region, {1: (START, STOP)}, SAID, lambda what: contextlib.nullcontext()
        )
        comm.recv(source=1, tag=98)
        deadline = time.monotonic() + 20
        while sum(counts) < n and time.monotonic() < deadline:
            counts.append(service.poll())
    elif comm.rank == 1:
        memory = P2pMemory(comm, 0, 20.0, lambda: None)
        for i in range(n):
            memory.put(START + i, np.full(1, i + 1, np.uint8))
        comm.send(None, 0, 98)
        memory.flush()
    found = comm.rank != 0 or (region[START : START + n] == np.arange(1, n + 1)).all()
    parallel_assert(comm, found, str(counts))
    parallel_assert(comm, comm.rank != 0 or 0 < max(counts) <= 64, str(counts))
