"""What a prompt shows of a worker, its tables, its requests and the outcome of a job."""

from __future__ import annotations

from typing import Any

import numpy as np

import mpips
from mpips import ASP, BSP, SSP, DenseTable, EmbeddingTable, LocalSGD, Replicated, Worker

TABLES: list[Any] = [
    DenseTable("w", (2, 3), consistency=SSP(2)),
    EmbeddingTable("e", 8, consistency=ASP()),
]


def test_a_worker_and_its_tables_tell_where_they_are() -> None:
    shown: dict[str, str] = {}

    def main(worker: Worker) -> Any:
        worker.clock()
        w, e = worker.table("w"), worker.table("e")
        shown["worker"], shown["w"], shown["e"] = repr(worker), repr(w), repr(e)
        push = w.push(np.ones((2, 3), np.float32))
        push.wait()
        shown["push"] = repr(push)
        pull = e.prefetch(np.array([1, 2]))
        shown["before"] = repr(pull)
        pull.wait()
        shown["after"] = repr(pull)
        return worker, w

    outcome = mpips.run(main, TABLES)
    assert shown == {
        "worker": "<worker 0 of 1 at clock 1: tables ['w', 'e']>",
        "w": "<DenseHandle 'w': float32 of shape (2, 3), SSP, worker 0 of 1 at clock 1>",
        "e": "<EmbeddingHandle 'e': rows of 8 float32, ASP, worker 0 of 1 at clock 1>",
        "push": f"<request: complete, {mpips.PushResult(applied=1)!r}>",
        "before": "<request: under way, or complete and not looked at>",
        "after": "<request: complete, float32 of shape (2, 8)>",
    }
    worker, w = outcome.value
    assert repr(worker) == "<worker 0 of 1, no longer in use: tables ['w', 'e']>"
    assert repr(w).endswith("SSP, worker 0 of 1, no longer in use>")


def test_tables_in_the_workers_memory_tell_it_too() -> None:
    def main(worker: Worker) -> list[Any]:
        worker.clock()
        own = worker.table("a")
        return [repr(own), own]

    local = DenseTable("a", (4,), consistency=LocalSGD(4))
    replicated = DenseTable("a", (4,), consistency=BSP(), placement=Replicated())
    for table, kind in ((local, "LocalHandle"), (replicated, "ReplicatedHandle")):
        at_work, own = mpips.run(main, [table]).value
        values = f"float32 of shape (4,), {type(table.consistency).__name__}, worker 0 of 1"
        assert at_work == f"<{kind} 'a': {values} at clock 1>"
        assert repr(own) == f"<{kind} 'a': {values}, no longer in use>"


def test_an_outcome_is_short() -> None:
    outcome = mpips.run(lambda worker: "x" * 10**6, TABLES)
    assert repr(outcome) == (
        "<outcome of scheduler + server 0 + worker 0: value 'xxxxxxxxxxxx...xxxxxxxxxxxxx', 1 worker, "
        "1 server, clock 0, tables ['w', 'e']>"
    )
    assert repr(mpips.Outcome()) == "<outcome of a rank: value None, tables []>"


def test_a_push_without_an_array_as_its_result() -> None:
    def main(worker: Worker) -> str:
        push = worker.table("e").push(np.array([1]), np.ones((1, 8), np.float32))
        push.wait()
        return repr(push)

    assert mpips.run(main, TABLES).value.startswith("<request: complete, PushResult(applied=1")
