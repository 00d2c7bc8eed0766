"""Data that is read in windows has the samples that are read into memory, in every format."""

from __future__ import annotations

import errno
import gzip
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpips.data import DataInfo, ReadOptions, read, sources
from mpips.data.stored_arrays import members_of
from mpips.data.stream import cache, conversion, windows
from mpips.data.stream.cache import Index, read_index
from mpips.errors import CapabilityError, DataError
from tests.support.streaming import (
    TARGETS,
    WORKERS,
    assert_same,
    convert,
    drafted,
    numbers_of,
    streamed,
    whole,
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)
    monkeypatch.setattr(sources, "_READ", 64)


def libsvm(path: Path, n: int = 300, first: int = 1) -> Path:
    source = random.Random(1)
    with path.open("w") as file:
        for i in range(n):
            keys = sorted(source.sample(range(first, 50), source.randint(0, 6)))
            entries = " ".join(f"{key}:{source.randint(-9, 9)}.5" for key in keys)
            file.write(f"{'# only a comment' if i % 50 == 7 else f'{i % 3} {entries}'}\n")
    return path


def table(path: Path, n: int = 300, text: bool = True, label: str = "text") -> Path:
    """Write CSV with line ends, delimiters and quotes within quoted cells."""
    source = random.Random(2)
    cells = ['"a, b"', '"x\ny"', '"say ""no"""', "plain", 'in"ch', "", '"\n\n"', '""""']
    with path.open("w", newline="") as file:
        file.write("number,word,y\n" if text else "number,other,y\n")
        for i in range(n):
            number = source.choice(["1.5", "-2", "0", f"{source.random():.9f}"])
            word = source.choice(cells) if text else str(source.randint(0, 9))
            name = f"class{i * 7 % 5}" if label == "text" else str(i * 7 % 5)
            file.write(f"{number},{word},{name}\n" + ("\n" if i % 40 == 3 else ""))
    return path


def parquet(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    n = 400
    columns = {
        "number": pyarrow.array([i / 8 if i % 9 else None for i in range(n)]),
        "word": pyarrow.array([f"w{i % 11}" for i in range(n)]),
        "y": pyarrow.array([f"c{i * 3 % 4}" for i in range(n)]),
    }
    parquet.write_table(pyarrow.table(columns), path, row_group_size=150)
    return path


def arrays(path: Path) -> Path:
    source = np.random.default_rng(3)
    x = source.integers(-99, 99, (150, 3, 2)).astype(np.float32)
    y = source.integers(0, 4, 150)
    if path.suffix == ".npz":
        np.savez(path, x=x, y=y)
        return path
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = x, y
    return path


def arrow(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc
    from pyarrow import parquet as files

    table = files.read_table(parquet(path.with_suffix(".parquet")))
    table = table.set_column(1, "word", table["word"].dictionary_encode())
    new = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
    with new(pyarrow.OSFile(str(path), "wb"), table.schema) as file:
        file.write_table(table, max_chunksize=90)
    return path


def npy(path: Path, structured: bool = False) -> Path:
    source = np.random.default_rng(3)
    x = source.integers(-99, 99, (150, 3, 2)).astype(np.float32)
    if structured:
        records = np.zeros(150, [("a", "f4"), ("y", "i4"), ("b", "f8"), ("c", "i8")])
        records["a"], records["b"], records["c"] = x[:, 0, 0], x[:, 1, 0] / 7, x[:, 2, 0]
        records["y"] = source.integers(0, 4, 150)
        np.save(path, records)
        return path
    np.save(path, np.asfortranarray(x))
    np.save(path.with_name("y.npy"), source.integers(0, 4, 150))
    return path


def packed(path: Path) -> Path:
    (path.parent / "a.svm.gz").write_bytes(gzip.compress(libsvm(path).read_bytes()))
    return path.parent / "a.svm.gz"


def packed_table(path: Path) -> Path:
    (path.parent / "a.csv.gz").write_bytes(gzip.compress(table(path).read_bytes()))
    return path.parent / "a.csv.gz"


MAKERS = {
    "libsvm": lambda folder: libsvm(folder / "a.svm"),
    "libsvm from 0": lambda folder: libsvm(folder / "a.svm", first=0),
    "libsvm.gz": lambda folder: packed(folder / "a.svm"),
    "csv": lambda folder: table(folder / "a.csv"),
    "dense csv": lambda folder: table(folder / "a.csv", text=False, label="number"),
    "csv.gz": lambda folder: packed_table(folder / "a.csv"),
    "parquet": lambda folder: parquet(folder / "a.parquet"),
    "arrow": lambda folder: arrow(folder / "a.arrow"),
    "arrow stream": lambda folder: arrow(folder / "a.arrows"),
    "npy": lambda folder: npy(folder / "x.npy"),
    "records": lambda folder: npy(folder / "a.npy", structured=True),
    "npz": lambda folder: arrays(folder / "a.npz"),
    "hdf5": lambda folder: arrays(folder / "a.h5"),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("n_workers", WORKERS)
def test_samples_are_those_that_are_read_into_memory(
    tmp_path: Path, kind: str, n_workers: int
) -> None:
    path = MAKERS[kind](tmp_path)
    shares = streamed([path], tmp_path / "cache", n_workers=n_workers, memory=1 << 12)
    index = shares[0].index
    assert len(index.pieces) > (0 if kind.endswith("gz") else 3)
    part = read(path)
    assert index.info() == replace(part.info, n_local=part.info.n_samples_total)
    assert index.notes == part.notes
    assert_same(whole(shares), part.data)
    # Any samples, in any order, are those of the file.
    rows = np.random.default_rng(1).permutation(index.n)[:40]
    data, places = shares[0].read(rows)
    expected = part.data.take(rows)
    found = data.take(places)
    assert found.labels.tolist() == expected.labels.tolist()
    assert (
        found.densify(60).tolist() == expected.densify(60).tolist() if kind[:3] == "lib" else True
    )
    # The places of a share are those of its samples.
    for worker, share in enumerate(shares):
        numbers = numbers_of(share, worker)
        own = np.arange(share.n)[::3]
        assert share.take(own).labels.tolist() == part.data.labels[numbers[own]].tolist()


@pytest.mark.parametrize("seed", range(40))
def test_spans_of_csv_begin_at_records_whatever_the_quotes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    monkeypatch.setattr(conversion, "_LEAST_PIECE", source.choice([7, 20, 61]))
    cells = ['"a, b"', '"x\ny"', '""""', "plain", 'i"n', '"\r\n"', '""', '"""a"""', '"\n,"', "é"]
    # Cells that contain whole spans, and what looks like other cells.
    cells += ['"' + '\n,""1"",' * 12 + '"', '"' + "line,\n" * 30 + '"']
    end = source.choice(["\n", "\r\n"])
    lines = ["y,a,b"]
    for _ in range(source.randint(1, 25)):
        # A class that only one record has shows a record that is read twice or not at all.
        lines.append(",".join([str(len(lines)), source.choice(cells), source.choice(cells)]))
    path = tmp_path / "a.csv"
    path.write_bytes((end.join(lines) + source.choice(["", end])).encode())
    options = ReadOptions(categorical=("a", "b"))
    shares = streamed([path], tmp_path / "cache", options=options, n_workers=3, memory=1 << 10)
    assert_same(whole(shares), read(path, options=options).data)


def test_a_header_may_be_longer_than_a_span(tmp_path: Path) -> None:
    names = [f"column_{i}" for i in range(300)]
    rows = [",".join(str(i * j % 7) for j in range(301)) for i in range(20)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([",".join(["y", *names]), *rows]) + "\n")
    shares = streamed([path], tmp_path / "cache", n_workers=2, memory=1 << 12)
    assert shares[0].index.columns == tuple(names)
    assert_same(whole(shares), read(path).data)


@pytest.mark.parametrize("files_at_once", [1, 3, 128])
def test_pieces_of_different_dtypes_and_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_at_once: int
) -> None:
    monkeypatch.setattr(windows, "_MOST_FILES", files_at_once)
    most = []

    class Counted(windows._Parts):
        def __init__(self, files: list[object], which: np.ndarray) -> None:
            super().__init__(files, which)  # type: ignore[arg-type]
            most.append(len(files))

    monkeypatch.setattr(windows, "_Parts", Counted)
    path = tmp_path / "a.svm"
    # Indices beyond 32 bits in some pieces only.
    path.write_text(
        "".join(f"{i % 2} {1 + i % 5}:1 {7 + (i // 60 % 2 << 33)}:2\n" for i in range(600))
    )
    shares = streamed([path], tmp_path / "cache", memory=1 << 12)
    assert_same(whole(shares), read(path).data)
    x = np.arange(3000.0).reshape(1000, 3)
    x[400:500] += 0.1  # no float32
    np.savez(tmp_path / "b.npz", x=x, y=np.arange(1000) % 2)
    dense = streamed([tmp_path / "b.npz"], tmp_path / "cache", memory=1 << 12)
    assert_same(whole(dense), read(tmp_path / "b.npz").data)
    assert max(most) <= files_at_once
    assert all(len(share._files) <= 2 * files_at_once for share in (*shares, *dense))


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    first = libsvm(tmp_path / "a.svm", 100)
    second = libsvm(tmp_path / "b.svm", 100, first=0)
    shares = streamed([first, second], tmp_path / "cache", n_workers=2, memory=1 << 12)
    part = read(tmp_path / "*.svm")
    # Index 0 occurs in the second file only; the base of both is 0.
    assert shares[0].index.index_base == 0
    assert_same(whole(shares), part.data)
    table(tmp_path / "a.csv", 60)
    # Columns of the second file are in another order.
    (tmp_path / "b.csv").write_text("y;word;number\nclass9;plain;3\nclass0;;4\n")
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    shares = streamed(paths, tmp_path / "cache", n_workers=2, memory=1 << 12)
    part = read(tmp_path / "*.csv")
    assert_same(whole(shares), part.data)
    assert shares[0].index.info() == replace(part.info, n_local=part.info.n_samples_total)


def test_a_second_job_finds_the_cache_and_another_file_does_not(tmp_path: Path) -> None:
    path, options = libsvm(tmp_path / "a.svm"), ReadOptions()
    plan = drafted([path], options, 1 << 12, tmp_path / "cache")
    assert not plan.is_there
    index = convert(plan, options, 2, tmp_path / "cache" / plan.key)
    again = drafted([path], options, 1 << 12, tmp_path / "cache")
    assert again.is_there
    assert again.key == plan.key
    assert read_index(tmp_path / "cache" / plan.key) == index
    # Other options, another size of pieces, or a changed file have a cache of their own.
    keys = {plan.key, drafted([path], ReadOptions(index_base=0), 1 << 12, tmp_path).key}
    keys.add(drafted([path], options, 1 << 20, tmp_path).key)
    path.write_text("1 1:2\n")
    keys.add(drafted([path], options, 1 << 12, tmp_path).key)
    assert len(keys) == 4
    # A cache that lacks a piece, or has part of one, is none.
    folder = tmp_path / "cache" / plan.key
    piece = folder / index.pieces[0].file
    content = piece.read_bytes()
    piece.write_bytes(content[:-1])
    assert read_index(folder) is None
    piece.unlink()
    assert read_index(folder) is None
    piece.write_bytes(content)
    assert read_index(folder) == index
    (folder / cache.INDEX).write_text("{}")
    assert read_index(folder) is None


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path, options = libsvm(tmp_path / "a.svm"), ReadOptions()
    plan = drafted([path], options, 1 << 12, tmp_path / "cache")
    with path.open("a") as file:
        file.write("1 1:2\n")
    with pytest.raises(DataError, match="has changed while it was read, or is another file"):
        convert(plan, options, 1, tmp_path / "cache")


def test_a_full_disk_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache.np, "savez", full)
    with pytest.raises(CapabilityError, match=r"No space left on device; set data\.cache"):
        streamed([libsvm(tmp_path / "a.svm")], tmp_path / "cache")
    # Nothing half written is left.
    assert not [*tmp_path.glob("cache/*/*")]


def test_a_cache_that_is_removed_while_it_is_read_is_one_sentence(tmp_path: Path) -> None:
    (share,) = streamed([libsvm(tmp_path / "a.svm")], tmp_path / "cache", memory=1 << 12)
    folder = next((tmp_path / "cache").iterdir())
    piece = folder / share.index.pieces[-1].file
    share.read(np.arange(share.n))  # now places in the files are known
    piece.write_bytes(piece.read_bytes()[:200])
    with pytest.raises(DataError, match="is shorter than when the job began"):
        share.read(np.arange(share.n))
    piece.unlink()
    with pytest.raises(DataError, match="the cache of the data is damaged or was removed"):
        share.read(np.arange(share.n))


def test_pieces_are_files_of_numpy(tmp_path: Path) -> None:
    (share,) = streamed([table(tmp_path / "a.csv")], tmp_path / "cache", memory=1 << 12)
    path = next((tmp_path / "cache").iterdir()) / share.index.pieces[0].file
    with np.load(path) as archive:
        members = members_of(str(path))
        assert set(archive) == set(members) == {"indptr", "indices", "values", "labels", "fields"}
        assert archive["fields"].dtype == np.uint16
        assert [archive[name].shape for name in archive] == [m.shape for m in members.values()]
    compressed = tmp_path / "b.npz"
    np.savez_compressed(compressed, x=np.zeros((2, 2)), y=np.zeros(2))
    with pytest.raises(DataError, match=r"cannot be read in windows: x\.npy is compressed"):
        streamed([compressed], tmp_path / "cache")


def test_an_index_describes_targets_and_wide_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,t\n" + "".join(f"{i}.5,{1_700_000_000 + i}\n" for i in range(200)))
    (share,) = streamed([path], tmp_path / "cache", options=TARGETS, memory=1 << 11)
    info: DataInfo = share.index.info()
    assert info.wide
    assert info.target_range == (0.5, 199.5)
    assert isinstance(share.index, Index)
    assert whole([share]).x[:, 0].tolist() == [1_700_000_000 + i for i in range(200)]
