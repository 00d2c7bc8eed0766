"""A push of several records that an exception of the program cuts off: what the worker may write after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from local_job import run_local

from mpips import ASP, BSP, SGD, DenseTable, EmbeddingTable, Fp16, MpipsError, ProtocolError
from mpips.config.options import SessionOptions
from mpips.errors import StallError
from mpips.worker.worker import Worker, connection_of

N, ROWS = 60_000, 3_000
ONES, KEYS = np.ones(N, np.float32), np.arange(ROWS)
ROW_VALUES = np.ones((ROWS, 4), np.float32)
# Rings of 4 slots of 4 KiB: every push of these tests waits for credits many times.
OPTIONS = SessionOptions(ring_slots=4, slot_kib=4)
WORDS = "table 't' was interrupted .by a stall or Ctrl-C. when a part of it had been sent"


def tables(model: Any, compression: Any = None) -> list[Any]:
    return [
        DenseTable("t", (N,), SGD(1.0), model, init="zeros", compression=compression),
        EmbeddingTable("e", 4, SGD(1.0), BSP(reduce="sum")),
        DenseTable("small", (3,), SGD(1.0), BSP(reduce="sum"), init="zeros"),
    ]


def cut_off(worker: Worker, push: Callable[[], object], error: BaseException, after: int) -> None:
    """Let `push` end by `error` when it has waited for credits `after` times."""
    connection, left = connection_of(worker), [after]
    real = connection.wait_credit

    def wait(server: int) -> None:
        if left[0] == 0:
            raise error
        left[0] -= 1
        real(server)

    connection.wait_credit = wait  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        push()
    connection.wait_credit = real  # type: ignore[method-assign]


NEXT: dict[str, Callable[[Worker], object]] = {
    "push": lambda w: w.table("t").push(ONES),
    "small": lambda w: w.table("small").push(np.ones(3, np.float32)),
    "rows": lambda w: w.table("e").push(KEYS, ROW_VALUES),
    "optimizer": lambda w: w.table("small").set_optimizer(SGD(2.0)),
    "clock": lambda w: w.clock(),
}


@pytest.mark.parametrize("following", NEXT)
@pytest.mark.parametrize("compression", [None, Fp16()], ids=["ring", "encoded"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), StallError("late")], ids=["ctrl-c", "stall"]
)
def test_the_next_record_names_the_cut_off_push(
    error: BaseException, compression: Any, following: str
) -> None:
    def main(worker: Worker) -> None:
        cut_off(worker, lambda: worker.table("t").push(ONES), error, 2)
        assert worker.table("small").pull().tolist() == [0, 0, 0]  # a read does no harm
        NEXT[following](worker)

    with pytest.raises(MpipsError, match=WORDS) as raised:
        run_local(main, tables(BSP(reduce="sum"), compression), OPTIONS)
    assert not isinstance(raised.value, ProtocolError)


def test_cut_off_rows_are_named() -> None:
    def main(worker: Worker) -> None:
        push = functools.partial(worker.table("e").push, KEYS, ROW_VALUES)
        cut_off(worker, push, KeyboardInterrupt(), 1)
        worker.table("t").push(ONES)

    with pytest.raises(MpipsError, match=WORDS.replace("'t'", "'e'")):
        run_local(main, tables(BSP(reduce="sum")), OPTIONS)


def test_the_end_of_the_job_names_it_too() -> None:
    def main(worker: Worker) -> None:
        cut_off(worker, lambda: worker.table("t").push(ONES), KeyboardInterrupt(), 1)

    with pytest.raises(MpipsError, match=WORDS):
        run_local(main, tables(BSP(reduce="sum")), OPTIONS)


def test_a_push_that_has_sent_nothing_may_be_repeated() -> None:
    def main(worker: Worker) -> tuple[float, float]:
        table = worker.table("t")
        for _ in range(4):  # the ring is full
            worker.table("small").push(np.ones(3, np.float32))
        cut_off(worker, lambda: table.push(ONES), KeyboardInterrupt(), 0)
        table.push(ONES)
        worker.clock()
        values = table.pull()
        return float(values.min()), float(values.max())

    assert run_local(main, tables(BSP(reduce="sum")), OPTIONS)[0] == (-1.0, -1.0)


def test_a_server_drops_a_part_of_a_push_under_asp() -> None:
    def main(worker: Worker) -> tuple[float, float]:
        table = worker.table("t")
        cut_off(worker, lambda: table.push(ONES), KeyboardInterrupt(), 2)
        table.push(ONES).wait()
        worker.clock()
        values = table.pull()
        return float(values.min()), float(values.max())

    assert run_local(main, tables(ASP()), OPTIONS)[0] == (-1.0, -1.0)
