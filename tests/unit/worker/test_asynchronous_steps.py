"""Asynchronous DiLoCo in a job of one process: bits, steps by speed, checkpoints, refusals."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_job import run_local

import mpips
from mpips import BSP, ConfigError, DelayedNesterov, DenseTable, DiLoCo, Nesterov, Worker
from mpips.config.options import SessionOptions
from mpips.config.overrides import parse_consistency
from mpips.config.table_section import TableConfig
from mpips.model.consistency import ASP
from mpips.model.job_tables import check_tables
from mpips.model.optimizer import SGD, Adam
from mpips.model.served import served
from mpips.model.table_config import from_config, to_config
from mpips.worker.worker import connection_of

N = 40


def play(main: Callable[[Worker], Any], tables: list[DenseTable], **options: Any) -> Any:
    return run_local(main, tables, SessionOptions(timeout_s=20, **options))[0]


def tables_of(consistency: Any, rule: Any = None) -> list[DenseTable]:
    return [DenseTable(name, (N,), rule or Adam(0.1), consistency) for name in ("a", "b")]


def noise(step: int, i: int) -> np.ndarray:
    return np.random.default_rng([step, i]).standard_normal(N).astype(np.float32)


def train(worker: Worker, first: int, end: int) -> list[np.ndarray]:
    """Push numbers that depend on the values; return the values before each step, and at the end."""
    handles, seen = [worker.table("a"), worker.table("b")], []
    for step in range(first, end):
        for i, handle in enumerate(handles):
            seen.append(handle.pull())
            handle.push(noise(step, i) + seen[-1])
        worker.set_cursor({"step": step + 1})
        worker.clock()
    return [*seen, *(handle.pull() for handle in handles)]


@pytest.mark.parametrize("fragments", [1, 2])
def test_one_worker_has_the_bits_of_synchronous_outer_steps(fragments: int) -> None:
    synchronous = DiLoCo(4, Nesterov(0.7, 0.9), fragments)
    asynchronous = DiLoCo(4, fragments=fragments, asynchronous=True)
    found, expected = (
        play(lambda w: train(w, 0, 23), tables_of(c)) for c in (asynchronous, synchronous)
    )
    assert np.array(found).tobytes() == np.array(expected).tobytes()


def test_the_job_sets_every_to_the_number_of_workers() -> None:
    tables = tables_of(DiLoCo(4, asynchronous=True))
    rules = [table.optimizer for table in served(tables, 3)]
    assert rules == [DelayedNesterov(0.7, 0.9, every=3)] * 2
    assert served(tables, 3)[0].consistency == ASP()
    given = DiLoCo(4, DelayedNesterov(0.7, 0.9, every=5), asynchronous=True)
    assert served(tables_of(given), 3)[0].optimizer == DelayedNesterov(0.7, 0.9, every=5)
    assert isinstance(served(tables_of(DiLoCo(4)), 3)[0].consistency, BSP)


def test_a_slower_worker_makes_fewer_inner_steps() -> None:
    """Steps take a second of a given clock; the fastest worker of the job makes `fastest` per second."""
    lengths: list[int] = []

    def main(worker: Worker) -> float:
        pace = connection_of(worker).local.pace  # type: ignore[union-attr]
        now, fastest = 0.0, 0.5
        pace.now, pace.fastest = lambda: now, lambda: fastest
        table = worker.table("a")
        for step in range(30):
            table.push(np.ones(N, np.float32))
            now += 1.0
            fastest = {8: 2.0, 12: 2.5, 15: 1000.0, 17: 1.0}.get(step + 1, fastest)
            worker.clock()
            lengths.append(worker.inner_steps)
        worker.synchronize()
        return float(table.pull()[0])

    consistency = DiLoCo(8, SGD(1.0), 2, asynchronous=True, steps_by_speed=True)
    assert play(main, tables_of(consistency, SGD(1.0))) == -30
    # From each outer step on: 8 until it is slower than another; at least one for each fragment.
    assert lengths[:7] == [8] * 7
    assert lengths[7:11] == [4] * 4
    assert lengths[11:14] == [3] * 3
    assert lengths[14:16] == [2, 2]
    assert lengths[16] == 8 or lengths[17] == 8


@pytest.mark.parametrize("at", [11, 12, 13])
def test_a_checkpoint_goes_on_with_all_inner_steps_and_the_length(at: int, tmp_path: Path) -> None:
    """Fragments: the base of one of them is not what servers have. `at`: around an outer step."""
    consistency = DiLoCo(8, fragments=2, asynchronous=True, steps_by_speed=True)

    def half(worker: Worker, first: int, end: int) -> tuple[list[np.ndarray], int]:
        pace = connection_of(worker).local.pace  # type: ignore[union-attr]
        now = 0.0

        def tick() -> float:
            nonlocal now
            now += 1.0
            return now

        pace.now, pace.fastest = tick, lambda: 6.0
        return train(worker, first, end), worker.inner_steps

    whole, length = play(lambda w: half(w, 0, 30), tables_of(consistency))

    def begin(worker: Worker) -> None:
        half(worker, 0, at)
        worker.checkpoint()
        train(worker, at, at + 4)
        connection = connection_of(worker)
        deadline = time.monotonic() + 20
        while not connection.control.scheduler.statistics()["checkpoints"]["written"]:  # type: ignore[attr-defined]
            connection.channels[0].wait_applied(connection.channels[0].writer.next_sequence, 0.02)
            connection.poll()
            assert time.monotonic() < deadline, "no checkpoint"
        raise KeyError("an end without the last checkpoint")

    with pytest.raises(KeyError):
        mpips.run(begin, tables_of(consistency), save=tmp_path, verbose=False)
    starts: list[int] = []

    def go_on(worker: Worker) -> tuple[list[np.ndarray], int]:
        starts.append(worker.cursor["step"])
        return half(worker, starts[0], 30)

    rest, then = mpips.run(go_on, tables_of(consistency), save=tmp_path, verbose=False).value
    assert at <= starts[0] <= at + 4
    assert then == length < 8
    assert np.array(rest).tobytes() == np.array(whole[2 * starts[0] :]).tobytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bound": 2}, "bound = 2 applies only to asynchronous"),
        ({"steps_by_speed": True}, "steps_by_speed = True applies only to asynchronous"),
        ({"asynchronous": 1}, "asynchronous = 1: must be a value such as True"),
        ({"asynchronous": True, "delay": 2}, "delay = 2 with asynchronous"),
        ({"asynchronous": True, "bound": -1}, "bound = -1"),
        (
            {"asynchronous": True, "bound": 2, "steps_by_speed": True},
            "bound = 2 with steps_by_speed",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DiLoCo(8, **options)
    assert text in str(caught.value)


def test_all_tables_of_a_job_are_asynchronous_or_none() -> None:
    first, second = DiLoCo(8), DiLoCo(8, asynchronous=True)
    with pytest.raises(ConfigError, match=r"must have equal steps, .* asynchronous"):
        check_tables([DenseTable("a", (3,), SGD(), first), DenseTable("b", (3,), SGD(), second)])


def test_a_job_file_has_the_options() -> None:
    options = TableConfig(consistency="diloco", asynchronous=True, steps_by_speed=True)
    found = parse_consistency(options, BSP())
    assert found == DiLoCo(asynchronous=True, steps_by_speed=True)
    assert parse_consistency(TableConfig(bound=3), DiLoCo(asynchronous=True)) == DiLoCo(
        asynchronous=True, bound=3
    )
    for consistency in (found, DiLoCo(5, asynchronous=True, bound=1)):
        table = DenseTable("w", (3,), SGD(0.1), consistency)
        assert from_config(to_config(table)) == table
