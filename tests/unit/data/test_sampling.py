"""Every sample of an epoch is read exactly once, for any sequence of job shapes in the epoch."""

from __future__ import annotations

import json
import tracemalloc
import zlib

import numpy as np
import pytest

from mpips.data import Cursor, DenseData, Loader, Sampling, Shape
from mpips.data.shares import Shares, numbers


class Numbers:
    """Data that is read in windows; the label of a sample is its number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def read(self, samples: np.ndarray) -> tuple[DenseData, np.ndarray]:
        found, rows = np.unique(samples, return_inverse=True)
        return DenseData(found[:, None].astype(np.float32), found), rows


def loaders(sampling: Sampling, cursors: list[Cursor]) -> list[Loader]:
    """Return the loader of each worker; the label of a sample is its number in the whole data."""
    shape = sampling.shape
    made = []
    for worker, cursor in enumerate(cursors):
        labels = numbers(shape.n_total, shape.n_workers, worker, shape.shares)
        data = DenseData(labels[:, None].astype(np.float32), labels)
        if shape.block:
            data = Numbers(shape.counts()[worker])
        made.append(
            Loader(
                data,
                shape.n_total,
                shape.n_workers,
                worker,
                shape.batch_size,
                shape.seed,
                cursor,
                sampling=sampling,
            )
        )
    return made


def read(loader: Loader, n_steps: int, n_epochs: int, seen: dict[int, list[int]]) -> Cursor:
    """Read some batches and return the cursor after them."""
    cursor = loader.cursor
    for at, batch in loader.until(n_epochs):
        if n_steps == 0:
            return at
        n_steps -= 1
        seen[at.epoch] += batch.labels.tolist()
        cursor = loader.after(at)
    return cursor


@pytest.mark.parametrize("seed", range(24))
def test_each_sample_is_read_once_an_epoch_over_any_chain_of_shapes(seed: int) -> None:
    random = np.random.default_rng(seed)
    n_total, n_epochs = int(random.integers(1, 200)), 4

    def drawn() -> Shape:
        rule: Shares = "mixed" if random.random() < 0.5 else "interleaved"
        block = int(random.integers(0, 12)) if random.random() < 0.5 else 0
        window = int(random.integers(1, 5))
        n_workers, batch_size = int(random.integers(1, 6)), int(random.integers(1, 20))
        return Shape(n_total, n_workers, batch_size, seed, rule, block, window)

    shape = drawn()
    sampling = Sampling(shape)
    cursors = [Cursor()] * shape.n_workers
    seen: dict[int, list[int]] = {epoch: [] for epoch in range(n_epochs)}
    for _ in range(5):
        together = random.random() < 0.5
        n_steps = random.integers(0, 12, shape.n_workers)
        n_steps = np.full_like(n_steps, n_steps[0]) if together else n_steps
        cursors = [
            read(loader, int(n), n_epochs, seen)
            for loader, n in zip(loaders(sampling, cursors), n_steps, strict=True)
        ]
        sampling = Sampling.from_config(json.loads(json.dumps(sampling.to_config())))
        if random.random() < 0.3:
            continue  # the same shape continues at its cursors
        shape = drawn()
        sampling = sampling.after([(c.epoch, c.step) for c in cursors], shape)
        first = min(c.epoch for c in cursors)
        cursors = [Cursor(first, 0)] * shape.n_workers
    for loader in loaders(sampling, cursors):
        read(loader, 10**9, n_epochs, seen)
    for epoch in range(n_epochs):
        assert sorted(seen[epoch]) == list(range(n_total)), epoch


def test_whole_epochs_behind_them_leave_no_legs() -> None:
    shape = Shape(100, 3, 7, 1)
    after = Sampling(shape).after([(2, 0)] * 3, Shape(100, 2, 7, 1))
    assert after.legs == ()
    assert after.number == 1


def test_the_rest_of_an_epoch_has_as_many_steps_on_every_worker() -> None:
    before = Shape(101, 3, 5, 1)
    sampling = Sampling(before).after([(0, 2), (0, 3), (0, 2)], Shape(101, 2, 5, 1))
    n_left = 101 - 5 * 7
    assert sum(sampling.counts(0)) == n_left
    made = loaders(sampling, [Cursor()] * 2)
    steps = [[c for c, _ in loader.until(2)] for loader in made]
    assert steps[0] == steps[1]
    assert len([c for c in steps[0] if c.epoch == 1]) == made[0].steps_per_epoch
    assert made[0].steps_until(2) == len(steps[0])


def test_weights_of_a_rest_make_the_mean_over_its_samples() -> None:
    sampling = Sampling(Shape(50, 4, 3, 1)).after(
        [(0, 4), (0, 1), (0, 2), (0, 4)], Shape(50, 3, 4, 1)
    )
    iterators = [loader.until(1) for loader in loaders(sampling, [Cursor()] * 3)]
    for step in zip(*iterators, strict=True):
        batches = [batch for _, batch in step]
        n_global = sum(batch.n for batch in batches)
        for batch in batches:
            assert batch.weight == pytest.approx(batch.n * 3 / n_global)


def test_cursors_of_a_checkpoint_without_a_rule_count_interleaved_shares() -> None:
    old = {
        "shape": {"n_total": 103, "n_workers": 3, "batch_size": 7, "seed": 5},
        "number": 0,
        "legs": [],
    }
    before = Sampling.from_config(old)
    cursors = [(1, 2), (1, 4), (1, 3)]
    read_before = [
        sample
        for worker, (_, step) in enumerate(cursors)
        for sample in before.own(1, worker)[: 7 * step].tolist()
    ]
    assert {sample % 3 for sample in before.own(1, 2).tolist()} == {2}

    shape = Shape.of_job(103, 3, 7, 5)
    assert shape.shares == "mixed"
    after = before.after(cursors, shape)
    rest = [sample for worker in range(3) for sample in after.own(1, worker).tolist()]
    assert sorted(read_before + rest) == list(range(103))


def test_one_worker_goes_on_in_the_order_of_an_older_checkpoint() -> None:
    assert Shape.of_job(103, 1, 7, 5) == Shape(103, 1, 7, 5)


def test_the_order_after_two_changes_is_the_one_on_which_checkpoints_rely() -> None:
    cursors = [(1, 9), (1, 4), (0, 20), (1, 0), (1, 11)]
    sampling = Sampling(Shape(997, 5, 7, 3, "mixed")).after(cursors, Shape(997, 4, 6, 3, "mixed"))
    cursors = [(1, 8), (0, 3), (1, 20), (1, 5)]
    sampling = sampling.after(cursors, Shape(997, 3, 8, 3, "mixed"))
    assert [sampling.counts(epoch) for epoch in (1, 2)] == [(221, 203, 207), (332, 332, 333)]
    found = [zlib.crc32(sampling.own(1, w).astype("<i8").tobytes()) for w in range(3)]
    assert found == [1497193356, 1907144304, 4050515920]


@pytest.mark.parametrize(("n_legs", "limit"), [(1, 0.0), (2, 0.125)])
def test_the_rest_of_an_epoch_needs_memory_for_a_share_and_not_for_all_samples(
    n_legs: int, limit: float
) -> None:
    n = 400_000
    sampling = Sampling(Shape(n, 100, 32, 1, "mixed"))
    for n_workers in (80, 50)[:n_legs]:
        cursors = [(0, 40)] * sampling.shape.n_workers
        sampling = sampling.after(cursors, Shape(n, n_workers, 32, 1, "mixed"))
    tracemalloc.start()
    sampling.counts(0)
    sampling.own(0, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    share = n / sampling.shape.n_workers
    # A few arrays of 8 bytes for a share, and a bit for a sample of the data if there are two legs.
    assert peak <= 100 * share + limit * n + 100_000
