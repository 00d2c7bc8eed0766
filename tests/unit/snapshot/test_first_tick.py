"""Cuts before a worker's first tick hold the position where the worker began.

Each job starts from a checkpoint of one worker; its own workers are two, or read other batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Rig, dense, rows
from late_tree import LateTree

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.checkpoint.position import PositionPart, decode_part
from mpips.config.schema import JobConfig, load_config
from mpips.data import Cursor, Sampling
from mpips.model.consistency import ASP
from mpips.mpi.messages import Commit
from mpips.recovery.memory import At, Memory, place_of
from mpips.recovery.saving import Saving
from mpips.scheduler.own_worker import OwnWorker
from mpips.tasks import StepResult, Task
from mpips.training.epochs import Inputs
from mpips.training.prepare import prepare, ready
from mpips.training.resume import TrainingPlan, continue_in_memory
from mpips.training.train import train
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.worker import Worker

N = 60
EPOCHS = 9


class Counting(Task):
    """A task that counts how often each sample is read."""

    name = "counting"
    metrics = ()

    def __init__(self, info: Any, options: Any, seed: int) -> None:
        pass

    def tables(self) -> list[Any]:
        return [mpips.EmbeddingTable("e", 1, mpips.SGD(1.0), ASP(), init="zeros")]

    def step(self, worker: Worker, batch: Any) -> StepResult:
        worker.table("e").push(batch.x[:, 0].astype(np.int64), np.ones((batch.n, 1), np.float32))
        return StepResult(1.0, batch.n)

    def predict(self, worker: Worker, batch: Any) -> np.ndarray:
        return np.zeros(batch.n, np.float32)


def late_others(control: OwnWorker) -> Any:
    """Return a tree whose other workers come to a gather only after a cut is ordered."""
    return LateTree(1, lambda: setattr(control.cut, "pending", Commit(1, 0)))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint in the middle of epoch 3, at step 28; an epoch has 8 steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    train(
        config(folder, ["checkpoint.every_steps", 28], ["checkpoint.keep_last", 99]), "none", False
    )
    path = next(c.path for c in list_checkpoints(folder / "run") if c.step == 28)
    with open_checkpoint(path) as checkpoint:
        state = checkpoint.manifest.workers[0]
    assert (state.epoch, state.step) == (3, 4)
    return path


def config(folder: Path, *more: list[Any]) -> JobConfig:
    data = folder / "numbers.npz"
    x = np.arange(N, dtype=np.float32)[:, None]
    np.savez(data, x=x, y=(np.arange(N) % 2).astype(np.int64))
    first = [
        ("task", f"{__name__}:Counting"),
        ("data.train", str(data)),
        ("train.epochs", EPOCHS),
        ("train.batch_size", 8),
        ("checkpoint.folder", str(folder / "run")),
    ]
    return load_config(None, [*first, *[(key, value) for key, value in more]])


class InTurn:
    """Runs the work of all workers of a job in one process, that of worker `last` at the end."""

    def __init__(self, n_workers: int, last: int) -> None:
        self._order = [*(w for w in range(n_workers) if w != last), last]
        self.worker = last
        self.is_scheduler = True

    def agree(self, what: str, work: Callable[[], Any], lengthy: bool = False) -> list[Any]:
        if not what.startswith("reading"):
            return [work()]
        found = {}
        for worker in self._order:
            self.worker = worker
            found[worker] = work()
        return [found[w] for w in sorted(found)]


def planned(
    folder: Path, path: Path, n_workers: int, batch: int, worker: int
) -> tuple[JobConfig, Inputs, Saving]:
    """Return what one worker of a job that continues from a checkpoint has before its session."""
    wanted = config(folder, ["checkpoint.resume", str(path)], ["train.batch_size", batch])

    inputs = prepare(InTurn(n_workers, worker), n_workers, wanted)
    return wanted, inputs, TrainingPlan(wanted, inputs, n_workers, None, "run").choose()


def part_in_first_gather(
    inputs: Inputs, saving: Saving, n_workers: int, index: int
) -> PositionPart:
    """Return the content of the cut record that a worker writes while it waits for the moments of others."""
    rig = Rig(*inputs.tables, n_workers=n_workers, n_slots=8)
    control = OwnWorker()
    connection = Connection(
        index,
        [f"worker {i}" for i in range(n_workers)],
        rig.tables,
        [rig.channel(index, True)],
        control,
        None,
        60.0,
        ConnectionOptions(saving.position(0, index, n_workers)),
        tree := late_others(control),
    )
    worker = Worker(connection, rig.tables, rig.placement)
    rig.core.expect_cut(1)
    ready(worker, inputs, 0)
    assert tree.looked >= 2
    assert rig.core.holds_cut()
    return decode_part(rig.core.position_text(index))


@pytest.mark.parametrize(
    ("n_workers", "batch", "index"), [(2, 8, 0), (2, 8, 1), (2, 4, 1), (1, 4, 0)]
)
def test_a_cut_before_the_first_tick_holds_the_place_where_training_goes_on(
    tmp_path: Path, interrupted: Path, n_workers: int, batch: int, index: int
) -> None:
    _, inputs, saving = planned(tmp_path, interrupted, n_workers, batch, index)
    part = part_in_first_gather(inputs, saving, n_workers, index)
    # Epochs 0 to 2 are done. The rest of epoch 3 is read from its first step on, in the new division.
    assert (part.clock, part.cursor["epoch"], part.cursor["step"]) == (0, 3, 0)
    # Each sample of epoch 3 is read once: 32 by the job before, the others from these cursors on.
    left = Sampling.from_config(dict(saving.sampling))
    assert sum(left.counts(3)) == N - 32


def test_with_the_same_workers_and_batches_it_is_the_place_in_the_checkpoint(
    tmp_path: Path, interrupted: Path
) -> None:
    _, inputs, saving = planned(tmp_path, interrupted, 1, 8, 0)
    part = part_in_first_gather(inputs, saving, 1, 0)
    assert (part.clock, part.cursor["epoch"], part.cursor["step"]) == (0, 3, 4)
    assert part.cursor["samples"] == 32


def memory_of(saving: Saving, n_workers: int) -> Memory:
    return Memory(
        generation=3,
        tables="",
        shape=(1, n_workers),
        step=saving.steps_before,
        workers=tuple(saving.origin.workers),
        beginning=saving.beginning,
        sampling=dict(saving.sampling),
    )


def at(clock: int, *texts: str) -> At:
    return At(
        sequence=9,
        applied=9,
        clock=clock,
        finished=False,
        pushes=0,
        tag=0,
        ended=[],
        texts=list(texts),
    )


@pytest.mark.parametrize(("n_workers", "batch"), [(2, 8), (1, 4)])
def test_a_warm_start_before_the_first_tick_begins_where_the_launch_before_began(
    tmp_path: Path, interrupted: Path, n_workers: int, batch: int
) -> None:
    wanted, inputs, saving = planned(tmp_path, interrupted, n_workers, batch, 0)
    memory = msgspec.json.decode(msgspec.json.encode(memory_of(saving, n_workers)), type=Memory)
    places = tuple(place_of(w, [at(0), at(0)], memory) for w in range(n_workers))
    warm = saving.in_memory(memory, places, ())
    continue_in_memory(wanted, inputs, warm, n_workers)
    assert [inputs.cursor(w) for w in range(n_workers)] == [Cursor(3, 0)] * n_workers
    # A checkpoint that the warm launch writes describes how its cursors are to be read.
    assert Sampling.from_config(dict(warm.sampling)) == inputs.sampling
    assert inputs.sampling == Sampling.from_config(dict(saving.sampling))
    part = part_in_first_gather(inputs, warm, n_workers, 0)
    assert (part.clock, part.cursor["epoch"], part.cursor["step"]) == (0, 3, 0)


def script_saving(path: Path) -> Saving:
    with open_checkpoint(path) as checkpoint:
        return Saving(path.parent, "run", path, checkpoint.manifest)


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_script_whose_position_is_unknown_is_in_no_cut_before_its_first_tick(
    interrupted: Path, ticks: int
) -> None:
    """The next start would read an empty cursor as the beginning of the run."""
    rig = Rig(dense(4), rows(1), n_workers=2, n_slots=8)
    position = script_saving(interrupted).position(0, 0, 2)
    assert position.start is not None
    assert position.start.cursor is None
    control = OwnWorker()
    connection = Connection(
        0,
        ["worker 0", "worker 1"],
        rig.tables,
        [rig.channel(0, True)],
        control,
        None,
        60.0,
        ConnectionOptions(position),
        late_others(control),
    )
    worker = Worker(connection, rig.tables, rig.placement)
    rig.core.expect_cut(1)
    worker.set_cursor({"clock": 1})
    for _ in range(ticks):
        worker.clock()
    worker.barrier("before the first push")
    rig.drain()
    assert rig.core.holds_cut() == bool(ticks)
    if not ticks:
        worker.clock()
    rig.drain()
    assert rig.core.holds_cut()
    assert decode_part(rig.core.position_text(0)).cursor == {"clock": 1}


def test_a_script_goes_on_warm_before_its_first_tick_as_from_the_checkpoint(
    interrupted: Path,
) -> None:
    saving = script_saving(interrupted)
    memory = memory_of(saving, 2)
    ticked = saving.position(0, 1, 2)
    ticked.set_cursor({"clock": 5})
    places = (
        place_of(0, [at(0)], memory),
        place_of(1, [at(1, ticked.coming_part(1).hex())], memory),
    )
    warm = dataclasses.replace(saving, sampling={}).in_memory(memory, places, ())
    cold, again = saving.position(0, 0, 2), warm.position(0, 0, 2)
    assert again.start == cold.start
    assert not again.known
    other = warm.position(0, 1, 2)
    assert other.start is not None
    assert other.start.cursor == {"clock": 5}
    assert other.known
