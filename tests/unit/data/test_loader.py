"""Loader: order of samples, shares of workers, weights and resuming."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from mpips.data import Cursor, DenseBatch, DenseData, Loader, local_count

SIZES = [
    (n, workers, batch)
    for n, workers, batch in itertools.product((1, 2, 7, 23, 24), (1, 2, 3, 5), (1, 4, 30))
]


def loader(n: int, workers: int, worker: int, batch: int, **options: object) -> Loader:
    """Return a loader of samples whose label is their number in the whole data."""
    labels = np.arange(worker, n, workers)
    data = DenseData(labels[:, None].astype(np.float32), labels)
    return Loader(data, n, workers, worker, batch, **{"seed": 1, **options})  # type: ignore[arg-type]


def labels_of(it: Loader, n_epochs: int) -> list[tuple[Cursor, list[int]]]:
    return [(cursor, batch.labels.tolist()) for cursor, batch in it.until(n_epochs)]


@pytest.mark.parametrize(("n", "workers", "batch"), SIZES)
def test_each_epoch_holds_each_sample_once(n: int, workers: int, batch: int) -> None:
    given = [labels_of(loader(n, workers, w, batch), 2) for w in range(workers)]
    for epoch in range(2):
        seen = [x for part in given for c, labels in part if c.epoch == epoch for x in labels]
        assert sorted(seen) == list(range(n))


@pytest.mark.parametrize(("n", "workers", "batch"), SIZES)
def test_all_workers_make_the_same_steps(n: int, workers: int, batch: int) -> None:
    largest = max(local_count(n, workers, w) for w in range(workers))
    n_steps = -(-largest // batch)
    expected = [Cursor(epoch, step) for epoch in range(2) for step in range(n_steps)]
    for worker in range(workers):
        it = loader(n, workers, worker, batch)
        assert it.steps_per_epoch == n_steps
        assert [cursor for cursor, _ in it.until(2)] == expected


@pytest.mark.parametrize(("n", "workers", "batch"), SIZES)
def test_weighted_mean_over_workers_is_the_mean_over_samples(
    n: int, workers: int, batch: int
) -> None:
    iterators = [loader(n, workers, w, batch).until(1) for w in range(workers)]
    for step in zip(*iterators, strict=True):
        batches = [b for _, b in step]
        n_global = sum(b.n for b in batches)
        for b in batches:
            assert b.weight == pytest.approx(b.n * workers / n_global)


def test_unweighted_batches_weigh_one() -> None:
    for _, batch in loader(7, 2, 1, 2, weighted=False).until(1):
        assert batch.weight == 1.0


@pytest.mark.parametrize(("n", "workers", "batch"), SIZES)
def test_resuming_gives_the_same_remaining_batches(n: int, workers: int, batch: int) -> None:
    worker = workers - 1
    whole = labels_of(loader(n, workers, worker, batch), 3)
    for i, (cursor, _) in enumerate(whole):
        stored = Cursor.from_config(json.loads(json.dumps(cursor.to_config())))
        assert labels_of(loader(n, workers, worker, batch, cursor=stored), 3) == whole[i:]
        after = loader(n, workers, worker, batch).after(cursor)
        assert labels_of(loader(n, workers, worker, batch, cursor=after), 3) == whole[i + 1 :]


def test_order_depends_on_seed_epoch_and_worker() -> None:
    def order(worker: int, seed: int, epoch: int) -> list[int]:
        it = loader(60, 2, worker, 30, seed=seed, cursor=Cursor(epoch, 0))
        labels: list[int] = next(iter(it))[1].labels.tolist()
        return [label // 2 for label in labels]

    orders = [order(w, s, e) for w in range(2) for s in range(2) for e in range(2)]
    assert len({tuple(o) for o in orders}) == 8
    assert order(1, 0, 1) == order(1, 0, 1)


def test_iterating_goes_on_for_ever() -> None:
    cursors = [cursor for cursor, _ in itertools.islice(loader(4, 1, 0, 2), 100)]
    assert cursors[-1] == Cursor(49, 1)


def test_batch_holds_the_rows_of_its_labels() -> None:
    for _, batch in loader(9, 2, 1, 3).until(1):
        assert isinstance(batch, DenseBatch)
        np.testing.assert_array_equal(batch.x[:, 0], batch.labels)


@pytest.mark.parametrize(
    "arguments", [(4, 1, 0, 0), (0, 1, 0, 1), (4, 2, 2, 1), (4, 2, -1, 1), (4, 0, 0, 1)]
)
def test_contradictory_numbers_are_refused(arguments: tuple[int, int, int, int]) -> None:
    n, workers, worker, batch = arguments
    data = DenseData(np.zeros((4, 1), np.float32), np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="must be positive"):
        Loader(data, n, workers, worker, batch, seed=0)


def test_share_of_another_size_is_refused() -> None:
    data = DenseData(np.zeros((4, 1), np.float32), np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="has 4 of 9 samples, expected 5"):
        Loader(data, 9, 2, 0, 1, seed=0)


@pytest.mark.parametrize("cursor", [Cursor(0, 2), Cursor(0, -1), Cursor(-1, 0)])
def test_cursor_outside_the_epoch_is_refused(cursor: Cursor) -> None:
    with pytest.raises(ValueError, match="step from 0 to 1"):
        loader(4, 1, 0, 2, cursor=cursor)
