"""A run of many launches with changing numbers of workers and batch sizes counts every sample exactly.

The launches run without rings. Each worker reads the samples of its loader and stores its cursor at each
tick, as a training worker does. The cut takes what the worker's cut record would contain. Under ASP workers
are cut at different clocks, some before their first tick; under BSP all at the same clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpips.checkpoint import Manifest, WorkerState
from mpips.checkpoint.position import decode_part
from mpips.data import Cursor, DataInfo, DenseData, Loader, Sampling, Shape
from mpips.recovery.memory import worker_state
from mpips.recovery.saving import Saving
from mpips.training.epochs import Inputs
from mpips.training.resume import beginning_of, set_place

N = 97
EPOCHS = 13
LAUNCHES = 29
INFO = DataInfo(N, N, 1, (0.0, 1.0), "dense", 0)


def samples_of(worker: int, n_workers: int) -> DenseData:
    """Return a worker's part of the data; the only feature of a sample is its number."""
    numbers = np.arange(worker, N, n_workers)
    return DenseData(numbers[:, None].astype(np.float32), np.zeros(len(numbers), np.int64))


class Launch:
    """One launch that continues where another was cut."""

    def __init__(self, before: Launch | None, n_workers: int, batch_size: int) -> None:
        shape = Shape(N, n_workers, batch_size, 5)
        self.n_workers = n_workers
        self.inputs = Inputs(INFO, None, [], EPOCHS, batch_size, sampling=Sampling(shape))
        self.saving = Saving(None, "run")
        if before is not None:
            cut = before.cut()
            set_place(self.inputs, cut.workers, cut.sampling, shape)
            beginning = beginning_of(self.inputs, cut, n_workers)
            self.saving = Saving(None, "run", origin=cut, beginning=beginning)
        self.positions = [self.saving.position(5, w, n_workers) for w in range(n_workers)]
        self.loaders = [
            Loader(
                samples_of(w, n_workers),
                N,
                n_workers,
                w,
                batch_size,
                5,
                cursor=self.inputs.cursor(w),
                sampling=self.inputs.sampling,
            )
            for w in range(n_workers)
        ]
        self.clocks = [0] * n_workers

    def run(self, worker: int, n_steps: int | None, counts: Any) -> None:
        """Run some steps of a worker, or all that are left."""
        loader, position = self.loaders[worker], self.positions[worker]
        position.set_cursor({"epoch": loader.cursor.epoch, "step": loader.cursor.step})
        if n_steps == 0:
            return
        for cursor, batch in loader.until(EPOCHS):
            if batch.n:
                counts[batch.x[:, 0].astype(int)] += 1
            following = loader.after(cursor)
            self.clocks[worker] += 1
            position.set_cursor({"epoch": following.epoch, "step": following.step})
            position.note_tick(self.clocks[worker], keep=True)
            if self.clocks[worker] == n_steps:
                return

    def cut(self) -> Manifest:
        """Return the checkpoint of the workers at their current positions."""
        origin = self.saving.origin
        same = origin is not None and len(origin.workers) == self.n_workers
        states: list[WorkerState] = []
        for w, position in enumerate(self.positions):
            part = decode_part(position.part())
            assert part.clock == self.clocks[w]
            before = origin.workers[w].clock if same else self.saving.steps_before
            states.append(worker_state(w, part, before + part.clock))
        return Manifest(
            run_id="run",
            generation=0,
            step=self.saving.steps_before + max(self.clocks),
            wall_time_s=0.0,
            servers=(),
            workers=tuple(states),
            tables=(),
            file=None,
            versions={},
            config={},
            sampling=self.inputs.sampling.to_config(),
        )


@pytest.mark.parametrize("in_step", [True, False], ids=["bsp", "asp"])
@pytest.mark.parametrize("seed", range(4))
def test_every_sample_is_counted_once_an_epoch_over_many_launches(seed: int, in_step: bool) -> None:
    random = np.random.default_rng([seed, in_step])
    counts = np.zeros(N, np.int64)
    launch = None
    for _ in range(LAUNCHES):
        before = launch
        n_workers, batch_size = int(random.integers(1, 8)), int(random.integers(1, 12))
        if before is not None and random.random() < 0.3:
            n_workers = (
                before.n_workers
            )  # sometimes as many workers as before, and batches of the same size
            batch_size = before.inputs.batch_size if random.random() < 0.5 else batch_size
        launch = Launch(before, n_workers, batch_size)
        first = launch.inputs.cursor(0)
        assert first.epoch >= (before.inputs.first_epoch if before is not None else 0)
        steps = [int(random.integers(0, 6))] * n_workers
        if not in_step:
            # Keep the workers close: none may be two epochs ahead of the slowest.
            steps = [int(random.integers(0, 6)) for _ in range(n_workers)]
        for w, n in enumerate(steps):
            launch.run(w, n, counts)
    assert launch is not None
    assert launch.inputs.cursor(0) > Cursor(0, 0)
    last = Launch(launch, 3, 7)
    for w in range(3):
        last.run(w, None, counts)
    assert (counts == EPOCHS).all()
