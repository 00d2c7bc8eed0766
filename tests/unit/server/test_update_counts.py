"""The steps of a rule are the updates that it has applied; a clock without a push is no step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows
from journal_rig import Rig as JournalRig

import mpips
from mpips import _native
from mpips.checkpoint import open_checkpoint
from mpips.kernels import reference
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam, AdamW, Optimizer, PythonRule
from mpips.transport.region import unlink_job
from mpips.worker.worker import Worker

EVERY = 10  # clocks between two pushes
ONE = np.ones(8, np.float32)


def plain(rule: Optimizer, n_updates: int) -> np.ndarray:
    """Return the values after `n_updates` updates with a gradient of ones."""
    config = rule.native()
    values, state = np.zeros(8, np.float32), np.zeros((config.n_state, 8), np.float32)
    for step in range(1, n_updates + 1):
        reference.update(config, values, state, ONE, step)
    return values


def push_now_and_then(worker: Worker, first: int, last: int) -> None:
    """Run clocks `first` to `last - 1`, with a push in every tenth."""
    for clock in range(first, last):
        if clock % EVERY == EVERY - 1:
            worker.table("w").push(ONE)
        worker.clock()


@pytest.mark.parametrize("rule", [Adam(0.1), AdamW(0.1)], ids=["adam", "adamw"])
def test_clocks_without_a_push_are_no_steps(rule: Optimizer) -> None:
    rig = Rig(dense(optimizer=rule, consistency=BSP()))
    push_now_and_then(rig.worker(), 0, 50)
    assert rig.values().tobytes() == plain(rule, 5).tobytes()
    if isinstance(rule, AdamW):
        return
    # The mean of equal gradients over its root mean square is 1: each update moves by lr.
    assert rig.values() == pytest.approx(-0.5, rel=1e-6)
    assert (rig.core.version(0), rig.core.steps(0)) == (50, 5)


@pytest.mark.parametrize("make", [dense, rows])
def test_a_python_rule_counts_its_updates(make: Callable[..., Any]) -> None:
    steps: list[int] = []

    def rule(values: Any, state: Any, gradient: Any, step: int) -> None:
        steps.append(step)

    rig = Rig(make(optimizer=PythonRule(rule), consistency=BSP()))
    worker = rig.worker()
    for clock in range(9):
        if clock % 3 == 1 and make is dense:
            worker.table("w").push(ONE)
        elif clock % 3 == 1:
            worker.table("e").push(np.array([clock]), np.ones((1, 4), np.float32))
        worker.clock()
    assert steps == [1, 2, 3]


def test_rows_count_their_own_updates_under_bsp() -> None:
    rig = Rig(rows(8, optimizer=Adam(0.1), consistency=BSP()))
    worker = rig.worker()
    for clock in range(50):
        if clock % EVERY == EVERY - 1:
            worker.table("e").push(np.array([3]), ONE[None])
        elif clock % 2:
            worker.table("e").push(np.array([4]), ONE[None])
        worker.clock()
    assert rig.table_rows()[3] == plain(Adam(0.1), 5).tolist()
    assert rig.table_rows()[4] == plain(Adam(0.1), 20).tolist()


def test_a_clock_whose_only_push_came_too_late_is_no_step() -> None:
    rig = Rig(dense(optimizer=Adam(0.1), consistency=BSP("sum", backup=1)), n_workers=2)
    for clock in range(4):
        if clock == 3:
            rig.writers[0].push_dense(0, clock, ONE, None, 0)
        rig.writers[0].tick(clock)
        rig.drain()
        rig.writers[1].push_dense(0, clock, ONE, None, 0)  # its clock is closed
        rig.writers[1].tick(clock)
        rig.drain()
    assert rig.core.stats(0)["late"] == 4
    assert rig.core.steps(0) == 1
    assert rig.values().tobytes() == plain(Adam(0.1), 1).tobytes()


@pytest.mark.parametrize("killed_at", [1, 9, 10, 25])
def test_a_warm_restart_keeps_the_count(killed_at: int) -> None:
    rig = JournalRig(dense(optimizer=Adam(0.1), consistency=BSP()))
    try:
        for clock in range(50):
            if clock == killed_at:
                rig.again()
            if clock % EVERY == EVERY - 1:
                rig.writer.push_dense(0, clock, ONE, None, 0)
            rig.writer.tick(clock)
            rig.drain()
        assert rig.core.dense_values(0).tobytes() == plain(Adam(0.1), 5).tobytes()
        assert (rig.core.version(0), rig.core.steps(0)) == (50, 5)
        # An update that is undone was published.
        offset = rig.layout.updates_offset(0)
        rig.server.region.view(offset, 16, True).view(np.uint64)[:] = 6, 2**64 - 1 - 6
        rig.again()
        assert _native.read_word(rig.server.region, offset) == 5
    finally:
        unlink_job(rig.token)


def test_a_checkpoint_keeps_the_count(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    tables = [mpips.DenseTable("w", (8,), Adam(0.1))]

    def half(worker: Worker) -> np.ndarray:
        done = worker.start.step if worker.start is not None else 0
        push_now_and_then(worker, done, done + 25)
        found: np.ndarray = worker.table("w").pull()
        return found

    mpips.run(half, tables, save=tmp_path)
    with open_checkpoint(tmp_path / "latest") as checkpoint:
        assert (checkpoint.manifest.step, checkpoint.manifest.table("w").version) == (25, 2)
    assert mpips.run(half, tables, save=tmp_path).value.tobytes() == plain(Adam(0.1), 5).tobytes()
