"""`mpips.run` in one process: what a notebook or a first script does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, EmbeddingTable, Worker

UNIT = mpips.SGD(lr=1.0)

SCRIPT = """
import numpy as np
import mpips

def main(worker):
    weights, rows = worker.table("weights"), worker.table("rows")
    for _ in range(3):
        values = weights.pull()
        weights.push(np.ones_like(values))
        rows.push(np.array([7, 10**12]), np.ones((2, 4), np.float32))
        worker.clock()
    return weights.pull().tolist(), rows.pull(np.array([10**12, 8]))[:, 0].tolist()

tables = [
    mpips.DenseTable("weights", (2, 2), optimizer=mpips.SGD(lr=0.5)),
    mpips.EmbeddingTable("rows", 4, optimizer=mpips.SGD(lr=2.0)),
]
outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    print(outcome.value)
"""


def test_a_first_script_runs_without_a_launcher() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "([[-1.5, -1.5], [-1.5, -1.5]], [-6.0, 0.0])\n"
    assert done.stderr == ""


def test_an_outcome_tells_value_role_transports_and_statistics() -> None:
    def main(worker: Worker) -> str:
        worker.table("w").push(np.ones(2, np.float32))
        return f"worker {worker.index} of {worker.n_workers}"

    outcome = mpips.run(main, [DenseTable("w", (2,))])
    assert outcome.value == "worker 0 of 1"
    assert outcome.role == "scheduler + server 0 + worker 0"
    assert outcome.is_first_worker
    assert outcome.transports == [["local"]]
    assert outcome.statistics["servers"][0]["tables"]["w"]["applied"] == 1
    assert outcome.statistics["workers"][0]["pushes"]["pushed"] == 1


@pytest.mark.parametrize("model", [BSP(), SSP(), ASP()], ids=["bsp", "ssp", "asp"])
def test_one_process_never_waits_for_itself(model: Any) -> None:
    def main(worker: Worker) -> float:
        w, e = worker.table("w"), worker.table("e")
        keys = np.arange(400)
        for _ in range(10):
            w.pull()
            w.push(np.full(5000, -1.0, np.float32))
            e.push(keys, -np.ones((400, 3), np.float32))
            e.prefetch(keys)
            e.pull(keys)
            worker.clock()
            worker.barrier("here")
        return float(w.pull()[17] + e.pull(keys)[3, 1])

    tables = [
        DenseTable("w", (5000,), optimizer=UNIT, consistency=model),
        EmbeddingTable("e", 3, optimizer=UNIT, consistency=model),
    ]
    assert mpips.run(main, tables, slot_kib=1, ring_slots=2, timeout_s=20).value == 20.0


def test_an_error_of_the_users_own_comes_out_unchanged_and_the_next_run_works() -> None:
    def fail(worker: Worker) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        mpips.run(fail, [DenseTable("w", (2,))])
    assert mpips.run(lambda worker: worker.now, [DenseTable("w", (2,))]).value == 0


@pytest.mark.parametrize(
    ("tables", "options", "kind", "text"),
    [
        ([], {}, ConfigError, "a job needs at least one table"),
        ([DenseTable("w", (1,))] * 2, {}, ConfigError, "two tables are named 'w'"),
        ([DenseTable("w", (1,))], {"servers": 2}, ConfigError, "servers = 2 with 1 rank"),
        ([DenseTable("w", (1,))], {"servres": 2}, ConfigError, "unknown option 'servres'"),
        ([DenseTable("w", (1,))], {"transport": "rma"}, ConfigError, "needs several ranks"),
        ([EmbeddingTable("e", 9999)], {}, None, ""),
        ([EmbeddingTable("e", 99999)], {}, ConfigError, "slot_kib = 128"),
    ],
)
def test_what_cannot_work_is_refused_before_it_starts(
    tables: list[Any], options: dict[str, Any], kind: type[Exception] | None, text: str
) -> None:
    started: list[int] = []

    def main(worker: Worker) -> None:
        started.append(1)

    if kind is None:
        mpips.run(main, tables, **options)
        assert started == [1]
        return
    with pytest.raises(kind) as caught:
        mpips.run(main, tables, **options)
    assert text in str(caught.value)
    assert started == []


def test_a_run_gives_the_signal_handler_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    mpips.run(lambda w: seen.append(signal.getsignal(signal.SIGTERM)), [DenseTable("w", (1,))])
    assert seen[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_works_outside_the_main_thread() -> None:
    values: list[Any] = []
    thread = threading.Thread(
        target=lambda: values.append(mpips.run(lambda w: w.index, [DenseTable("w", (1,))]).value)
    )
    thread.start()
    thread.join(30)
    assert values == [0]


def test_equal_seeds_give_equal_rows_and_others_do_not() -> None:
    def rows(seed: int, keys: list[int]) -> np.ndarray:
        table = EmbeddingTable("e", 8, init="normal(1)")
        value: np.ndarray = mpips.run(
            lambda w: w.table("e").pull(np.array(keys)), [table], seed=seed
        ).value
        return value

    assert np.array_equal(rows(1, [5, 9]), rows(1, [9, 5])[::-1])
    assert not np.array_equal(rows(1, [5, 9]), rows(2, [5, 9]))
