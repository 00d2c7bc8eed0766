"""A kept cache whose files have changed gives the samples of the data or is converted again, never others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streaming import assert_same, whole

from mpips.data import ReadOptions
from mpips.data.dataset import Dataset
from mpips.data.stream import StreamedData
from mpips.data.stream.cache import INDEX, is_piece_whole, read_index
from mpips.mpi.one_rank import OneRank
from mpips.training.streaming import Streaming, stream

MEMORY = 1 << 12
OPTIONS = ReadOptions()


def write(path: Path, n: int = 1500) -> Path:
    random = np.random.default_rng(3)
    lines = [
        f"{i % 2} "
        + " ".join(f"{k}:{random.integers(1, 90)}" for k in sorted({i % 7, 9, 11 + i % 5}))
        for i in range(n)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def again(path: Path, cache: Path) -> tuple[Dataset, list[str]]:
    """Stream the data as a job does; return its samples and what it printed."""
    printed: list[str] = []
    found = stream(OneRank(), 1, str(path), OPTIONS, None, Streaming(MEMORY, cache, printed.append))
    assert found is not None
    assert isinstance(found.data, StreamedData)
    return whole([found.data]), [line for line in printed if "damaged" in line]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Path, Dataset]:
    """A file, a cache of it, and its samples."""
    path, cache = write(tmp_path / "a.svm"), tmp_path / "cache"
    samples, printed = again(path, cache)
    assert printed == []
    return path, cache, samples


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/*") if path.suffix in (".npz", ".json"))


@pytest.mark.parametrize("seed", range(4))
def test_no_flip_of_a_bit_gives_other_samples(kept: tuple[Path, Path, Dataset], seed: int) -> None:
    path, cache, samples = kept
    random = np.random.default_rng(seed)
    n_damaged = 0
    for _ in range(8):
        for file in files(cache)[:: max(1, len(files(cache)) // 3)]:
            content = bytearray(file.read_bytes())
            content[random.integers(len(content))] ^= 1 << random.integers(8)
            file.write_bytes(content)
            found, printed = again(path, cache)
            assert_same(found, samples)
            n_damaged += any(file.name in line for line in printed)
    # Some bits have no meaning, such as dates; an index that is no JSON any more is none.
    assert n_damaged >= 4


def test_each_array_of_a_piece_is_checked(kept: tuple[Path, Path, Dataset]) -> None:
    path, cache, samples = kept
    folder = next(cache.iterdir())
    index = read_index(folder)
    assert index is not None
    piece = index.pieces[-1]
    file = folder / piece.file
    whole_content = file.read_bytes()
    assert is_piece_whole(folder, piece)
    with np.load(file) as arrays:
        parts = {name: arrays[name].tobytes() for name in arrays.files}
    assert set(parts) == {"indptr", "indices", "values", "labels"}
    for name, part in parts.items():
        at = whole_content.index(part)
        for place in (at, at + len(part) // 2, at + len(part) - 1):
            content = bytearray(whole_content)
            content[place] ^= 4
            file.write_bytes(content)
            assert not is_piece_whole(folder, piece), name
    found, printed = again(path, cache)
    assert_same(found, samples)
    assert printed == [f"{file}: is damaged; {path} is converted again"]
    assert file.read_bytes() == whole_content


def test_an_index_with_another_number_is_none(kept: tuple[Path, Path, Dataset]) -> None:
    path, cache, samples = kept
    folder = next(cache.iterdir())
    file = folder / INDEX
    content = file.read_bytes()
    assert read_index(folder) is not None
    # Still valid JSON of the right form: only the checksum tells.
    at = content.index(b'"n_features":') + len(b'"n_features":')
    changed = bytearray(content)
    changed[at] ^= 1
    file.write_bytes(changed)
    assert read_index(folder) is None
    assert_same(again(path, cache)[0], samples)
    assert file.read_bytes() == content
