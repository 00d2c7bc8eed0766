"""Sentences on programs that never call worker.clock(), workers that end apart, and folders that lack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import ASP, BSP, SSP, DenseTable, EmbeddingTable, Replicated, Switch, Worker
from mpips.session.clocks_at_end import clock_notes, named
from mpips.worker.forgotten_clock import MANY_ROUNDS, ForgottenClock, effect, watched
from mpips.worker.worker import connection_of

ONE = np.ones(2, np.float32)
LATE = "pushes add up until the clock ends, so no pull contains an update"


def rounds(n: int, clocks: int = 0) -> Any:
    """Return a program of `n` rounds of pull and push without a clock, after `clocks` with one each."""

    def main(worker: Worker) -> None:
        w = worker.table("w")
        for step in range(n + clocks):
            w.pull()
            w.push(ONE)
            if step < clocks:
                worker.clock()

    return main


def dense(consistency: Any) -> DenseTable:
    return DenseTable("w", (2,), optimizer=mpips.SGD(lr=1.0), consistency=consistency)


@pytest.mark.parametrize(
    ("model", "clause"),
    [
        (BSP(), f"under BSP {LATE}"),
        (Switch(BSP(), ASP(), at=9), f"under Switch {LATE}"),
        (
            SSP(2),
            "the bound of SSP counts clocks, so no worker waits for a slower one, and no checkpoint",
        ),
    ],
    ids=["bsp", "switch", "ssp"],
)
def test_a_program_that_never_calls_clock_is_told_at_its_end(
    capfd: pytest.CaptureFixture[str], model: Any, clause: str
) -> None:
    mpips.run(rounds(4), [dense(model)])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"mpips: warning: worker 0 ended without a call of worker.clock(): {clause}"
    )
    assert line.endswith("; call worker.clock() at the end of each step")


def test_a_long_program_is_told_while_it_runs_and_only_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen = []

    def main(worker: Worker) -> None:
        w = worker.table("w")
        for _ in range(MANY_ROUNDS):
            assert capfd.readouterr().err == ""
            w.push(ONE)
            connection_of(worker).poll()
            w.pull()
            connection_of(worker).poll()
        w.push(ONE)
        connection_of(worker).poll()
        w.pull()
        seen.append(capfd.readouterr().err)
        for _ in range(2 * MANY_ROUNDS):
            w.push(ONE)
            w.pull()
            connection_of(worker).poll()

    mpips.run(main, [dense(BSP())])
    assert seen == [
        "mpips: warning: worker 0 has pushed and pulled many times and never called worker.clock(): "
        f"under BSP {LATE}; call worker.clock() at the end of each step\n"
    ]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("index", [0, 1])
def test_one_worker_speaks_for_all(capfd: pytest.CaptureFixture[str], index: int) -> None:
    class Busy:
        """A part that has pushed and pulled more with each look."""

        looks = 0

        def count(self, counters: dict[str, int]) -> None:
            self.looks += 1
            for key in ("pushed", "pushed_bytes", "pulled_bytes"):
                counters[key] = counters.get(key, 0) + self.looks

    connection: Any = SimpleNamespace(index=index, step=3, channels=[], parts=[Busy()])
    watch = ForgottenClock(connection, "an effect", [dense(BSP())])
    assert not watch.is_over
    assert [watch.poll() for _ in range(MANY_ROUNDS)] == [False] * (MANY_ROUNDS - 1) + [True]
    assert capfd.readouterr().err.count("worker 0 has pushed and pulled") == (index == 0)


def test_rows_count_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    def main(worker: Worker) -> None:
        rows = worker.table("e")
        for key in range(4):
            rows.push(np.array([key]), ONE[None])
            rows.pull(np.array([key]))

    mpips.run(main, [EmbeddingTable("e", 2)])
    assert "ended without a call of worker.clock()" in capfd.readouterr().err


def test_tables_in_the_workers_memory_count_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    own = DenseTable("w", (2,), consistency=BSP(), placement=Replicated())
    mpips.run(rounds(4), [own])
    assert f"worker.clock(): under BSP {LATE};" in capfd.readouterr().err


def accumulating(worker: Worker) -> None:
    for _ in range(3):
        for _ in range(50):
            worker.table("w").pull()
            worker.table("w").push(ONE)
        worker.clock()


def pushing_only(worker: Worker) -> None:
    worker.table("w").pull()
    for _ in range(50):
        worker.table("w").push(ONE)


def one_step_of_two_layers(worker: Worker) -> None:
    for name in ("w", "v"):
        worker.table(name).pull()
        worker.table(name).push(ONE)


def reading(worker: Worker) -> None:
    for _ in range(50):
        worker.table("w").pull()


@pytest.mark.parametrize(
    "main",
    [accumulating, pushing_only, one_step_of_two_layers, reading, rounds(600, clocks=1)],
    ids=["accumulating", "pushing", "layers", "reading", "behind a clock"],
)
def test_programs_that_may_mean_it_are_not_warned(
    capfd: pytest.CaptureFixture[str], main: Any
) -> None:
    mpips.run(main, [dense(BSP()), DenseTable("v", (2,))])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("model", [BSP(), SSP(2)])
def test_a_long_time_of_tables_without_clocks_before_the_first_clock_is_no_mistake(
    capfd: pytest.CaptureFixture[str], model: Any
) -> None:
    # As a producer beside a model under BSP, which pushes and flushes samples before its first clock.
    def filling(worker: Worker) -> None:
        rows = worker.table("e")
        for key in range(MANY_ROUNDS + 9):
            rows.push(np.array([key % 8]), ONE[None])
            rows.pull(np.array([key % 8]))
            connection_of(worker).poll()
        assert capfd.readouterr().err == ""
        if worker.table("w").pull()[0] > -1:
            worker.table("w").push(ONE)
            worker.clock()

    def only_filling(worker: Worker) -> None:
        for key in range(9):
            worker.table("e").push(np.array([key]), ONE[None])
            worker.table("e").pull(np.array([key]))

    tables = [dense(model), EmbeddingTable("e", 2, consistency=ASP())]
    for main in (filling, only_filling):
        mpips.run(main, tables)
        assert capfd.readouterr().err == ""


def test_tables_without_clocks_hide_no_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    mpips.run(rounds(4), [EmbeddingTable("e", 2, consistency=ASP()), dense(BSP())])
    assert f"worker.clock(): under BSP {LATE};" in capfd.readouterr().err


def test_asp_needs_no_clock_but_for_checkpoints(
    capfd: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    mpips.run(rounds(600), [dense(ASP())])
    assert capfd.readouterr().err == ""
    mpips.run(rounds(4), [dense(ASP())], save=tmp_path, every_steps=2)
    assert "a checkpoint is written at the end of a clock" in capfd.readouterr().err


def test_the_effect_is_that_of_the_first_table_that_waits() -> None:
    asp = [DenseTable("w", (2,), consistency=ASP())]
    assert effect(asp, saves=False) == ""
    assert effect(asp, saves=True).startswith("a checkpoint is written at the end of a clock")
    mixed = [*asp, DenseTable("v", (2,), consistency=SSP(1))]
    assert effect(mixed, saves=True).startswith("the bound of SSP")
    assert effect([*mixed, dense(BSP())], True) == f"under BSP {LATE}"
    assert watched(asp) == [0]
    assert watched([*mixed, dense(BSP())]) == [2]
    assert watched(mixed) == [1]


def ends(*clocks: int, without: dict[int, str] | None = None) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [{"worker": i, "clock": c} for i, c in enumerate(clocks)]
    for worker, text in (without or {}).items():
        entries[worker]["without_clock"] = text
    return {"workers": entries}


def test_workers_that_end_at_different_clocks_are_named() -> None:
    (note,) = clock_notes(ends(10, 10, 7, 10), [dense(BSP())])
    assert note == (
        "mpips: note: workers ended at different clocks: worker 2 at 7, workers 0, 1 and 3 at 10; the "
        "updates after the clock at which a worker ends are those of the others alone"
    )
    assert clock_notes(ends(10, 10), [dense(BSP())]) == []
    assert "worker 0 at 1, " in clock_notes(ends(1, 2), [dense(SSP(3)), dense(ASP())])[0]
    assert clock_notes(ends(1, 2), [dense(ASP())]) == []
    assert clock_notes(ends(1, 2), [dense(BSP(backup=1))]) == []
    (many,) = clock_notes(ends(*range(9)), [dense(BSP())])
    assert "worker 0 at 0, worker 1 at 1, worker 2 at 2, ... and worker 8 at 8;" in many


def test_workers_without_a_clock_share_one_sentence() -> None:
    (note,) = clock_notes(ends(1, 1, 9, without={0: "x", 1: "x"}), [dense(BSP())])
    assert note.startswith(
        "mpips: warning: workers 0 and 1 ended without a call of worker.clock(): x; call"
    )


def test_names_of_workers() -> None:
    assert named([3]) == "worker 3"
    assert named([0, 2]) == "workers 0 and 2"
    assert named(range(8)) == "workers 0 to 7"
    assert named([0, 2, 4, 6, 8, 9]) == "workers 0, 2, ... and 9"


def test_options_of_checkpoints_without_a_folder_are_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    mpips.run(rounds(0, clocks=1), [dense(BSP())], every_steps=50, incremental=4)
    assert capfd.readouterr().err == (
        "note: every_steps = 50 and incremental = 4 without a folder: this job writes no checkpoints; give "
        "it one (save=FOLDER), or start it by `mpips run`\n"
    )
    mpips.run(rounds(0, clocks=1), [dense(BSP())], every_s=5.0, verbose=False)
    mpips.run(rounds(0, clocks=1), [dense(BSP())], every_s=5.0, save=tmp_path)
    assert capfd.readouterr().err == ""
