"""Which data is read in windows, how much memory that takes, and what is refused."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpips.data import ReadOptions, read
from mpips.data.stream import conversion
from mpips.data.stream.files import is_streamed
from mpips.errors import DataError
from mpips.training.moments import moments_of
from tests.support.streaming import drafted, files, streamed, whole


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)


def test_files_of_the_same_name_size_and_time_have_caches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for folder, text in (("a", "0 1:1\n"), ("b", "1 1:1\n")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        path = Path("t.svm")
        path.write_text(text)
        os.utime(path, (1.7e9, 1.7e9))
        keys.add(drafted([path], ReadOptions(), 1 << 12, tmp_path / "cache").key)
        # The file is replaced by another of the same size and time.
        (tmp_path / folder / "new.svm").write_text(text.replace("1:1", "1:2"))
        os.utime(tmp_path / folder / "new.svm", (1.7e9, 1.7e9))
        (tmp_path / folder / "new.svm").replace(path)
        keys.add(drafted([path], ReadOptions(), 1 << 12, tmp_path / "cache").key)
    assert len(keys) == 4


@pytest.mark.parametrize("columns", [4, 600, 3000])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_window_holds_little_more_than_its_samples(
    tmp_path: Path, columns: int, n_workers: int
) -> None:
    n = 2000 if columns < 1000 else 400
    x = np.zeros((n, columns), np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(n) % 2)
    memory = x.nbytes // 8
    shares = streamed([tmp_path / "a.npz"], tmp_path / "cache", n_workers=n_workers, memory=memory)
    starts, stops = shares[0].blocks.runs(0)
    order = np.random.default_rng(1).permutation(len(starts))[: shares[0].window]
    window = np.concatenate([np.arange(starts[i], stops[i]) for i in order])
    data, rows = shares[0].read(window)
    assert data.n <= 1.1 * len(window)
    assert data.x.nbytes <= 1.2 * memory / 2
    assert data.take(rows).labels.tolist() == (window % 2).tolist()


def test_classes_of_the_training_data_that_do_not_occur_are_described(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,a\n" + "y,1\nz,2\n" * 40)
    options = ReadOptions(label_names=("x", "y", "z"))
    (share,) = streamed([path], tmp_path / "cache", options=options, memory=1 << 10)
    info = share.index.info()
    assert info.labels == (0.0, 1.0, 2.0)
    assert info.counts == (0, 40, 40)
    assert info == read(path, options=options).info
    assert whole([share]).labels.tolist() == [1.0, 2.0] * 40


def test_a_share_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:2 5:1\n0 3:1\n")
    shares = streamed([path], tmp_path / "cache", n_workers=5, memory=1 << 12)
    assert sorted(share.n for share in shares) == [0, 0, 0, 1, 1]
    empty = shares[-1]
    assert list(empty.parts()) == []
    assert empty.take(np.zeros(0, np.int64)).n == 0
    moments = moments_of(empty)
    assert moments.count == 0
    assert len(moments.present) == 5


def test_the_estimate_knows_the_samples_and_not_the_size_of_the_file(tmp_path: Path) -> None:
    x, y = np.zeros((1000, 50), np.uint8), np.zeros(1000)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "b.npz", x=x, y=y)
    source = random.Random(1)
    text = "".join(f"1 {source.randint(1, 9)}:1\n" for _ in range(1000))
    (tmp_path / "c.svm").write_text(text)
    (tmp_path / "d.svm.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "e.csv").write_text("y,a,b,c\n" + "1,,,5\n" * 1000)
    bytes_of = {"a.npz": 208_000, "b.npz": 208_000, "c.svm": 28_000, "d.svm.gz": 28_000}
    if hdf5 := pytest.importorskip("h5py"):
        with hdf5.File(tmp_path / "f.h5", "w") as file:
            file.create_dataset("x", data=x, compression="gzip")
            file["y"] = y
        bytes_of["f.h5"] = 208_000
    for name, size in bytes_of.items():
        found = files([tmp_path / name])
        # Text is estimated by the ratio of packed and unpacked bytes; arrays are known exactly.
        exact = name[-1] in "z5" and "svm" not in name
        assert is_streamed(found, ReadOptions(), 1, size - 1 if exact else size // 5), name
        assert not is_streamed(found, ReadOptions(), 1 if exact else 4, size), name
    # A cell of CSV takes at most 16 bytes and one for its label.
    assert is_streamed(files([tmp_path / "e.csv"]), ReadOptions(), 1, 24_000)
    assert not is_streamed(files([tmp_path / "e.csv"]), ReadOptions(), 1, 120_000)
    assert not is_streamed(files([tmp_path / "c.svm"]), ReadOptions(), 1, 1 << 20)


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a\n1,x\n0,z\n")
    (tmp_path / "b.svm").write_text("1 1:2\n")
    for paths in (["a.csv", "b.svm"], ["b.svm", "a.csv"]):
        with pytest.raises(DataError, match="some of its files have rows or columns, others lists"):
            streamed([tmp_path / name for name in paths], tmp_path / "cache")


def test_an_empty_file_among_several_is_refused_as_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n")
    (tmp_path / "b.svm").write_text("# nothing\n")
    paths = [tmp_path / "a.svm", tmp_path / "b.svm"]
    for work in (lambda: streamed(paths, tmp_path / "cache"), lambda: read(tmp_path / "*.svm")):
        with pytest.raises(DataError, match=r"b\.svm: contains no samples"):
            work()


def test_samples_without_entries_are_samples(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1\n0\n1\n")
    (share,) = streamed([tmp_path / "a.svm"], tmp_path / "cache")
    assert share.index.n_features == 0
    assert whole([share]).labels.tolist() == [1.0, 0.0, 1.0]
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 0)), y=np.arange(3))
    (share,) = streamed([tmp_path / "b.npz"], tmp_path / "cache")
    assert share.index.kind == "dense"
    assert whole([share]).labels.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_size_of_arrays_is_known_without_their_data(tmp_path: Path, save: Any) -> None:
    x = np.asfortranarray(np.ones((200_000, 5)))
    save(tmp_path / "x.npz", x=x, y=np.zeros(len(x)))
    found = files([tmp_path / "x.npz"])
    tracemalloc.start()
    assert is_streamed(found, ReadOptions(), 1, 1 << 16)
    assert tracemalloc.get_traced_memory()[1] < x.nbytes / 4
    tracemalloc.stop()
