"""Convert files into a cache with several workers in this process, one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpips.data import ReadOptions, SparseData
from mpips.data.dataset import Dataset, join
from mpips.data.readers import choose_reader
from mpips.data.stream import Conversion, Index, StreamedData
from mpips.data.stream.cache import write_index
from mpips.data.stream.conversion import Draft, draft
from mpips.data.stream.files import File

WORKERS = [1, 2, 3, 5]
TARGETS = ReadOptions(wants="targets")


def files(paths: Sequence[Path], form: str = "auto") -> list[File]:
    found = []
    for path in paths:
        state = os.stat(path)
        name = choose_reader(str(path), form).name
        found.append(File(str(path), state.st_size, state.st_mtime_ns, name))
    return found


def drafted(
    paths: Sequence[Path], options: ReadOptions, memory: int, cache: Path, form: str = "auto"
) -> Draft:
    return draft(str(paths[0]), files(paths, form), options, memory, cache)


def convert(plan: Draft, options: ReadOptions, n_workers: int, folder: Path) -> Index:
    """Convert as all workers do; return the index, which is the same on all."""
    workers = [Conversion(plan, options, worker, n_workers) for worker in range(n_workers)]
    surveys: dict[int, tuple[bool, bool]] = {}
    if workers[0].needs_survey:
        for own in workers:
            surveys |= own.survey()
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {
        place: found for own in workers for place, found in own.convert(surveys, folder).items()
    }
    indices = [own.index(pieces) for own in workers]
    assert all(index == indices[0] for index in indices)
    write_index(folder, indices[0])
    return indices[0]


def streamed(
    paths: Sequence[Path],
    cache: Path,
    *,
    options: ReadOptions | None = None,
    n_workers: int = 1,
    memory: int = 1 << 16,
    form: str = "auto",
) -> list[StreamedData]:
    """Return the share of each worker."""
    options = options or ReadOptions()
    plan = drafted(paths, options, memory, cache, form)
    folder = cache / plan.key
    index = convert(plan, options, n_workers, folder)
    return [StreamedData(folder, index, w, n_workers, memory) for w in range(n_workers)]


def numbers_of(share: StreamedData, worker: int) -> np.ndarray:
    """Return the numbers of a share's samples in the whole data, in the order of `parts`."""
    starts, stops = share.blocks.runs(worker)
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.concatenate([np.arange(0), *(np.arange(*pair) for pair in pairs)])


def whole(shares: Sequence[StreamedData]) -> Dataset:
    """Return the samples of all shares in the order of the files."""
    numbers = np.concatenate([numbers_of(share, w) for w, share in enumerate(shares)])
    assert sorted(numbers.tolist()) == list(range(shares[0].index.n))
    data = join([part for share in shares for part in share.parts()])
    batch = data.take(np.argsort(numbers))
    if isinstance(data, SparseData):
        return SparseData(
            batch.indptr,
            batch.keys,
            batch.values,
            batch.labels,
            data.n_features,
            batch.fields,
            data.n_fields,
        )
    return type(data)(batch.x, batch.labels)


def assert_same(found: Dataset, expected: Dataset) -> None:
    """Check that two data sets have the same arrays, bit by bit."""
    assert type(found) is type(expected)
    for name in ("labels", "x", "indptr", "indices", "values", "fields"):
        mine, other = getattr(found, name, None), getattr(expected, name, None)
        assert (mine is None) == (other is None), name
        if mine is not None:
            assert mine.dtype == other.dtype, name
            assert mine.tobytes() == other.tobytes(), name
    for name in ("n_features", "n_fields"):
        assert getattr(found, name, None) == getattr(expected, name, None), name
