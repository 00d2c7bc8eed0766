"""Batches of data that is read in windows: every sample once an epoch, mixed, and continued at a cursor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpips.data import Cursor, Loader, Sampling, Shape, read, sources
from mpips.data.stream import StreamedData, conversion
from mpips.errors import DataError
from tests.support.streaming import TARGETS, WORKERS, streamed


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)
    monkeypatch.setattr(sources, "_READ", 64)


def loaders(
    shares: list[StreamedData], batch: int, sampling: Sampling | None = None
) -> list[Loader]:
    n_total, n_workers = shares[0].index.n, len(shares)
    shape = shape_of(shares, batch)
    return [
        Loader(share, n_total, n_workers, w, batch, 1, sampling=sampling or Sampling(shape))
        for w, share in enumerate(shares)
    ]


def shape_of(shares: list[StreamedData], batch: int) -> Shape:
    n_total = shares[0].index.n
    return Shape.of_job(n_total, len(shares), batch, 1, shares[0].blocks.block, shares[0].window)


def numbered(path: Path, n: int) -> Path:
    """Write samples whose target is their number."""
    path.write_text("".join(f"{i} 1:{i}\n" for i in range(n)))
    return path


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_each_sample_is_read_once_an_epoch_and_a_cursor_continues(
    tmp_path: Path, n_workers: int, batch: int
) -> None:
    n = 331
    path = numbered(tmp_path / "a.svm", n)
    # Windows of a few samples, so that batches lie in two or more.
    shares = streamed(
        [path], tmp_path / "cache", options=TARGETS, n_workers=n_workers, memory=1 << 10
    )
    assert shares[0].window * shares[0].blocks.block < 40
    for epoch in range(2):
        seen = []
        for loader in loaders(shares, batch):
            own = [(c, b) for c, b in loader.until(2) if c.epoch == epoch]
            seen += [label for _, b in own for label in b.labels.tolist()]
            # The values belong to the labels.
            assert all(b.values[: b.n].tolist() == b.labels.tolist() for _, b in own if b.n)
        assert sorted(seen) == list(range(n))
    share = shares[-1]
    expected = [b.labels.tolist() for c, b in loaders(shares, batch)[-1].until(2)]
    for step in (0, 1, len(expected) // 3):
        at = Cursor(0, step)
        loader = Loader(
            share,
            n,
            n_workers,
            n_workers - 1,
            batch,
            1,
            at,
            sampling=Sampling(shape_of(shares, batch)),
        )
        assert [b.labels.tolist() for _, b in loader.until(2)] == expected[step:]


def test_the_order_of_an_epoch_is_mixed_over_the_file(tmp_path: Path) -> None:
    n = 4000
    path = numbered(tmp_path / "a.svm", n)
    (share,) = streamed([path], tmp_path / "cache", options=TARGETS, memory=1 << 14)
    orders = []
    loader = loaders([share], 50)[0]
    for epoch in range(2):
        orders.append(
            [x for c, b in loader.until(2) if c.epoch == epoch for x in b.labels.tolist()]
        )
    assert orders[0] != orders[1]
    # Each window of a twentieth of the file has samples of all tenths of it.
    size = share.window * share.blocks.block
    assert size < n / 10
    tenths = {int(x) * 10 // n for x in orders[0][:size]}
    assert tenths == set(range(10))


def test_a_job_that_reads_into_memory_continues_one_that_reads_in_windows(tmp_path: Path) -> None:
    n, batch = 200, 8
    path = numbered(tmp_path / "a.svm", n)
    shares = streamed([path], tmp_path / "cache", options=TARGETS, n_workers=3, memory=1 << 10)
    seen = []
    for loader in loaders(shares, batch):
        seen += [x for c, b in loader.until(1) if c.step < 4 for x in b.labels.tolist()]
    shape = Shape.of_job(n, 2, batch, 1)
    sampling = Sampling(shape_of(shares, batch)).after([(0, 4)] * 3, shape)
    for worker in range(2):
        part = read(path, stride=2, offset=worker, shares="mixed", options=TARGETS)
        loader = Loader(part.data, n, 2, worker, batch, 1, sampling=sampling)
        seen += [x for _, b in loader.until(1) for x in b.labels.tolist()]
    assert sorted(seen) == list(range(n))


def test_an_error_of_the_reading_thread_reaches_the_training(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.svm", 500)
    shares = streamed([path], tmp_path / "cache", options=TARGETS, memory=1 << 12)
    batches = loaders(shares, 10)[0].until(1)
    next(batches)
    for piece in shares[0].index.pieces:
        os.truncate(next((tmp_path / "cache").iterdir()) / piece.file, 100)
    with pytest.raises(DataError, match="the cache of the data is damaged or was removed"):
        list(batches)
